// The engine of a pipeline's stage: pipeline::Engine makes gradients, EngineBase takes the step with them.
//
//   train_batch ─▶ schedule: sums over this copy's micro-batches ─▶ ZeRO among the copies of the stage ─▶ found overflow? norm? asked of all
//                  stages and slices (part.cpp) ─▶ clip, update ─▶ next learning rate
#include "engine/pipeline_engine.h"

#include <algorithm>

#include "autograd/split_backward.h"
#include "engine/impl.h"
#include "tensor/ops.h"
#include "tensor/random.h"

namespace lockstep::engine {

namespace {

/// What a stage without parameters trains, so that it takes part in every step.
struct Nothing : nn::Module {
  Variable none = parameter({1}, 0);
  void fields(nn::Fields& f) override { f("none", none); }
};

/// Problems of a config under a pipeline, beyond those of any config.
void check(const Config& c) {
  const auto refuse = [&](bool holds, const char* key, const char* why) { LOCKSTEP_CHECK(!holds, c.origin, ": ", key, ": ", why); };
  refuse(!c.managed_gradient_accumulation, "managed_gradient_accumulation", "false lets the caller say when a step ends, but train_batch() is a whole step; leave it out");
  refuse(c.activation_checkpointing.enabled, "activation_checkpointing.enabled", "a pipeline computes layers again by pipeline.activation_checkpoint_interval; write that in its place");
  refuse(c.flops_profiler.enabled, "flops_profiler.enabled", "the profiler follows one forward of a whole model, and a pipeline runs many of its parts; leave it out, or profile without stages");
  refuse(c.data_types.grad_accum_dtype.has_value(), "data_types.grad_accum_dtype", "stages sum micro-batches in the dtype of their parameters; communication_data_type says how copies sum");
}

}  // namespace

struct PipelineEngine::Stage : Part {
  Stage(PipelineModule module, const PipelineArgs& args, Config read, std::unique_ptr<parallel::Mesh> own)
      : Part(args.mesh ? *args.mesh : *own), own_mesh(std::move(own)), config(std::move(read)) {
    manual_seed(uint64_t(config.seed));  // before layers are built
    const PipelineConfig& p = config.pipeline;
    const Config resolved = resolve(config, mesh->plan().dp);
    pipeline::EngineOptions options{.stages = mesh->plan().pp, .micro_batches = int(*resolved.gradient_accumulation_steps), .schedule = pipeline::parse_kind(p.schedule), .chunks = int(p.chunks),
        .split = pipeline::SplitBy::parse(module.partition_method.empty() ? p.partition : module.partition_method), .bounds = module.bounds,
        .checkpoint_interval = module.activation_checkpoint_interval.value_or(int(p.activation_checkpoint_interval)), .custom = module.schedule, .mesh = mesh, .reduce = false};
    if (config.fp16.enabled || config.bf16.enabled) options.dtype = parameter_dtype(config);
    text = str(p.schedule, ", ", to_string(mesh->plan()));
    engine = std::make_unique<pipeline::Engine>(std::move(module.layers), options, std::move(module.loss_fn), &mesh->world());
    for (const auto& place : engine->places()) places[place.name] = {place.layer, place.place, place.leads};
    for (const auto& one : engine->module().named_parameters()) places.at(one.name).is_double = one.variable.dtype() == f64;
    sliced = args.slices;
    for (auto one = sliced.begin(); one != sliced.end();) one = places.count(one->first) ? std::next(one) : sliced.erase(one);
    has_data = engine->is_first() || engine->is_last();
    grad_scaler = args.grad_scaler;
    LOCKSTEP_CHECK(!grad_scaler || !config.fp16.enabled, "[initialize] expected fp16.enabled or a grad_scaler, got both");
    const auto all = engine->module().parameters();
    is_empty = std::none_of(all.begin(), all.end(), [](const Variable& v) { return v.requires_grad(); });
    if (is_empty && options.dtype) nothing.to(*options.dtype);
    if (args.optimizer) optimizer = args.optimizer(model());
    if (args.lr_scheduler) {
      LOCKSTEP_CHECK(optimizer, "[initialize] expected the optimizer of lr_scheduler too, got a schedule alone");
      schedule = args.lr_scheduler(*optimizer);
    }
  }

  nn::Module& model() { return is_empty ? static_cast<nn::Module&>(nothing) : engine->module(); }
  /// With floating inputs in the parameters' dtype, where auto_cast says so.
  pipeline::Data cast(const pipeline::Data& data) const {
    const bool casts = (config.fp16.enabled && config.fp16.auto_cast) || (config.bf16.enabled && config.bf16.auto_cast);
    if (!casts || !data) return data;
    return [&data, to = parameter_dtype(config)](int64_t micro_batch) {
      auto sample = data(micro_batch);
      if (sample) for (Tensor& t : sample->inputs) if (is_floating(t.dtype())) t = t.to(to);
      return sample;
    };
  }

  const std::unique_ptr<parallel::Mesh> own_mesh;
  const Config config;
  std::unique_ptr<pipeline::Engine> engine;
  Nothing nothing;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::Schedule> schedule;
  std::optional<data::RepeatingLoader<data::Example>> batches;
  int batches_since = 0;  // which load
};

namespace {

Config read(const PipelineArgs& args) {
  const bool in_args = args.args && !args.args->deepspeed_config.empty();
  LOCKSTEP_CHECK(args.config.is_given() != in_args, "[initialize] expected one config, got ", in_args ? "two: .config and --deepspeed_config" : "none: give .config (a file, JSON or a Config), or --deepspeed_config FILE");
  return in_args ? read_config(args.args->deepspeed_config) : args.config.read();
}

/// The stages that the module, the config and the mesh agree on.
int stages_of(const PipelineModule& module, const Config& c, const parallel::Mesh* mesh) {
  const bool in_config = c.has("pipeline.stages") || c.pipeline.stages > 1;
  LOCKSTEP_CHECK(module.num_stages == 0 || !in_config || c.pipeline.stages == module.num_stages, "[initialize] PipelineModule has num_stages ", module.num_stages, ", which contradicts ", c.origin,
                 ", where pipeline.stages is ", c.pipeline.stages, "; leave one of them out");
  const int stages = module.num_stages > 0 ? module.num_stages : in_config ? int(c.pipeline.stages) : mesh ? mesh->plan().pp : 1;
  LOCKSTEP_CHECK(!mesh || mesh->plan().pp == stages, "[initialize] expected the ", stages, " stages that the module and the config name, got a mesh ", to_string(mesh ? mesh->plan() : parallel::Plan()));
  LOCKSTEP_CHECK(module.partition_method.empty() || !c.has("pipeline.partition") || c.pipeline.partition == module.partition_method, "[initialize] PipelineModule has partition_method ",
                 module.partition_method, ", which contradicts ", c.origin, ", where pipeline.partition is ", c.pipeline.partition, "; leave one of them out");
  const auto& interval = module.activation_checkpoint_interval;
  LOCKSTEP_CHECK(!interval || !c.has("pipeline.activation_checkpoint_interval") || c.pipeline.activation_checkpoint_interval == *interval, "[initialize] PipelineModule has activation_checkpoint_interval ",
                 interval.value_or(0), ", which contradicts ", c.origin, ", where it is ", c.pipeline.activation_checkpoint_interval, "; leave one of them out");
  return stages;
}

}  // namespace

PipelineEngine initialize(PipelineModule module, PipelineArgs args) { return PipelineEngine(std::move(module), std::move(args)); }

PipelineEngine::PipelineEngine(PipelineModule module, PipelineArgs args)
    : PipelineEngine([&] {
        Config config = read(args);
        const int stages = stages_of(module, config, args.mesh);
        check(config);
        dist::ProcessGroup& world = args.mesh ? args.mesh->world() : args.group ? *args.group : init_distributed();
        parallel::Plan plan = args.mesh ? args.mesh->plan() : parallel::Plan{.pp = stages};
        if (!args.mesh) plan.dp = std::max(1, world.size() / stages);
        if (config.zero_optimization.stage > 0) plan.zero = int(config.zero_optimization.stage);
        config.pipeline.stages = stages;
        LOCKSTEP_CHECK(plan.zero < 2, config.origin, ": zero_optimization.stage: ", plan.zero, " keeps gradients in parts after every micro-batch, and a pipeline sums those of all micro-batches first; write 1, "
                       "or train the model without stages");
        check_plan(plan, {.ranks = world.size(), .layers = int64_t(module.layers.size())});
        return std::make_shared<Stage>(std::move(module), args, std::move(config), args.mesh ? nullptr : std::make_unique<parallel::Mesh>(plan, world));
      }(), InitializeArgs{.training_data = args.training_data, .loader_workers = args.loader_workers, .log = args.log}) {}

PipelineEngine::PipelineEngine(std::shared_ptr<Stage> stage, InitializeArgs args)
    : EngineBase(stage->model(), [&] {
        args.optimizer = stage->optimizer.get();
        args.lr_scheduler = stage->schedule.get();
        args.config = stage->config;
        args.group = &stage->mesh->dp();
        args.mesh = stage->mesh;
        args.part = stage;
        return args;
      }()), stage_(std::move(stage)) {}

double PipelineEngine::train_batch(const pipeline::Data& data, std::optional<double> metric) {
  Impl& m = *impl_;
  Stage& s = *stage_;
  m.check_open("train_batch");
  LOCKSTEP_CHECK(s.model().is_training(), "[train_batch] expected the model in training mode, got eval(); call train()");
  const double factor = m.own_factor();
  m.set_factor(factor);
  const auto start = Clock::now();
  s.engine->set_step(uint64_t(m.global_steps));
  std::function<Variable(const Variable&)> scale;
  if (factor != 1) scale = [factor](const Variable& loss) { return mul_scalar(size_of(loss.dtype()) < 4 ? loss.to(f32) : loss, factor); };
  {
    struct Pause {  // sums of micro-batches are the schedule's
      explicit Pause(Impl& m) : m(m), zero(*m.zero) { m.paused = true; }
      ~Pause() { m.paused = false; }
      Impl& m;
      const zero::Zero::Pause zero;
    } const pause(m);
    try {
      m.loss = s.engine->train_batch(s.cast(data), scale);
    } catch (...) {
      m.factor.reset();
      throw;
    }
  }
  m.times.backward += milliseconds_since(start);  // forwards and backwards of all micro-batches
  if (!s.engine->times().empty()) m.times.inner += 1e3 * s.engine->times()[size_t(s.everybody().rank())].busy;

  // The sums become the gradient of one backward, as if the last micro-batch had it all: ZeRO adds up the copies.
  std::vector<Variable> roots;
  std::vector<Tensor> sums;
  for (Variable& p : s.model().parameters()) {
    if (!p.requires_grad()) continue;
    if (s.is_empty) p.grad() = zeros_like(p.tensor());
    if (!p.grad().defined()) continue;
    roots.push_back(p);
    sums.push_back(p.grad());
    p.clear_grad();
  }
  LOCKSTEP_CHECK(!roots.empty(), "[train_batch] no parameter of stage ", s.engine->stage(), " got a gradient: the loss does not depend on them");
  m.micro_steps += m.accumulation - 1;
  m.scaled = true;
  m.backward_start = Clock::now();
  const double reduced = m.times.inner;
  try {
    joined(roots, std::move(sums)).backward();
  } catch (...) {
    m.scaled = false;
    throw;
  }
  m.times.inner = reduced;
  m.times.reduce += milliseconds_since(m.backward_start);
  m.step(metric);
  return m.loss;
}

double PipelineEngine::train_batch(std::optional<double> metric) {
  LOCKSTEP_CHECK(impl_->loader, "[train_batch] expected data, or an engine with training_data, got neither");
  if (!stage_->batches || stage_->batches_since != stage_->loads) {
    impl_->loader->load_state(impl_->loader->state());  // a loop that was left early goes on
    stage_->batches.emplace(*impl_->loader);
    stage_->batches_since = stage_->loads;
  }
  return train_batch([this](int64_t) {
    const data::Example& one = stage_->batches->next();
    return pipeline::Sample{{one.input}, {one.target}};
  }, metric);
}

double PipelineEngine::eval_batch(const pipeline::Data& data, int micro_batches) {
  impl_->check_open("eval_batch");
  LOCKSTEP_CHECK(micro_batches >= 0, "[eval_batch] expected 0 micro-batches or more, got ", micro_batches);
  const std::vector<double> losses = stage_->engine->eval_batch(stage_->cast(data), micro_batches > 0 ? micro_batches : int(impl_->accumulation));
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return sum / double(losses.size());
}

pipeline::Engine& PipelineEngine::pipeline() const { return *stage_->engine; }
const parallel::Mesh& PipelineEngine::mesh() const { return *stage_->mesh; }

PipelineEngine::WholeState PipelineEngine::whole_state() {
  Impl& m = *impl_;
  m.check_open("whole_state");
  WholeTensors whole = gather_pieces(m.pieces({}), m.own_numbers(), stage_->everybody());
  WholeState state;
  for (auto& [name, tensor] : whole.tensors) {
    const std::string parameter = Part::parameter_of(name);
    if (name.starts_with("model.")) state.model.emplace_back(parameter, tensor);
    else state.optimizer.tensors.emplace_back("state." + parameter + "." + name.substr(10, name.size() - 11 - parameter.size()), tensor);
  }
  for (const auto& [key, value] : whole.numbers) {
    const double number = std::holds_alternative<double>(value) ? std::get<double>(value) : double(std::get<int64_t>(value));
    if (key.starts_with("optimizer.step.")) {
      if (number > 0) state.optimizer.numbers["state." + key.substr(15) + ".step"] = number;
    } else if (key.starts_with("optimizer.")) {
      state.optimizer.numbers[key.substr(10)] = number;
    }
  }
  return state;
}

void PipelineEngine::load_whole_state(const nn::State& model, const optim::OptimizerState& optimizer, std::optional<int64_t> steps) {
  Impl& m = *impl_;
  m.check_open("load_whole_state");
  m.forget();
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, tensor] : model) tensors["model." + name] = tensor;
  for (const auto& [name, tensor] : optimizer.tensors) {  // "state.NAME.KEY"
    const size_t dot = name.rfind('.');
    tensors["optimizer." + name.substr(dot + 1) + "." + name.substr(6, dot - 6)] = tensor;
  }
  checkpoints::Numbers numbers;
  for (const auto& [key, value] : optimizer.numbers) {
    if (key.starts_with("state.") && key.ends_with(".step")) numbers["optimizer.step." + key.substr(6, key.size() - 11)] = value;
    else if (key.starts_with("group.")) numbers["optimizer." + key] = value;
  }
  if (!stage_->is_empty) for (const auto& [key, unused] : m.zero->numbers()) if (key.starts_with("optimizer.step.")) numbers.emplace(key, 0.0);  // never updated
  const bool with_optimizer = !optimizer.tensors.empty();
  for (const checkpoints::Piece& piece : m.wanted_pieces(with_optimizer)) {
    const auto found = tensors.find(piece.name);
    LOCKSTEP_CHECK(found != tensors.end(), "[load_whole_state] expected ", piece.name, ", got a state without");
    LOCKSTEP_CHECK(found->second.shape() == piece.shape, "[load_whole_state] expected ", piece.name, " of shape ", piece.shape, ", got ", found->second.shape());
    piece.tensor.copy_(found->second.contiguous().reshape({found->second.numel()}).narrow(0, piece.begin, piece.end - piece.begin).view(piece.tensor.shape()));
  }
  if (with_optimizer && !stage_->is_empty) m.zero->load_numbers(m.plain_numbers(numbers));
  m.zero->loaded();
  if (!steps) return;
  m.global_steps = *steps;
  m.micro_steps = *steps * m.accumulation;
  m.global_samples = *steps * *m.config.train_batch_size;
}

}  // namespace lockstep::engine
