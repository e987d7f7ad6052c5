// One-way messages between two ranks. See link.h.
#include "pipeline/link.h"

#include <algorithm>
#include <cstring>

#include "tensor/graph.h"
#include "tensor/ops.h"

namespace lockstep::pipeline {
namespace {

// Shapes travel as a fixed number of integers: how many tensors, how many random calls, then for each tensor its dtype,
// flags, number of dims and sizes.
constexpr int64_t max_dims = 8, length = 2 + int64_t(Shapes::max_tensors) * (3 + max_dims);

Tensor pack(const Shapes& shapes) {
  std::vector<int64_t> words{int64_t(shapes.tensors.size()), int64_t(shapes.random_call)};
  for (const Shapes::One& one : shapes.tensors) {
    words.insert(words.end(), {int64_t(one.dtype), one.wants_grad + 2 * one.on_device, one.shape.rank()});
    for (int d = 0; d < one.shape.rank(); ++d) words.push_back(one.shape[d]);
  }
  words.resize(size_t(length));
  return Tensor::from(words, {length}).to(cpu);
}

Shapes unpack(const Tensor& packed) {
  const int64_t* const words = packed.data<int64_t>();
  Shapes shapes{{}, uint64_t(words[1])};
  const int64_t* at = words + 2;
  for (int64_t i = 0; i < words[0]; ++i, at += 3 + at[2])
    shapes.tensors.push_back({DType(at[0]), Shape(at + 3, at + 3 + at[2]), (at[1] & 1) != 0, (at[1] & 2) != 0});
  return shapes;
}

}  // namespace

Link::Link(std::shared_ptr<dist::ProcessGroup> group, Device device, int ahead)
    : group_(std::move(group)), device_(device), ahead_(size_t(ahead)) {
  const Tensor mine = full({1}, !device_.is_cpu(), {.dtype = i64, .device = cpu}),
               theirs = empty({1}, {.dtype = i64, .device = cpu});
  group_->exchange(
      {{.is_send = true, .tensor = mine, .peer = peer()}, {.is_send = false, .tensor = theirs, .peer = peer()}},
      {.tag = "device"});
  between_devices_ = !device_.is_cpu() && theirs.data<int64_t>()[0] != 0;
  if (between_devices_) {  // create NCCL's communicator now: during a step it would block both ranks
    const Tensor word = zeros({1}, {.dtype = f32, .device = device_});
    const dist::CollectiveOptions first{.tag = "first message"};
    (group_->rank() == 0 ? group_->send(word, peer(), first) : group_->receive(word, peer(), first)).synchronize();
    on_streams_ = std::strcmp(group_->device_engine(), "nccl") == 0;
  }
  sent_before_ = group_->traffic().sent;
}

void Link::wait(Message& message) {
  message.awaited->store(true);
  for (dist::Work& work : message.work) work.wait();
}

bool Link::is_done(const Message& message) {
  return !Graph::is_recording() &&
         std::all_of(message.work.begin(), message.work.end(), [](const dist::Work& w) { return w.done(); });
}

void Link::keep_pace(std::deque<Message>& messages, size_t limit) {
  for (; messages.size() > limit; messages.pop_front())
    for (dist::Work& work : messages.front().work) Graph::is_recording() ? work.wait() : work.synchronize();
}

void Link::send(const std::vector<Tensor>& tensors, const std::string& tag, const Shapes* shapes) {
  for (; !sent_.empty() && is_done(sent_.front()); sent_.pop_front()) wait(sent_.front());
  if (between_devices_) keep_pace(sent_, ahead_ - 1);
  Message& message = sent_.emplace_back();
  const auto give = [&](const Tensor& tensor, const std::string& name) {
    const Tensor contiguous = tensor.contiguous();
    message.tensors.push_back(between_devices_ || contiguous.device().is_cpu() ? contiguous : contiguous.to(cpu));
    message.work.push_back(
        group_->send(message.tensors.back(), peer(), {.tag = name, .async = true, .awaited = message.awaited}));
  };
  if (shapes) give(pack(*shapes), "shapes of " + tag);
  for (size_t i = 0; i < tensors.size(); ++i) give(tensors[i], i == 0 ? tag : str(tag, ", tensor ", i));
}

Shapes Link::receive_shapes(const std::string& tag) {
  const Tensor packed = empty({length}, {.dtype = i64, .device = cpu});
  group_->receive(packed, peer(), {.tag = "shapes of " + tag});
  return unpack(packed);
}

void Link::post(const std::vector<Shapes::One>& tensors, const std::string& tag) {
  Message& message = posted_.emplace_back();
  for (size_t i = 0; i < tensors.size(); ++i) {
    // True: receive the tensor directly on the device.
    const bool lands = device_.is_cpu() || (between_devices_ && tensors[i].on_device);
    message.tensors.push_back(
        empty(tensors[i].shape, {.dtype = tensors[i].dtype, .device = lands ? device_ : Device(cpu)}));
    message.work.push_back(
        group_->receive(message.tensors.back(), peer(),
                        {.tag = i == 0 ? tag : str(tag, ", tensor ", i), .async = true, .awaited = message.awaited}));
  }
}

std::vector<Tensor> Link::arrive() {
  Message message = std::move(posted_.front());
  posted_.pop_front();
  const bool measures = on_streams_ && !Graph::is_recording();
  if (measures) waits_.emplace_back(Event(device_, true), Event(device_, true)).first.record();
  wait(message);
  if (measures) waits_.back().second.record();
  std::vector<Tensor> tensors = std::move(message.tensors);
  if (between_devices_) {
    arrived_.push_back(std::move(message));
    keep_pace(arrived_, ahead_);
  } else {
    for (Tensor& tensor : tensors) tensor = tensor.to(device_);
  }
  return tensors;
}

void Link::flush() {
  for (Message& message : sent_) wait(message);
  sent_.clear();
  arrived_.clear();
}

void Link::forget() {
  for (auto* messages : {&sent_, &posted_, &arrived_}) messages->clear();
  waits_.clear();
}

double Link::take_waited() {
  double seconds = 0;
  for (const auto& [before, after] : std::exchange(waits_, {})) seconds += after.milliseconds_since(before) / 1000;
  return seconds;
}

}  // namespace lockstep::pipeline
