// Runs the calls of a group in order. See call_queue.h.
#include "dist/call_queue.h"

#include <algorithm>

namespace lockstep::dist {

CallQueue::CallQueue(Job& job, const Membership& group, std::shared_ptr<Traffic> traffic, Move move)
    : job_(job),
      group_(group),
      hash_(hash_text(group.id, hash_text(job.control->place().job + "\n"))),
      traffic_(std::move(traffic)),
      move_(std::move(move)),
      row_(str("group ", group.name), job.control->place().rank),
      sent_(group.world_ranks.size()),
      received_(group.world_ranks.size()) {
  activity.group = group.name;
}

Work CallQueue::run(Call call, bool async) {
  LOCKSTEP_CHECK(group_.world_ranks.size() == 1 || job_.maker.is_here(), "[", name_of(call.collective),
                 "] expected a call of the process that joined the job, got one of a child that it forked: connections "
                 "and shared memory are the parent's; use spawn()");
  std::unique_lock lock(calls_);
  const uint64_t number = is_message(call.collective) ? 0 : ++sequence_;
  if (!async && worker_.idle()) {
    const trace::Scope scope("wait for a collective", trace::Category::wait);
    perform(call, number);
    return Work();
  }
  Work work = worker_.submit([this, call = std::move(call), number]() mutable { perform(call, number); });
  lock.unlock();
  if (!async) work.wait();
  return work;
}

void CallQueue::aside(const std::function<void()>& fn) {
  const std::lock_guard lock(calls_);
  LOCKSTEP_CHECK(worker_.idle(), "[dist] expected no running call of group ", group_.name,
                 ", got one; wait for its calls first");
  fn();
}

void CallQueue::note(const Call& call, int64_t begun, int64_t sent, int64_t received, std::string_view error) const {
  int64_t bytes = std::max<int64_t>(call.count, 0) * size_of(call.dtype);
  for (const PointToPoint& p : call.batch) bytes += p.tensor.numel() * size_of(p.tensor.dtype());
  const trace::Arg what = error.empty() ? trace::Arg("call", activity.collective) : trace::Arg("error", error);
  trace::record(name_of(call.collective), trace::Category::collective, begun, trace::now(),
                {{"bytes", bytes},
                 {"sent", traffic_->sent - sent},
                 {"received", traffic_->received - received},
                 {"ranks", group_.world_ranks.size()},
                 {"group", group_.name},
                 what},
                &row_);
}

void CallQueue::perform(Call& call, uint64_t number) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  activity.collective = call.describe();
  activity.completed = completed_;
  activity.is_collective = !is_message(call.collective);
  activity.sent_to.clear();
  activity.taken_from.clear();
  activity.step = job_.control->step();
  activity.waiting = true;
  if (activity.is_collective) job_.control->begin(activity);
  call.ticket = job_.flight.start(group_.name, number, activity.collective, activity.step);
  const bool traced = trace::on();
  const int64_t begun = traced ? trace::now() : 0, sent = traffic_->sent, received = traffic_->received;
  try {
    if (job_.control->failed()) job_.control->raise();
    move_(call, number);
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    std::string what = "unknown";
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) { what = e.what(); } catch (...) {
    }
    job_.flight.finish(call.ticket, what);
    if (traced) note(call, begun, sent, received, what);
    const std::lock_guard lock(failure_mutex_);
    failure_ = std::make_exception_ptr(job_.fail(error));
    std::rethrow_exception(failure_);
  }
  if (traced) note(call, begun, sent, received);
  if (number > 0) completed_ = number;
  ++traffic_->collectives;
  if (!call.work) job_.flight.finish(call.ticket);  // otherwise it is completed when the device has finished
  job_.control->end();
}

bool CallQueue::tell_late(Activity late, int peer) {
  const std::unique_lock lock(calls_, std::try_to_lock);
  if (!lock || !worker_.idle()) return false;
  job_.control->begin(late);
  job_.control->waits(peer, 0, false);
  return true;
}

bool CallQueue::tell_moved(Activity late) {
  const std::unique_lock lock(calls_, std::try_to_lock);
  if (!lock || !worker_.idle()) return false;
  late.completed = completed_ - late.is_collective;  // because end() adds one
  job_.control->begin(late);
  job_.control->end();
  return true;
}

void CallQueue::drain() {
  if (!worker_.idle()) worker_.submit([] {}).wait();
}

std::vector<Message> CallQueue::begin_messages(const Call& call) {
  std::vector<Message> batch;
  const auto add = [&](bool is_send, const Tensor& tensor, int peer, const std::string& tag) {
    Call one;
    one.collective = is_send ? Collective::send : Collective::receive;
    one.dtype = tensor.dtype();
    one.count = tensor.numel();
    one.world_root = group_.world_ranks[size_t(peer)];
    one.tag = tag;
    if (!tensor.device().is_cpu()) one.work = call.work;
    const std::span data(static_cast<std::byte*>(tensor.raw_data()), size_t(one.count * size_of(one.dtype)));
    batch.push_back({is_send, peer, data, header(one, ++(is_send ? sent_ : received_)[size_t(peer)])});
  };
  if (call.collective != Collective::batch) add(call.collective == Collective::send, call.input, call.root, call.tag);
  for (const PointToPoint& p : call.batch) add(p.is_send, p.tensor, p.peer, p.tag.empty() ? call.tag : p.tag);
  // Report no message counts for a call with `awaited` set: while it runs, other groups may move messages between the
  // same ranks, and the counts of two groups cannot be compared.
  for (size_t r = 0; !call.awaited && r < sent_.size(); ++r) {
    if (sent_[r]) activity.sent_to.emplace_back(group_.world_ranks[r], sent_[r]);
    if (received_[r]) activity.taken_from.emplace_back(group_.world_ranks[r], received_[r]);
  }
  job_.control->begin(activity);
  return batch;
}

}  // namespace lockstep::dist
