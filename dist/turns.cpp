#include "dist/turns.h"

namespace lockstep::dist {

Turns::Turns(Job& job, const Membership& group, std::shared_ptr<Traffic> traffic, Move move)
    : job_(job), group_(group), hash_(hash_text(group.id, hash_text(job.control->place().job + "\n"))), traffic_(std::move(traffic)),
      move_(std::move(move)), sent_(group.world_ranks.size()), received_(group.world_ranks.size()) {
  activity.group = group.name;
}

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
  const uint64_t ticket = job_.flight.start(group_.name, number, activity.collective, activity.step);
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

std::vector<Message> Turns::begin_messages(const Call& call) {
  std::vector<Message> batch;
  const auto add = [&](bool is_send, const Tensor& tensor, int peer, const std::string& tag) {
    Call one;
    one.collective = is_send ? Collective::send : Collective::receive;
    one.dtype = tensor.dtype();
    one.count = tensor.numel();
    one.world_root = group_.world_ranks[size_t(peer)];
    one.tag = tag;
    const std::span data(static_cast<std::byte*>(tensor.raw_data()), size_t(one.count * size_of(one.dtype)));
    batch.push_back({is_send, peer, data, header(one, ++(is_send ? sent_ : received_)[size_t(peer)])});
  };
  if (call.collective != Collective::batch) add(call.collective == Collective::send, call.input, call.root, call.tag);
  for (const PointToPoint& p : call.batch) add(p.is_send, p.tensor, p.peer, p.tag.empty() ? call.tag : p.tag);
  for (size_t r = 0; r < sent_.size(); ++r) {
    if (sent_[r]) activity.sent_to.emplace_back(group_.world_ranks[r], sent_[r]);
    if (received_[r]) activity.taken_from.emplace_back(group_.world_ranks[r], received_[r]);
  }
  job_.control->begin(activity);
  return batch;
}

}  // namespace lockstep::dist
