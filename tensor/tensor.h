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
#include "tensor/shape.h"
#include "tensor/storage.h"

namespace lockstep {

/// Default `end` of slice(): up to the end of the dim, like Python's x[a:].
inline constexpr int64_t end_of_dim = INT64_MAX;

/// A value handle on reference-counted storage: copying it is O(1), and views share the storage.
class Tensor {
 public:
  Tensor() = default;  ///< undefined: only defined(), assignment and printing are allowed
  /// A view on existing storage. offset and strides count elements. Error when the view reaches outside the storage.
  Tensor(Ref<Storage> storage, int64_t offset, const Shape& shape, const Strides& strides, DType dtype);

  /// Copies `values` into a new tensor on the default device: Tensor::from({1.f, 2.f}, {2}).
  template <class T> static Tensor from(std::span<const T> values, const Shape& shape);
  template <class T> static Tensor from(const std::vector<T>& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }
  template <class T> static Tensor from(std::initializer_list<T> values, const Shape& shape) {
    return from(std::span<const T>(values.begin(), values.size()), shape);
  }
  /// A tensor of one dim with these values.
  template <class T> static Tensor from(std::initializer_list<T> values) {
    return from(values, Shape{int64_t(values.size())});
  }

  bool defined() const { return bool(storage_); }  ///< false for a default-constructed tensor
  const Shape& shape() const { return shape_; }
  const Strides& strides() const { return strides_; }
  int dim() const { return shape_.rank(); }  ///< number of dims
  /// Size of one dim; negative dims count from the end. Error when the dim is out of range.
  int64_t size(int64_t dim) const { return shape_[normalize_dim("size", dim, shape_.rank())]; }
  int64_t numel() const { return numel_; }  ///< number of elements
  DType dtype() const { return dtype_; }
  Device device() const;                      ///< Error for an undefined tensor
  int64_t offset() const { return offset_; }  ///< position of the first element in the storage, in elements
  const Ref<Storage>& storage() const { return storage_; }
  bool is_contiguous() const { return contiguous_; }  ///< true when the elements lie in row-major order without gaps
  /// True when this handle is the only reference to the storage, so an operation may overwrite it in place.
  bool is_exclusive() const { return storage_ && storage_->use_count() == 1; }

  /// Pointer to the first element, in the memory of the tensor's device. Error when T is not the dtype, and when the
  /// storage is emptied (Storage::empty()).
  template <class T> T* data() const {
    check_data(dtype_of<T>);
    return static_cast<T*>(raw_data());
  }
  /// data() without the check of the dtype.
  void* raw_data() const {
    check_not_emptied("data");
    return storage_->data() + offset_ * size_of(dtype_);
  }

  /// The value of a one-element tensor, converted to T (double, int64_t, bool, float, std::complex). Integers are read
  /// exactly into an integer T. Waits for the device. Error unless the tensor has one element.
  template <class T = double> T item() const {
    if constexpr (is_complex_type<T>) return T(item_complex());
    else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) return T(item_integer());
    else return T(item_double());
  }
  /// All elements in row-major order, converted to T. Waits for the device.
  template <class T> std::vector<T> to_vector() const;

  // Views: no copy, O(1). Negative dims count from the end. Arguments that do not fit the shape are an Error.
  Tensor view(const Shape& shape) const;     ///< one size may be -1; Error when the strides need a copy
  Tensor reshape(const Shape& shape) const;  ///< a view where the strides allow it, else a copy
  /// Merges the dims first .. last into one; a scalar becomes (1). Copies only where reshape() does.
  Tensor flatten(int64_t first = 0, int64_t last = -1) const;
  Tensor permute(const Dims& dims) const;        ///< dim i of the result is dims[i] of this tensor
  Tensor transpose(int64_t a, int64_t b) const;  ///< swaps two dims
  Tensor t() const;                              ///< swaps the last two dims
  /// Elements start, start + step, ... below `end`, by Python's rule: negative bounds count from the end, and bounds
  /// outside the dim are clipped. step >= 1.
  Tensor slice(int64_t dim, int64_t start, int64_t end = end_of_dim, int64_t step = 1) const;
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const;     ///< `length` indices from `start`
  Tensor select(int64_t dim, int64_t index) const;                     ///< one index; the dim is removed
  Tensor operator[](int64_t index) const { return select(0, index); }  ///< slice `index` of the first dim
  Tensor expand(const Shape& shape) const;  ///< broadcasts by stride 0; -1 keeps a size; new dims go in front
  Tensor squeeze() const;                   ///< removes all dims of size 1
  Tensor squeeze(int64_t dim) const;        ///< removes the dim if its size is 1
  Tensor unsqueeze(int64_t dim) const;      ///< inserts a dim of size 1
  /// The diagonal of dims dim1 and dim2, as the last dim; offset > 0 lies above the main diagonal.
  Tensor diagonal(int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1) const;
  /// At most `chunks` equal parts; the last may be smaller.
  std::vector<Tensor> chunk(int64_t chunks, int64_t dim = 0) const;
  std::vector<Tensor> split(int64_t size, int64_t dim = 0) const;  ///< parts of `size`; the last may be smaller
  std::vector<Tensor> split(const std::vector<int64_t>& sizes, int64_t dim = 0) const;  ///< sizes sum to the dim
  /// A view with these strides, in elements; checks only that it stays inside the storage.
  Tensor as_strided(const Shape& shape, const Strides& strides, int64_t offset) const;

  // Copies
  Tensor contiguous() const;  ///< this tensor if it is row-major already, else a row-major copy
  Tensor clone() const;       ///< always a new row-major tensor
  /// This tensor if it has the dtype already, else a converted copy. Floats become integers by truncation, clamped to
  /// the range (NaN becomes 0); integers wrap around in a narrower dtype. Error from complex to real.
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;  ///< this tensor if it is there already, else a copy
  Tensor to(Device device, DType dtype) const { return to(dtype).to(device); }
  /// Copies `source` (broadcast to this shape, converted to this dtype, from any device) into this tensor; returns it.
  const Tensor& copy_(const Tensor& source) const;
  const Tensor& fill_(Scalar value) const;  ///< sets all elements; Error when an integer dtype cannot hold the value
  const Tensor& zero_() const { return fill_(0); }  ///< sets all elements to 0

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
  /// Another view of this tensor's storage, without checks: the caller knows that it lies inside the storage.
  Tensor with(int64_t offset, const Shape& shape, const Strides& strides) const;

  Ref<Storage> storage_;
  int64_t offset_ = 0;
  int64_t numel_ = 0;
  Shape shape_;
  Strides strides_;
  DType dtype_ = DType::f32;
  bool contiguous_ = true;
};

/// Prints like NumPy: nested brackets, aligned columns, "..." in large tensors, then the dtype if it is not f32 and the
/// device if it is not cpu:0.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);
std::string to_string(const Tensor& tensor);  ///< the text that operator<< prints

}  // namespace lockstep
