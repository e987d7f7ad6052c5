#pragma once
// What an engine holds. Not for users: they see engine.h.
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "engine/comms_logger.h"
#include "engine/engine.h"
#include "engine/flops_profiler.h"
#include "engine/monitor.h"
#include "engine/one_bit.h"
#include "engine/part.h"
#include "parallel/activation_checkpoints.h"

namespace lockstep::engine {

using Clock = std::chrono::steady_clock;
inline double milliseconds_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

/// Milliseconds since the last boundary. backward is inner (the tape) plus reduce (what gradients were still waited for after it).
struct Breakdown {
  double forward = 0, backward = 0, inner = 0, reduce = 0, step = 0;
};

/// One backward of the current step.
struct Micro {
  Tensor loss;         // undefined when the caller ran backward
  int64_t tokens = -1;  // -1: the loss is a mean
};

struct EngineBase::Impl {
  Impl(nn::Module& model, InitializeArgs args);
  ~Impl() { close(); }

  // engine.cpp
  void start(const InitializeArgs& args, const zero::ZeroOptions& options);
  zero::Spread spread_experts(const parallel::Mesh* mesh);
  void start_one_bit(onebit::Optimizer& optimizer, const zero::ZeroOptions& options);
  void make_loader(const InitializeArgs& args);
  void watch();                                // the hooks below
  void before_forward();
  void after_forward();
  void gradient_arrives();
  void backward(const Variable& loss, int64_t tokens);
  void set_factor(double factor);
  double own_factor() const;                   // what a loss is multiplied by
  bool is_boundary() const { return !config.managed_gradient_accumulation || (micro_steps + 1) % accumulation == 0; }
  int replicas() const { return group->size() / sharing; }  // that take different micro-batches
  bool are_interleaved() const { return stage() >= 2 || !config.managed_gradient_accumulation; }  // one takes every replicas()-th of them, else neighbours
  int64_t micro_batch() const;
  int stage() const { return zero ? zero->stage() : 0; }
  void check_open(const char* call) const;
  void forget();
  void close() noexcept;

  // step.cpp
  void step(std::optional<double> metric);
  void gather_losses();
  double mean_over_ranks(double value);
  void report(const zero::StepReport& done, double scale_before);
  std::string memory_text();
  double loss_scale() const { return scaler ? scaler->scale() : 1; }
  dist::ProcessGroup& everybody() const { return part ? part->everybody() : *group; }
  void say(const std::string& text) const { if (everybody().rank() == 0) log(text); }

  // save.cpp
  checkpoints::Contents contents(const SaveArgs& args);
  std::vector<checkpoints::Piece> pieces(const std::set<std::string>& without);       // of the model and its optimizer, that this rank saves
  std::vector<checkpoints::Piece> wanted_pieces(bool with_optimizer);                  // and that it loads: live
  checkpoints::Numbers own_numbers() const;                                            // the optimizer's
  static std::map<std::string, double> plain_numbers(const checkpoints::Numbers& numbers);
  std::optional<Loaded> load(const std::string& dir, const LoadArgs& args);
  void load_numbers(const checkpoints::Loaded& found, const LoadArgs& args, bool with_optimizer);

  const std::shared_ptr<Part> part;            // goes last: it holds what the model is made of
  nn::Module& model;
  std::function<void(const std::string&)> log;
  dist::ProcessGroup* group = nullptr;         // whose gradients are summed
  int sharing = 1;                             // neighbours in it that share each micro-batch
  Config config;
  int64_t accumulation = 1;
  DType dtype = f32;                           // that inputs are cast to
  bool low_precision = false, auto_cast = false;
  bool has_spread_experts = false;             // other ranks have other ones
  std::vector<std::unique_ptr<optim::Optimizer>> own_optimizers;
  std::vector<optim::Optimizer*> optimizers;
  std::vector<std::unique_ptr<optim::Schedule>> own_schedules;
  std::vector<optim::Schedule*> schedules;     // one for each optimizer, or none
  std::optional<optim::DynamicLossScaler> scaler;
  std::optional<parallel::ActivationCheckpoints> checkpoints;
  std::unique_ptr<zero::Zero> zero;            // or, when the optimizer moves gradients itself,
  std::unique_ptr<OneBit> one_bit;
  std::unique_ptr<Loader> loader;

  // The current step
  std::vector<Micro> micros;
  int pending = 0;                             // backwards since the last step()
  int forwards = 0;                            // and forwards
  std::optional<double> factor;                // that its losses were multiplied by
  bool scaled = false;                         // the loss of the coming backward was
  bool in_pass = false, failed = false, closed = false;
  bool paused = false;                         // a pipeline's own backwards
  int no_sync_depth = 0;
  std::optional<zero::Zero::NoSync> local;     // this backward sums here only

  int64_t micro_steps = 0, global_steps = 0, skipped_steps = 0, global_samples = 0;
  double loss = NAN, norm = NAN;
  double tokens = 0;                           // of the step, over all ranks; 0 when losses are means

  Breakdown times, shown_times;                // since the last boundary; since the last line
  int64_t timed_steps = 0;
  Clock::time_point forward_start, backward_start;
  bool timing_forward = false;
  std::vector<std::unique_ptr<Monitor>> monitors;
  std::unique_ptr<CommsLogger> comms;
  std::unique_ptr<FlopsProfiler> profiler;

  std::unique_ptr<checkpoints::Saver> saver;
  std::string saver_key;

  std::vector<std::pair<Variable, int>> gradient_hooks;
  std::vector<int> module_hooks;
};

}  // namespace lockstep::engine
