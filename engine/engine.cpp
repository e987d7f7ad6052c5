// What an engine is made of, and what happens in forward and backward:
//
//   forward    first of a micro-batch: random numbers start at (step, micro-batch)
//   backward   loss x factor ─▶ tape ─▶ first gradient: sum here only (stages 0 and 1, before the last micro-batch), or over ranks
//
// The engine listens to the parameters' gradients, so it does not matter who calls backward: engine.backward(loss), or loss.backward()
// of a loss that several engines had a part in.
#include "engine/engine.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "autograd/ops.h"
#include "engine/config_table.h"
#include "engine/impl.h"
#include "moe/expert_parallel.h"
#include "nn/gpt.h"
#include "tensor/random.h"
#include "zero/init.h"

namespace lockstep::engine {

bool is_launched() {
  for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}) if (std::getenv(name)) return true;
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");  // an interactive shell is a step of one task
  return tasks && std::strcmp(tasks, "1") != 0;
}

dist::ProcessGroup& init_distributed() {
  if (dist::is_initialized()) return dist::world();
  if (is_launched()) return dist::init();
  std::fputs("[engine] note: no launcher started this process, it trains alone; for more ranks: lockstep run -n N -- PROGRAM\n", stderr);
  return dist::init(dist::Rendezvous{});
}

namespace {

Config read(const InitializeArgs& args) {
  const bool in_args = args.args && !args.args->deepspeed_config.empty();
  LOCKSTEP_CHECK(args.config.is_given() || in_args, "[initialize] expected a config, got none: give .config (a file, JSON or a Config), or --deepspeed_config FILE");
  LOCKSTEP_CHECK(!args.config.is_given() || !in_args, "[initialize] expected one config, got two: .config and --deepspeed_config ", args.args ? args.args->deepspeed_config : "",
                 "; leave one out");
  return in_args ? read_config(args.args->deepspeed_config) : args.config.read();
}

}  // namespace

EngineBase::Impl::Impl(nn::Module& model_, InitializeArgs args) : part(args.part), model(model_) {
  log = args.log ? args.log : [](const std::string& text) { std::fprintf(stderr, "[engine] %s\n", text.c_str()); };
  Config given = read(args);
  LOCKSTEP_CHECK(!args.group || !args.mesh, "[initialize] expected a group or a mesh, got both");
  LOCKSTEP_CHECK(part || !args.mesh || args.mesh->plan().pp * args.mesh->plan().tp == 1, "[initialize] expected a mesh of whole models (dp, cp, ep), got ", to_string(args.mesh ? args.mesh->plan() : parallel::Plan()),
                 "; stages and slices are PipelineEngine's");
  group = args.mesh ? &args.mesh->copies() : args.group ? args.group : &init_distributed();
  sharing = args.mesh ? args.mesh->plan().cp : 1;
  config = resolve(std::move(given), replicas());
  LOCKSTEP_CHECK(part || config.pipeline.stages == 1, "[initialize] ", config.origin, ": pipeline.stages is ", config.pipeline.stages, ", and a model is one stage; give a PipelineModule, a list of layers (engine/pipeline_engine.h)");
  for (const std::string& warning : config.warnings) say("warning: " + warning);
  if (config.dump_state) say("config\n" + to_text(config));
  accumulation = *config.gradient_accumulation_steps;
  manual_seed(uint64_t(config.seed));

  low_precision = config.fp16.enabled || config.bf16.enabled;
  auto_cast = (config.fp16.enabled && config.fp16.auto_cast) || (config.bf16.enabled && config.bf16.auto_cast);
  dtype = low_precision ? parameter_dtype(config) : f32;
  if (args.init) args.init->end();  // the last parameter gets its dtype
  else if (low_precision) model.to(dtype);
  NamedParameters trained;
  for (const nn::NamedParameter& p : model.named_parameters()) {
    LOCKSTEP_CHECK(!low_precision || p.variable.dtype() == dtype, "[initialize] expected parameters of ", dtype, ", as ", config.origin, " says, got ", p.name, " of ", p.variable.dtype(),
                   "; build the model in a zero::Init({.dtype = ", dtype, "})");
    bool wanted = args.model_parameters.empty();
    for (const Variable& v : args.model_parameters) wanted |= v.impl() == p.variable.impl();
    if (wanted && p.variable.requires_grad()) trained.push_back(p);
  }

  if (args.optimizer) {
    if (!config.optimizer.type.empty()) say("note: the program's optimizer " + std::string(args.optimizer->name()) + " is used; optimizer.type " + config.optimizer.type + " of " + config.origin + " is not");
    optimizers.push_back(args.optimizer);
  } else {
    LOCKSTEP_CHECK(!config.optimizer.type.empty(), "[initialize] expected an optimizer, got none: give one, or name its type in ", config.origin, " (\"optimizer\": {\"type\": \"AdamW\"})");
    LOCKSTEP_CHECK(!trained.empty(), "[initialize] expected parameters that require grad, got none in ", model.kind());
    own_optimizers = make_optimizers(config, trained, group);
    for (const auto& made : own_optimizers) optimizers.push_back(made.get());
  }
  if (args.lr_scheduler) {
    LOCKSTEP_CHECK(args.optimizer, "[initialize] expected the optimizer of lr_scheduler too, got a schedule alone");
    if (!config.scheduler.type.empty()) say("note: the program's schedule is used; scheduler.type " + config.scheduler.type + " of " + config.origin + " is not");
    schedules.push_back(args.lr_scheduler);
  } else {
    for (optim::Optimizer* optimizer : optimizers) {
      auto made = make_schedule(config, *optimizer);
      if (!made) break;
      schedules.push_back(made.get());
      own_schedules.push_back(std::move(made));
    }
  }
  if (const auto options = loss_scaler_options(config)) scaler.emplace(*options);

  zero::ZeroOptions options = zero_options(config);
  if (scaler || (part && part->grad_scaler)) options.nonfinite = zero::NonFinite::skip;
  options.init = args.init;
  options.spread = spread_experts(args.mesh);
  watch();  // before ZeRO does, so that no_sync() is known when it sees the first gradient
  try {
    start(args, options);
  } catch (...) {
    close();
    throw;
  }
}

void EngineBase::Impl::start(const InitializeArgs& args, const zero::ZeroOptions& options) {
  const ActivationCheckpointingConfig& a = config.activation_checkpointing;
  if (a.enabled) {
    checkpoints.emplace(parallel::CheckpointOptions{.partition_activations = a.partition_activations, .cpu_checkpointing = a.cpu_checkpointing,
        .contiguous_memory_optimization = a.contiguous_memory_optimization, .number_checkpoints = a.number_checkpoints.value_or(0),
        .synchronize_checkpoint_boundary = a.synchronize_checkpoint_boundary, .profile = a.profile, .beside = moe::aux_losses});
    checkpoints->wrap_blocks(model);
    for (const std::string& note : checkpoints->notes()) say("note: activation_checkpointing: " + note);
  }
  if (auto* const sender = dynamic_cast<onebit::Optimizer*>(optimizers[0])) start_one_bit(*sender, options);
  else zero = std::make_unique<zero::Zero>(model, optimizers, options, group);
  if (args.training_data) make_loader(args);
  const bool leads = everybody().rank() == 0;
  if (leads) monitors = make_monitors(config, log);
  if (config.comms_logger.enabled) comms = std::make_unique<CommsLogger>(config.comms_logger, *group, [out = log, leads](const std::string& text) { if (leads) out(text); });
  if (config.flops_profiler.enabled) profiler = std::make_unique<FlopsProfiler>(model, config.flops_profiler);
  group->control().set_step(1);
}

/// Experts that only some ranks have.
zero::Spread EngineBase::Impl::spread_experts(const parallel::Mesh* mesh) {
  const std::set<std::string> names = moe::expert_names(model);
  has_spread_experts = !names.empty();
  if (names.empty()) return {};
  const int ranks = moe::expert_ranks(model);
  LOCKSTEP_CHECK(mesh && mesh->plan().ep == ranks, "[initialize] the model's experts are shared by ", ranks, " ranks: expected .mesh of a plan with ep", ranks, ", got ", mesh ? to_string(mesh->plan()) : "none");
  return {names, &mesh->edp()};
}

void EngineBase::Impl::start_one_bit(onebit::Optimizer& optimizer, const zero::ZeroOptions& options) {
  std::vector<std::string> problems, warnings;
  if (own_optimizers.empty()) check_one_bit(config, optimizer.name(), problems, warnings);  // else resolve() did
  if (part) problems.push_back(str("optimizer ", optimizer.name(), " does not go with a part of a model (a pipeline, slices of layers) so far; take AdamW"));
  if (has_spread_experts) problems.push_back(str("optimizer ", optimizer.name(), " does not go with experts that ranks share: it sums gradients of all ranks itself; take AdamW"));
  fail_if_any(config.origin, problems);
  for (const std::string& warning : warnings) say("warning: " + warning);
  one_bit = std::make_unique<OneBit>(model, optimizer, *group, OneBit::Options{.nonfinite = options.nonfinite, .accumulates = accumulation > 1 || !config.managed_gradient_accumulation,
      .note = [this](const std::string& text) { say(text); }});
}

void EngineBase::Impl::make_loader(const InitializeArgs& args) {
  const int64_t micro = *config.train_micro_batch_size_per_gpu, samples = args.training_data->size();
  LOCKSTEP_CHECK(samples > 0 && (samples >= *config.train_batch_size || !config.dataloader_drop_last), "[initialize] expected training_data of at least train_batch_size ",
                 *config.train_batch_size, " samples", samples > 0 ? " (dataloader_drop_last leaves out the rest)" : "", ", got ", samples);
  const data::MicroBatchSampler sampler({.samples = samples, .micro_batch = micro, .micro_batches = accumulation * replicas(), .world = replicas(), .rank = group->rank() / sharing,
      .seed = uint64_t(config.seed), .interleaved = are_interleaved(), .drop_last = config.dataloader_drop_last});
  loader = std::make_unique<Loader>(args.training_data, Loader::Options{.batch_size = micro, .sampler = sampler, .workers = args.loader_workers,
      .seed = uint64_t(config.seed), .world = replicas()});
}

void EngineBase::Impl::watch() {
  for (const Variable& p : model.parameters()) {
    if (!p.requires_grad()) continue;
    Variable handle = p;
    gradient_hooks.emplace_back(p, handle.on_grad_complete([this](Tensor&) { if (!in_pass && !paused) gradient_arrives(); }));
  }
  module_hooks.push_back(model.before_forward([this](nn::Module&, const std::vector<Variable>&) { before_forward(); }));
  module_hooks.push_back(model.after_forward([this](nn::Module&, const std::vector<Variable>&, const Variable&) { after_forward(); }));
}

int64_t EngineBase::Impl::micro_batch() const {
  const int64_t done = int64_t(micros.size()), i = config.managed_gradient_accumulation ? done % accumulation : done, replica = group->rank() / sharing;
  return are_interleaved() ? i * replicas() + replica : replica * accumulation + i;
}

void EngineBase::Impl::before_forward() {
  if (in_pass || closed || !model.is_training() || !NoGrad::grad_enabled()) return;
  if (forwards++ == 0) set_random_step(uint64_t(global_steps), uint64_t(micro_batch() * sharing + group->rank() % sharing));  // ranks that share one have other tokens
  if (profiler && global_steps == config.flops_profiler.profile_step && micros.empty() && forwards == 1) profiler->start();
  timing_forward = true;
  forward_start = Clock::now();
}

void EngineBase::Impl::after_forward() {
  if (!timing_forward) return;
  timing_forward = false;
  const double spent = milliseconds_since(forward_start);
  times.forward += spent;
  if (profiler && profiler->is_running()) profiler->stop(spent);
}

/// The first gradient of a backward.
void EngineBase::Impl::gradient_arrives() {
  if (closed) return;
  LOCKSTEP_CHECK(!failed, "[engine] expected zero_grad() after a backward that ended with an exception, got another backward");
  const bool needs_scale = own_factor() != 1;
  if ((needs_scale && !scaled) || (config.managed_gradient_accumulation && pending > 0)) failed = true;  // its gradient is there already
  LOCKSTEP_CHECK(!needs_scale || scaled, "[engine] expected a loss that was multiplied by the loss scale, got a plain loss.backward(); call engine.backward(loss), or "
                 "engine.scale(loss).backward() (several engines: scale(loss, {&a, &b}))");
  LOCKSTEP_CHECK(!failed, "[engine] expected step() after every backward, got a second backward; add the losses of a micro-batch up, or set managed_gradient_accumulation to false");
  struct End {  // of the pass, also when an exception is the end
    explicit End(Impl& engine) : engine(engine) {}
    ~End() {
      if (done) return;
      engine.local.reset();
      engine.in_pass = engine.scaled = false;
      engine.failed = true;
    }
    Impl& engine;
    bool done = false;
  };
  in_pass = true;
  if (!scaled) backward_start = Clock::now();
  if (zero && config.managed_gradient_accumulation && zero->stage() < 2 && !is_boundary()) local.emplace(*zero);
  after_backward([this, end = std::make_shared<End>(*this)] {
    const double spent = milliseconds_since(backward_start);  // ZeRO's own callback comes next, and waits for the reductions
    times.inner += spent;
    times.backward += spent;
    local.reset();
    if (one_bit) one_bit->add();
    if (!scaled) set_factor(1);
    in_pass = scaled = false;
    ++pending;
    micros.push_back({});
    end->done = true;
  });
}

double EngineBase::Impl::own_factor() const {
  // What is divided before the sum: by all micro-batches of the step, whose number ranks and accumulation leave the same, in f16 always,
  // as a sum of many scaled gradients would not fit; and by a number that is given back after.
  const double ahead = scaler || config.prescale_gradients ? double(accumulation * group->size()) : 1;
  if (part && part->grad_scaler) return part->grad_scaler->scale_value() / config.gradient_predivide_factor;
  return loss_scale() / ahead / config.gradient_predivide_factor;
}

void EngineBase::Impl::set_factor(double wanted) {
  LOCKSTEP_CHECK(!factor || *factor == wanted, "[engine] expected all losses of a step to be multiplied by the same, got ", wanted, " after ", factor.value_or(0),
                 "; scale all micro-batches of a step in the same way");
  factor = wanted;
}

void EngineBase::Impl::backward(const Variable& loss_, int64_t tokens_) {
  check_open("backward");
  LOCKSTEP_CHECK(!part, "[backward] a pipeline runs its backwards itself: call train_batch(), which is a whole step");
  LOCKSTEP_CHECK(loss_.defined() && loss_.numel() == 1, "[backward] expected a loss of one element, got ", loss_.defined() ? str(loss_.shape()) : "none", "; take its mean");
  LOCKSTEP_CHECK(!config.managed_gradient_accumulation || pending == 0,
                 "[backward] expected step() after every backward(), got a second backward(); add the losses of a micro-batch up, or set managed_gradient_accumulation to false");
  LOCKSTEP_CHECK(micros.empty() || (micros[0].tokens < 0) == (tokens_ < 0), "[backward] expected all micro-batches of a step with a number of tokens, or all without; got both");
  set_factor(own_factor());
  scaled = true;
  const int before = pending;
  const Tensor value = loss_.tensor();
  backward_start = Clock::now();
  const double inner = times.inner;
  try {
    if (*factor == 1) loss_.backward();
    else mul_scalar(size_of(loss_.dtype()) < 4 ? loss_.to(f32) : loss_, *factor).backward();
  } catch (...) {
    scaled = false;
    throw;
  }
  scaled = false;
  LOCKSTEP_CHECK(pending == before + 1, "[backward] expected a loss that depends on the model's parameters, got one that does not: no gradient came");
  micros.back() = {value, tokens_};
  const double spent = milliseconds_since(backward_start), waited = spent - (times.inner - inner);
  times.backward += waited;
  times.reduce += waited;
  if (profiler) profiler->backward(spent);
}

void EngineBase::Impl::check_open(const char* call) const {
  LOCKSTEP_CHECK(!closed, "[", call, "] expected an engine that is open, got one after close()");
  LOCKSTEP_CHECK(!failed, "[", call, "] expected zero_grad() after a backward that ended with an exception: its gradients are not whole");
}

void EngineBase::Impl::forget() {
  model.zero_grad();
  if (zero) zero->zero_grad();
  else one_bit->discard();
  micros.clear();
  factor.reset();
  pending = forwards = 0;
  micro_steps -= config.managed_gradient_accumulation ? micro_steps % accumulation : 0;
  failed = scaled = timing_forward = false;
}

void EngineBase::Impl::close() noexcept {
  if (closed) return;
  closed = true;
  for (auto& [parameter, id] : gradient_hooks) parameter.remove_hook(id);
  for (const int id : module_hooks) model.remove_hook(id);
  profiler.reset();
  comms.reset();
  saver.reset();  // waits; says what went wrong
  if (checkpoints) checkpoints->unwrap_blocks();
  local.reset();
  zero.reset();
  one_bit.reset();
  monitors.clear();
}

// --- the interface ---

EngineBase::EngineBase(nn::Module& model, InitializeArgs args) : impl_(std::make_unique<Impl>(model, std::move(args))) {}
EngineBase::EngineBase(EngineBase&&) noexcept = default;
EngineBase::~EngineBase() = default;

void EngineBase::backward(const Variable& loss) { impl_->backward(loss, -1); }
void EngineBase::backward(const Variable& loss_sum, int64_t tokens) {
  LOCKSTEP_CHECK(tokens >= 0, "[backward] expected a number of tokens >= 0, got ", tokens);
  impl_->backward(loss_sum, tokens);
}

Variable EngineBase::scale(const Variable& loss) { return engine::scale(loss, {this}); }
Variable scale(const Variable& loss, const std::vector<EngineBase*>& engines) {
  LOCKSTEP_CHECK(!engines.empty(), "[scale] expected at least one engine");
  LOCKSTEP_CHECK(loss.defined() && loss.numel() == 1, "[scale] expected a loss of one element, got ", loss.defined() ? str(loss.shape()) : "none");
  double least = std::numeric_limits<double>::infinity();
  for (const EngineBase* engine : engines) {
    engine->impl_->check_open("scale");
    LOCKSTEP_CHECK(!engine->impl_->part, "[scale] a pipeline scales its losses itself: call train_batch()");
    least = std::min(least, engine->impl_->own_factor());
  }
  for (EngineBase* engine : engines) {
    engine->impl_->set_factor(least);
    engine->impl_->scaled = true;
    engine->impl_->backward_start = Clock::now();
  }
  return mul_scalar(size_of(loss.dtype()) < 4 ? loss.to(f32) : loss, least);
}

void EngineBase::step(std::optional<double> metric) {
  LOCKSTEP_CHECK(!impl_->part, "[step] a pipeline's train_batch() is a whole step, and takes it itself");
  impl_->step(metric);
}
bool EngineBase::is_gradient_accumulation_boundary() const { return impl_->is_boundary(); }
void EngineBase::zero_grad() {
  LOCKSTEP_CHECK(!impl_->closed, "[zero_grad] expected an engine that is open, got one after close()");
  impl_->forget();
}

EngineBase::NoSync::NoSync(EngineBase& engine) : engine_(engine) {
  engine.impl_->check_open("no_sync");
  if (engine.impl_->zero) inner_.emplace(*engine.impl_->zero);
  ++engine_.impl_->no_sync_depth;
}
EngineBase::NoSync::~NoSync() { --engine_.impl_->no_sync_depth; }

void EngineBase::train(bool training) { impl_->model.train(training); }

EngineBase::Forward::Forward(EngineBase& engine) : engine_(engine) { engine.impl_->check_open("forward"); }
EngineBase::Forward::~Forward() { engine_.impl_->after_forward(); }
Tensor EngineBase::Forward::cast(const Tensor& input) {
  const Impl& m = *engine_.impl_;
  if (!m.low_precision || !input.defined() || !is_floating(input.dtype()) || input.dtype() == m.dtype) return input;
  saw_other_dtype_ = true;
  return m.auto_cast ? input.to(m.dtype) : input;
}
Variable EngineBase::Forward::cast(const Variable& input) {
  const Impl& m = *engine_.impl_;
  if (!m.low_precision || !input.defined() || !is_floating(input.dtype()) || input.dtype() == m.dtype) return input;
  saw_other_dtype_ = true;
  return m.auto_cast ? input.to(m.dtype) : input;
}
void EngineBase::Forward::explain(const Error& error) const {
  const Impl& m = *engine_.impl_;
  const char* const block = m.config.fp16.enabled ? "fp16" : "bf16";
  if (!saw_other_dtype_ || m.auto_cast) throw;
  fail(str(error.what(), "; the model is ", m.dtype, " (", block, ".enabled), and an input was not: set ", block, ".auto_cast to true, or convert inputs with .to(", m.dtype, ")"));
}

const Config& EngineBase::config() const { return impl_->config; }
int64_t EngineBase::train_batch_size() const { return *impl_->config.train_batch_size; }
int64_t EngineBase::train_micro_batch_size_per_gpu() const { return *impl_->config.train_micro_batch_size_per_gpu; }
int64_t EngineBase::gradient_accumulation_steps() const { return impl_->accumulation; }
int64_t EngineBase::steps_per_print() const { return impl_->config.steps_per_print.value_or(0); }
double EngineBase::gradient_clipping() const { return impl_->config.gradient_clipping; }
int EngineBase::zero_optimization_stage() const { return int(impl_->config.zero_optimization.stage); }
bool EngineBase::fp16_enabled() const { return impl_->config.fp16.enabled; }
bool EngineBase::bfloat16_enabled() const { return impl_->config.bf16.enabled; }
bool EngineBase::wall_clock_breakdown() const { return impl_->config.wall_clock_breakdown; }
int64_t EngineBase::global_steps() const { return impl_->global_steps; }
int64_t EngineBase::micro_steps() const { return impl_->micro_steps; }
int64_t EngineBase::skipped_steps() const { return impl_->skipped_steps; }
int64_t EngineBase::global_samples() const { return impl_->global_samples; }
double EngineBase::loss_scale() const { return impl_->loss_scale(); }
double EngineBase::train_loss() const { return impl_->loss; }
double EngineBase::get_global_grad_norm() const { return impl_->norm; }
std::vector<double> EngineBase::get_lr() const {
  std::vector<double> rates;
  for (const optim::Optimizer* o : impl_->optimizers) for (int g = 0; g < o->group_count(); ++g) rates.push_back(o->lr(g));
  return rates;
}
void EngineBase::set_lr(double lr) { for (optim::Optimizer* o : impl_->optimizers) o->set_lr(lr); }
int64_t EngineBase::micro_batch() const { return impl_->micro_batch(); }
dist::ProcessGroup& EngineBase::group() const { return *impl_->group; }
int EngineBase::global_rank() const { return impl_->group->world_rank(impl_->group->rank()); }
int EngineBase::local_rank() const { return impl_->group->control().place().local_rank; }
int EngineBase::world_size() const { return impl_->group->size(); }
Device EngineBase::device() const { return impl_->model.parameters().at(0).device(); }
optim::Optimizer& EngineBase::optimizer() const { return *impl_->optimizers.at(0); }
optim::Schedule* EngineBase::lr_scheduler() const { return impl_->schedules.empty() ? nullptr : impl_->schedules[0]; }
Loader* EngineBase::training_dataloader() const { return impl_->loader.get(); }
zero::Zero& EngineBase::zero() const {
  impl_->check_open("zero");
  LOCKSTEP_CHECK(impl_->zero, "[zero] expected an engine with ZeRO, got one whose optimizer ", impl_->optimizers[0]->name(), " keeps all of the model on every rank; leave the call out");
  return *impl_->zero;
}
onebit::Optimizer* EngineBase::onebit() const { return impl_->one_bit ? &impl_->one_bit->optimizer() : nullptr; }
std::string EngineBase::comms_summary(bool show_straggler) {
  LOCKSTEP_CHECK(impl_->comms, "[comms_summary] expected comms_logger.enabled in ", impl_->config.origin, ", got a config without");
  return impl_->comms->summary(show_straggler);
}
void EngineBase::close() {
  if (impl_->saver && !impl_->closed) impl_->saver->wait();
  impl_->close();
}

}  // namespace lockstep::engine
