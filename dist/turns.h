#pragma once
// The calls of a group, one at a time and in order, whatever engine moves the data: on the thread of the caller while
// nothing is queued, else on the group's own. Around each: flight record, control plane, and what happens when it
// fails.
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "dist/job.h"
#include "dist/messages.h"
#include "dist/process_group.h"
#include "dist/work.h"
#include "trace/trace.h"

namespace lockstep::dist {

inline bool is_message(Collective c) {
  return c == Collective::send || c == Collective::receive || c == Collective::batch;
}

class Turns {
 public:
  /// `move(call, number)` does the work and throws what goes wrong; number counts the calls of the group, 0 for
  /// messages. Messages are begun by begin_messages(), collectives before.
  using Move = std::function<void(Call&, uint64_t)>;
  /// `group` outlives it.
  Turns(Job& job, const Membership& group, std::shared_ptr<Traffic> traffic, Move move);

  Work run(Call call, bool async);
  /// Does what is no call of the group, between two of them. Error while one is queued.
  void aside(const std::function<void()>& fn);
  bool idle() const { return worker_.idle(); }
  uint64_t completed() const { return completed_; }
  const std::vector<int>& world_ranks() const { return group_.world_ranks; }
  Header header(const Call& call, uint64_t number) const {
    return header_of(call, hash_, number, group_.world_ranks[size_t(group_.rank)]);
  }
  /// The messages of a send, receive or batch, numbered; tells the control plane how many there have been.
  std::vector<Message> begin_messages(const Call& call);
  Seconds timeout_of(const Call& call) const {
    return call.timeout.count() > 0 ? call.timeout : job_.control->place().timeout;
  }

  /// A call on a device, begun with `activity`, takes long there: tells the control plane that it needs `peer` (of the
  /// world), or that it no longer does. Does nothing, and gives back false, while another call is under way.
  bool tell_late(Activity activity, int peer);
  bool tell_moved(Activity activity);
  /// Returns when nothing is queued. Nothing may be added meanwhile.
  void drain();

  Activity activity;  ///< of the call under way

 private:
  void perform(Call& call, uint64_t number);
  void note(const Call& call, int64_t begun, int64_t sent, int64_t received,
            std::string_view error = {}) const;  // in the trace

  Job& job_;
  const Membership& group_;
  const uint64_t hash_;  // of job and group
  const std::shared_ptr<Traffic> traffic_;
  const Move move_;
  const trace::Row row_;
  std::vector<uint64_t> sent_, received_;  // messages so far, by rank of the group
  std::mutex calls_;                       // one call at a time enters
  uint64_t sequence_ = 0;                  // calls so far, messages not counted
  std::mutex failure_mutex_;
  std::exception_ptr failure_;  // the group is over
  uint64_t completed_ = 0;      // of whoever performs: the caller while nothing is queued, else the worker
  Worker worker_;               // last: ends before what it uses
};

}  // namespace lockstep::dist
