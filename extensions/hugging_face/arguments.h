#pragma once
// The arguments of Hugging Face's Trainer, with its names and defaults, for a train::Trainer:
//
//   train::TrainingArguments args{.output_dir = "output", .deepspeed = "ds_config.json"};
//   train::start(args.options(), "", [&](train::TrainJob& job) {
//     train::TrainerOptions o = args.trainer_options();
//     o.loss = loss, o.data = samples;
//     train::Trainer(job, net, o).fit();
//   });
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "train/trainer.h"

namespace lockstep::train {

/// Arguments of a training run. A `deepspeed` file must have the same values or "auto"; an Error lists all differences.
struct TrainingArguments {
  std::string output_dir = {};        ///< if it already holds a run, the run must be resumed or overwritten
  bool overwrite_output_dir = false;  ///< true: unless it is resumed, remove the run that output_dir holds
  int64_t per_device_train_batch_size = 8, per_device_eval_batch_size = 8, gradient_accumulation_steps = 1;
  double learning_rate = 5e-5, weight_decay = 0, adam_beta1 = 0.9, adam_beta2 = 0.999, adam_epsilon = 1e-8;
  /// adamw_torch, adamw_8bit, adafactor, sgd, adagrad, rmsprop, lion_32bit or lion_8bit, and Hugging Face's other names
  /// of the same updates: adamw_torch_fused, adamw_apex_fused, adamw_bnb_8bit, paged_adamw_32bit, ...
  std::string optim = "adamw_torch";
  double max_grad_norm = 1;  ///< gradients are clipped to this norm; 0: no clipping
  double num_train_epochs = 3;
  int64_t max_steps = -1;  ///< number of steps; above 0: replaces num_train_epochs
  /// linear, constant, constant_with_warmup, cosine, cosine_with_restarts, cosine_with_min_lr, polynomial,
  /// inverse_sqrt, warmup_stable_decay, or reduce_lr_on_plateau, which follows metric_for_best_model.
  std::string lr_scheduler_type = "linear";
  data::Json lr_scheduler_kwargs = data::Json::Object();  ///< {"num_cycles": 2}; see training.md
  double warmup_steps = 0;                                ///< below 1: a fraction of all steps
  /// Share of the target probability that is spread over all classes. Above 0, the loss is the cross entropy of the
  /// outputs' last dim, unless TrainerOptions::loss is replaced. Not for plans with tp.
  double label_smoothing_factor = 0;
  bool gradient_checkpointing = false;  ///< true: recompute blocks in backward instead of keeping their activations
  bool group_by_length = false;         ///< true: batches of samples of similar length (size(0) of their inputs)
  std::string eval_strategy = "no";     ///< "no": only at the end; "steps": every eval_steps; "epoch"
  /// Values of eval_steps, save_steps and logging_steps below 1 are fractions of all steps.
  double eval_steps = 500;
  std::string save_strategy = "steps";  ///< "steps": every save_steps and at the end; "epoch"
  double save_steps = 500;
  int64_t save_total_limit = 0;  ///< checkpoints to keep; 0: all
  double logging_steps = 500;    ///< for the log in trainer_state.json; metrics.jsonl has every step
  bool load_best_model_at_end = false;
  std::string metric_for_best_model = {};  ///< metric of the best model; "": loss, if load_best_model_at_end is set
  /// By default true unless the metric's name ends in "loss".
  std::optional<bool> greater_is_better = {};
  /// true: resume from the last checkpoint; a text: from the checkpoint in this folder.
  std::variant<bool, std::string> resume_from_checkpoint = false;
  int64_t early_stopping_patience = 0;      ///< stop after this many evaluations without improvement; 0: never
  double early_stopping_threshold = 0;      ///< an improvement by this much or less counts as none
  std::vector<std::string> report_to = {};  ///< "tensorboard" or "all": event files; "none"
  std::string logging_dir = {};             ///< folder for event files; default: output_dir/runs
  uint64_t seed = 42;
  bool fp16 = false, bf16 = false;  ///< fp16: autocast; bf16: parameters in bf16, with f32 master weights
  bool dataloader_drop_last = false;
  std::string deepspeed = {};  ///< configuration: a file or JSON text

  /// The options of start(). Error for an unknown word or a value out of range.
  TrainOptions options() const;
  /// The options of the Trainer: optimizer, schedule, clipping and more.
  TrainerOptions trainer_options() const;
  /// Name of the metric that selects the best model and steers reduce_lr_on_plateau: "eval_loss"; "" if there is none.
  std::string best_metric() const;
  /// Factor of the learning rate at step t of `steps`.
  double lr_factor(int64_t t, int64_t steps) const;
};

/// Number of targets over which a loss of tokens averages: all i64 targets but -100. Returns -1 for other dtypes.
int64_t count_labels(const Tensor& target);

/// Order of an epoch for group_by_length, as in Hugging Face's LengthGroupedSampler: the samples are shuffled and cut
/// into groups of 50 batches (fewer if there are less than 200), each sorted from long to short. The longest of all is
/// the first.
std::vector<int64_t> length_grouped(const std::vector<int64_t>& lengths, int64_t batch, uint64_t seed, int64_t epoch);

}  // namespace lockstep::train
