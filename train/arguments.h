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
#include <string>

#include "train/trainer.h"

namespace lockstep::train {

/// A file of `deepspeed` must agree with all of these, or say "auto"; one Error lists what does not.
struct TrainingArguments {
  std::string output_dir = {};  ///< one that holds a run already goes on with resume_from_checkpoint only
  int64_t per_device_train_batch_size = 8, per_device_eval_batch_size = 8, gradient_accumulation_steps = 1;
  double learning_rate = 5e-5, weight_decay = 0, adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  double max_grad_norm = 1;  ///< 0: none
  int64_t num_train_epochs = 3;
  int64_t max_steps = -1;                    ///< above 0 in place of the epochs
  std::string lr_scheduler_type = "linear";  ///< constant, constant_with_warmup, cosine, polynomial
  double warmup_steps = 0;                   ///< below 1: a part of all steps
  std::string eval_strategy = "no";          ///< only at the end; "steps": every eval_steps; "epoch"
  int64_t eval_steps = 500;
  std::string save_strategy = "steps";  ///< every save_steps, and at the end; "epoch"
  int64_t save_steps = 500;
  int64_t save_total_limit = 0;  ///< 0: all stay
  bool resume_from_checkpoint = false;
  uint64_t seed = 42;
  bool fp16 = false, bf16 = false;  ///< autocast; parameters too, where the file has "auto" for it
  bool dataloader_drop_last = false;
  std::string deepspeed = {};  ///< configuration: a file, or JSON

  /// What start() takes. Error for words that are none.
  Options options() const;
  /// What the Trainer takes: optimizer, schedule, clipping.
  TrainerOptions trainer_options() const;
  /// The factor of the learning rate at step t of so many.
  double lr_factor(int64_t t, int64_t steps) const;
};

}  // namespace lockstep::train
