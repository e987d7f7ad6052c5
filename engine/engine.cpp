// Builds an engine from a configuration, a plan of ranks and a model:
//
//   config ─▶ plan, checked by check_plan() ─▶ this rank's part of the model ─▶ optimizers, schedules ─▶ ZeRO
#include "engine/engine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/printable.h"
#include "dist/control.h"
#include "engine/check_plan.h"
#include "engine/impl.h"
#include "engine/memory_advice.h"
#include "engine/section.h"
#include "parallel/moe/expert_parallel.h"
#include "tensor/random.h"

namespace lockstep::engine {

bool is_launched() {
  for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK"})
    if (std::getenv(name)) return true;
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");  // 1 also in an interactive shell
  return tasks && std::strcmp(tasks, "1") != 0;
}

dist::ProcessGroup& init_distributed() {
  if (dist::is_initialized()) return dist::world();
  if (is_launched()) return dist::init();
  std::fputs(
      "[engine] note: no launcher started this process, so it trains alone; for more ranks: lockstep run -n N -- "
      "PROGRAM\n",
      stderr);
  return dist::init(dist::Rendezvous{});
}

namespace {

Config read(const InitializeArgs& args) {
  const bool in_args = args.args && !args.args->deepspeed_config.empty();
  LOCKSTEP_CHECK(
      args.config.is_given() || in_args,
      "[initialize] expected a config, got none: give .config (a file, JSON or a Config), or --deepspeed_config FILE");
  LOCKSTEP_CHECK(!args.config.is_given() || !in_args,
                 "[initialize] expected one config, got two: .config and --deepspeed_config ",
                 args.args ? args.args->deepspeed_config : "", "; leave one out");
  return in_args ? read_config(args.args->deepspeed_config) : args.config.read();
}

/// The number of pipeline stages, set by the module, the config or the mesh. Error if they set different numbers.
int stages_of(const PipelineModule& module, const Config& c, const parallel::Mesh* mesh) {
  const auto agree = [&](bool in_module, const char* name, const auto& own, bool in_config, const char* key,
                         const auto& there) {
    LOCKSTEP_CHECK(!in_module || !in_config || own == there, "[initialize] PipelineModule has ", name, " ", own,
                   ", which contradicts ", c.origin, ", where ", key, " is ", there, "; leave one of them out");
  };
  const bool in_config = c.has("pipeline.stages") || c.pipeline.stages > 1;
  agree(module.num_stages > 0, "num_stages", module.num_stages, in_config, "pipeline.stages", c.pipeline.stages);
  agree(!module.partition_method.empty(), "partition_method", module.partition_method, c.has("pipeline.partition"),
        "pipeline.partition", c.pipeline.partition);
  const auto& interval = module.activation_checkpoint_interval;
  const char* const key = "pipeline.activation_checkpoint_interval";
  agree(interval.has_value(), "activation_checkpoint_interval", interval.value_or(0), c.has(key), key,
        c.pipeline.activation_checkpoint_interval);
  const int stages = module.num_stages > 0 ? module.num_stages
                     : in_config           ? int(c.pipeline.stages)
                     : mesh                ? mesh->plan().pp
                                           : 1;
  LOCKSTEP_CHECK(!mesh || mesh->plan().pp == stages, "[initialize] expected a mesh of pp", stages,
                 ", as the module or the config sets this number of pipeline stages, got ",
                 to_string(mesh ? mesh->plan() : parallel::Plan()), "; change one of them");
  return stages;
}

/// Returns the plan of the mesh. Without a mesh: pipeline stages times as many replicas as the ranks allow.
parallel::Plan plan_of(const PipelineModule& module, const Config& config, const InitializeArgs& args, int ranks) {
  const int stages = stages_of(module, config, args.mesh);
  parallel::Plan plan = args.mesh ? args.mesh->plan() : parallel::Plan{.dp = std::max(1, ranks / stages), .pp = stages};
  if (config.zero_optimization.stage > 0) plan.zero = int(config.zero_optimization.stage);
  return plan;
}

/// True if this rank runs a pipeline schedule on its part of the model.
bool is_cut(const PipelineModule& module, const parallel::Plan& plan, const InitializeArgs& args) {
  return !module.model || plan.pp * plan.tp > 1 || args.sharded || module.schedule || !module.bounds.empty();
}

}  // namespace

/// The settings that are computed and checked before this rank builds its part of the model: config, world and plan.
struct EngineBase::Impl::Agreed {
  Agreed(PipelineModule& module, const InitializeArgs& args) : config(read(args)) {
    LOCKSTEP_CHECK(!module.model || module.layers.empty(),
                   "[initialize] PipelineModule expected a model or layers, got both; leave one out");
    LOCKSTEP_CHECK(!args.group || !args.mesh, "[initialize] expected a group or a mesh, got both; leave one out");
    LOCKSTEP_CHECK(args.lr_scheduler.is_none() || !args.optimizer.is_none(),
                   "[initialize] expected the optimizer of lr_scheduler too, got a schedule alone");
    world = args.mesh ? &args.mesh->world() : args.group ? args.group : &init_distributed();
    plan = plan_of(module, config, args, world->size());
    is_cut = engine::is_cut(module, plan, args);
    if (is_cut && config.checkpoints_activations()) {  // stages compute their layers again themselves
      module.recompute = true;
      if (!module.model && config.pipeline.activation_checkpoint_interval == 0)
        config.pipeline.activation_checkpoint_interval = 1;
      const ActivationCheckpointingConfig& a = config.activation_checkpointing;
      if (a.partition_activations || a.cpu_checkpointing || a.profile)
        lines.push_back("warning: activation_checkpointing: with pp or tp, inputs of layers stay where they are");
      config.activation_checkpointing = {};
    }
    layers = !is_cut ? 0 : module.model ? int64_t(module.model->layers().items.size()) : int64_t(module.layers.size());
    config.pipeline.stages = plan.pp;
    check(args.optimizer.given ? std::string(args.optimizer.given->name()) : "");
    LOCKSTEP_CHECK(!is_cut || !args.optimizer.given,
                   "[initialize] expected a function that makes the optimizer of this rank's part, as ",
                   to_string(plan),
                   " cuts the model, got one of the whole model; give .optimizer = [](nn::Module& part) { ... }");
    const bool casts = (config.fp16.enabled && config.fp16.auto_cast) || (config.bf16.enabled && config.bf16.auto_cast);
    if (casts && !module.autocast) module.autocast = parameter_dtype(config);
    config = resolve(std::move(config), plan.dp);
    LOCKSTEP_CHECK(!args.grad_scaler || !config.fp16.enabled,
                   "[initialize] expected fp16.enabled or a grad_scaler, got both; leave one out");
    for (const Section& section : sections()) {
      std::string line = section.prepare ? section.prepare(config, args, module) : "";
      if (!line.empty()) lines.push_back(std::move(line));
    }
    const std::optional<DType> autocast = args.autocast ? args.autocast : module.autocast;
    product_dtype = parameter_dtype(config) != f32 ? parameter_dtype(config) : autocast.value_or(f32);
  }
  /// Error if the config cannot run under the plan. optimizer: name of the optimizer that the program passed, or "".
  void check(const std::string& optimizer) const {
    check_plan(config, plan, {.ranks = world->size(), .layers = layers}, optimizer);
  }

  Config config;
  dist::ProcessGroup* world = nullptr;
  parallel::Plan plan;
  bool is_cut = false;
  int64_t layers = 0;              // number of layers of a model that is cut
  std::vector<std::string> lines;  // to print, from Section::prepare
  DType product_dtype = f32;
};

EngineBase::Impl::Impl(PipelineModule module, const InitializeArgs& args) : Impl(Agreed(module, args), module, args) {
  start(args);  // if it fails, close() cleans up, as all members exist
}

EngineBase::Impl::Impl(const Agreed& agreed, PipelineModule& module, const InitializeArgs& args)
    : log(args.log ? args.log
                   : [](const std::string& text) { std::fprintf(stderr, "[engine] %s\n", printable(text).c_str()); }),
      grad_scaler(args.grad_scaler),
      world(*agreed.world),
      config(agreed.config),
      plan(agreed.plan),
      own_mesh(agreed.is_cut && !args.mesh ? std::make_unique<parallel::Mesh>(plan, world) : nullptr),
      part(agreed.is_cut
               ? std::make_unique<ModelPart>(std::move(module), config, own_mesh ? *own_mesh : *args.mesh, args)
               : nullptr),
      unsplit(part ? PipelineModule() : std::move(module)),
      model(part ? part->model() : *unsplit.model),
      group(own_mesh    ? &own_mesh->replicas()
            : args.mesh ? &args.mesh->replicas()
                        : &world),
      context_ranks(plan.cp),
      sharers(plan.cp > 1 ? &args.mesh->cp() : nullptr),
      product_dtype(agreed.product_dtype),
      graphs(*this, args.graphs) {
  for (const std::string& warning : config.warnings) say("warning: " + warning);
  for (const std::string& line : agreed.lines) say(line);
  if (config.dump_state) say("config\n" + to_text(config));
  accumulation = *config.gradient_accumulation_steps;
  if (args.autocast) unsplit.autocast = args.autocast;
  manual_seed(uint64_t(config.seed));
  if (args.optimizer.make) {
    own_optimizers.push_back(args.optimizer.make(model));
    agreed.check(std::string(own_optimizers[0]->name()));
  }
  auto_cast = (config.fp16.enabled && config.fp16.auto_cast) || (config.bf16.enabled && config.bf16.auto_cast);
  dtype = parameter_dtype(config);
  if (low_precision()) model.to(dtype);
  choose_optimizers(args);
  choose_schedules(args);
  if (const auto options = loss_scaler_options(config)) scaler.emplace(*options);
}

/// Uses the optimizer that the program passed, or makes those that the config names.
void EngineBase::Impl::choose_optimizers(const InitializeArgs& args) {
  if (args.optimizer.given) optimizers.push_back(args.optimizer.given);
  if (args.optimizer.is_none()) {
    NamedParameters trained;
    for (const nn::NamedParameter& p : model.named_parameters())
      if (p.variable.requires_grad()) trained.push_back(p);
    LOCKSTEP_CHECK(!config.optimizer.type.empty(),
                   "[initialize] expected an optimizer, got none: give one, or name its type in ", config.origin,
                   " (\"optimizer\": {\"type\": \"AdamW\"})");
    LOCKSTEP_CHECK(!trained.empty(), "[initialize] expected parameters that require grad, got none in ", model.kind(),
                   "; call requires_grad_(true) on those to train");
    own_optimizers = make_optimizers(config, trained, group);
  }
  for (const auto& made : own_optimizers) optimizers.push_back(made.get());
  for (optim::Optimizer* optimizer : optimizers) optimizer->keep_average(config.ema.decay);
  if (args.optimizer.is_none()) return;
  const std::string name(optimizers[0]->name());
  for (const std::string& warning : optimizer_warnings(config, name)) say("warning: " + warning);
  if (!config.optimizer.type.empty())
    say("note: the program's optimizer " + name + " is used; optimizer.type " + config.optimizer.type + " of " +
        config.origin + " is not");
}

/// Uses the learning rate schedule that the program passed, or makes the one that the config names for each optimizer.
void EngineBase::Impl::choose_schedules(const InitializeArgs& args) {
  const bool own = !args.lr_scheduler.is_none();
  if (own && !config.scheduler.type.empty())
    say("note: the program's schedule is used; scheduler.type " + config.scheduler.type + " of " + config.origin +
        " is not");
  if (args.lr_scheduler.given) schedules.push_back(args.lr_scheduler.given);
  else if (own) own_schedules.push_back(args.lr_scheduler.make(*optimizers[0]));
  else if (!config.scheduler.type.empty())
    for (optim::Optimizer* optimizer : optimizers) own_schedules.push_back(make_schedule(config, *optimizer));
  for (const auto& made : own_schedules) schedules.push_back(made.get());
}

void EngineBase::Impl::start(const InitializeArgs& args) {
  memory_advice = std::make_shared<const MemoryAdvice>([this](Device device) {
    std::string lines;
    for (const MemoryAdviser adviser : memory_advisers())
      lines += adviser({device, model, config, plan, *optimizers[0]});
    return lines;
  });
  add_memory_advice(memory_advice);
  zero::ZeroOptions options = zero_options(config);
  options.nonfinite = nonfinite();
  options.experts = expert_parameters_of(args.mesh);
  options.hooks = !part;
  watch();  // before ZeRO installs its hooks, so that no_sync() is in effect when ZeRO sees the first gradient
  const bool leads = world.rank() == 0;
  const Trained trained{model, world, *group, [out = log, leads](const std::string& text) {
                          if (leads) out(text);
                        }};
  for (const Section& section : sections()) {
    if (!section.start) continue;
    if (auto participant = section.start(config, trained)) participants.push_back({&section, std::move(participant)});
  }
  for (const Participating& one : participants)
    if (const std::string text = one.participant->text(); !text.empty()) say(text);
  if (config.checkpoints_activations()) wrap_blocks();
  if (auto* const sender = dynamic_cast<Exchanging*>(optimizers[0]))
    exchange = sender->exchange(model, *group,
                                {.nonfinite = options.nonfinite,
                                 .accumulates = accumulation > 1 || !config.managed_gradient_accumulation,
                                 .note = [this](const std::string& text) { say(text); }});
  else zero = std::make_unique<zero::Zero>(model, optimizers, options, group);
  if (args.training_data) make_loader(args);
  for (const Participating& one : participants) one.participant->ready();
  graphs.agree();
  group->control().set_step(1);
}

/// Returns the names of the experts on this rank, with the group of the ranks that hold the same experts.
zero::ExpertParameters EngineBase::Impl::expert_parameters_of(const parallel::Mesh* mesh) {
  const std::set<std::string> names = moe::expert_names(model);
  if (names.empty()) return {};
  const int ranks = moe::expert_ranks(model);
  LOCKSTEP_CHECK(mesh && mesh->plan().ep == ranks, "[initialize] the model's experts are shared by ", ranks,
                 " ranks: expected .mesh of a plan with ep", ranks, ", got ", mesh ? to_string(mesh->plan()) : "none");
  return {names, &mesh->edp()};
}

void EngineBase::Impl::make_loader(const InitializeArgs& args) {
  const int64_t micro = *config.train_micro_batch_size_per_gpu, samples = args.training_data->size();
  LOCKSTEP_CHECK(samples > 0 && (samples >= *config.train_batch_size || !config.dataloader_drop_last),
                 "[initialize] expected training_data of at least train_batch_size ", *config.train_batch_size,
                 " samples", samples > 0 ? " (dataloader_drop_last leaves out the rest)" : "", ", got ", samples);
  const data::MicroBatchSampler sampler({.samples = samples,
                                         .micro_batch = micro,
                                         .micro_batches = accumulation * replicas(),
                                         .world = replicas(),
                                         .rank = group->rank() / context_ranks,
                                         .seed = uint64_t(config.seed),
                                         .interleaved = are_interleaved(),
                                         .drop_last = config.dataloader_drop_last,
                                         .order = args.order});
  loader = std::make_unique<Loader>(args.training_data, Loader::Options{.batch_size = micro,
                                                                        .sampler = sampler,
                                                                        .workers = args.loader_workers,
                                                                        .seed = uint64_t(config.seed),
                                                                        .world = replicas()});
}

void EngineBase::Impl::check_open(const char* call) const {
  LOCKSTEP_CHECK(!closed, "[", call, "] expected an engine that is open, got one after close(); make a new one");
  LOCKSTEP_CHECK(!failed, "[", call,
                 "] expected zero_grad() after a backward that ended with an exception: its gradients are incomplete");
}

void EngineBase::Impl::check_unsplit(const char* call) const {
  LOCKSTEP_CHECK(!part, "[", call, "] is not available with pp or tp: call train_batch(), which runs a whole step");
}

void EngineBase::Impl::close() noexcept {
  if (closed) return;
  closed = true;
  for (auto& [parameter, id] : gradient_hooks) parameter.remove_hook(id);
  for (const int id : module_hooks) model_calls.remove_hook(id);  // the model may have been destroyed
  saver.reset();                                                  // waits for a running save; reports its error
  if (checkpoints) checkpoints->unwrap_blocks();
  local.reset(), caller_local.reset();
  graphs.drop();
  zero.reset();
  exchange.reset();
  participants.clear();
  memory_advice.reset();
}

// --- the interface ---

Sharded::Sharded(tensor_parallel::TensorParallel model)
    : shared_ptr(std::make_shared<const tensor_parallel::TensorParallel>(std::move(model))) {}

EngineBase::EngineBase(PipelineModule module, InitializeArgs args)
    : impl_(std::make_unique<Impl>(std::move(module), args)) {}
EngineBase::EngineBase(std::shared_ptr<nn::Module> model, InitializeArgs args)
    : EngineBase(PipelineModule{.model = std::move(model)}, std::move(args)) {}
EngineBase::EngineBase(EngineBase&&) noexcept = default;
EngineBase::~EngineBase() = default;

bool EngineBase::is_gradient_accumulation_boundary() const { return impl_->is_boundary(); }
void EngineBase::zero_grad() {
  LOCKSTEP_CHECK(!impl_->closed, "[zero_grad] expected an engine that is open, got one after close(); make a new one");
  impl_->forget();
}

void EngineBase::train(bool training) { impl_->model.train(training); }
bool EngineBase::wants_metric() const { return impl_->wants_metric(); }

const Config& EngineBase::config() const { return impl_->config; }
int64_t EngineBase::train_batch_size() const { return *impl_->config.train_batch_size; }
int64_t EngineBase::train_micro_batch_size_per_gpu() const { return *impl_->config.train_micro_batch_size_per_gpu; }
int64_t EngineBase::gradient_accumulation_steps() const { return impl_->accumulation; }
int64_t EngineBase::steps_per_print() const { return impl_->config.steps_per_print.value_or(0); }
int64_t EngineBase::global_steps() const { return impl_->global_steps; }
int64_t EngineBase::micro_steps() const { return impl_->micro_steps; }
int64_t EngineBase::skipped_steps() const { return impl_->skipped_steps; }
int64_t EngineBase::global_samples() const { return impl_->global_samples; }
double EngineBase::loss_scale() const { return impl_->loss_scale(); }
double EngineBase::train_loss() const { return impl_->loss; }
double EngineBase::get_global_grad_norm() const { return impl_->norm; }
std::vector<double> EngineBase::Impl::learning_rates() const {
  std::vector<double> rates;
  for (const optim::Optimizer* o : optimizers)
    for (int g = 0; g < o->group_count(); ++g) rates.push_back(o->lr(g));
  return rates;
}
std::vector<double> EngineBase::get_lr() const { return impl_->learning_rates(); }
void EngineBase::set_gradient_clipping(double max_norm) {
  LOCKSTEP_CHECK(max_norm >= 0, "[set_gradient_clipping] expected a norm >= 0 (0: none), got ", max_norm);
  impl_->config.gradient_clipping = max_norm;
}
void EngineBase::set_lr(double lr) {
  for (optim::Optimizer* o : impl_->optimizers) o->set_lr(lr);
}
int64_t EngineBase::micro_batch() const { return impl_->micro_batch(); }
nn::Module& EngineBase::module() const { return impl_->model; }
DType EngineBase::product_dtype() const { return impl_->product_dtype; }
bool EngineBase::in_parts() const { return impl_->part != nullptr; }
std::string EngineBase::graphs() const { return impl_->graphs.status(); }
pipeline::PipelineEngine& EngineBase::pipeline() const {
  LOCKSTEP_CHECK(impl_->part, "[pipeline] expected a model split by pp or tp, got a whole one; check in_parts() first");
  return *impl_->part->engine;
}
const parallel::Plan& EngineBase::plan() const { return impl_->plan; }
dist::ProcessGroup& EngineBase::group() const { return *impl_->group; }
int EngineBase::global_rank() const { return impl_->group->world_rank(impl_->group->rank()); }
int EngineBase::local_rank() const { return impl_->world.control().place().local_rank; }
Device EngineBase::device() const {
  const std::vector<Variable> parameters = impl_->model.parameters();
  return parameters.empty() ? default_device() : parameters[0].device();
}
optim::Optimizer& EngineBase::optimizer() const { return *impl_->optimizers.at(0); }
optim::Schedule* EngineBase::lr_scheduler() const { return impl_->schedules.empty() ? nullptr : impl_->schedules[0]; }
Loader* EngineBase::training_dataloader() const { return impl_->loader.get(); }
zero::Zero& EngineBase::zero() const {
  impl_->check_open("zero");
  LOCKSTEP_CHECK(impl_->zero, "[zero] expected an engine with ZeRO, got one whose optimizer ",
                 impl_->optimizers[0]->name(), " keeps the whole model on every rank; leave the call out");
  return *impl_->zero;
}
Exchange* EngineBase::exchange() const { return impl_->exchange.get(); }
std::vector<Participant*> EngineBase::participants() const {
  std::vector<Participant*> all;
  for (const Participating& one : impl_->participants) all.push_back(one.participant.get());
  return all;
}
void EngineBase::close() {
  if (impl_->saver && !impl_->closed) impl_->saver->wait();
  impl_->close();
}

}  // namespace lockstep::engine
