// Views: tensors on the same storage with another offset, shape and strides. Only reshape() and flatten() may copy.
#include <optional>

#include "tensor/ops_common.h"
#include "tensor/tensor.h"

namespace lockstep {
namespace {

// Replaces a single -1 by the size that remains.
Shape infer_size(const char* op, const Tensor& tensor, const Shape& wanted) {
  Shape shape = wanted;
  int unknown = -1;
  int64_t known = 1;
  bool valid = true;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == -1) {
      valid &= unknown < 0;
      unknown = i;
    } else {
      valid &= shape[i] >= 0 && !__builtin_mul_overflow(known, shape[i], &known);
    }
  }
  if (valid && unknown >= 0) {
    valid = known > 0 && tensor.numel() % known == 0;
    if (valid) shape[unknown] = tensor.numel() / known;
  } else {
    valid = valid && known == tensor.numel();
  }
  LOCKSTEP_CHECK(valid, "[", op, "] expected a shape of ", tensor.numel(), " elements (one size may be -1) for ",
                 tensor.shape(), ", got ", wanted);
  return shape;
}

// The strides that give a tensor another shape without a copy, if there are any. Neighbouring dims of the old shape
// that are contiguous in memory form a run. Each run must be the product of successive sizes of the new shape.
std::optional<Strides> strides_for(const Tensor& tensor, const Shape& shape) {
  if (tensor.is_contiguous()) return contiguous_strides(shape);
  const Shape& old_shape = tensor.shape();
  const Strides& old_strides = tensor.strides();
  Strides strides = shape;  // sets the rank; the values are overwritten below
  int to = shape.rank() - 1;
  for (int from = old_shape.rank() - 1; from >= 0;) {
    const int64_t inner = old_strides[from];
    int64_t run = old_shape[from--];
    while (from >= 0 && (old_shape[from] == 1 || old_strides[from] == run * inner)) run *= old_shape[from--];
    int64_t filled = 1;
    while (to >= 0 && (filled < run || shape[to] == 1)) {
      strides[to] = filled * inner;
      filled *= shape[to--];
    }
    if (filled != run) return {};
  }
  return strides;
}

int64_t wrap_index(const char* op, int64_t index, int64_t size) {
  LOCKSTEP_CHECK(index >= -size && index < size, "[", op, "] expected an index from ", -size, " to ", size - 1,
                 ", got ", index);
  return index < 0 ? index + size : index;
}

}  // namespace

Tensor Tensor::view(const Shape& wanted) const {
  check_defined("view", *this);
  const Shape shape = infer_size("view", *this, wanted);
  const auto strides = strides_for(*this, shape);
  LOCKSTEP_CHECK(strides, "[view] cannot view shape ", shape_, " with strides ", strides_, " as ", shape,
                 " without a copy; use reshape");
  return with(offset_, shape, *strides);
}

Tensor Tensor::reshape(const Shape& wanted) const {
  check_defined("reshape", *this);
  const Shape shape = infer_size("reshape", *this, wanted);
  if (const auto strides = strides_for(*this, shape)) return with(offset_, shape, *strides);
  return clone().with(0, shape, contiguous_strides(shape));
}

Tensor Tensor::flatten(int64_t first, int64_t last) const {
  check_defined("flatten", *this);
  const int a = normalize_dim("flatten", first, dim()), b = normalize_dim("flatten", last, dim());
  LOCKSTEP_CHECK(a <= b, "[flatten] expected first <= last, got ", first, " and ", last);
  if (dim() == 0) return reshape({1});
  Shape shape = shape_;
  for (int i = a; i < b; ++i) {
    shape[a] *= shape[a + 1];
    shape.erase(a + 1);
  }
  return reshape(shape);
}

Tensor Tensor::permute(const Dims& dims) const {
  check_defined("permute", *this);
  LOCKSTEP_CHECK(dims.rank() == dim(), "[permute] expected ", dim(), " dims, got ", dims);
  Shape shape = shape_;
  Strides strides = strides_;
  uint32_t visited = 0;
  for (int i = 0; i < dim(); ++i) {
    const int from = normalize_dim("permute", dims[i], dim());
    LOCKSTEP_CHECK(!(visited >> from & 1), "[permute] expected every dim once, got ", dims);
    visited |= 1u << from;
    shape[i] = shape_[from];
    strides[i] = strides_[from];
  }
  return with(offset_, shape, strides);
}

Tensor Tensor::transpose(int64_t a, int64_t b) const {
  check_defined("transpose", *this);
  const int first = normalize_dim("transpose", a, dim()), second = normalize_dim("transpose", b, dim());
  Shape shape = shape_;
  Strides strides = strides_;
  std::swap(shape[first], shape[second]);
  std::swap(strides[first], strides[second]);
  return with(offset_, shape, strides);
}

Tensor Tensor::t() const {
  check_defined("t", *this);
  LOCKSTEP_CHECK(dim() >= 2, "[t] expected at least two dims, got shape ", shape_, "; unsqueeze(0) adds a dim");
  return transpose(-2, -1);
}

Tensor Tensor::slice(int64_t dim, int64_t start, int64_t end, int64_t step) const {
  const int d = check_dim("slice", *this, dim);
  LOCKSTEP_CHECK(step >= 1, "[slice] expected a step >= 1, got ", step);
  const int64_t size = shape_[d];
  // Python's rule: negative bounds count from the end, and bounds outside the dim are clipped.
  start = std::clamp<int64_t>(start < 0 ? start + size : start, 0, size);
  end = std::clamp<int64_t>(end < 0 ? end + size : end, start, size);
  Shape shape = shape_;
  Strides strides = strides_;
  const int64_t length = end - start;
  shape[d] = length / step + (length % step != 0);
  // With at most one element the stride is never used, and stride * step could overflow.
  if (shape[d] > 1) strides[d] *= step;
  return with(offset_ + start * strides_[d], shape, strides);
}

Tensor Tensor::narrow(int64_t dim, int64_t start, int64_t length) const {
  const int d = check_dim("narrow", *this, dim);
  const int64_t size = shape_[d], first = start < 0 ? start + size : start;
  LOCKSTEP_CHECK(first >= 0 && first <= size && length >= 0 && length <= size - first,
                 "[narrow] expected a range inside 0 to ", size, " in dim ", d, ", got start ", start, " and length ",
                 length);
  Shape shape = shape_;
  shape[d] = length;
  return with(offset_ + first * strides_[d], shape, strides_);
}

Tensor Tensor::select(int64_t dim, int64_t index) const {
  const int d = check_dim("select", *this, dim);
  index = wrap_index("select", index, shape_[d]);
  Shape shape = shape_;
  Strides strides = strides_;
  shape.erase(d);
  strides.erase(d);
  return with(offset_ + index * strides_[d], shape, strides);
}

Tensor Tensor::expand(const Shape& wanted) const {
  check_defined("expand", *this);
  const int added = wanted.rank() - dim();
  LOCKSTEP_CHECK(added >= 0, "[expand] expected at least ", dim(), " dims for ", shape_, ", got ", wanted);
  Shape shape = wanted;
  Strides strides = Strides::filled(wanted.rank(), 0);
  for (int i = 0; i < wanted.rank(); ++i) {
    const bool exists = i >= added;
    if (wanted[i] == -1 && exists) shape[i] = shape_[i - added];
    LOCKSTEP_CHECK(shape[i] >= 0 && (!exists || shape_[i - added] == 1 || shape_[i - added] == shape[i]),
                   "[expand] expected sizes that ", shape_, " broadcasts to, got ", wanted);
    if (exists && shape_[i - added] == shape[i]) strides[i] = strides_[i - added];
  }
  check_shape("expand", shape);
  return with(offset_, shape, strides);
}

Tensor Tensor::squeeze() const {
  check_defined("squeeze", *this);
  Shape shape;
  Strides strides;
  for (int i = 0; i < dim(); ++i) {
    if (shape_[i] == 1) continue;
    shape.push_back(shape_[i]);
    strides.push_back(strides_[i]);
  }
  return with(offset_, shape, strides);
}

Tensor Tensor::squeeze(int64_t dim) const {
  check_defined("squeeze", *this);
  const int d = normalize_dim("squeeze", dim, this->dim());
  if (this->dim() == 0 || shape_[d] != 1) return *this;
  Shape shape = shape_;
  Strides strides = strides_;
  shape.erase(d);
  strides.erase(d);
  return with(offset_, shape, strides);
}

Tensor Tensor::unsqueeze(int64_t dim) const {
  check_defined("unsqueeze", *this);
  const int d = normalize_dim("unsqueeze", dim, this->dim() + 1);
  Shape shape = shape_;
  Strides strides = strides_;
  strides.insert(d, d < this->dim() ? shape_[d] * strides_[d] : 1);
  shape.insert(d, 1);
  return with(offset_, shape, strides);
}

Tensor Tensor::diagonal(int64_t offset, int64_t dim1, int64_t dim2) const {
  const int a = check_dim("diagonal", *this, dim1), b = check_dim("diagonal", *this, dim2);
  LOCKSTEP_CHECK(a != b, "[diagonal] expected two different dims, got ", dim1, " and ", dim2);
  const int64_t skip_a = offset < 0 ? -offset : 0, skip_b = offset > 0 ? offset : 0;
  const int64_t length = std::max<int64_t>(0, std::min(shape_[a] - skip_a, shape_[b] - skip_b));
  Shape shape = shape_;
  Strides strides = strides_;
  const int64_t start = length > 0 ? skip_a * strides_[a] + skip_b * strides_[b] : 0;
  const int64_t step = strides_[a] + strides_[b];
  for (int removed : {std::max(a, b), std::min(a, b)}) {
    shape.erase(removed);
    strides.erase(removed);
  }
  shape.push_back(length);
  strides.push_back(step);
  return with(offset_ + start, shape, strides);
}

std::vector<Tensor> Tensor::chunk(int64_t chunks, int64_t dim) const {
  const int d = check_dim("chunk", *this, dim);
  LOCKSTEP_CHECK(chunks >= 1, "[chunk] expected at least one chunk, got ", chunks);
  const int64_t size = shape_[d];
  if (size == 0) return std::vector<Tensor>(size_t(chunks), *this);
  return split(size / chunks + (size % chunks != 0), d);
}

std::vector<Tensor> Tensor::split(int64_t size, int64_t dim) const {
  const int d = check_dim("split", *this, dim);
  LOCKSTEP_CHECK(size >= 1, "[split] expected a size >= 1, got ", size);
  if (shape_[d] == 0) return {*this};
  std::vector<Tensor> pieces;
  for (int64_t start = 0; start < shape_[d]; start += std::min(size, shape_[d] - start)) {
    pieces.push_back(narrow(d, start, std::min(size, shape_[d] - start)));
  }
  return pieces;
}

std::vector<Tensor> Tensor::split(const std::vector<int64_t>& sizes, int64_t dim) const {
  const int d = check_dim("split", *this, dim);
  int64_t sum = 0;
  bool valid = true;
  for (int64_t size : sizes) valid = valid && size >= 0 && !__builtin_add_overflow(sum, size, &sum);
  LOCKSTEP_CHECK(valid && sum == shape_[d], "[split] expected sizes >= 0 that sum to ", shape_[d], ", got ",
                 valid ? str("a sum of ", sum) : "a negative or too large one");
  std::vector<Tensor> pieces;
  int64_t start = 0;
  for (int64_t size : sizes) {
    pieces.push_back(narrow(d, start, size));
    start += size;
  }
  return pieces;
}

}  // namespace lockstep
