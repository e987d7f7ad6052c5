// work.cpp: Work, the handle of a call, and the thread that runs asynchronous calls of a group. See work.h.
#include "dist/work.h"

#include <utility>

#include "trace/trace.h"

namespace lockstep::dist {

Work::Work(const Work& host, std::shared_ptr<DeviceWork> device) : state_(host.state_) {
  if (!state_) {
    state_ = std::make_shared<State>();
    state_->done = true;
  }
  state_->device = std::move(device);
}

bool Work::done() const {
  if (!state_) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done && (!state_->device || state_->device->done());
}

void Work::wait() {
  if (!state_) return;
  std::unique_lock lock(state_->mutex);
  if (!state_->done) {
    const trace::Scope scope("wait for a collective", trace::Category::wait);
    state_->changed.wait(lock, [&] { return state_->done; });  // no timeout: the collective has one
  }
  if (state_->error) std::rethrow_exception(state_->error);
  if (state_->device) state_->device->wait();
  if (const auto finish = std::exchange(state_->finish, nullptr)) finish();
}

void Work::synchronize() {
  wait();
  if (state_ && state_->device) state_->device->synchronize();
}

void Work::then(std::function<void()> finish) {
  if (!state_) return finish();
  const std::lock_guard lock(state_->mutex);
  state_->finish = std::move(finish);
}

Worker::~Worker() { end_thread(thread_, mutex_, stop_, changed_); }

Work Worker::submit(std::function<void()> task) {
  auto state = std::make_shared<Work::State>();
  const std::lock_guard lock(mutex_);
  queue_.emplace_back(std::move(task), state);
  if (!thread_.joinable())
    thread_ = std::thread([this, rank = trace::rank_of_thread()] {
      const trace::ThreadScope traced(rank, "");
      loop();
    });
  changed_.notify_all();
  return Work(std::move(state));
}

bool Worker::idle() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !running_;
}

void Worker::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    auto [task, state] = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      task();
    } catch (...) { error = std::current_exception(); }
    task = nullptr;  // release the tensors before a waiter learns that they are free
    lock.lock();
    running_ = false;
    {
      const std::lock_guard state_lock(state->mutex);
      state->error = error;
      state->done = true;
    }
    state->changed.notify_all();
  }
}

}  // namespace lockstep::dist
