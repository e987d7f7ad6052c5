#pragma once
// Divides a model into parts, each placed on one device, in host memory or on disk. Internal to device_map/.
#include <string>
#include <vector>

#include "extensions/device_map/plan.h"
#include "nn/named_fields.h"

namespace lockstep::device_map {

using nn::NamedField;

/// Bytes of a tensor's elements.
inline int64_t bytes_of(const Tensor& tensor) { return tensor.numel() * size_of(tensor.dtype()); }

/// All parts of a model, in the order of fields(). Error if the model has no tensors.
std::vector<PlacementUnit> find_parts(nn::Module& model, const DeviceMapOptions& options);
/// Bytes that the main device must keep free for parts in host memory or on disk, which it loads one at a time. While a
/// part runs, the tensors that its enclosing modules read themselves stay loaded too. Returns the largest total.
int64_t reserve_of(const std::vector<PlacementUnit>& parts, const std::vector<Location>& places);
/// True if `name` is `prefix` or begins with `prefix` and a dot; true for every name if `prefix` is empty.
inline bool is_below(const std::string& name, const std::string& prefix) {
  return prefix.empty() || name == prefix ||
         (name.size() > prefix.size() && name.starts_with(prefix) && name[prefix.size()] == '.');
}

}  // namespace lockstep::device_map
