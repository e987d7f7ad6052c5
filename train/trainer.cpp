// Trainer: set-up and the training loop. See trainer.h.
#include "train/trainer_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <optional>

#include "data/files.h"
#include "engine/check_plan.h"
#include "engine/exchange.h"
#include "engine/model_shape.h"
#include "engine/pipeline_module.h"
#include "engine/section.h"
#include "optim/optim.h"
#include "parallel/moe/expert_parallel.h"
#include "parallel/tensor_parallel/apply.h"
#include "pipeline/engine.h"
#include "tensor/memory.h"
#include "trace/trace.h"
#include "train/cli.h"
#include "train/interrupt.h"
#include "train/progress.h"

namespace lockstep::train {

namespace {

TrainerOptions with_optimizer(TrainerOptions o) {
  if (!o.optimizer)
    o.optimizer = [](nn::Module& m) { return std::make_unique<optim::AdamW>(m.parameters(), optim::AdamWOptions{}); };
  return o;
}

/// Error if ranks have different data. Compares the size and up to 16 samples.
void check_data(const Team& team, const char* what, const data::Dataset<Example>& from) {
  const int64_t n = from.size();
  LOCKSTEP_CHECK(n < data::endless_samples, "[Trainer] ", what,
                 ": expected a finite dataset, got a stream; give one that ends, or train on it through .batches");
  std::vector<int64_t> some;
  for (int64_t i = 0; i < std::min<int64_t>(n, 16); ++i) some.push_back(i * n / std::min<int64_t>(n, 16));
  const Tensor size = Tensor::from<int64_t>({n}, {1});
  if (n == 0) return team.check_same(what, {&size});
  Example batch = batch_of(from, some);
  std::vector<const Tensor*> all{&size};
  batch.each_tensor([&](const auto&, Tensor& x) { all.push_back(&x); });
  team.check_same(what, all);
}

}  // namespace

Trainer::Impl::Impl(TrainJob& job_, std::shared_ptr<nn::Module> model_, TrainerOptions options)
    : job(job_),
      o(with_optimizer(std::move(options))),
      model(std::move(model_)),
      kind(model->kind()),
      to_device(job.device()),
      scaler({.enabled = job.autocast() == f16}) {
  LOCKSTEP_CHECK((o.data != nullptr) != bool(o.batches), "[Trainer] expected data or batches, got ",
                 o.data ? "both" : "neither", "; give one of them");
  LOCKSTEP_CHECK(o.data || job.options().steps > 0, called("--steps"), " is required: the batches are endless");
  if (o.data) check_data(job.team(), "the training data", *o.data);
  if (o.evaluate) check_data(job.team(), "the data of evaluation", *o.evaluate);
  const auto names_of_experts = moe::expert_names(*model);
  parameters = model->parameter_count();
  for (const auto& p : model->named_parameters()) {
    names.push_back(p.name);
    // Each expert-parallel rank has as many experts of its own as this rank. Count all of them.
    if (names_of_experts.count(p.name)) parameters += (job.plan().ep - 1) * p.variable.numel();
  }
  model->to(job.device());
  Json own = o.config;
  for (const auto& [key, value] :
       {std::pair<const char*, Json>{"gradient_clipping", 0.}, {"dataloader_drop_last", true}, {"checkpoint.keep", 2}})
    if (!own.find(key)) own[key] = value;
  if (const CommandAction* const action = asked_action()) perform_instead(*action, own);
  engine::Config config = job.config(own, values());
  trial.reset();
  LOCKSTEP_CHECK(!o.load_best || (has_folder() && !o.best.empty() && o.evaluate),
                 "[Trainer] load_best: expected a folder (", called("--out"),
                 "), `best`, and data to evaluate, got no ",
                 !has_folder()    ? "folder"
                 : o.best.empty() ? "`best`"
                                  : "data to evaluate");
  experts.emplace(*model, job.mesh().at().tp == 0);  // tensor-parallel ranks have the same experts, so one counts
  check(config);
  const int64_t of_step = *engine::resolve(config, job.plan().dp).train_batch_size;
  steps_of_epoch = steps_in_epoch(of_step);
  steps = steps_of(of_step);
  eval_every = job.options().eval_every, save_every = job.options().save_every;
  if (o.state) {
    TrainerState::Options derived = *o.state;
    derived.max_steps = steps, derived.steps_of_epoch = steps_of_epoch, derived.samples_of_step = double(of_step);
    if (eval_every == 1) eval_every = derived.to_steps(derived.eval_steps);
    if (save_every == 1) save_every = derived.to_steps(derived.save_steps);
    state.emplace(derived);
  }
  make_engine(std::move(config));  // the engine's schedule needs `steps`
}

void Trainer::Impl::perform_instead(const CommandAction& action, const Json& own) {
  const engine::Config config = job.config(own, values());
  engine::PipelineModule full{.model = model};
  for (const engine::Section& section : engine::sections())
    if (section.prepare) section.prepare(config, {}, full);
  const auto optimizer = o.optimizer(*model);
  perform(action,
          {.job = job,
           .model = *model,
           .own = own,
           .values = values(),
           .optimizer = optimizer.get(),
           .batch = [&](int64_t samples) { return o.data ? first_of(*o.data, samples) : o.batches(0, 0, samples); },
           .loss = static_cast<const Measure::All&>(o.loss),  // stays null if it is
           .unit = o.unit,
           .per_sample = o.per_sample});
}

/// Checks the model's sizes against the plan, before the model is split.
void Trainer::Impl::check(const engine::Config& config) {
  const std::string& attention = config.context_parallel.attention;
  if (attention == "ulysses") context.kind = sequence::ContextKind::ulysses;
  else if (attention == "ring-contiguous") context.order = sequence::TokenOrder::contiguous;
  const parallel::Plan& plan = job.plan();
  LOCKSTEP_CHECK(plan.ep == 1 || experts->any(), "[Trainer] ", to_string(plan),
                 " shares experts, and the model has none; leave ep", plan.ep, " out");
  const engine::ModelShape shape = engine::shape_of(*model, 0, int64_t(o.per_sample), 0);
  const engine::Config as_run = engine::resolve(config, plan.dp);
  const parallel::PlanSizes sizes{.ranks = job.mesh().world().size(),
                                  .layers = int64_t(shape.list.size()),
                                  .heads = shape.heads,
                                  .inner = shape.columns(),
                                  .vocab = shape.vocab,
                                  .context = o.per_sample > 1 ? int64_t(o.per_sample) : 0,
                                  .context_parts = context.order_or_default() == sequence::TokenOrder::zigzag ? 2 : 1,
                                  .context_by_heads = context.kind == sequence::ContextKind::ulysses,
                                  .experts = shape.experts * plan.ep};
  if (reasons_against(as_run, plan, sizes).empty()) return;
  // Pass the name of the program's own optimizer: the plan that the Error suggests must work with it, too.
  check_plan(as_run, plan, sizes, config.optimizer.type.empty() ? o.optimizer(*model)->name() : "");
}

void Trainer::Impl::make_engine(engine::Config config) {
  const parallel::Plan& plan = job.plan();
  engine::PipelineModule module{
      .model = model, .num_stages = plan.pp, .autocast = job.autocast(), .forward = o.forward};
  LOCKSTEP_CHECK(!o.forward || plan.pp * plan.tp == 1,
                 "[Trainer] expected a plan that leaves the model whole, as forward runs it, got ", to_string(plan),
                 "; leave pp and tp out");
  if (o.loss)
    module.loss_fn = [loss = o.loss](const pipeline::Values& out, const std::vector<Tensor>& targets) {
      return loss(out.at(0), targets);
    };
  const bool is_full = plan.pp * plan.tp * plan.cp == 1;
  if (o.tokens && is_full) module.tokens = o.tokens;
  if (o.tokens && !is_full)
    module.loss_fn = [of = loss_measure(), count = o.tokens, plan = to_string(plan)](
                         const pipeline::Values& out, const std::vector<Tensor>& targets) {
      const int64_t counted = count(targets), all = targets.at(0).numel();
      LOCKSTEP_CHECK(counted < 0 || counted == all, "[Trainer] ", plan,
                     " averages over micro-batches, and of one only ", counted, " of ", all,
                     " targets count; leave pp, tp and cp out of --plan");
      return of(out.at(0), targets);
    };
  engine::InitializeArgs args{
      .mesh = &job.mesh(), .grad_scaler = job.autocast() == f16 ? &scaler : nullptr, .graphs = !job.options().no_graph};
  if (plan.cp > 1) sequence::share_sequences(*model, {std::shared_ptr<void>(), &job.mesh().cp()}, context);
  if (plan.tp > 1)
    args.sharded = tensor_parallel::apply(*model, job.mesh().tp(),
                                          {.sequence = config.tensor_parallel.sequence_parallel,
                                           .sum = false,
                                           .chunks = config.tensor_parallel.overlap_chunks});
  const auto schedule = [this](optim::Optimizer& optimizer) { return o.schedule(optimizer, steps); };
  if (!config.optimizer.type.empty() && config.scheduler.type.empty() && o.arguments && o.schedule) {
    args.optimizer = [config, ranks = &job.mesh().replicas()](nn::Module& m) {
      auto made = engine::make_optimizers(config, m.named_parameters(), ranks);
      LOCKSTEP_CHECK(made.size() == 1, "[Trainer] optimizer.type ", config.optimizer.type,
                     " makes several optimizers, but the program's schedule is for one; set scheduler.type too");
      return std::move(made[0]);
    };
    args.lr_scheduler = schedule;
    config.optimizer = {};
  } else if (config.optimizer.type.empty()) {
    args.optimizer = o.optimizer;
    if (o.schedule && config.scheduler.type.empty()) args.lr_scheduler = schedule;
  }
  if (plan.cp == 1) args.training_data = o.data, args.loader_workers = o.workers;
  if (o.data && o.order) args.order = o.order(*o.data, *engine::resolve(config, plan.dp).train_batch_size);
  LOCKSTEP_CHECK(plan.cp == 1 || !o.data, "[Trainer] expected batches with a plan of cp", plan.cp,
                 ", which cuts sequences: data yields whole samples; give .batches, cut by sequence::slice()");
  config.pipeline.stages = plan.pp;
  config.given.erase("pipeline.stages");
  args.config = std::move(config);
  engine = std::make_unique<engine::EngineBase>(std::move(module), std::move(args));
  LOCKSTEP_CHECK(!engine->wants_metric(),
                 "[Trainer] expected a schedule that follows the step, got ReduceLROnPlateau, which follows a metric: "
                 "train in your own loop that calls step(metric), or use another schedule");
  data::check_mapped_files();  // the weights of a model may lie in mapped files until here
}

/// This rank's part of a micro-batch, on its device.
pipeline::Sample Trainer::Impl::sample(const Example& full) {
  Example part = full;
  const int cp = job.plan().cp;
  const auto slice = [&](const std::string& name, Tensor& x) {
    LOCKSTEP_CHECK(x.dim() > 1 && x.size(1) == full.input.size(1),
                   "[Trainer] expected inputs and targets with the same dim 1, which cp", cp, " cuts, got ",
                   full.input.shape(), " and, as ", name, ", ", x.shape(), "; leave cp out of --plan");
    x = sequence::slice(x, 1, cp, job.mesh().at().cp, context.order_or_default());
  };
  if (cp > 1) part.each_tensor(slice);
  part = to_device(std::move(part));
  return {part.inputs(), part.targets()};
}

void Trainer::Impl::call(Callback::Function Callback::*event) {
  run.step = step;
  run.metrics = last;
  run.engine = engine.get();
  for (const Callback& callback : o.callbacks)
    if (callback.*event) (callback.*event)(run);
  if (event == &Callback::on_train_end) return;
  Control& asked = run.control;
  const std::vector<double> all = job.team().gather(
      {double(Interrupt::signal()), double(asked.stop), double(asked.evaluate), double(asked.save)}, "signals");
  for (size_t i = 0; i < all.size(); i += 4) {
    signal = std::max(signal, int(all[i]));
    asked.stop |= all[i + 1] != 0, asked.evaluate |= all[i + 2] != 0, asked.save |= all[i + 3] != 0;
  }
  LOCKSTEP_CHECK(!asked.evaluate || o.evaluate,
                 "[Trainer] a callback set control.evaluate: expected data to evaluate, got none; set "
                 "TrainerOptions::evaluate");
  job.team().note_stop(step < steps ? signal : 0);  // after the last step it stops nothing
}

void Trainer::Impl::fit() {
  job.print_precision();
  open();
  if (job.talks()) {
    std::cout << (o.summary && job.plan().pp * job.plan().tp == 1
                      ? nn::summary(*model)
                      : fmt::format("{}: {} parameters\n", kind, parameters));
    if (job.mesh().world().size() > 1)
      fmt::print("{} ranks, plan {}, {} micro-batches of {} samples a step\n", job.mesh().world().size(),
                 to_string(job.plan()), micro_batches(), engine->train_micro_batch_size_per_gpu());
    std::cout.flush();
    std::fflush(stdout);
  }
  std::optional<Interrupt> interrupt;
  if (job.team().owns_process()) interrupt.emplace();
  const TrainOptions& options = job.options();
  const int64_t samples = *engine->config().train_batch_size;
  const double of_step = double(samples) * o.per_sample;
  const int64_t batch = engine->train_micro_batch_size_per_gpu();
  Progress progress(first, steps, o.unit, of_step, !job.team().leads());
  const auto tell = [&](const Json& line, bool ended) {
    for (engine::Participant* const one : engine->participants())
      one->logged({line, options.out, o.evaluated, o.unit, of_step, step, steps, ended});
  };
  double evaluation_seconds = 0;
  bool saved = first > 0;
  if (const int64_t rest = o.data && steps >= steps_of_epoch ? o.data->size() - steps_of_epoch * samples : 0;
      rest > 0 && job.team().leads())
    std::cerr << "note: each epoch leaves out " << rest << " of " << o.data->size() << " samples, as a step takes "
              << samples << "; --set dataloader_drop_last=false fills its last step up\n";
  while (step < steps && signal == 0 && !run.control.stop) {
    if (steps_of_epoch > 0) run.epoch = step / steps_of_epoch + 1;
    if (steps_of_epoch > 0 && (step == first || step % steps_of_epoch == 0)) call(&Callback::on_epoch_begin);
    const trace::Step traced(step, job.device());
    const double lr = engine->get_lr()[0];
    const double loss = o.batches ? engine->train_batch([&](int64_t micro) -> std::optional<pipeline::Sample> {
      Example full = o.batches(step, micro, batch);
      LOCKSTEP_CHECK(full.input.size(0) == batch, "[Trainer] batches: expected ", batch, " samples of micro-batch ",
                     micro, ", got ", full.input.shape(), "; return that many");
      return sample(full);
    })
                                  : engine->train_batch();
    ++step;
    saved = false;
    trace::counter("loss", {{"loss", loss}});
    write_bits(loss);
    if (state) state->step(step, loss, lr, engine->get_global_grad_norm());
    smoothed_loss = std::isnan(smoothed_loss) ? loss : 0.95 * smoothed_loss + 0.05 * loss;
    progress.show(step, fmt::format("loss {:.4f}", smoothed_loss));
    run.loss = loss, run.lr = lr, run.grad_norm = engine->get_global_grad_norm();
    Json& line = run.line = Json::Object();
    line["step"] = step;
    if (steps_of_epoch > 0) line["epoch"] = run.epoch;
    line["loss"] = loss;
    line["lr"] = lr;
    line["grad_norm"] = run.grad_norm;
    if (engine->config().fp16.enabled) line["loss_scale"] = engine->loss_scale();
    const auto due = [&](int64_t every) {
      return every > 0 ? step % every == 0 : steps_of_epoch > 0 && step % steps_of_epoch == 0;
    };
    call(&Callback::on_step_end);
    if (steps_of_epoch > 0 && (step == steps || step % steps_of_epoch == 0)) call(&Callback::on_epoch_end);
    if (o.evaluate && (due(eval_every) || run.control.evaluate) && signal == 0) {
      const double before = progress.seconds();
      run.control.evaluate = false;
      look();
      evaluation_seconds += progress.seconds() - before;
      progress.clear();
      if (job.talks()) {
        std::string text = fmt::format("step {:6}  loss {:.4f}", step, smoothed_loss);
        for (const auto& [name, value] : last) text += fmt::format("  {} {:.4f}", name, value);
        fmt::print("{}  {:.0f} {}/s  {} left\n", text, progress.rate(), o.unit, progress.left());
        std::fflush(stdout);
      }
      call(&Callback::on_evaluate);
    }
    if (experts->any())
      experts->report(line, engine->gradient_accumulation_steps() * job.plan().dp * job.plan().cp, job.team());
    if (metrics.is_open()) {
      LOCKSTEP_CHECK(metrics.add(line.dump() + "\n"), path("metrics.jsonl"), ": writing failed; free some disk space");
    }
    tell(line, false);
    const bool asked = std::exchange(run.control.save, false);
    if ((due(save_every) || asked) && step < steps) save(), saved = true;
  }
  const double seconds = progress.seconds() - evaluation_seconds;
  progress.clear();
  if (run.control.stop && job.talks()) fmt::print("training stops: {}\n", run.control.reason);
  if (!saved) save();
  if (state) state->end(seconds, first);
  if (o.load_best && best && signal == 0) {
    const std::string from = state && !state->best_folder().empty() ? state->best_folder() : path("best");
    LOCKSTEP_CHECK(engine->load_checkpoint(from, {.load_module_only = true}), from,
                   ": the best model was removed; leave the folder as it is until the run has ended");
    last_eval_step = -1;
  }
  if (job.team().stopped_by() && job.team().leads())
    std::cerr << "stopped at step " << step
              << (has_folder() ? "; the checkpoint is written, continue with " : "; nothing was saved, as there is no ")
              << called(has_folder() ? "--resume" : "--out") << "\n";
  if (last_eval_step != step || o.max_eval_batches > 0) last = evaluate(0);
  write_state();
  Json& result = run.line = Json::Object();
  const Json* program = o.facts.find("program");
  result["program"] = program ? *program : Json(kind);
  result["steps"] = step;
  result["ranks"] = job.mesh().world().size();
  result["plan"] = to_string(job.plan());
  result["loss"] = smoothed_loss;
  for (const auto& [name, value] : last) result[name] = value;
  result["parameters"] = parameters;
  result[o.unit + "_per_second"] = double(step - first) * of_step / std::max(seconds, 1e-9);
  result["seconds"] = seconds;
  if (engine->in_parts() && job.plan().pp > 1) result["bubble"] = engine->pipeline().bubble();
  if (!job.device().is_cpu()) result["graphs"] = engine->graphs();
  result["peak_memory_mib"] = double(memory_report(job.device()).total.peak) / 1048576;
  if (const engine::Exchange* exchange = engine->exchange())
    for (const auto& [name, value] : exchange->totals()) result[name] = value;
  for (const auto& [key, value] : experts->last().as_object()) result[key] = value;
  call(&Callback::on_train_end);
  tell(result, true);
  if (job.team().leads()) print_result(result, options.json);
}

Trainer::Trainer(TrainJob& job, std::shared_ptr<nn::Module> model, TrainerOptions options)
    : impl_(std::make_unique<Impl>(job, std::move(model), std::move(options))) {}
Trainer::~Trainer() = default;
void Trainer::fit() { impl_->fit(); }
std::vector<std::pair<std::string, double>> Trainer::evaluate(int64_t max_batches) {
  return impl_->evaluate(max_batches);
}
Predictions Trainer::predict(const data::Dataset<Example>& samples) {
  check_data(impl_->job.team(), "the data of predict()", samples);
  LOCKSTEP_CHECK(samples.size() > 0, "[predict] expected at least one sample, got none; give some");
  return impl_->measure(samples, 0, "test", true);
}
const Json::Array& Trainer::log_history() const {
  LOCKSTEP_CHECK(impl_->state, "[Trainer] expected TrainerOptions::state for a log, got none; set it");
  return impl_->state->log();
}
int64_t Trainer::step() const { return impl_->step; }
engine::EngineBase& Trainer::engine() { return *impl_->engine; }
nn::State Trainer::full_model() {
  engine::EngineBase::FullState state = impl_->engine->full_state();
  std::map<std::string, Tensor> of_optimizer(state.optimizer.tensors.begin(), state.optimizer.tensors.end());
  for (auto& [name, tensor] : state.model)
    if (const auto master = of_optimizer.find("state." + name + ".master"); master != of_optimizer.end())
      tensor = master->second;
  return std::move(state.model);
}

}  // namespace lockstep::train
