#pragma once
// Traces (trace/trace.h) read again: for the report, for the simulation's costs, and to make one file of those of all
// ranks.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "data/json.h"
#include "trace/trace.h"

namespace lockstep::report {

/// What stands under a key, where it may be missing.
double number_of(const data::Json& json, const char* key, double otherwise = 0);
std::string text_of(const data::Json& json, const char* key);

struct Event {
  trace::Category category;
  std::string name;
  double begin = 0, seconds = 0;  ///< on the clock of rank 0
  int row = 0;                    ///< 0: the rank's main thread
  data::Json args;
  double end() const { return begin + seconds; }
  double number(const char* key) const { return number_of(args, key); }
  std::string text(const char* key) const { return text_of(args, key); }
  int64_t whole(const char* key, int64_t most = 1'000'000'000'000) const;  ///< from 0 to most, whatever stands there
};

struct Sample {
  double at;
  data::Json values;
};  ///< of a counter

/// How far a rank's clock was behind that of rank 0 when it began and at its end, between which it went evenly.
struct ClockDrift {
  int64_t first_ns = 0, last_ns = 0;
  double last_at = 0;  ///< seconds
  bool any() const { return first_ns != last_ns; }
  /// To be added to a time of the file that already has the first of them.
  double at(double seconds) const {
    return last_at > 0 ? double(last_ns - first_ns) * 1e-9 * std::min(seconds / last_at, 1.) : 0;
  }
};

/// What one rank wrote.
struct RankTrace {
  std::string path;
  int rank = 0, ranks = 1;
  int64_t run = 0;
  ClockDrift drift;
  double clock_error = 0;     ///< seconds
  bool whole = false;         ///< ended in order; else the process was killed, or still runs
  std::vector<Event> events;  ///< without operations and the tape's nodes, by begin
  struct Total {
    int64_t calls = 0;
    double seconds = 0;
  };
  std::map<std::string, Total> operations;  ///< kernels, over the whole run
  std::map<std::string, data::Json> notes;
  std::map<std::string, std::vector<Sample>> counters;
  const data::Json* note(const std::string& name) const;                 ///< null when there is none
  const std::vector<Sample>& samples(const std::string& counter) const;  ///< empty when there are none
};

/// A last line that was cut short is left out. Error for a file that is no trace of ours.
RankTrace read_trace(const std::string& path);

/// The traces of one run, in the folder or in one right below it, by rank. Those of an older run are left out, and what
/// is missing is said in `warnings`. Empty when there is none.
std::vector<std::string> find_traces(const std::string& folder);
std::vector<RankTrace> read_traces(const std::string& folder, std::vector<std::string>& warnings);

/// One file of all ranks, with clocks that drifted put right. Memory does not grow with the files. Error when there are
/// none. Gives back the ranks.
std::vector<int> merge_traces(const std::string& folder, const std::string& out, std::vector<std::string>& warnings);

}  // namespace lockstep::report
