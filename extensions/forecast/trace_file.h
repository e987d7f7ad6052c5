#pragma once
// Reads traces (trace/trace.h) for the report and for the costs of a simulation, and merges the traces of all ranks.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "data/json.h"
#include "trace/trace.h"

namespace lockstep::report {

/// The number under a key, or `otherwise` if it is missing.
double number_of(const data::Json& json, const char* key, double otherwise = 0);
std::string text_of(const data::Json& json, const char* key);  ///< "" if it is missing

/// An event of a trace.
struct TraceEvent {
  trace::Category category;
  std::string name;
  double begin = 0, seconds = 0;  ///< seconds on rank 0's clock
  int row = 0;                    ///< row of the timeline; 0: the rank's main thread
  data::Json args;
  double end() const { return begin + seconds; }                          ///< seconds on rank 0's clock
  double number(const char* key) const { return number_of(args, key); }   ///< an argument; 0 if it is missing
  std::string text(const char* key) const { return text_of(args, key); }  ///< an argument; "" if it is missing
  /// An argument as an integer, clamped to 0 .. most, as a file may contain any number.
  int64_t integer(const char* key, int64_t limit = 1'000'000'000'000) const;
};

/// A sample of a counter.
struct CounterSample {
  double at;
  data::Json values;
};

/// The nanoseconds by which a rank's clock was behind the clock of rank 0 when the rank's trace began (first_ns) and
/// ended (last_ns). In between the drift is linear.
struct ClockDrift {
  int64_t first_ns = 0, last_ns = 0;
  double last_at = 0;                               ///< seconds; the time of last_ns
  bool any() const { return first_ns != last_ns; }  ///< true if the clocks drifted apart
  /// The seconds to add to a time in the file. Times in the file are already corrected by first_ns.
  double at(double seconds) const {
    return last_at > 0 ? double(last_ns - first_ns) * 1e-9 * std::min(seconds / last_at, 1.) : 0;
  }
};

/// The trace of one rank.
struct RankTrace {
  std::string path;
  int rank = 0, ranks = 1;
  int64_t run = 0;
  ClockDrift drift;
  double clock_error = 0;          ///< seconds
  bool ended = false;              ///< true: the trace was ended; false: the process was killed, or still runs
  std::vector<TraceEvent> events;  ///< sorted by begin; without operations and tape nodes
  struct Total {                   ///< totals of one kernel
    int64_t calls = 0;
    double seconds = 0;
  };
  std::map<std::string, Total> operations;  ///< by kernel name, over the whole run
  std::map<std::string, data::Json> notes;
  std::map<std::string, std::vector<CounterSample>> counters;
  const data::Json* note(const std::string& name) const;                        ///< nullptr if there is none
  const std::vector<CounterSample>& samples(const std::string& counter) const;  ///< empty if there are none
};

/// Reads a trace. An incomplete last line is left out. Error if Lockstep did not write the file.
RankTrace read_trace(const std::string& path);

/// The paths of the traces in a folder, or else in its first subfolder that has traces. Empty if there are none.
std::vector<std::string> find_traces(const std::string& folder);
/// Reads the newest run's traces, by rank. `warnings` gets traces of other runs, which are left out, and missing ranks.
std::vector<RankTrace> read_traces(const std::string& folder, std::vector<std::string>& warnings);

/// Merges the newest run's traces into one file, with clock drift corrected. Memory use does not grow with the files.
/// Returns the ranks. Error if there are no traces.
std::vector<int> merge_traces(const std::string& folder, const std::string& out, std::vector<std::string>& warnings);

}  // namespace lockstep::report
