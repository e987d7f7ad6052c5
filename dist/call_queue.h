#pragma once
// Runs the calls of a group one at a time and in order: on the caller's thread while nothing is queued, else on the
// group's own thread. Around each call it keeps the flight record, informs the control plane, and handles failures.
// Each NativeEngine (native_engine.h) has one.
#include <functional>
#include <memory>
#include <mutex>

#include "dist/fingerprint.h"
#include "dist/job.h"
#include "dist/process_group.h"
#include "dist/work.h"
#include "trace/trace.h"

namespace lockstep::dist {

/// True for send, receive and batch. Unlike collectives, these calls have no number in the group (it is 0).
inline bool is_message(Collective c) {
  return c == Collective::send || c == Collective::receive || c == Collective::batch;
}

/// The queue of calls of one group.
class CallQueue {
 public:
  /// The function that does the work of a call, and throws on failure. The integer is the call's number among the
  /// group's collectives. For messages it is 0, and the function must call begin_messages().
  using Move = std::function<void(Call&, uint64_t)>;
  /// `group` must outlive this object.
  CallQueue(Job& job, const Membership& group, std::shared_ptr<Traffic> traffic, Move move);

  /// Runs a call: at once or, if `async`, on the group's thread. Once a call has failed, every further call throws that
  /// failure.
  Work run(Call call, bool async);
  /// Runs `fn` while no call of the group runs, without counting it as a call. Error while a call is queued.
  void aside(const std::function<void()>& fn);
  bool idle() const { return worker_.idle(); }       ///< true if no call is queued or running
  uint64_t completed() const { return completed_; }  ///< number of the last completed collective
  const std::vector<int>& world_ranks() const { return group_.world_ranks; }  ///< world ranks of the group
  /// The header of a call, by which other ranks check that they make the same call.
  Header header(const Call& call, uint64_t number) const {
    return header_of(call, hash_, number, group_.world_ranks[size_t(group_.rank)]);
  }
  /// The messages of a send, receive or batch, with their numbers. Reports the message counts to the control plane.
  std::vector<Message> begin_messages(const Call& call);
  /// The call's own timeout, else that of the job.
  Seconds timeout_of(const Call& call) const {
    return call.timeout.count() > 0 ? call.timeout : job_.control->place().timeout;
  }

  /// Reports to the control plane that a call on a device takes long and waits for world rank `peer`. `activity`: the
  /// Activity with which the call started. Returns true if it was reported; does nothing and returns false while
  /// another call is queued or running.
  bool tell_late(Activity activity, int peer);
  /// Reports that the call which tell_late() reported has finished. Returns as tell_late() does.
  bool tell_moved(Activity activity);
  /// Returns when nothing is queued. No other thread may add calls meanwhile.
  void drain();

  Activity activity;  ///< activity of the current call

 private:
  void perform(Call& call, uint64_t number);
  void note(const Call& call, int64_t begun, int64_t sent, int64_t received, std::string_view error = {}) const;

  Job& job_;
  const Membership& group_;
  const uint64_t hash_;  // hash of the job and the group
  const std::shared_ptr<Traffic> traffic_;
  const Move move_;
  const trace::Track row_;
  std::vector<uint64_t> sent_, received_;  // messages so far, by rank of the group
  std::mutex calls_;                       // held while a call is started
  uint64_t sequence_ = 0;                  // collectives so far
  std::mutex failure_mutex_;
  std::exception_ptr failure_;  // set once the group has failed
  // Number of the last completed collective. Set by the running call, on the caller's thread or the worker's.
  uint64_t completed_ = 0;
  Worker worker_;  // last: its thread ends before the members it uses
};

}  // namespace lockstep::dist
