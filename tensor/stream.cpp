// Streams, events and pinned memory, implemented by the device's backend.
#include "tensor/stream.h"

#include <cstring>
#include <utility>

#include "tensor/backend.h"
#include "tensor/ops.h"
#include "tensor/ops_common.h"

namespace lockstep {

Stream::Stream(Device device, bool urgent) : device_(device) {
  check_device("stream", device);
  if (const Backend* b = backend(device)) handle_ = b->new_stream(device.index, urgent);
}
Stream::Stream(Stream&& other) noexcept : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}
Stream::~Stream() {
  if (handle_) backend(device_)->free_stream(handle_, device_.index);
}
void Stream::synchronize() const {
  if (handle_) backend(device_)->synchronize_stream(handle_, device_.index);
}

StreamScope::StreamScope(const Stream& stream) : device_(stream.device()) {
  if (const Backend* b = backend(device_)) {
    previous_ = b->current_stream(device_.index);
    b->set_current_stream(device_.index, stream.handle());
  }
}
StreamScope::~StreamScope() {
  if (const Backend* b = backend(device_)) b->set_current_stream(device_.index, previous_);
}

Event::Event(Device device, bool timed) : device_(device) {
  check_device("event", device);
  if (const Backend* b = backend(device)) handle_ = b->new_event(device.index, timed);
}
Event::Event(Event&& other) noexcept : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}
Event::~Event() {
  if (handle_) backend(device_)->free_event(handle_, device_.index);
}
void Event::record() {
  if (const Backend* b = backend(device_)) b->record(handle_, b->current_stream(device_.index), device_.index);
}
void Event::wait() const {
  if (const Backend* b = backend(device_)) b->wait(b->current_stream(device_.index), handle_, device_.index);
}
bool Event::done() const { return !handle_ || backend(device_)->done(handle_, device_.index); }
void Event::synchronize() const {
  if (handle_) backend(device_)->synchronize_event(handle_, device_.index);
}
double Event::milliseconds_since(const Event& start) const {
  LOCKSTEP_CHECK(start.device_ == device_, "[event] expected two events of one device, got ", start.device_, " and ",
                 device_);
  return handle_ ? backend(device_)->milliseconds(start.handle_, handle_, device_.index) : 0;
}

void synchronize(Device device) {
  check_device("synchronize", device);
  if (const Backend* b = backend(device)) b->synchronize(device.index);
}

void distrust(Device device, const std::string& why) {
  check_device("distrust", device);
  if (const Backend* b = backend(device)) b->distrust(device.index, why.empty() ? nullptr : why.c_str());
}

Tensor empty_pinned(const Shape& shape, DType dtype, Device device) {
  check_device("empty_pinned", device);
  const Backend* b = backend(device);
  const int64_t bytes = numel_of(shape) * size_of(dtype);
  if (!b || bytes == 0) return empty(shape, {.dtype = dtype, .device = cpu});
  void* data = b->pin(size_t(bytes));
  return Tensor(Storage::adopt(data, bytes, cpu, [b, data] { b->unpin(data); }), 0, shape, contiguous_strides(shape),
                dtype);
}

void copy_async(const Tensor& source, const Tensor& target) {
  check_defined("copy_async", source);
  check_defined("copy_async", target);
  LOCKSTEP_CHECK(source.shape() == target.shape() && source.dtype() == target.dtype() && source.is_contiguous() &&
                     target.is_contiguous(),
                 "[copy_async] expected two contiguous tensors of one shape and dtype, got ", source.shape(), " ",
                 source.dtype(), " and ", target.shape(), " ", target.dtype(), "; copy_() takes any tensors");
  const Backend* b = backend(source.device().is_cpu() ? target.device() : source.device());
  target.storage()->bump_version("copy_async");
  const size_t bytes = size_t(source.numel() * size_of(source.dtype()));
  if (bytes == 0) return;
  if (!b) std::memcpy(target.raw_data(), source.raw_data(), bytes);
  else b->copy_bytes(target.raw_data(), target.device(), source.raw_data(), source.device(), bytes, false);
}

}  // namespace lockstep
