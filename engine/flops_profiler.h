#pragma once
// The flops_profiler: parameters, multiply-accumulates and time of every module in the forward of one micro-batch.
//
// MACs are counted where matrix products, convolutions and attention are dispatched (tensor/flops.h); one is two flops.
// Other operations count nothing. Causal attention counts the pairs that it looks at. Backward is twice the forward.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/config.h"
#include "nn/module.h"
#include "tensor/flops.h"

namespace lockstep::engine {

/// A module with all below it.
struct ModuleProfile {
  std::string name;  ///< "" for the model itself
  std::string kind, options;
  int depth = 0;
  int64_t parameters = 0, macs = 0;
  double milliseconds = 0;
};

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
  std::vector<std::pair<nn::Module*, int>> hooks_;
  std::vector<Open> open_;
  std::optional<MacCounter> counter_;
  bool running_ = false, done_ = false;
  double backward_ = -1;
};

}  // namespace lockstep::engine
