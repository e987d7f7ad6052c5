#pragma once
// The comms_logger: how often each collective ran with how many bytes, how long it took, and what bandwidth that is.
//
//   algbw = bytes / time, bytes of the whole tensor; busbw = algbw x the part that each link must carry at least:
//   all_reduce 2(n-1)/n; reduce_scatter, all_gather, all_to_all (n-1)/n; the others 1
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "engine/config.h"

namespace lockstep::engine {

class CommsLogger {
 public:
  CommsLogger(const CommsLoggerConfig& config, dist::ProcessGroup& group, std::function<void(const std::string&)> log);
  ~CommsLogger();
  CommsLogger(const CommsLogger&) = delete;

  /// A table of what this rank did; with what it waited for others (the sum over calls of its time less the shortest of
  /// all ranks'), when all ranks made the same calls. Collective.
  std::string summary(bool show_straggler);

  static double bus_factor(const std::string& collective, int ranks);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the record's listener
  dist::ProcessGroup& group_;
};

}  // namespace lockstep::engine
