// Placeholder tensors for weights that are stored in another form, such as 8-bit codes. See stored_matrix.h.
#include "tensor/stored_matrix.h"

#include <string_view>

namespace lockstep {

namespace {
// Text in the Error of an operation that reads a placeholder as if it were an ordinary tensor. stored_in() recognises
// placeholders by this text.
constexpr const char* stored = "a weight in a form that only linear() and matmul() read";
}  // namespace

Tensor stand_in(std::shared_ptr<const StoredMatrix> matrix, DType dtype) {
  const Shape shape = matrix->shape();
  const Device device = matrix->device();
  auto origin = std::const_pointer_cast<StoredMatrix>(std::move(matrix));
  return Tensor(Storage::reserve(numel_of(shape) * size_of(dtype), device, stored, std::move(origin)), 0, shape,
                contiguous_strides(shape), dtype);
}

const StoredMatrix* stored_in(const Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const Storage& storage = *tensor.storage();
  if (!storage.is_empty() || std::string_view(storage.emptied_of()) != stored) return nullptr;
  return static_cast<const StoredMatrix*>(storage.origin().get());
}

}  // namespace lockstep
