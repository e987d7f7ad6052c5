#pragma once
// The arguments of Hugging Face's Trainer, by its names and with its defaults, for a train::Trainer:
//
//   train::TrainingArguments args{.output_dir = "output", .deepspeed = "ds_config.json"};
//   train::start(args.options(), "", [&](train::Job& job) {
//     train::TrainerOptions o = args.trainer_options();
//     o.loss = loss, o.data = samples;
//     train::Trainer(job, net, o).fit();
//   });
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "train/trainer.h"

namespace lockstep::train {

/// A file of `deepspeed` must agree with all of these, or say "auto"; one Error lists what does not.
struct TrainingArguments {
  std::string output_dir = {};  ///< one that holds a run already goes on with resume_from_checkpoint only
  int64_t per_device_train_batch_size = 8, per_device_eval_batch_size = 8, gradient_accumulation_steps = 1;
  double learning_rate = 5e-5, weight_decay = 0, adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double max_grad_norm = 1;  ///< 0: none
  double num_train_epochs = 3;
  int64_t max_steps = -1;                    ///< above 0 in place of the epochs
  std::string lr_scheduler_type = "linear";  ///< constant, constant_with_warmup, cosine, polynomial
  double warmup_steps = 0;                   ///< below 1: a part of all steps
  std::string eval_strategy = "no";          ///< only at the end; "steps": every eval_steps; "epoch"
  double eval_steps = 500;                   ///< these below 1 are parts of all steps
  std::string save_strategy = "steps";       ///< every save_steps, and at the end; "epoch"
  double save_steps = 500;
  int64_t save_total_limit = 0;  ///< 0: all stay
  double logging_steps = 500;    ///< of the log in trainer_state.json; metrics.jsonl has every step
  bool load_best_model_at_end = false;
  std::string metric_for_best_model = {};  ///< "": loss, with load_best_model_at_end
  /// Default: unless the metric's name ends in "loss".
  std::optional<bool> greater_is_better = {};
  std::variant<bool, std::string> resume_from_checkpoint = false;  ///< true: from the last one; or the folder of one
  uint64_t seed = 42;
  bool fp16 = false, bf16 = false;  ///< autocast; parameters too, where the file has "auto" for it
  bool dataloader_drop_last = false;
  std::string deepspeed = {};  ///< configuration: a file, or JSON

  /// What start() takes. Error for words that are none.
  Options options() const;
  /// What the Trainer takes: optimizer, schedule, clipping.
  TrainerOptions trainer_options() const;
  /// "eval_loss": what decides which model is the best. "": nothing does.
  std::string best_metric() const;
  /// The factor of the learning rate at step t of so many.
  double lr_factor(int64_t t, int64_t steps) const;
};

/// Targets of a loss by tokens: those that are not -100, of i64; -1 for others.
int64_t count_labels(const Tensor& target);

}  // namespace lockstep::train
