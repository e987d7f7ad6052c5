#pragma once
// Matrices that are stored in another form than numbers, such as 8-bit codes with scales. Products take them as
// weights.
#include <memory>

#include "tensor/ops.h"

namespace lockstep {

/// A matrix (out, in) in a form of its own. A tensor that stands for it (stand_in()) can be the weight of linear() and
/// matmul(x, w), of Tensor and of Variable. All other operations that read the tensor raise an Error.
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

/// Makes a tensor without memory that stands for the matrix in products. It has the matrix's shape and this dtype.
Tensor stand_in(std::shared_ptr<const StoredMatrix> matrix, DType dtype);
/// The matrix that a tensor stands for; null for an ordinary tensor.
const StoredMatrix* stored_in(const Tensor& tensor);

}  // namespace lockstep
