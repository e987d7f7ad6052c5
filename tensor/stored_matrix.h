#pragma once
// Weight matrices that are stored not as numbers but in another form, such as 8-bit codes with scales. linear() and
// matmul() can multiply by them.
#include <memory>

#include "tensor/ops.h"

namespace lockstep {

/// A matrix (out, in) that a derived class stores in its own form. stand_in() makes a placeholder tensor for it, which
/// can be the weight of linear() and matmul(x, w), for Tensor and for Variable. All other operations that read the
/// placeholder raise an Error.
class StoredMatrix {
 public:
  virtual ~StoredMatrix() = default;
  virtual Shape shape() const = 0;    ///< (out, in)
  virtual Device device() const = 0;  ///< where products with it are computed
  /// The matrix as an ordinary tensor.
  virtual Tensor numbers(DType dtype) const = 0;
  /// activation(x w^T + bias) for x (..., in), in x's dtype. bias may be undefined.
  virtual Tensor linear(const Tensor& x, const Tensor& bias, Activation activation) const = 0;
};

/// Makes the placeholder of a matrix: a tensor without memory that has the matrix's shape and this dtype.
Tensor stand_in(std::shared_ptr<const StoredMatrix> matrix, DType dtype);
/// The matrix of which this tensor is the placeholder; null for an ordinary tensor.
const StoredMatrix* stored_in(const Tensor& tensor);

}  // namespace lockstep
