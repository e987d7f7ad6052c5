#pragma once
// The parts of a model. Internal to device_map/.
#include <string>
#include <vector>

#include "nn/named_fields.h"
#include "parallel/device_map/plan.h"

namespace lockstep::device_map {

using nn::NamedField;

inline int64_t bytes_of(const Tensor& tensor) { return tensor.numel() * size_of(tensor.dtype()); }

std::vector<Part> find_parts(nn::Module& model, const Options& options);
/// What the main device must have room for: the largest part from elsewhere, with what modules around it hold then.
int64_t reserve_of(const std::vector<Part>& parts, const std::vector<Location>& places);
/// Whether `name` is `prefix`, or below it.
inline bool is_below(const std::string& name, const std::string& prefix) {
  return prefix.empty() || name == prefix ||
         (name.size() > prefix.size() && name.starts_with(prefix) && name[prefix.size()] == '.');
}

}  // namespace lockstep::device_map
