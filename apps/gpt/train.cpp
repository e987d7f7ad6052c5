// Training of gpt.
#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <numbers>
#include <optional>

#include "apps/common/progress.h"
#include "apps/gpt/hugging_face.h"
#include "apps/gpt/options.h"
#include "autograd/autocast.h"
#include "data/text.h"
#include "optim/clip.h"
#include "optim/loss_scaler.h"
#include "optim/optim.h"
#include "optim/schedule.h"

namespace apps {

using namespace lockstep;

namespace {

std::unique_ptr<nn::GPT> make_model(const GptOptions& o, int64_t vocab) {
  if (!o.init.empty()) {
    auto model = load_hugging_face(o.init);
    model->o.checkpoint_blocks = o.checkpoint_blocks;
    return model;
  }
  return std::make_unique<nn::GPT>(nn::GPT::Options{.vocab = vocab, .context = o.context, .layers = o.layers, .width = o.width, .heads = o.heads,
                                                    .dropout = o.dropout, .checkpoint_blocks = o.checkpoint_blocks});
}

/// AdamW in two groups: matrices decay, biases and norms do not.
optim::AdamW make_optimizer(const GptOptions& o, nn::GPT& model) {
  optim::AdamWOptions options{.lr = o.lr, .beta1 = o.betas[0], .beta2 = o.betas[1], .weight_decay = o.weight_decay};
  std::vector<Variable> matrices, others;
  for (const Variable& p : model.parameters()) (p.dim() >= 2 ? matrices : others).push_back(p);
  optim::AdamWOptions no_decay = options;
  no_decay.weight_decay = 0;
  return optim::AdamW(std::vector<optim::AdamW::Group>{{matrices, options}, {others, no_decay}});
}

/// Linear warm-up, then a cosine from 1 to the lowest ratio.
double lr_factor(const GptOptions& o, int64_t step) {
  if (step < o.warmup) return double(step + 1) / double(o.warmup);
  const double progress = double(step - o.warmup) / double(std::max<int64_t>(o.steps - o.warmup, 1));
  return o.min_lr_ratio + (1 - o.min_lr_ratio) * 0.5 * (1 + std::cos(std::numbers::pi * std::min(progress, 1.0)));
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
  c["micro_batches"] = micro_batches;
  c["steps"] = o.steps;
  c["lr"] = o.lr;
  c["warmup"] = o.warmup;
  c["weight_decay"] = o.weight_decay;
  c["clip"] = o.clip;
  c["precision"] = o.precision;
  c["seed"] = int64_t(o.common.seed);
  return c;
}

void train(const GptOptions& o, const Team& team) {
  const auto tokenizer = load_tokenizer(o.tokenizer.empty() ? o.init : o.tokenizer);
  const Tensor all = tokenizer->encode_tensor(load_text(o.text));
  const auto model = make_model(o, tokenizer->vocab_size());
  data::ToDevice to_device(device_of(o.common, team));
  model->to(to_device.device());
  set_float32_matmul_precision(o.precision == "tf32" ? MatmulPrecision::tf32 : MatmulPrecision::full);
  const int64_t context = model->o.context, kept = int64_t(double(all.numel()) * (1 - o.validation));
  LOCKSTEP_CHECK(tokenizer->vocab_size() <= model->o.vocab, "the tokenizer has ", tokenizer->vocab_size(), " tokens, the model only ", model->o.vocab);
  LOCKSTEP_CHECK(kept > context && all.numel() - kept > context, o.text.empty() ? "the text" : o.text, " has ", all.numel(), " tokens: too few for training and validation with --context ", context,
                 ", which takes ", context + 1, " of each");
  team.check_same(o.text.empty() ? "the text" : o.text, {&all});
  const Tensor training = all.narrow(0, 0, kept), validation = all.narrow(0, kept, all.numel() - kept);
  const data::TokenBatches batches(training, o.common.seed);

  optim::AdamW optimizer = make_optimizer(o, *model);
  std::vector<std::pair<std::string, Variable>> names;
  for (auto& p : model->named_parameters()) names.emplace_back(p.name, p.variable);
  optimizer.name_parameters(names);
  optim::LambdaLR schedule(optimizer, [&o](int64_t step) { return lr_factor(o, step); });
  optim::GradScaler scaler({.enabled = o.precision == "f16"});

  MaybeDataParallel devices(o.common.parallel, *model, [&] { return nn::GPT(model->o); });
  MicroBatches micro_batches(team, *model, o.common.parallel);
  Run run(o.common, team, config_of(o, *model, micro_batches.count()), {"program", "vocab", "context", "layers", "width", "heads", "tokenizer"});
  int64_t first = 0;
  if (o.common.resume) {
    const auto numbers = run.load(*model, optimizer);
    first = int64_t(numbers.at("step"));
    schedule.load_state({{"step", double(first)}, {"base.0", o.lr}, {"base.1", o.lr}});
    if (numbers.count("scaler.scale")) scaler.load_state({{"scale", numbers.at("scaler.scale")}, {"growth_tracker", numbers.at("scaler.growth_tracker")}});
  }
  const bool talks = team.leads() && !o.common.json;
  if (talks) {
    fmt::print("{} tokens to learn, {} for validation; {} parameters\n", training.numel(), validation.numel(), model->parameter_count());
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
    run.save(*model, optimizer, {{"step", double(step)}, {"scaler.scale", scaler.scale_value()}, {"scaler.growth_tracker", double(scaler.growth_tracker())}});
  };
  int64_t step = first;
  for (bool stop = false; step < o.steps && !stop;) {
    const auto loss_of = [&](int64_t micro) {
      const auto sample = to_device(batches.sample(step, micro, o.batch, context));
      const Autocast autocast(o.precision == "f16" ? f16 : bf16, o.precision == "f16" || o.precision == "bf16");
      const Variable logits = devices([&](auto& net) { return net(sample.input); });
      return cross_entropy(logits.view({-1, model->o.vocab}), sample.target.reshape({-1}));
    };
    const auto report = micro_batches.backward(step, loss_of, [&](const Variable& loss) { return scaler.scale(loss); });
    stop = report.stop;
    // Gradients have the same bits on all ranks, so each finds the same overflow and the same norm.
    scaler.unscale(optimizer);
    const double norm = o.clip > 0 ? optim::clip_grad_norm(model->parameters(), o.clip) : NAN;
    const double lr = optimizer.lr();
    scaler.step(optimizer);
    if (scaler.scale_value() > 0 && o.precision == "f16") scaler.update();
    optimizer.zero_grad();
    schedule.step();
    ++step;
    const double loss = report.loss;
    micro_batches.trace(step, loss);
    shown_loss = std::isnan(shown_loss) ? loss : 0.95 * shown_loss + 0.05 * loss;
    progress.show(step, fmt::format("loss {:.4f}", shown_loss));

    Json line(Json::Object{});
    line["step"] = step;
    line["loss"] = loss;
    line["lr"] = lr;
    if (o.clip > 0) line["grad_norm"] = norm;
    if (step % o.eval_every == 0 && step < o.steps) {
      const double before = progress.seconds();
      const double val = evaluate_text(*model, validation, o.batch, o.eval_batches, team, to_device).loss;
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
  const TextLoss val = evaluate_text(*model, validation, o.batch, 0, team, to_device);
  if (!team.leads()) return;
  if (!o.export_to.empty()) save_hugging_face(*model, o.export_to);
  if (talks) fmt::print("{}", devices.report());
  Json result(Json::Object{});
  result["program"] = "gpt";
  result["steps"] = step;
  result["ranks"] = team.size();
  result["loss"] = shown_loss;
  result["val_loss"] = val.loss;
  result["parameters"] = model->parameter_count();
  result["tokens_per_second"] = double(step - first) * tokens_per_step / std::max(seconds, 1e-9);
  result["seconds"] = seconds;
  result["peak_memory_mib"] = double(memory_report(to_device.device()).total.peak) / 1048576;
  print_result(result, o.common.json);
}

}  // namespace

void gpt_train(const GptOptions& o) {
  apply_common_options(o.common);
  run_team(o.common.parallel, [&](Team& team) { train(o, team); });
}

}  // namespace apps
