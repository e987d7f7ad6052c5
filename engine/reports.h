#pragma once
// What an engine reports of a run: its curves (TensorBoard's event files, and CSV; rank 0 only), its collectives, and
// the flops of its modules.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist/process_group.h"
#include "engine/config.h"
#include "nn/module.h"
#include "tensor/flops.h"

namespace lockstep::engine {

struct Event {
  std::string tag;  ///< "Train/Samples/train_loss"
  double value = 0;
  int64_t samples = 0;  ///< the x axis
};

/// Each event is with the system when write() returns: a kill loses nothing, a power cut what the system had not
/// written. When writing fails (a full disk) training goes on without, and `warn` is told once.
class Monitor {
 public:
  virtual ~Monitor() = default;
  virtual void write(const std::vector<Event>& events) = 0;
};

/// Those that the config enables. Error when a folder cannot be made.
///   tensorboard    OUTPUT_PATH/JOB_NAME/events.out.tfevents.<time>.<host>.<process>
///   csv_monitor    OUTPUT_PATH/JOB_NAME/Train_Samples_lr.csv and so on, a line an event; a run that goes on appends
std::vector<std::unique_ptr<Monitor>> make_monitors(const Config& config,
                                                    const std::function<void(const std::string&)>& warn);

/// The comms_logger: how often each collective ran with how many bytes, how long it took, and what bandwidth that is.
///   algbw = bytes / time, bytes of the whole tensor; busbw = algbw x the part that each link must carry at least:
///   all_reduce 2(n-1)/n; reduce_scatter, all_gather, all_to_all (n-1)/n; the others 1
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

/// A module with all below it.
struct ModuleProfile {
  std::string name;  ///< "" for the model itself
  std::string kind, options;
  int depth = 0;
  int64_t parameters = 0, macs = 0;
  double milliseconds = 0;
};

/// The flops_profiler: parameters, multiply-accumulates and time of every module in the forward of one micro-batch.
/// MACs are counted where matrix products, convolutions and attention are dispatched (tensor/flops.h); one is two
/// flops. Other operations count nothing. Causal attention counts the pairs that it looks at. Backward is twice the
/// forward.
class FlopsProfiler {
 public:
  FlopsProfiler(nn::Module& model, FlopsProfilerConfig config);
  ~FlopsProfiler();
  FlopsProfiler(const FlopsProfiler&) = delete;

  void start();                    ///< the coming forward is the one
  void stop(double milliseconds);  ///< it has ended
  void backward(double milliseconds) {
    if (is_done() && backward_ < 0) backward_ = milliseconds;
  }
  bool is_running() const { return running_; }
  bool is_done() const { return done_; }
  const std::vector<ModuleProfile>& modules() const { return rows_; }
  std::string report(double step_milliseconds) const;

 private:
  struct Open {
    size_t row;
    int64_t macs;
    double start;
  };
  void enter(size_t row);
  void leave(size_t row);

  nn::Module& model_;
  FlopsProfilerConfig config_;
  std::vector<ModuleProfile> rows_;  // in the order of fields()
  std::vector<std::pair<nn::Module::Calls, int>> hooks_;
  std::vector<Open> open_;
  std::optional<MacCounter> counter_;
  bool running_ = false, done_ = false;
  double backward_ = -1;
};

}  // namespace lockstep::engine
