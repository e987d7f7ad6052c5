#pragma once
// Reports of a training run: curves for TensorBoard and CSV files (rank 0 only), statistics of collectives, and FLOPs
// of modules. config.section<FlopsProfilerConfig>() returns the section "flops_profiler", and likewise for the others.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist/process_group.h"
#include "engine/engine.h"
#include "engine/participant.h"
#include "nn/module.h"
#include "tensor/flops.h"

namespace lockstep::engine {

/// The section "flops_profiler"; see FlopsProfiler.
struct FlopsProfilerConfig {
  bool enabled = false;
  int64_t profile_step = 1, module_depth = -1, top_modules = 1;
  bool detailed = true;
  std::optional<std::string> output_file = {};
};

/// Training curves are written to the folder JOB_NAME in OUTPUT_PATH.
struct MonitorConfig {
  bool enabled = false;
  std::string output_path = {};
  std::string job_name = "DeepSpeedJobName";
};
struct TensorBoardConfig : MonitorConfig {};  ///< the section "tensorboard"
struct CsvMonitorConfig : MonitorConfig {};   ///< the section "csv_monitor"

/// The section "comms_logger"; see CommsLogger.
struct CommsLoggerConfig {
  bool enabled = false, verbose = false, prof_all = true, debug = false;
  std::vector<std::string> prof_ops = {};
};

/// A point of a curve.
struct MonitorEvent {
  std::string tag;  ///< "Train/Samples/train_loss"
  double value = 0;
  int64_t samples = 0;  ///< samples trained on so far, the x axis
};

/// Writes curves. write() returns after the data are passed to the operating system: they survive a kill, but not
/// necessarily a power cut. If a write fails (full disk), `warn` of make_monitors() is called once; training goes on.
class Monitor {
 public:
  virtual ~Monitor() = default;
  /// Appends points to their curves.
  virtual void write(const std::vector<MonitorEvent>& events) = 0;
};

/// The monitors that the config enables. Error when a folder cannot be created.
///   tensorboard    OUTPUT_PATH/JOB_NAME/events.out.tfevents.*, by a SummaryWriter (extensions/summary)
///   csv_monitor    OUTPUT_PATH/JOB_NAME/Train_Samples_lr.csv and so on: a line per event; a resumed run appends
std::vector<std::unique_ptr<Monitor>> make_monitors(const Config& config,
                                                    const std::function<void(const std::string&)>& warn);

/// The monitor of an engine, as DeepSpeed's engine.monitor: write() appends points of your own to the files of all
/// monitors that the configuration enables. Only rank 0 writes; on other ranks write() has no effect. It lives as long
/// as the engine. Error if the configuration enables none.
Monitor& monitor(const EngineBase& engine);

/// The comms_logger of DeepSpeed: counts calls, bytes and time of each collective, and computes bandwidths.
///   algbw = bytes of the whole tensor / time
///   busbw = algbw x (the least that each of n ranks must send / bytes of the tensor): all_reduce 2(n-1)/n;
///           reduce_scatter, all_gather, all_to_all (n-1)/n; others 1
class CommsLogger : public Participant {
 public:
  /// Records the collectives of trained.group from ready() on; trained.say prints lines of the verbose mode.
  CommsLogger(CommsLoggerConfig config, const Trained& trained) : config_(std::move(config)), trained_(trained) {}
  ~CommsLogger() override;
  void ready() override;
  std::string against_graphs(bool ever) const override {
    return ever && trained_.world.size() > 1 ? "comms_logger measures each collective" : "";
  }

  /// A table of this rank's collectives. show_straggler: adds a column with the wait for other ranks (this rank's time
  /// minus the shortest time of any rank, summed over the calls), or "-" if ranks made different calls. Collective.
  std::string summary(bool show_straggler);

  /// The ratio busbw / algbw of a collective on `ranks` ranks.
  static double bus_factor(const std::string& collective, int ranks);

 private:
  struct State;
  const CommsLoggerConfig config_;
  const Trained trained_;
  std::shared_ptr<State> state_;  // shared with the listener that records calls
};

/// Returns comms_logger's table of collectives; see CommsLogger::summary(). Error without comms_logger.enabled.
/// Collective.
std::string comms_summary(const EngineBase& engine, bool show_straggler = true);

/// Statistics of a module, including all modules below it.
struct ModuleProfile {
  std::string name;  ///< "" for the model itself
  std::string kind, options;
  int depth = 0;
  int64_t parameters = 0, macs = 0;
  double milliseconds = 0;
};

/// The flops_profiler: parameters, multiply-accumulates (MACs) and time of every module in the forward of one
/// micro-batch. MACs are counted where matrix products, convolutions and attention are dispatched (tensor/flops.h);
/// other operations count nothing. One MAC is two FLOPs. Causal attention counts only the (query, key) pairs that are
/// not masked. A backward counts as two forwards.
class FlopsProfiler {
 public:
  /// A profiler of `model`. Call start() before the forward to be profiled.
  FlopsProfiler(nn::Module& model, FlopsProfilerConfig config);
  ~FlopsProfiler();
  FlopsProfiler(const FlopsProfiler&) = delete;

  void start();                    ///< profiles the coming forward
  void stop(double milliseconds);  ///< ends the profiled forward, which took this long
  /// Records the time of the first backward after the profiled forward. Later calls have no effect.
  void backward(double milliseconds) {
    if (is_done() && backward_ < 0) backward_ = milliseconds;
  }
  /// True between start() and stop().
  bool is_running() const { return counter_.has_value(); }
  /// True after stop().
  bool is_done() const { return done_; }
  /// The statistics of each module.
  const std::vector<ModuleProfile>& modules() const { return rows_; }
  /// Returns the report as text. step_milliseconds: time of a whole step.
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
  bool done_ = false;
  double backward_ = -1;
};

}  // namespace lockstep::engine
