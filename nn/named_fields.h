#pragma once
// Parameters and buffers under all of their names, for code that moves, copies or places tensors. Module's own lists
// give a shared parameter only once.
#include <string>
#include <vector>

#include "nn/module.h"

namespace lockstep::nn {

/// "module.name", or just the name if `module` is empty.
inline std::string joined(const std::string& module, const std::string& name) {
  return module.empty() ? name : module + "." + name;
}

/// A parameter or buffer under one of its names; exactly one pointer is set.
struct NamedField {
  std::string name;
  Variable* parameter = nullptr;
  Tensor* buffer = nullptr;

  /// The current value.
  const Tensor& tensor() const { return parameter ? parameter->tensor() : *buffer; }
  /// Identifies the field: equal for all names of a shared parameter.
  const void* key() const { return parameter ? static_cast<const void*>(parameter->impl().get()) : buffer; }
  /// Replaces the tensor.
  void set(const Tensor& tensor) const {
    if (parameter) parameter->set_tensor(tensor);
    else *buffer = tensor;
  }
};
/// All parameters and buffers below `module` by dotted name, in the order of fields(); a shared one appears once per
/// name.
std::vector<NamedField> named_fields(Module& module);

}  // namespace lockstep::nn
