#pragma once
// Traces (trace/trace.h) read again: for the report, for the simulation's costs, and to make one file of those of all
// ranks.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "data/json.h"
#include "trace/trace.h"

namespace lockstep::report {

struct Event {
  trace::Category category;
  std::string name;
  double begin = 0, seconds = 0;  ///< on the clock of rank 0
  int row = 0;                    ///< 0: the rank's main thread
  data::Json args;
  double end() const { return begin + seconds; }
  /// 0 when there is none.
  double number(const char* key) const;
  int64_t whole(const char* key, int64_t most = 1'000'000'000'000) const;  ///< from 0 to most, whatever stands there
  std::string text(const char* key) const;
};

struct Sample {
  double at;
  data::Json values;
};  ///< of a counter

/// What one rank wrote.
struct RankTrace {
  std::string path;
  int rank = 0, ranks = 1;
  int64_t run = 0;
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
  std::map<int, std::string> rows;
};

/// Every record of a file, as it stands there; a last line that was cut short is left out. Error for a file that is no
/// trace of ours. Gives back whether the file ended in order.
bool visit_trace(const std::string& path, const std::function<void(const std::string& line)>& visit);
RankTrace read_trace(const std::string& path);

/// The traces of one run, in the folder or in one right below it, by rank. Those of an older run are left out, and what
/// is missing is said in `warnings`. Empty when there is none.
std::vector<std::string> find_traces(const std::string& folder);
std::vector<RankTrace> read_traces(const std::string& folder, std::vector<std::string>& warnings);

/// One file of all ranks, with clocks that drifted put right. Memory does not grow with the files. Error when there are
/// none. Gives back the ranks.
std::vector<int> merge_traces(const std::string& folder, const std::string& out, std::vector<std::string>& warnings);

}  // namespace lockstep::report
