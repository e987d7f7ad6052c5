#pragma once
// The parts of a model, and where its tensors are. Internal to device_map/.
#include <string>
#include <vector>

#include "parallel/device_map/plan.h"

namespace lockstep::device_map {

/// A parameter or buffer under one of its names.
struct Slot {
  std::string name;
  nn::Fields::Entry entry;
  const Tensor& tensor() const { return entry.parameter ? entry.parameter->tensor() : *entry.buffer; }
  /// The same for all names of a shared parameter.
  const void* key() const {
    return entry.parameter ? static_cast<const void*>(entry.parameter->impl().get()) : entry.buffer;
  }
};
std::vector<Slot> slots_of(nn::Module& model);
inline int64_t bytes_of(const Tensor& tensor) { return tensor.numel() * size_of(tensor.dtype()); }

std::vector<Part> find_parts(nn::Module& model, const Options& options);
/// What the main device must have room for: the largest part that is elsewhere, with what the modules around it hold
/// meanwhile.
int64_t reserve_of(const std::vector<Part>& parts, const std::vector<bool>& elsewhere);
/// Whether `name` is `prefix`, or below it.
inline bool is_below(const std::string& name, const std::string& prefix) {
  return prefix.empty() || name == prefix ||
         (name.size() > prefix.size() && name.starts_with(prefix) && name[prefix.size()] == '.');
}

}  // namespace lockstep::device_map
