// Tensor: construction, reading values, copies. Views are in views.cpp.
#include "tensor/tensor.h"

#include <algorithm>
#include <cstring>

#include "tensor/backend.h"
#include "tensor/complex.h"
#include "tensor/convert.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/ops_common.h"

namespace lockstep {
namespace {

// True if the elements lie row after row without gaps. Strides of dims of size 1 are never used, so they are ignored.
bool row_major(const Shape& shape, const Strides& strides, int64_t numel) {
  if (numel == 0) return true;
  int64_t expected = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

}  // namespace

Tensor::Tensor(Ref<Storage> storage, int64_t offset, const Shape& shape, const Strides& strides, DType dtype)
    : storage_(std::move(storage)), offset_(offset), shape_(shape), strides_(strides), dtype_(dtype) {
  LOCKSTEP_CHECK(storage_, "[tensor] expected a storage, got none; make one with Storage::allocate()");
  check_complex_device("tensor", dtype, storage_->device());
  LOCKSTEP_CHECK(shape.rank() == strides.rank(), "[tensor] expected one stride per dim, got shape ", shape,
                 " and strides ", strides);
  check_shape("tensor", shape);
  numel_ = numel_of(shape);
  contiguous_ = row_major(shape, strides, numel_);
  // The last element, at offset + sum of (size - 1) * stride, must lie inside the storage. The sum may overflow.
  int64_t last = offset;
  bool overflow = false;
  for (int i = 0; i < shape.rank(); ++i) {
    LOCKSTEP_CHECK(strides[i] >= 0, "[tensor] expected strides >= 0, got ", strides);
    int64_t reach = 0;
    overflow |= __builtin_mul_overflow(std::max<int64_t>(shape[i] - 1, 0), strides[i], &reach);
    overflow |= __builtin_add_overflow(last, reach, &last);
  }
  const int64_t room = storage_->bytes() / size_of(dtype);
  const bool inside = offset >= 0 && !overflow && (numel_ == 0 ? offset <= room : last < room);
  LOCKSTEP_CHECK(inside, "[tensor] expected a view inside its storage of ", room, " elements, got offset ", offset,
                 ", shape ", shape, ", strides ", strides);
  if (numel_ == 0) offset_ = 0;
}

Tensor Tensor::with(int64_t offset, const Shape& shape, const Strides& strides) const {
  Tensor view;
  view.storage_ = storage_;
  view.numel_ = numel_of(shape);
  view.offset_ = view.numel_ == 0 ? 0 : offset;  // an empty view has offset 0, which lies inside any storage
  view.shape_ = shape;
  view.strides_ = strides;
  view.dtype_ = dtype_;
  view.contiguous_ = row_major(shape, strides, view.numel_);
  return view;
}

Tensor Tensor::as_strided(const Shape& shape, const Strides& strides, int64_t offset) const {
  check_defined("as_strided", *this);
  return Tensor(storage_, offset, shape, strides, dtype_);
}

Device Tensor::device() const {
  check_defined("device", *this);
  return storage_->device();
}

void Tensor::check_data(DType wanted) const {
  check_defined("data", *this);
  LOCKSTEP_CHECK(dtype_ == wanted, "[data] expected the dtype of the tensor, ", dtype_, ", got ", wanted,
                 "; use .to(dtype)");
}

void Tensor::fail_emptied(const char* op) const {
  fail(str("[", op, "] the storage is empty: its ", storage_->bytes(), " bytes were released (",
           *storage_->emptied_of() ? storage_->emptied_of() : "a parameter of ZeRO 3, a gradient inside no_sync",
           ") and are not back yet; read it when they are back, such as a parameter of ZeRO in a gathered() scope"));
}

template <class T> Tensor Tensor::from(std::span<const T> values, const Shape& shape) {
  check_shape("from", shape);
  LOCKSTEP_CHECK(int64_t(values.size()) == numel_of(shape), "[from] expected ", numel_of(shape), " values for shape ",
                 shape, ", got ", values.size());
  Tensor result = empty(shape, {.dtype = dtype_of<T>, .device = cpu});
  if (!values.empty()) std::memcpy(result.data<T>(), values.data(), values.size_bytes());
  return result.to(default_device());
}

template <class T> std::vector<T> Tensor::to_vector() const {
  check_defined("to_vector", *this);
  const Tensor source = to(cpu).contiguous();
  std::vector<T> values(static_cast<size_t>(numel_));
  if constexpr (is_complex_type<T>) {
    using Part = typename T::value_type;
    if (!is_complex(dtype_)) {
      const std::vector<Part> parts = source.to_vector<Part>();
      std::copy(parts.begin(), parts.end(), values.begin());
    } else {
      dispatch<std::complex<float>, std::complex<double>>(dtype_, "to_vector", [&]<class From> {
        const From* data = source.numel() > 0 ? source.data<From>() : nullptr;
        for (int64_t i = 0; i < numel_; ++i) values[size_t(i)] = T(data[i]);
      });
    }
  } else
    dispatch_all(dtype_, "to_vector", [&]<class From> {
      const From* data = source.data<From>();
      for (int64_t i = 0; i < numel_; ++i) values[size_t(i)] = convert<T>(data[i]);
    });
  return values;
}

#define LOCKSTEP_ELEMENT(T)                                                       \
  template Tensor Tensor::from<T>(std::span<const T> values, const Shape& shape); \
  template std::vector<T> Tensor::to_vector<T>() const;
LOCKSTEP_ELEMENT(float)
LOCKSTEP_ELEMENT(double)
LOCKSTEP_ELEMENT(Half)
LOCKSTEP_ELEMENT(BFloat16)
LOCKSTEP_ELEMENT(int64_t)
LOCKSTEP_ELEMENT(int32_t)
LOCKSTEP_ELEMENT(int8_t)
LOCKSTEP_ELEMENT(uint8_t)
LOCKSTEP_ELEMENT(bool)
LOCKSTEP_ELEMENT(std::complex<float>)
LOCKSTEP_ELEMENT(std::complex<double>)
#undef LOCKSTEP_ELEMENT

namespace {

template <class T> T item_of(const Tensor& tensor) {
  check_defined("item", tensor);
  LOCKSTEP_CHECK(tensor.numel() == 1, "[item] expected a tensor of one element, got shape ", tensor.shape(),
                 "; use to_vector()");
  T value{};
  const Tensor here = tensor.to(cpu);
  dispatch_all(here.dtype(), "item", [&]<class From> { value = convert<T>(*here.data<From>()); });
  return value;
}

// Copies between any two devices. Data is converted on the source's device, and is contiguous on both sides when it
// moves to another device.
void copy_between(const Tensor& source, Tensor& out) {
  const Device from = source.device(), to = out.device();
  if (from.type == to.type && (from.is_cpu() || from == to)) return kernels::copy(to, source, out);
  const Tensor packed = source.to(out.dtype()).contiguous();
  const bool direct = out.is_contiguous();
  Tensor landed = direct ? out : empty(out.shape(), {.dtype = out.dtype(), .device = to});
  const size_t bytes = size_t(packed.numel() * size_of(packed.dtype()));
  if (bytes > 0)
    backend(from.is_cpu() ? to : from)->copy_bytes(landed.raw_data(), to, packed.raw_data(), from, bytes, true);
  if (!direct) kernels::copy(to, landed, out);
}

}  // namespace

double Tensor::item_double() const { return item_of<double>(*this); }
int64_t Tensor::item_integer() const { return item_of<int64_t>(*this); }
std::complex<double> Tensor::item_complex() const {
  check_defined("item", *this);
  LOCKSTEP_CHECK(numel_ == 1, "[item] expected a tensor of one element, got shape ", shape_, "; use to_vector()");
  return to_vector<std::complex<double>>()[0];
}

Tensor Tensor::contiguous() const { return contiguous_ && defined() ? *this : clone(); }

Tensor Tensor::clone() const {
  check_defined("clone", *this);
  check_not_emptied("clone");
  Tensor result = empty(shape_, {.dtype = dtype_, .device = device()});
  kernels::copy(device(), *this, result);
  return result;
}

Tensor Tensor::to(DType dtype) const {
  check_defined("to", *this);
  if (dtype == dtype_) return *this;
  check_stays_complex("to", dtype_, dtype);
  check_not_emptied("to");
  Tensor result = empty(shape_, {.dtype = dtype, .device = device()});
  kernels::copy(device(), *this, result);
  return result;
}

Tensor Tensor::to(Device target) const {
  check_defined("to", *this);
  if (target == device()) return *this;
  check_device("to", target);
  check_complex_device("to", dtype_, target);
  check_not_emptied("to");
  Tensor result = empty(shape_, {.dtype = dtype_, .device = target});
  copy_between(*this, result);
  return result;
}

const Tensor& Tensor::copy_(const Tensor& source) const {
  check_writable("copy_", *this);
  check_defined("copy_", source);
  LOCKSTEP_CHECK(broadcast_shapes("copy_", source.shape(), shape_) == shape_,
                 "[copy_] expected a source that broadcasts to ", shape_, ", got ", source.shape(), "; reshape it");
  check_stays_complex("copy_", source.dtype(), dtype_);
  check_not_emptied("copy_");
  source.check_not_emptied("copy_");
  storage_->bump_version("copy_");
  Tensor from = source.expand(shape_), target = *this;
  if (from.storage() == storage_) {
    if (from.offset() == offset_ && from.strides() == strides_ && from.dtype() == dtype_) return *this;
    from = from.clone();  // the two may overlap
  }
  copy_between(from, target);
  return *this;
}

const Tensor& Tensor::fill_(Scalar value) const {
  check_writable("fill_", *this);
  check_fits("fill_", value, dtype_);
  check_not_emptied("fill_");
  storage_->bump_version("fill_");
  Tensor target = *this;
  kernels::fill(device(), target, value);
  return *this;
}

}  // namespace lockstep
