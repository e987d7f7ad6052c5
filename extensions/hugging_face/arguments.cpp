// TrainingArguments: checks Hugging Face's arguments and translates them for a Trainer. See arguments.h.
#include "extensions/hugging_face/arguments.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/suggest.h"
#include "optim/optim.h"
#include "optim/schedule.h"

namespace lockstep::train {

using data::Json;

namespace {

template <class... Words> void expect(bool good, const char* argument, const Words&... what) {
  LOCKSTEP_CHECK(good, "[TrainingArguments] ", argument, ": expected ", what...);
}

void check_word(const char* argument, const std::string& word, const std::vector<std::string>& known) {
  expect(std::ranges::count(known, word), argument, "one of ", list_names(known), ", got ", word);
}

}  // namespace

TrainOptions TrainingArguments::options() const {
  check_word("lr_scheduler_type", lr_scheduler_type,
             {"linear", "constant", "constant_with_warmup", "cosine", "polynomial"});
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
  return o;
}

TrainerOptions TrainingArguments::trainer_options() const {
  TrainerOptions o;
  o.optimizer = [a = *this](nn::Module& model) {
    const auto group = [&a](double weight_decay) -> optim::AdamW::Group {
      return {{},
              {.lr = a.learning_rate,
               .beta1 = a.adam_beta1,
               .beta2 = a.adam_beta2,
               .eps = a.adam_epsilon,
               .weight_decay = weight_decay}};
    };
    optim::AdamW::Group matrices = group(a.weight_decay), others = group(0);  // as in Hugging Face
    for (const Variable& p : model.parameters()) (p.dim() >= 2 ? matrices : others).parameters.push_back(p);
    return std::make_unique<optim::AdamW>(std::vector{matrices, others});
  };
  o.schedule = [a = *this](optim::Optimizer& optimizer, int64_t steps) {
    return std::make_unique<optim::LambdaLR>(optimizer, [a, steps](int64_t t) { return a.lr_factor(t, steps); });
  };
  o.evaluate_batch = per_device_eval_batch_size;
  o.evaluated = "eval";
  o.tokens = count_labels;
  if (const std::string name = best_metric(); !name.empty())
    o.best = (greater_is_better.value_or(!name.ends_with("loss")) ? "-" : "") + name;
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
  return o;
}

std::string TrainingArguments::best_metric() const {
  const std::string name = metric_for_best_model.empty() && load_best_model_at_end ? "loss" : metric_for_best_model;
  return name.empty() || name.starts_with("eval_") ? name : "eval_" + name;
}

int64_t count_labels(const Tensor& target) {
  if (target.dtype() != i64) return -1;
  const auto ids = target.to(cpu).contiguous();
  return std::count_if(ids.data<int64_t>(), ids.data<int64_t>() + ids.numel(), [](int64_t id) { return id != -100; });
}

double TrainingArguments::lr_factor(int64_t t, int64_t steps) const {
  if (lr_scheduler_type == "constant") return 1;
  const double all = double(steps), step = double(t),
               warmup = std::ceil(warmup_steps < 1 ? warmup_steps * all : warmup_steps);
  if (step < warmup) return step / std::max(1.0, warmup);
  if (lr_scheduler_type == "constant_with_warmup") return 1;
  const double done = std::min(1.0, (step - warmup) / std::max(1.0, all - warmup));
  if (lr_scheduler_type == "cosine") return 0.5 * (1 + std::cos(std::numbers::pi * done));
  if (lr_scheduler_type == "linear") return 1 - done;
  const double last = 1e-7 / learning_rate;  // polynomial: linear decay to a learning rate of 1e-7
  return (1 - last) * (1 - done) + last;
}

}  // namespace lockstep::train
