#pragma once
// What a module and those below it hold, under every name it has: for code that moves, copies or places tensors.
#include <string>
#include <vector>

#include "nn/module.h"

namespace lockstep::nn {

/// "a.b"; the name alone of what is in no module.
inline std::string joined(const std::string& module, const std::string& name) {
  return module.empty() ? name : module + "." + name;
}

/// A parameter or buffer under one of its names.
struct NamedField {
  std::string name;
  Variable* parameter = nullptr;
  Tensor* buffer = nullptr;

  const Tensor& tensor() const { return parameter ? parameter->tensor() : *buffer; }
  /// The same for all names of a shared parameter.
  const void* key() const { return parameter ? static_cast<const void*>(parameter->impl().get()) : buffer; }
  void set(const Tensor& tensor) const {
    if (parameter) parameter->set_tensor(tensor);
    else *buffer = tensor;
  }
};
/// Those below `module` by dotted name, in the order of fields(); shared ones as often as they are named.
std::vector<NamedField> named_fields(Module& module);

}  // namespace lockstep::nn
