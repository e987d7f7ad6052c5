// TrainingArguments: checks Hugging Face's arguments and translates them for a Trainer. See arguments.h.
#include "extensions/hugging_face/arguments.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>

#include "autograd/ops.h"
#include "base/check.h"
#include "extensions/hugging_face/argument_choices.h"
#include "extensions/metrics/early_stopping.h"
#include "nn/linear.h"

namespace lockstep::train {

using data::Json;

namespace {

/// The label-smoothed cross entropy of outputs (..., classes) with targets i64 (...); -100 is ignored.
Measure smoothed_loss(double factor) {
  return [factor](const Variable& out, const Tensor& target) {
    LOCKSTEP_CHECK(target.dtype() == i64 && out.dim() == target.dim() + 1,
                   "[TrainingArguments] label_smoothing_factor: expected outputs (..., classes) and targets i64 (...), "
                   "got ",
                   out.shape(), " and ", target.shape(), " of ", target.dtype(), "; set TrainerOptions::loss instead");
    return cross_entropy(out.reshape({-1, out.size(-1)}), target.reshape({-1}), {.label_smoothing = factor});
  };
}

/// Error if tensor parallelism has cut the model's head, whose outputs are then only some of the classes.
void check_uncut_head(nn::Module& model) {
  for (const auto& [name, module] : model.named_modules()) {
    const auto* const head = dynamic_cast<const nn::Head*>(module);
    expect(!head || !head->entropy, "label_smoothing_factor",
           "a plan without tp, which cuts the classes over ranks; leave tp out of --plan");
  }
}

bool reports(const TrainingArguments& a) {
  return std::ranges::any_of(a.report_to, [](const std::string& to) { return to != "none"; });
}

/// All arguments, for the run's run.json and so for lockstep report.
Json to_json(const TrainingArguments& a) {
  const auto* const resumed_from = std::get_if<std::string>(&a.resume_from_checkpoint);
  return Json::Object{
      {"output_dir", a.output_dir},
      {"overwrite_output_dir", a.overwrite_output_dir},
      {"per_device_train_batch_size", a.per_device_train_batch_size},
      {"per_device_eval_batch_size", a.per_device_eval_batch_size},
      {"gradient_accumulation_steps", a.gradient_accumulation_steps},
      {"learning_rate", a.learning_rate},
      {"weight_decay", a.weight_decay},
      {"adam_beta1", a.adam_beta1},
      {"adam_beta2", a.adam_beta2},
      {"adam_epsilon", a.adam_epsilon},
      {"optim", a.optim},
      {"max_grad_norm", a.max_grad_norm},
      {"num_train_epochs", a.num_train_epochs},
      {"max_steps", a.max_steps},
      {"lr_scheduler_type", a.lr_scheduler_type},
      {"lr_scheduler_kwargs", a.lr_scheduler_kwargs},
      {"warmup_steps", a.warmup_steps},
      {"label_smoothing_factor", a.label_smoothing_factor},
      {"gradient_checkpointing", a.gradient_checkpointing},
      {"group_by_length", a.group_by_length},
      {"eval_strategy", a.eval_strategy},
      {"eval_steps", a.eval_steps},
      {"save_strategy", a.save_strategy},
      {"save_steps", a.save_steps},
      {"save_total_limit", a.save_total_limit},
      {"logging_steps", a.logging_steps},
      {"load_best_model_at_end", a.load_best_model_at_end},
      {"metric_for_best_model", a.best_metric()},
      {"greater_is_better", a.greater_is_better ? Json(*a.greater_is_better) : Json()},
      {"resume_from_checkpoint", resumed_from ? Json(*resumed_from) : Json(std::get<bool>(a.resume_from_checkpoint))},
      {"early_stopping_patience", a.early_stopping_patience},
      {"early_stopping_threshold", a.early_stopping_threshold},
      {"report_to", Json::Array(a.report_to.begin(), a.report_to.end())},
      {"logging_dir", a.logging_dir},
      {"seed", int64_t(a.seed)},
      {"fp16", a.fp16},
      {"bf16", a.bf16},
      {"dataloader_drop_last", a.dataloader_drop_last},
      {"deepspeed", a.deepspeed}};
}

}  // namespace

TrainOptions TrainingArguments::options() const {
  check_optimizer(*this);
  check_word("eval_strategy", eval_strategy, {"no", "steps", "epoch"});
  check_word("save_strategy", save_strategy, {"steps", "epoch"});
  const std::pair<const char*, int64_t> positive[] = {{"per_device_train_batch_size", per_device_train_batch_size},
                                                      {"per_device_eval_batch_size", per_device_eval_batch_size},
                                                      {"gradient_accumulation_steps", gradient_accumulation_steps}};
  for (const auto& [name, value] : positive) expect(value >= 1, name, "1 or more, got ", value);
  expect(num_train_epochs > 0 && num_train_epochs <= double(steps_limit), "num_train_epochs", "a number above 0, got ",
         num_train_epochs);
  const std::pair<const char*, double> parts[] = {
      {"eval_steps", eval_steps}, {"save_steps", save_steps}, {"logging_steps", logging_steps}};
  for (const auto& [name, value] : parts)
    expect(value > 0 && value <= double(steps_limit) && (value < 1 || value == std::floor(value)), name,
           "a whole number from 1 up, or a part of all steps below 1, got ", value);
  expect(label_smoothing_factor >= 0 && label_smoothing_factor < 1, "label_smoothing_factor",
         "a number from 0 to below 1, got ", label_smoothing_factor);
  expect(early_stopping_patience >= 0, "early_stopping_patience", "0 or more, got ", early_stopping_patience);
  expect(early_stopping_threshold >= 0, "early_stopping_threshold", "0 or more, got ", early_stopping_threshold);
  expect(early_stopping_threshold == 0 || early_stopping_patience > 0, "early_stopping_threshold",
         "an early_stopping_patience above 0 with it, got 0");
  if (early_stopping_patience > 0) {
    expect(eval_strategy != "no", "early_stopping_patience", "an eval_strategy, got no");
    expect(!best_metric().empty(), "early_stopping_patience",
           "a metric_for_best_model, or load_best_model_at_end, got neither");
  }
  for (const std::string& to : report_to) check_word("report_to", to, {"none", "all", "tensorboard"});
  expect(std::ranges::count(report_to, "none") == 0 || report_to.size() == 1, "report_to",
         "none alone, got others too");
  expect(!reports(*this) || !output_dir.empty() || !logging_dir.empty(), "report_to",
         "an output_dir or a logging_dir, for the event files");
  if (load_best_model_at_end) {
    const char* const best = "load_best_model_at_end";
    expect(!output_dir.empty(), best, "an output_dir, in which the best model is kept");
    expect(save_strategy == eval_strategy, best, "the same eval_strategy and save_strategy, got ", eval_strategy,
           " and ", save_strategy);
    const bool multiple = (save_steps < 1) == (eval_steps < 1) &&
                          std::fmod(std::round(save_steps * 1e6), std::round(eval_steps * 1e6)) == 0;
    expect(eval_strategy != "steps" || multiple, best, "save_steps to be a multiple of eval_steps, got ", save_steps,
           " and ", eval_steps);
  }
  LOCKSTEP_CHECK(!fp16 || !bf16, "[TrainingArguments] expected fp16 or bf16, got both; leave one out");
  expect(warmup_steps >= 0, "warmup_steps", "0 or more, got ", warmup_steps);
  check_schedule(*this);
  TrainOptions o;
  o.out = output_dir, o.resume = resume_from_checkpoint != std::variant<bool, std::string>(false);
  o.config = deepspeed;
  o.batch = per_device_train_batch_size, o.parallel.accumulate = gradient_accumulation_steps;
  o.given = {"batch", "accumulate"};
  o.names = {{"--out", "output_dir"},     {"--resume", "resume_from_checkpoint"},
             {"--steps", "max_steps"},    {"--save-every", "save_steps"},
             {"--precision f16", "fp16"}, {"--precision bf16", "bf16"}};
  o.epochs = int64_t(std::ceil(num_train_epochs)), o.steps = std::max<int64_t>(max_steps, 0);
  // Values below 1 are fractions of all steps. Here they become 1, and the Trainer later replaces 1 by the true number.
  const auto every = [](double given) { return std::max<int64_t>(1, int64_t(given)); };
  o.eval_every = eval_strategy == "no" ? steps_limit : eval_strategy == "steps" ? every(eval_steps) : 0;
  o.save_every = save_strategy == "steps" && !output_dir.empty() ? every(save_steps) : 0;
  o.seed = seed;
  o.precision = fp16 ? "f16" : bf16 ? "bf16" : "f32";
  if (reports(*this))
    o.set.push_back("summary.folder=" + Json(logging_dir.empty() ? output_dir + "/runs" : logging_dir).dump());
  return o;
}

TrainerOptions TrainingArguments::trainer_options() const {
  TrainerOptions o;
  o.optimizer = [a = *this](nn::Module& model) {
    if (a.label_smoothing_factor > 0) check_uncut_head(model);
    return make_optimizer(a, model);
  };
  o.schedule = [a = *this](optim::Optimizer& optimizer, int64_t steps) { return make_schedule(a, optimizer, steps); };
  if (follows_evaluation(*this))
    o.callbacks.push_back({.on_evaluate = [metric = best_metric()](RunState& run) {
      follow_evaluation(metric, run.metrics, *run.engine);
    }});
  if (label_smoothing_factor > 0) o.loss = smoothed_loss(label_smoothing_factor);
  if (group_by_length)
    o.order = [seed = seed](const data::Dataset<data::Example>& samples, int64_t of_step) -> data::Sampler {
      std::vector<int64_t> lengths;
      for (int64_t i = 0; i < samples.size(); ++i) {
        const Tensor input = samples.get(i).input;
        expect(input.dim() >= 1, "group_by_length", "inputs of at least one dim, got a scalar in sample ", i);
        lengths.push_back(input.size(0));
      }
      return [=](int64_t epoch) { return length_grouped(lengths, of_step, seed, epoch); };
    };
  o.overwrite = overwrite_output_dir;
  o.evaluate_batch = per_device_eval_batch_size;
  o.evaluated = "eval";
  o.tokens = [](const std::vector<Tensor>& targets) { return targets.size() == 1 ? count_labels(targets[0]) : -1; };
  const bool keeps_best = load_best_model_at_end || !metric_for_best_model.empty() || early_stopping_patience > 0;
  if (const std::string name = best_metric(); keeps_best)
    o.best = (greater_is_better.value_or(!name.ends_with("loss")) ? "-" : "") + name;
  if (early_stopping_patience > 0)
    o.callbacks.push_back(metrics::early_stopping({.metric = o.best,
                                                   .patience = early_stopping_patience,
                                                   .min_delta = early_stopping_threshold,
                                                   .follows_small_steps = true}));
  o.load_best = load_best_model_at_end;
  if (const auto* folder = std::get_if<std::string>(&resume_from_checkpoint)) o.resume_from = *folder;
  o.state = TrainerStateOptions{.logging_steps = logging_steps,
                                .eval_steps = eval_steps,
                                .save_steps = save_steps,
                                .train_batch_size = per_device_train_batch_size,
                                .num_train_epochs = num_train_epochs};
  o.warmup_steps = warmup_steps;
  o.arguments = true;
  o.config = Json::Object{{"gradient_clipping", max_grad_norm},
                          {"dataloader_drop_last", dataloader_drop_last},
                          {"checkpoint.keep", save_total_limit}};
  if (gradient_checkpointing) o.config["activation_checkpointing.enabled"] = true;
  o.notes["arguments"] = to_json(*this);
  return o;
}

std::string TrainingArguments::best_metric() const {
  const bool is_loss = metric_for_best_model.empty() && (load_best_model_at_end || follows_evaluation(*this));
  const std::string name = is_loss ? "loss" : metric_for_best_model;
  return name.empty() || name.starts_with("eval_") ? name : "eval_" + name;
}

int64_t count_labels(const Tensor& target) {
  if (target.dtype() != i64) return -1;
  const auto ids = target.to(cpu).contiguous();
  return std::count_if(ids.data<int64_t>(), ids.data<int64_t>() + ids.numel(), [](int64_t id) { return id != -100; });
}

std::vector<int64_t> length_grouped(const std::vector<int64_t>& lengths, int64_t batch, uint64_t seed, int64_t epoch) {
  const int64_t samples = int64_t(lengths.size()), batches = std::clamp<int64_t>(samples / (batch * 4), 1, 50);
  std::vector<int64_t> order = data::permutation(samples, seed, epoch);
  const auto longer = [&](int64_t a, int64_t b) { return lengths[size_t(a)] > lengths[size_t(b)]; };
  for (int64_t first = 0; first < samples; first += batches * batch)
    std::stable_sort(order.begin() + first, order.begin() + std::min(samples, first + batches * batch), longer);
  // The longest sample comes first, so that a lack of memory shows at once.
  if (samples > 0) std::iter_swap(order.begin(), std::min_element(order.begin(), order.end(), longer));
  return order;
}

}  // namespace lockstep::train
