// Training of gpt.
#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <numbers>
#include <optional>

#include "apps/common/progress.h"
#include "apps/gpt/hugging_face.h"
#include "apps/gpt/sharing.h"
#include "apps/gpt/training.h"
#include "autograd/autocast.h"
#include "data/text.h"
#include "engine/engine.h"
#include "optim/loss_scaler.h"
#include "optim/optim.h"
#include "optim/schedule.h"
#include "pipeline/gpt.h"
#include "trace/trace.h"

namespace apps {

using namespace lockstep;

std::unique_ptr<nn::GPT> make_gpt(const GptOptions& o, int64_t vocab) {
  if (!o.init.empty()) return load_hugging_face(o.init);
  return std::make_unique<nn::GPT>(nn::GPT::Options{.vocab = vocab, .context = o.context, .layers = o.layers, .width = o.width, .heads = o.heads,
                                                    .dropout = o.dropout});
}

namespace {

parallel::ActivationCheckpoints checkpoint_blocks(const GptOptions& o, nn::GPT& model) {
  parallel::CheckpointOptions options = o.checkpoints;
  options.beside = moe::aux_losses;
  LOCKSTEP_CHECK(!options.contiguous_memory_optimization || o.common.parallel.strategy != "dp", "--checkpoint-contiguous makes one buffer on one device; leave it out with --parallel dp");
  if (options.contiguous_memory_optimization) {  // no program has model-parallel ranks yet: whole inputs
    options.partition_activations = true;
    options.number_checkpoints = (model.o.layers + options.every - 1) / options.every;
  }
  parallel::ActivationCheckpoints checkpoints(options);
  checkpoints.wrap_blocks(model);
  return checkpoints;
}

}  // namespace

std::unique_ptr<optim::Optimizer> make_optimizer(const GptOptions& o, nn::Module& model, const Team& team) {
  std::vector<Variable> matrices, others;
  for (const Variable& p : model.parameters()) (p.dim() >= 2 ? matrices : others).push_back(p);
  return make_optimizer(o.optimizer, {{matrices, o.weight_decay}, {others, 0}}, o.lr, {o.betas[0], o.betas[1]}, o.steps, team);
}

double lr_factor(const GptOptions& o, int64_t step) {
  if (step < o.warmup) return double(step + 1) / double(o.warmup);
  const double progress = double(step - o.warmup) / double(std::max<int64_t>(o.steps - o.warmup, 1));
  return o.min_lr_ratio + (1 - o.min_lr_ratio) * 0.5 * (1 + std::cos(std::numbers::pi * std::min(progress, 1.0)));
}

TextParts split_text(const GptOptions& o, const data::Tokenizer& tokenizer, const Tensor& all, const nn::GPT& model) {
  const int64_t context = model.o.context, kept = int64_t(double(all.numel()) * (1 - o.validation));
  LOCKSTEP_CHECK(tokenizer.vocab_size() <= model.o.vocab, "the tokenizer has ", tokenizer.vocab_size(), " tokens, the model only ", model.o.vocab);
  LOCKSTEP_CHECK(kept > context && all.numel() - kept > context, o.text.empty() ? "the text" : o.text, " has ", all.numel(), " tokens: too few for training and validation with --context ", context,
                 ", which takes ", context + 1, " of each");
  return {all.narrow(0, 0, kept), all.narrow(0, kept, all.numel() - kept)};
}

std::vector<std::string> fixed_options(const GptOptions& o) {
  std::vector<std::string> fixed{"program", "vocab", "context", "layers", "width", "heads", "tokenizer"};
  if (o.experts > 0) fixed.insert(fixed.end(), {"experts", "expert_every", "top_k", "residual_experts"});
  return fixed;
}

Json config_of(const GptOptions& o, const nn::GPT& model, int64_t micro_batches) {
  Json c(Json::Object{});
  c["program"] = "gpt";
  c["vocab"] = model.o.vocab;
  c["context"] = model.o.context;
  c["layers"] = model.o.layers;
  c["width"] = model.o.width;
  c["heads"] = model.o.heads;
  c["inner"] = model.o.inner;
  c["norm_eps"] = model.o.norm_eps;
  c["gelu"] = model.o.gelu == Gelu::tanh ? "tanh" : "erf";
  c["tied"] = model.o.tied;
  c["tokenizer"] = o.tokenizer.empty() ? o.init : o.tokenizer;
  c["dropout"] = o.dropout;
  c["text"] = o.text;
  c["batch"] = o.batch;
  if (!o.config.empty()) c["config"] = o.config;
  c["micro_batches"] = micro_batches;
  c["steps"] = o.steps;
  c["optimizer"] = o.optimizer.name;
  c["lr"] = o.lr;
  c["warmup"] = o.warmup;
  c["weight_decay"] = o.weight_decay;
  c["clip"] = o.clip;
  c["precision"] = o.precision;
  c["seed"] = int64_t(o.common.seed);
  describe_sharing(c, o);
  return c;
}

parallel::PlanSizes sizes_of(const GptOptions& o, const nn::GPT::Options& shape, int64_t ranks) {
  const sequence::ContextOptions context = context_options(o);
  return {.ranks = ranks, .layers = pipeline::gpt_layer_count(shape.layers), .chunks = std::max<int64_t>(o.chunks, 1), .heads = shape.heads, .width = shape.width, .inner = shape.inner, .vocab = shape.vocab, .context = shape.context,
          .context_parts = context.order_or_default() == sequence::Order::zigzag ? 2 : 1, .context_by_heads = context.kind == sequence::Kind::ulysses, .experts = o.experts};
}

namespace {

void train(GptOptions o, const std::optional<engine::Config>& config, const Team& team) {
  const auto tokenizer = load_tokenizer(o.tokenizer.empty() ? o.init : o.tokenizer);
  const Tensor all = tokenizer->encode_tensor(load_text(o.text));
  const auto model = make_gpt(o, tokenizer->vocab_size());
  if (!o.plan.empty()) check_plan(parallel::parse_plan(o.plan), sizes_of(o, model->o, team.size()));
  data::ToDevice to_device(device_of(o.common, team));
  Sharing sharing(o, team, *model);
  model->to(to_device.device());
  set_float32_matmul_precision(o.precision == "tf32" ? MatmulPrecision::tf32 : MatmulPrecision::full);
  const int64_t context = model->o.context;
  const auto [training, validation] = split_text(o, *tokenizer, all, *model);
  team.check_same(o.text.empty() ? "the text" : o.text, {&all});
  const data::TokenBatches batches(training, o.common.seed);

  const int64_t parameters = sharing.parameter_count();
  const SlicedGpt slices(o, *model, team);
  const Team& copies = slices.copies();
  // With --config the engine has the optimizer and what belongs to it; without, or where the file names none, it is ours.
  const std::unique_ptr<optim::Optimizer> made = make_optimizer(o, *model, copies);
  optim::Optimizer& optimizer = *made;
  std::vector<std::pair<std::string, Variable>> names;
  for (auto& p : model->named_parameters()) names.emplace_back(p.name, p.variable);
  optimizer.name_parameters(names);
  optim::LambdaLR schedule(optimizer, [&o](int64_t step) { return lr_factor(o, step); });
  optim::GradScaler scaler({.enabled = o.precision == "f16"});

  std::optional<parallel::ActivationCheckpoints> checkpoints;
  if (o.checkpoint_blocks) checkpoints = checkpoint_blocks(o, *model);
  MaybeDataParallel devices(o.common.parallel, *model, [&] { return nn::GPT(model->o); });
  std::optional<engine::Engine<nn::GPT>> engine;
  if (config) {
    const bool own = config->optimizer.type.empty();
    engine.emplace(*model, engine::InitializeArgs{.optimizer = own ? &optimizer : nullptr, .lr_scheduler = own && config->scheduler.type.empty() ? &schedule : nullptr, .config = *config,
        .group = sharing.mesh() ? nullptr : team.group(), .mesh = sharing.mesh()});
    o.batch = engine->train_micro_batch_size_per_gpu();
  }
  MicroBatches micro_batches = engine ? MicroBatches(team, *model, *engine, o.common.parallel) : MicroBatches(copies, *model, optimizer, o.common.parallel, o.precision == "f16");
  if (slices.sliced()) micro_batches.clip_with([&](double most) { return slices.sliced()->clip_grad_norm(most); });
  Run run(o.common, team, config_of(o, *model, micro_batches.count()), fixed_options(o));
  int64_t first = 0;
  if (o.common.resume && engine) {
    LOCKSTEP_CHECK(engine->load_checkpoint(run.path("checkpoints")), run.path("checkpoints"), ": --resume found no checkpoint");
    first = engine->global_steps();
  } else if (o.common.resume) {
    std::map<std::string, double> numbers;
    if (sharing.has_spread_experts()) {
      nn::State state;
      optim::OptimizerState kept;
      numbers = run.load(state, kept);
      micro_batches.load(state, kept);
    } else slices.while_whole(&optimizer, [&] { micro_batches.load([&] { numbers = run.load(*model, optimizer); }); });
    first = int64_t(numbers.at("step"));
    schedule.load_state({{"step", double(first)}, {"base.0", o.lr}, {"base.1", o.lr}});
    if (numbers.count("scaler.scale")) scaler.load_state({{"scale", numbers.at("scaler.scale")}, {"growth_tracker", numbers.at("scaler.growth_tracker")}});
  }
  const bool talks = team.leads() && !o.common.json;
  if (talks) {
    fmt::print("{} tokens to learn, {} for validation; {} parameters\n", training.numel(), validation.numel(), parameters);
    if (slices.sliced()) fmt::print("{} copies of the model, each cut over {} ranks, {} parameters here\n", copies.size(), o.tensor_parallel, model->parameter_count());
    if (team.size() > 1) fmt::print("{} ranks, {} micro-batches of {} sequences a step\n", team.size(), micro_batches.count(), o.batch);
    std::fflush(stdout);
  }

  std::optional<Interrupt> interrupt;
  if (team.owns_process()) interrupt.emplace();
  const double tokens_per_step = double(o.batch * micro_batches.count() * context);
  Progress progress(first, o.steps, "tokens", tokens_per_step, !team.leads());
  double shown_loss = NAN, evaluation_seconds = 0;
  const auto save = [&](int64_t step) {
    set_random_step(uint64_t(step));
    if (!run.has_folder()) return;
    std::map<std::string, double> numbers{{"step", double(step)}};
    if (engine) {
      engine->save_checkpoint(run.path("checkpoints"));
      engine->wait_for_checkpoint();
    } else {
      numbers["scaler.scale"] = scaler.scale_value(), numbers["scaler.growth_tracker"] = double(scaler.growth_tracker());
    }
    if (sharing.has_spread_experts()) {
      const optim::OptimizerState state = micro_batches.whole_state();  // empty of an engine, which has saved it
      return micro_batches.while_whole([&] { run.save(sharing.whole()->state(), state, numbers); });
    }
    if (engine) return micro_batches.while_whole([&] { run.save(*model, optimizer, numbers); });  // the model, for eval and sample
    slices.while_whole(&optimizer, [&] { micro_batches.save([&] { run.save(*model, optimizer, numbers); }); });
  };
  int64_t step = first;
  for (bool stop = false; step < o.steps && !stop;) {
    const trace::Step traced(step, to_device.device());
    const auto loss_of = [&](int64_t micro) {
      const auto sample = sharing.part_of(to_device(batches.sample(step, micro, o.batch, context)));
      const Autocast autocast(o.precision == "f16" ? f16 : bf16, o.precision == "f16" || o.precision == "bf16");
      if (slices.sliced()) return model->loss(sample.input, sample.target);  // needs no whole logits
      const Variable logits = devices([&](auto& net) { return net(sample.input); });
      return sharing.with_aux_loss(cross_entropy(logits.view({-1, model->o.vocab}), sample.target.reshape({-1})));
    };
    const auto report = micro_batches.backward(step, loss_of, [&](const Variable& loss) { return scaler.scale(loss); });
    stop = slices.any(report.stop);
    const double lr = engine ? engine->get_lr()[0] : optimizer.lr(), norm = micro_batches.step(o.clip, o.precision == "f16" ? &scaler : nullptr);
    if (!engine) schedule.step();
    ++step;
    const double loss = report.loss;
    trace::counter("loss", {{"loss", loss}});
    micro_batches.trace(step, loss);
    shown_loss = std::isnan(shown_loss) ? loss : 0.95 * shown_loss + 0.05 * loss;
    progress.show(step, fmt::format("loss {:.4f}", shown_loss));

    Json line(Json::Object{});
    line["step"] = step;
    line["loss"] = loss;
    line["lr"] = lr;
    sharing.report(line, micro_batches.count() * o.context_parallel);
    if (o.clip > 0 || engine) line["grad_norm"] = norm;
    if (engine && engine->fp16_enabled()) line["loss_scale"] = engine->loss_scale();
    if (step % o.eval_every == 0 && step < o.steps) {
      const double before = progress.seconds();
      double val = NAN;
      micro_batches.while_whole([&] { val = sharing.evaluate(validation, o.eval_batches, copies, to_device).loss; });
      evaluation_seconds += progress.seconds() - before;
      line["val_loss"] = val;
      progress.clear();
      if (talks) { fmt::print("step {:6}  loss {:.4f}  validation loss {:.4f}  {:.0f} tokens/s\n", step, shown_loss, val, progress.rate()); std::fflush(stdout); }
    }
    run.metric(line);
    if (o.save_every > 0 && step % o.save_every == 0 && step < o.steps) save(step);
  }
  const double seconds = progress.seconds() - evaluation_seconds;
  progress.clear();
  save(step);
  if (step < o.steps && team.leads()) std::cerr << "stopped at step " << step << (run.has_folder() ? "; the checkpoint is written, go on with --resume\n" : "; nothing was saved, as there is no --out\n");
  TextLoss val;
  micro_batches.while_whole([&] {
    val = sharing.evaluate(validation, 0, copies, to_device);
    if (!o.export_to.empty()) slices.while_whole(nullptr, [&] { if (team.leads()) save_hugging_face(*model, o.export_to); });
  });
  if (!team.leads()) return;
  if (talks) fmt::print("{}", devices.report());
  if (talks && o.checkpoints.profile) fmt::print("{}", checkpoints->report());
  Json result(Json::Object{});
  result["program"] = "gpt";
  result["steps"] = step;
  result["ranks"] = team.size();
  result["loss"] = shown_loss;
  result["val_loss"] = val.loss;
  result["parameters"] = parameters;
  result["tokens_per_second"] = double(step - first) * tokens_per_step / std::max(seconds, 1e-9);
  result["seconds"] = seconds;
  sharing.summarize(result);
  result["peak_memory_mib"] = double(memory_report(to_device.device()).total.peak) / 1048576;
  add_volume(result, engine ? engine->optimizer() : optimizer);
  print_result(result, o.common.json);
}

}  // namespace

void gpt_train(GptOptions o) {
  parallel::Plan plan;
  if (!o.plan.empty()) {
    plan = parallel::parse_plan(o.plan);
    LOCKSTEP_CHECK(plan.ep == 1 || o.experts > 0, "--plan ", o.plan, " shares experts, and there are none; add --experts N, or leave ep", plan.ep, " out");
    LOCKSTEP_CHECK(!o.given.count("--expert-parallel") || o.expert_parallel == plan.ep, "--plan ", o.plan, " contradicts --expert-parallel ", o.expert_parallel, "; leave one of them out");
    o.context_parallel = plan.cp;
    o.expert_parallel = plan.ep;
    LOCKSTEP_CHECK(plan.zero < 0 || o.common.parallel.zero < 0, "--plan ", o.plan, " and --zero ", o.common.parallel.zero, " say the same thing; leave one of them out");
    if (plan.zero >= 0) o.common.parallel.zero = plan.zero, o.given.insert("--zero");
  }
  std::optional<engine::Config> config;
  if (!o.config.empty()) config = read_engine_config(o);
  check_sharing(o);
  const bool planned = !o.plan.empty();
  LOCKSTEP_CHECK(!planned || !config || !config->has("pipeline.stages") || config->pipeline.stages == plan.pp, "--plan ", o.plan, " contradicts ", o.config, ", where pipeline.stages is ",
                 config ? config->pipeline.stages : 1, "; leave one of them out");
  if (!planned) {
    plan.pp = std::max({1, o.pipeline, config ? int(config->pipeline.stages) : 1});
    plan.cp = o.context_parallel;
    plan.dp = 0;
    plan.ep = o.expert_parallel;
  }
  const bool parts = plan.pp > 1 || plan.tp > 1 || o.given.count("--pipeline") || (o.tensor_parallel > 0 && plan.cp > 1);
  if (parts && !planned) plan.tp = std::max(1, o.tensor_parallel);
  plan.zero = !config ? o.common.parallel.zero : config->zero_optimization.stage > 0 ? int(config->zero_optimization.stage) : plan.zero;
  apply_common_options(o.common);
  if (parts) return gpt_train_parts(o, config, plan);
  for (const char* option : {"--schedule", "--chunks", "--split"}) LOCKSTEP_CHECK(!o.given.count(option), option, " is of a pipeline; add --pipeline N, or ppN to --plan");
  if (o.tensor_parallel > 0) check_tensor_parallel(o);
  run_team(o.common.parallel, [&](Team& team) { train(o, config, team); });
}

}  // namespace apps
