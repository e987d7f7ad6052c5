#include "dist/turns.h"

namespace lockstep::dist {

Work Turns::run(Call call, bool async) {
  std::unique_lock lock(calls_);
  const uint64_t number = is_message(call.collective) ? 0 : ++sequence_;
  if (!async && worker_.idle()) {
    perform(call, number);
    return Work();
  }
  Work work = worker_.submit([this, call = std::move(call), number]() mutable { perform(call, number); });
  lock.unlock();
  if (!async) work.wait();
  return work;
}

void Turns::perform(Call& call, uint64_t number) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  activity.collective = call.describe();
  activity.completed = completed_;
  activity.is_collective = !is_message(call.collective);
  activity.sent_to.clear();
  activity.taken_from.clear();
  activity.step = job_.step;
  activity.waiting = true;
  if (activity.is_collective) job_.control->begin(activity);
  const uint64_t ticket = job_.flight.start(group_, number, activity.collective, activity.step);
  try {
    if (job_.control->failed()) job_.control->raise();
    move_(call, number);
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    std::string what = "unknown";
    try { std::rethrow_exception(error); } catch (const std::exception& e) { what = e.what(); } catch (...) {}
    job_.flight.finish(ticket, what);
    const std::lock_guard lock(failure_mutex_);
    failure_ = std::make_exception_ptr(job_.fail(error));
    std::rethrow_exception(failure_);
  }
  if (number > 0) completed_ = number;
  ++traffic_->collectives;
  job_.flight.finish(ticket);
  job_.control->end();
}

}  // namespace lockstep::dist
