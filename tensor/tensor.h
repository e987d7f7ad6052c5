#pragma once
// Tensor: a value handle on storage with offset, shape, strides and dtype. It knows nothing of gradients.
// Copying a Tensor copies the handle; views share storage. See docs/tensor.md for a picture.
#include <iosfwd>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "tensor/device.h"
#include "tensor/dtype.h"
#include "tensor/scalar.h"
#include "tensor/shape.h"
#include "tensor/storage.h"

namespace lockstep {

/// Python-like slice end: "up to the end".
inline constexpr int64_t end_of_dim = INT64_MAX;

class Tensor {
 public:
  Tensor() = default;  ///< undefined; only defined(), assignment and printing are allowed
  /// A view on existing storage. offset and strides count elements. Error when it reaches outside the storage.
  Tensor(Ref<Storage> storage, int64_t offset, const Shape& shape, const Strides& strides, DType dtype);

  /// Copies `values` into a new tensor on the default device: Tensor::from({1.f, 2.f}, {2}).
  template <class T> static Tensor from(std::span<const T> values, const Shape& shape);
  template <class T> static Tensor from(const std::vector<T>& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }
  template <class T> static Tensor from(std::initializer_list<T> values, const Shape& shape) {
    return from(std::span<const T>(values.begin(), values.size()), shape);
  }
  template <class T> static Tensor from(std::initializer_list<T> values) {
    return from(values, Shape{int64_t(values.size())});
  }

  bool defined() const { return bool(storage_); }
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  int dim() const { return shape_.rank(); }
  int64_t size(int64_t dim) const { return shape_[normalize_dim("size", dim, shape_.rank())]; }
  int64_t numel() const { return numel_; }
  DType dtype() const { return dtype_; }
  Device device() const;
  int64_t offset() const { return offset_; }
  const Ref<Storage>& storage() const { return storage_; }
  bool is_contiguous() const { return contiguous_; }
  /// No other tensor holds this storage, so its contents may be overwritten by whoever holds this handle alone.
  bool is_exclusive() const { return storage_ && storage_->use_count() == 1; }

  /// Pointer to the first element, in the memory of its device. Error when T is not the dtype or the storage is empty.
  template <class T> T* data() const {
    check_data(dtype_of<T>);
    return static_cast<T*>(raw_data());
  }
  /// The same without a type. Error when the storage is empty.
  void* raw_data() const {
    check_not_emptied("data");
    return storage_->data() + offset_ * size_of(dtype_);
  }

  /// The value of a one-element tensor, converted to T (double, int64_t, bool, float, std::complex). Whole numbers
  /// stay exact.
  template <class T = double> T item() const {
    if constexpr (is_complex_type<T>) return T(item_complex());
    else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) return T(item_integer());
    else return T(item_double());
  }
  /// All elements in row-major order, converted to T.
  template <class T> std::vector<T> to_vector() const;

  // Views: no copy, O(1). Negative dims count from the end.
  Tensor view(const Shape& shape) const;     ///< one size may be -1; Error when strides do not allow it
  Tensor reshape(const Shape& shape) const;  ///< a view where possible, else a copy
  Tensor flatten(int64_t first = 0, int64_t last = -1) const;
  Tensor permute(const Dims& dims) const;
  Tensor transpose(int64_t a, int64_t b) const;
  Tensor t() const;  ///< transpose of the last two dims (of a matrix)
  Tensor slice(int64_t dim, int64_t start, int64_t end = end_of_dim, int64_t step = 1) const;  ///< step >= 1
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const;
  Tensor select(int64_t dim, int64_t index) const;
  Tensor operator[](int64_t index) const { return select(0, index); }
  Tensor expand(const Shape& shape) const;  ///< -1 keeps a size; new dims go in front
  Tensor squeeze() const;
  Tensor squeeze(int64_t dim) const;
  Tensor unsqueeze(int64_t dim) const;
  Tensor diagonal(int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1) const;
  std::vector<Tensor> chunk(int64_t chunks, int64_t dim = 0) const;
  std::vector<Tensor> split(int64_t size, int64_t dim = 0) const;
  std::vector<Tensor> split(const std::vector<int64_t>& sizes, int64_t dim = 0) const;
  /// A view with these strides; no checks but the bounds.
  Tensor as_strided(const Shape& shape, const Strides& strides, int64_t offset) const;

  // Copies
  Tensor contiguous() const;     ///< itself when already row-major
  Tensor clone() const;          ///< always a new row-major tensor
  Tensor to(DType dtype) const;  ///< itself when already so; integers truncate, no check of range
  Tensor to(Device device) const;
  /// Copies `source` (broadcast, converted) into this tensor, and returns this.
  const Tensor& copy_(const Tensor& source) const;
  const Tensor& fill_(Scalar value) const;
  const Tensor& zero_() const { return fill_(0); }

 private:
  void check_data(DType wanted) const;
  void check_not_emptied(const char* op) const {
    if (storage_->is_empty()) [[unlikely]]
      fail_emptied(op);
  }
  [[noreturn]] void fail_emptied(const char* op) const;
  double item_double() const;
  int64_t item_integer() const;
  std::complex<double> item_complex() const;
  /// Another view of this storage, known to fit.
  Tensor with(int64_t offset, const Shape& shape, const Strides& strides) const;

  Ref<Storage> storage_;
  int64_t offset_ = 0;
  int64_t numel_ = 0;
  Shape shape_;
  Strides strides_;
  DType dtype_ = DType::f32;
  bool contiguous_ = true;
};

/// Prints like NumPy: nested brackets, aligned columns, "..." in large tensors, then dtype when it is not f32.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);
std::string to_string(const Tensor& tensor);

}  // namespace lockstep
