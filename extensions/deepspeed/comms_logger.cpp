// Measures collectives: see CommsLogger in reports.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>

#include "dist/job.h"
#include "dist/numbers.h"
#include "extensions/deepspeed/reports.h"

namespace lockstep::engine {

namespace {

/// A call as the flight recorder describes it: "all_reduce f32 x 8, tag w1".
struct Parsed {
  std::string collective;
  int64_t bytes = 0;
};
Parsed parse(const std::string& call) {
  Parsed p{.collective = call.substr(0, call.find_first_of(" ,"))};
  const size_t at = call.find(" x ");
  if (at == std::string::npos) return p;
  const size_t name = call.rfind(' ', at - 1) + 1;
  const std::string dtype = call.substr(name, at - name);  // a word of the tag if " x " is in the tag
  for (const DType d : {f32, f64, f16, bf16, i64, i32, i8, u8, boolean})
    if (name_of(d) == dtype) p.bytes = std::atoll(call.c_str() + at + 3) * size_of(d);
  return p;
}

}  // namespace

struct CommsLogger::State {
  State(const CommsLoggerConfig& config, int ranks, const std::function<void(const std::string&)>& log)
      : config(config), ranks(ranks), log(log) {}
  const CommsLoggerConfig config;
  const int ranks;
  const std::function<void(const std::string&)> log;
  std::mutex mutex;  // collectives also end on the group's thread
  /// Seconds of each call by collective and bytes, in the order of the calls.
  std::map<std::pair<std::string, int64_t>, std::vector<double>> seconds;

  bool wants(const std::string& collective) const {
    return config.prof_all ||
           std::find(config.prof_ops.begin(), config.prof_ops.end(), collective) != config.prof_ops.end();
  }
  void note(const dist::Flight::Entry& entry) {
    if (!entry.error.empty()) return;
    const Parsed p = parse(entry.call);
    if (!wants(p.collective)) return;
    const double time = double(entry.ended_ns - entry.started_ns) * 1e-9;
    std::unique_lock lock(mutex);
    seconds[{p.collective, p.bytes}].push_back(time);
    lock.unlock();
    if (!config.verbose) return;
    const double algorithm = time > 0 ? double(p.bytes) / time * 1e-9 : 0;
    log(fmt::format("comm op: {} | time (ms): {:.3f} | msg size: {} | algbw (GB/s): {:.3f} | busbw (GB/s): {:.3f}{}",
                    p.collective, time * 1e3, p.bytes, algorithm, algorithm * bus_factor(p.collective, ranks),
                    config.debug ? " | " + entry.call : ""));
  }
};

double CommsLogger::bus_factor(const std::string& c, int ranks) {
  const double n = ranks;
  if (c == "all_reduce") return 2 * (n - 1) / n;
  return c == "all_gather" || c == "reduce_scatter" || c == "all_to_all" ? (n - 1) / n : 1;
}

void CommsLogger::ready() {
  dist::World* const world = dist::current_world();
  LOCKSTEP_CHECK(world, "[comms_logger] expected a group of this process's world, got none; call dist::init() first");
  state_ = std::make_shared<State>(config_, trained_.group.size(), trained_.say);
  world->job->flight.listen([state = state_](const dist::Flight::Entry& entry) { state->note(entry); });
}

CommsLogger::~CommsLogger() {
  if (dist::World* const world = state_ ? dist::current_world() : nullptr) world->job->flight.listen({});
}

std::string CommsLogger::summary(bool show_straggler) {
  std::unique_lock lock(state_->mutex);
  const auto rows = state_->seconds;
  lock.unlock();
  std::vector<double> times;
  uint64_t names = 0;
  for (const auto& [call, seconds] : rows) {
    names = names * 1000003 + std::hash<std::string>()(call.first) + uint64_t(call.second) + seconds.size();
    times.insert(times.end(), seconds.begin(), seconds.end());
  }
  // If all ranks made the same calls (equal hashes), `least` becomes the shortest time of each call on any rank.
  std::vector<double> least = times;
  const std::vector<int64_t> all =
      dist::all_gathered<int64_t>({int64_t(names)}, trained_.group, {.tag = "comms_logger calls"});
  const bool same = std::all_of(all.begin(), all.end(), [&](int64_t h) { return h == all[0]; });
  if (same && !times.empty())
    least = dist::all_reduced(times, trained_.group, {.op = dist::ReduceOp::min, .tag = "comms_logger times"});
  std::string text =
      fmt::format("{:<16}{:>14}{:>8}{:>14}{:>14}{:>14}{:>14}{:>14}\n", "comm op", "bytes", "count", "total (ms)",
                  "avg (ms)", "algbw (GB/s)", "busbw (GB/s)", show_straggler ? "waited (ms)" : "");
  size_t at = 0;
  for (const auto& [call, seconds] : rows) {
    double total = 0, waited = 0;
    for (const double s : seconds) {
      total += s;
      waited += s - least[at++];
    }
    const double mean = total / double(seconds.size()), algorithm = mean > 0 ? double(call.second) / mean * 1e-9 : 0;
    const std::string wait = !show_straggler ? "" : same ? fmt::format("{:.3f}", waited * 1e3) : "-";
    text += fmt::format("{:<16}{:>14}{:>8}{:>14.3f}{:>14.3f}{:>14.3f}{:>14.3f}{:>14}\n", call.first, call.second,
                        seconds.size(), total * 1e3, mean * 1e3, algorithm,
                        algorithm * bus_factor(call.first, trained_.group.size()), wait);
  }
  return text;
}

}  // namespace lockstep::engine
