#pragma once
// The state of a training run, read from its folder while the run goes on: `lockstep top DIR`.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/json.h"
#include "extensions/summary/status.h"

namespace lockstep {

/// Reads a run's folder (--out) again and again: config.json, metrics.jsonl, the states of the ranks (status.h), and
/// the folder's lock, which names the process that trains there.
class RunView {
 public:
  /// Error if the folder is not one of a run.
  explicit RunView(std::string folder);
  /// Reads what is new. Error for a line of metrics.jsonl that is not JSON.
  void refresh();
  /// False if no job trains in the folder. A job on another host counts as training until it releases its lock.
  bool is_running() const { return running_; }
  int64_t step() const { return step_; }  ///< steps done
  /// The state as a table: progress, losses, speed, and a row for each rank.
  std::string table() const;
  /// The state in one line, without the ranks.
  std::string line() const;

 private:
  void read_metrics();
  void add_line(const data::Json& line);
  void read_lock();
  double speed() const;  // steps per second; 0: unknown
  std::string progress() const;
  std::string losses() const;
  std::string speeds() const;
  std::string ranks_table() const;

  const std::string folder_;
  data::Json config_ = data::Json::Object();
  int64_t read_ = 0, line_ = 0;  // bytes and lines of metrics.jsonl that were read
  uint64_t file_ = 0;            // its inode; a resumed run replaces the file
  int64_t step_ = 0, epoch_ = 0;
  double loss_ = 0, smoothed_ = 0;
  std::vector<std::pair<std::string, double>> others_;           // lr, grad_norm and so on, of the last step
  std::map<std::string, std::pair<int64_t, double>> evaluated_;  // step and value
  std::vector<std::optional<RankStatus>> ranks_;
  bool running_ = false;
  std::string holder_;  // "pid 4711 on node7 since ..."
};

/// A duration as hours, minutes and seconds: "1:02:03", "0:07".
std::string clock_text(int64_t seconds);

}  // namespace lockstep
