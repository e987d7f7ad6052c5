#pragma once
// What an engine holds. Not for users: they see engine.h.
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "data/to_device.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "engine/one_bit.h"
#include "engine/part.h"
#include "engine/reports.h"
#include "engine/step_graphs.h"
#include "parallel/activation_checkpoints.h"
#include "tensor/clock.h"

namespace lockstep::engine {

inline double milliseconds_since(double start) { return 1e3 * (steady_seconds() - start); }

/// Milliseconds since the last boundary. backward is inner (the tape) plus reduce (what gradients were still waited for
/// after it).
struct Breakdown {
  double forward = 0, backward = 0, inner = 0, reduce = 0, step = 0;
};

/// In f32 where the loss is of 16 bits.
Variable times_factor(const Variable& loss, double factor);

/// One backward of the current step.
struct Micro {
  Tensor loss;          // undefined when the caller ran backward
  int64_t tokens = -1;  // -1: the loss is a mean
};

struct EngineBase::Impl {
  struct Agreed;
  Impl(PipelineModule module, const InitializeArgs& args);
  Impl(const Agreed& agreed, PipelineModule& module, const InitializeArgs& args);
  ~Impl() { close(); }

  // engine.cpp
  void choose_optimizers(const InitializeArgs& args);
  void choose_schedules(const InitializeArgs& args);
  void start(const InitializeArgs& args);
  zero::Spread spread_experts(const parallel::Mesh* mesh);
  void make_loader(const InitializeArgs& args);
  int replicas() const { return group->size() / sharing; }  // that take different micro-batches
  bool are_interleaved() const {
    return stage() >= 2 || !config.managed_gradient_accumulation;
  }  // one takes every replicas()-th of them, else neighbours
  int stage() const { return zero ? zero->stage() : 0; }
  void check_open(const char* call) const;
  void check_whole(const char* call) const;
  void say(const std::string& text) const {
    if (world.rank() == 0) log(text);
  }
  void close() noexcept;

  // backward.cpp
  void watch();  // the hooks below
  void before_forward();
  void notice_end_of_loop();
  void after_forward();
  void gradient_arrives();
  void check_backward(int64_t tokens) const;
  void backward(const Variable& loss, int64_t tokens);
  void pass(const Variable& root, const Tensor& value, int64_t tokens);
  void run_scaled(const Variable& loss);  // the backward of one that is multiplied already
  void set_factor(double factor);
  double own_factor() const;  // what a loss is multiplied by
  bool is_boundary() const { return !config.managed_gradient_accumulation || (micro_steps + 1) % accumulation == 0; }
  int64_t micro_batch(int64_t ahead = 0) const;  // the next one, or that many behind it
  void begin_random(int64_t micro_batch, uint64_t drawn = 0);
  template <class T> T cast(const T& input) const {  // to the parameters' dtype, where the config says so
    return auto_cast && is_other_dtype(input) ? input.to(dtype) : input;
  }
  template <class T> bool is_other_dtype(const T& input) const {
    return low_precision && input.defined() && is_floating(input.dtype()) && input.dtype() != dtype;
  }
  void forget();

  // batch.cpp
  pipeline::Data with_cast(const pipeline::Data& data) const;
  pipeline::Sample sample(const pipeline::Data& data, int64_t micro_batch, uint64_t* calls = nullptr) const;
  MicroBatch draw(const pipeline::Data& data, int64_t number) const;
  Variable mean_loss(const pipeline::Sample& sample, const pipeline::Loss* measure, bool of_none);
  Variable run(const pipeline::Sample& sample, const pipeline::Loss* measure, int64_t tokens = -1);
  std::vector<MicroBatch> draw_ahead(const pipeline::Data& data) const;
  void train_whole(const pipeline::Data& data, std::vector<MicroBatch> ahead, std::optional<double> metric);
  void train_part(const pipeline::Data& data, const std::vector<MicroBatch>& ahead, std::optional<double> metric);
  using Scale = std::function<Variable(const Variable&)>;
  void run_schedule(const pipeline::Data& data, const std::vector<MicroBatch>& ahead, const Scale& scale);
  std::vector<double> eval_whole(const pipeline::Data& data, int micro_batches, const pipeline::Loss* measure,
                                 int values);

  // step.cpp
  void step(std::optional<double> metric);
  bool wants_metric() const;
  zero::StepOptions step_options();
  void end_step(double start, std::optional<double> metric,
                const std::function<zero::StepReport(const zero::StepOptions&)>& run);
  void gather_losses();
  std::vector<double> sum_of_ranks(const std::vector<double>& mine, const char* tag) const;
  void update_fp8();
  void report(const zero::StepReport& done, double scale_before);
  std::string memory_text();
  std::vector<double> learning_rates() const;
  double loss_scale() const { return scaler ? scaler->scale() : 1; }

  // save.cpp
  checkpoints::Contents contents(const SaveArgs& args);
  std::vector<checkpoints::Piece> pieces(
      const std::set<std::string>& without);  // of the model and its optimizer, that this rank saves
  bool has_state() const { return !part || !part->nothing; }
  std::vector<checkpoints::Piece> fp8_pieces() const;
  bool want_fp8(const checkpoints::Info& info, std::vector<checkpoints::Piece>& wanted);
  checkpoints::Numbers own_numbers() const;  // the optimizer's
  std::optional<Loaded> load(const std::string& dir, const LoadArgs& args);
  void load_numbers(const checkpoints::Loaded& found, const LoadArgs& args, bool with_optimizer);
  std::map<std::string, double> told() const;  // what the program says that a checkpoint says, too

  const std::function<void(const std::string&)> log;
  optim::GradScaler* const grad_scaler;
  dist::ProcessGroup& world;  // all ranks
  Config config;              // resolved
  const parallel::Plan plan;
  const std::unique_ptr<parallel::Mesh> own_mesh;  // where parts need one, and none was given
  const std::unique_ptr<Part> part;                // this rank's of a model that is cut; or
  PipelineModule whole;                            // the model with its loss
  nn::Module& model;                               // what is trained
  dist::ProcessGroup* group = nullptr;             // whose gradients are summed
  int sharing = 1;                                 // neighbours in it that share each micro-batch
  dist::ProcessGroup* sharers = nullptr;           // they, where there are several
  int64_t accumulation = 1;
  DType dtype = f32;  // that inputs are cast to
  bool low_precision = false, auto_cast = false;
  std::vector<std::unique_ptr<optim::Optimizer>> own_optimizers;
  std::vector<optim::Optimizer*> optimizers;
  std::vector<std::unique_ptr<optim::Schedule>> own_schedules;
  std::vector<optim::Schedule*> schedules;  // one for each optimizer, or none
  std::optional<optim::DynamicLossScaler> scaler;
  std::optional<parallel::ActivationCheckpoints> checkpoints;
  std::unique_ptr<zero::Zero> zero;  // or, when the optimizer moves gradients itself,
  std::unique_ptr<OneBit> one_bit;
  std::unique_ptr<nn::Fp8Scaling> fp8;
  std::unique_ptr<Loader> loader;
  std::optional<data::RepeatingLoader<data::Example>> batches;  // of it, for train_batch()
  std::optional<data::ToDevice> to_device;
  StepGraphs graphs;

  // The current step
  std::vector<Micro> micros;
  int pending = 0;               // backwards since the last step()
  int forwards = 0;              // and forwards
  std::optional<double> factor;  // that its losses were multiplied by
  bool scaled = false;           // the loss of the coming backward was
  bool in_pass = false, failed = false, closed = false;
  bool drawn = false;   // random numbers of the coming micro-batch were begun by its data
  bool paused = false;  // a schedule's own backwards
  int64_t loops = 0;    // over DataLoaders, in which the step began
  bool said_unfilled = false;
  int no_sync_depth = 0;
  std::optional<zero::Zero::NoSync> local;         // this backward sums here only
  std::optional<zero::Zero::NoSync> caller_local;  // and those while no_sync() lives

  int64_t micro_steps = 0, global_steps = 0, skipped_steps = 0, global_samples = 0;
  double loss = NAN, norm = NAN;
  double tokens = 0;  // of the step, over all ranks; 0 when losses are means

  Breakdown times, shown_times;  // since the last boundary; since the last line
  int64_t timed_steps = 0;
  double forward_start = 0, backward_start = 0;  // of steady_seconds()
  int64_t forward_traced = 0;                    // of trace::now()
  bool timing_forward = false;
  std::vector<std::unique_ptr<Monitor>> monitors;
  std::unique_ptr<CommsLogger> comms;
  std::unique_ptr<FlopsProfiler> profiler;

  std::unique_ptr<checkpoints::Saver> saver;
  std::string saver_key;

  std::vector<std::pair<Variable, int>> gradient_hooks;
  std::vector<int> module_hooks;
  nn::Module::Calls model_calls;
};

}  // namespace lockstep::engine
