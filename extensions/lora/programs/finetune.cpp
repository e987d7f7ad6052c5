// gpt finetune: trains a language model from a Hugging Face folder on a text, as Transformers' run_clm.py does and with
// its options, which are those of train::TrainingArguments.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "apps/gpt_commands.h"
#include "data/files.h"
#include "data/text.h"
#include "engine/config_table.h"
#include "extensions/generation/text_table.h"
#include "extensions/hugging_face/arguments.h"
#include "nn/init.h"
#include "train/cli.h"
#include "train/language.h"
#include "train/option_group.h"

namespace apps {

namespace {

using namespace lockstep;
using namespace lockstep::train;
using data::Json;

struct FinetuneOptions {
  TrainingArguments args;
  std::string model, tokenizer, train_file, validation_file, resume, greater_is_better, schedule, report_to;
  bool do_train = false, do_eval = false;
  int64_t block_size = 0, validation_percent = 5;
  double warmup_ratio = 0;
  TrainOptions engine;  // options that run_clm.py lacks: plan, ranks, device ...
};

/// Cuts tokens into blocks of `block` tokens and drops the rest. Inputs are all but the last token of a block, targets
/// all but the first.
data::DatasetPtr<data::Example> blocks_of(const data::Tokens& tokens, int64_t block, const std::string& name) {
  const int64_t blocks = tokens.size() / block;
  LOCKSTEP_CHECK(blocks >= 1, name, ": expected a text of at least --block_size ", block, " tokens, got ",
                 tokens.size(), "; give more text, or a smaller --block_size");
  const Tensor all = tokens.part(0, blocks * block).tensor().to(i64).view({blocks, block});
  return data::share(
      data::TensorDataset(all.narrow(1, 0, block - 1).contiguous(), all.narrow(1, 1, block - 1).contiguous()));
}

/// The tokens of a table's texts, one text after the other, as run_clm.py joins them.
data::Tokens tokens_of_table(const std::string& file, const data::Tokenizer& tokenizer) {
  std::vector<int32_t> all;
  for (const std::string& text : data::read_text_table(file)) {
    const std::vector<int32_t> ids = tokenizer.encode(text);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  LOCKSTEP_CHECK(!all.empty(), file, ": expected texts, got only empty ones; give a table with texts");
  return data::Tokens(Tensor::from(all, {int64_t(all.size())}), "gpt finetune");
}

struct Texts {
  data::DatasetPtr<data::Example> learn, test;
};

Texts read_texts(const FinetuneOptions& o, const std::string& folder, const nn::GPT::Options& sizes) {
  const auto tokenizer = load_tokenizer(folder);
  const int64_t block = o.block_size > 0 ? o.block_size : std::min<int64_t>(sizes.context, 1024);
  LOCKSTEP_CHECK(block >= 2 && block <= sizes.context, "--block_size ", block, ": expected 2 to ", sizes.context,
                 ", the model's context");
  const auto tokens = [&](const std::string& file) {
    data::Tokens all =
        data::is_text_table(file) ? tokens_of_table(file, *tokenizer) : load_tokens(file, *tokenizer, folder);
    check_rows(all, *tokenizer, sizes.vocab, file);
    return all;
  };
  Texts texts;
  data::Tokens learn, test;
  if (!o.validation_file.empty()) test = tokens(o.validation_file);
  if (!o.train_file.empty()) learn = tokens(o.train_file);
  if (o.do_eval && o.validation_file.empty()) {
    LOCKSTEP_CHECK(!o.train_file.empty(), "--do_eval: expected --validation_file, or --train_file to split");
    std::tie(learn, test) = data::split_text(learn, double(o.validation_percent) / 100, block, o.train_file);
  }
  if (o.do_train) texts.learn = blocks_of(learn, block, o.train_file);
  if (o.do_eval) texts.test = blocks_of(test, block, o.validation_file.empty() ? o.train_file : o.validation_file);
  return texts;
}

void write_results(const FinetuneOptions& o, const Json& result) {
  if (!o.args.output_dir.empty())
    data::write_atomically(o.args.output_dir + "/all_results.json", result.dump(2) + "\n");
}

/// Evaluates the model without training it: --do_eval was given, but not --do_train.
void evaluate(const FinetuneOptions& o) {
  apply_common_options(o.engine);
  const LanguageModel m = load_language_model(o.model);
  m.model->to(device_of(o.engine, Team(nullptr)));
  m.model->eval();
  const Texts texts = read_texts(o, tokenizer_of(o.engine, o.tokenizer, o.model), m.model->o);
  const double loss =
      means_of(*texts.test, o.args.per_device_eval_batch_size, m.model->tokens_table.weight.device(),
               [&](const data::Example& some) { return std::vector<Variable>{m.model->loss(some.input, some.target)}; })
          .at(0);
  if (!o.args.output_dir.empty()) prepare_output("--output_dir", o.args.output_dir);
  const Json result(
      Json::Object{{"eval_loss", loss}, {"eval_samples", texts.test->size()}, {"perplexity", std::exp(loss)}});
  write_results(o, result);
  print_result(result, o.engine.json);
}

void finetune(const FinetuneOptions& o, TrainJob& job) {
  const Start start = read_start(o.model, "--model_name_or_path");
  const std::string tokenizer = tokenizer_of(o.engine, o.tokenizer, start.folder);
  std::optional<nn::BuildEmpty> empty;  // each rank loads only its part
  if (job.plan().pp * job.plan().tp > 1) empty.emplace();
  const std::shared_ptr<nn::GPT> model = from_start(start);
  empty.reset();
  const nn::GPT::Options sizes = model->o;
  const Texts texts = read_texts(o, tokenizer, sizes);
  std::optional<Trainer> trainer;
  TrainerOptions t = o.args.trainer_options();
  t.data = texts.learn, t.evaluate = texts.test;
  t.facts = facts_of(*model, tokenizer, "", start);
  t.summary = false;
  Callback& callback = t.callbacks.emplace_back();
  callback.on_train_begin = [&](RunState&) {
    if (job.talks())
      fmt::print("{} blocks to learn{}\n", texts.learn->size(),
                 texts.test ? fmt::format(", {} for validation", texts.test->size()) : "");
    if (job.team().leads() && !o.args.output_dir.empty()) prepare_output("--output_dir", o.args.output_dir);
  };
  callback.on_train_end = [&](RunState& run) {
    Json& result = run.line;
    if (const Json* loss = result.find("eval_loss")) result["perplexity"] = std::exp(loss->as_number());
    const nn::State state = trainer->full_model();
    if (!job.team().leads()) return;
    write_results(o, result);
    if (!o.args.output_dir.empty()) export_model(sizes, start, state, o.args.output_dir, tokenizer);
  };
  trainer.emplace(job, std::shared_ptr<nn::Module>(model), std::move(t));
  trainer->fit();
}

/// Checks options that depend on each other, before any rank starts.
void check(FinetuneOptions& o) {
  TrainingArguments& a = o.args;
  o.do_eval = o.do_eval || a.eval_strategy != "no";
  LOCKSTEP_CHECK(o.do_train || o.do_eval, "expected --do_train, --do_eval, or both");
  LOCKSTEP_CHECK(!o.do_train || !o.train_file.empty(), "--do_train: expected --train_file, a text");
  LOCKSTEP_CHECK(o.warmup_ratio == 0 || a.warmup_steps == 0, "expected --warmup_ratio or --warmup_steps, got both");
  if (o.warmup_ratio > 0) a.warmup_steps = o.warmup_ratio;
  if (!o.greater_is_better.empty()) a.greater_is_better = engine::lower(o.greater_is_better) == "true";
  if (!o.report_to.empty()) a.report_to = {o.report_to};
  if (!o.schedule.empty()) a.lr_scheduler_kwargs = data::parse_json(o.schedule, "--lr_scheduler_kwargs");
  const std::string resume = engine::lower(o.resume);
  if (resume == "true") a.resume_from_checkpoint = true;
  else if (!o.resume.empty() && resume != "false") a.resume_from_checkpoint = o.resume;
}

void add_command(CLI::App& app) {
  const auto o = std::make_shared<FinetuneOptions>();
  TrainingArguments& a = o->args;
  CLI::App& sub = *app.add_subcommand(
      "finetune", "train a Hugging Face folder on a text, by the options of Transformers' run_clm.py; - or _ in names");
  const OptionGroup model(sub, "Model and data"), training(sub, "Training"), folder(sub, "Output"), own(sub, "Engine");
  model("--model_name_or_path", o->model, "Hugging Face folder to start from; FOLDER,lora=8 trains adapters only")
      ->required();
  model("--tokenizer_name", o->tokenizer, "folder of a tokenizer (default: the model's)");
  model("--train_file", o->train_file, "text to learn, or a .tokens file, or texts in a .jsonl, .json or .csv file");
  model("--validation_file", o->validation_file, "text for evaluation, or one of these files");
  model("--validation_split_percentage", o->validation_percent,
        "without --validation_file: percentage of --train_file, from its end", integer(1, 99));
  model("--block_size", o->block_size, "tokens of a sample (0: the model's context, at most 1024)",
        integer(0, max_size));
  model("--do_train", o->do_train, "train");
  model("--do_eval", o->do_eval, "evaluate at the end; without --do_train: only evaluate");
  const auto count = integer(1, max_size);
  const auto steps = number(0, double(steps_limit));  // TrainingArguments checks the lower limits
  training("--per_device_train_batch_size", a.per_device_train_batch_size, "samples of a micro-batch", count);
  training("--per_device_eval_batch_size", a.per_device_eval_batch_size, "samples per batch in evaluation", count);
  training("--gradient_accumulation_steps", a.gradient_accumulation_steps, "micro-batches of a step at each rank",
           count);
  training("--learning_rate", a.learning_rate, "learning rate", number(0, 1e6));
  training("--weight_decay", a.weight_decay, "weight decay of matrices", number(0, 1e6));
  training("--adam_beta1", a.adam_beta1, "decay of the mean of gradients", number(0, 1));
  training("--adam_beta2", a.adam_beta2, "decay of the mean of their squares", number(0, 1));
  training("--adam_epsilon", a.adam_epsilon, "added to the denominator", number(0, 1));
  training("--max_grad_norm", a.max_grad_norm, "clip gradients to this norm (0: no clipping)", number(0, 1e12));
  training("--num_train_epochs", a.num_train_epochs, "passes over the text", steps);
  training("--max_steps", a.max_steps, "above 0: number of steps, replaces epochs", integer(-1, steps_limit));
  training("--optim", a.optim, "optimizer: adamw_torch, adamw_8bit, adafactor, sgd, adagrad, rmsprop, lion_32bit ...");
  training("--lr_scheduler_type", a.lr_scheduler_type,
           "linear, constant, constant_with_warmup, cosine, cosine_with_restarts, cosine_with_min_lr, polynomial, "
           "inverse_sqrt, warmup_stable_decay, reduce_lr_on_plateau");
  training("--lr_scheduler_kwargs", o->schedule, "its options as JSON: {\"num_cycles\": 2}");
  training("--label_smoothing_factor", a.label_smoothing_factor, "part of the target that all tokens share",
           number(0, 1));
  training("--gradient_checkpointing", a.gradient_checkpointing, "recompute blocks in backward, to save memory");
  training("--warmup_steps", a.warmup_steps, "steps up to --learning_rate; below 1: a part of all", number(0, 1e12));
  training("--warmup_ratio", o->warmup_ratio, "warm-up as a fraction of all steps", number(0, 1));
  training("--dataloader_drop_last", a.dataloader_drop_last, "drop the last incomplete micro-batch");
  training("--seed", a.seed, "seed of everything random", integer(0, INT64_MAX));
  training("--fp16", a.fp16, "matrix products in f16");
  training("--bf16", a.bf16, "matrix products in bf16");
  training("--deepspeed", a.deepspeed,
           "DeepSpeed's configuration, which must agree with these options or say \"auto\"");
  folder("--output_dir", a.output_dir, "folder for checkpoints, trainer_state.json and the trained model");
  folder("--overwrite_output_dir", a.overwrite_output_dir, "replace a run that --output_dir holds");
  folder("--report_to", o->report_to, "none, all, tensorboard: where the log goes besides trainer_state.json");
  folder("--logging_dir", a.logging_dir, "folder for TensorBoard (default: runs in --output_dir)");
  folder("--early_stopping_patience", a.early_stopping_patience,
         "stop after this many evaluations without improvement (0: never)", integer(0, steps_limit));
  folder("--early_stopping_threshold", a.early_stopping_threshold, "an improvement by this much or less counts as none",
         number(0, 1e12));
  folder("--eval_strategy,--evaluation_strategy", a.eval_strategy, "no, steps, epoch: when to evaluate");
  folder("--eval_steps", a.eval_steps, "steps between evaluations; below 1: a part of all", steps);
  folder("--save_strategy", a.save_strategy, "steps, epoch: when to save");
  folder("--save_steps", a.save_steps, "steps between checkpoints; below 1: a part of all", steps);
  folder("--save_total_limit", a.save_total_limit, "checkpoints to keep (0: all)", integer(0, steps_limit));
  folder("--logging_steps", a.logging_steps, "steps between entries of the log; below 1: a part of all", steps);
  folder("--load_best_model_at_end", a.load_best_model_at_end, "end with the best of the evaluated models");
  folder("--metric_for_best_model", a.metric_for_best_model, "metric that decides which model is best (default: loss)");
  folder("--greater_is_better", o->greater_is_better, "True or False (default: unless the metric is a loss)",
         one_of({"True", "False", "true", "false"}));
  folder("--resume_from_checkpoint", o->resume, "True, or the folder of a checkpoint, to continue from");
  own("--plan", o->engine.plan, "how ranks share the work: dp2+pp2+tp2+zero1");
  own("--set", o->engine.set, "set one key of the configuration: zero_optimization.stage=2; may be repeated")
      ->allow_extra_args(false);
  own("--ranks,--num_gpus", o->engine.parallel.ranks, "ranks as threads of this process", integer(1, 64));
  own("--device", o->engine.device, "cpu; cuda; cuda:N");
  own("--threads", o->engine.threads, "threads of operations (default: all cores)", integer(1, 4096));
  own("--trace", o->engine.parallel.trace, "folder for a timeline of every rank");
  own("--json", o->engine.json, "print all final figures as one line of JSON");
  sub.callback([o, &sub] {
    TrainOptions options = as_usage([&] {
      check(*o);
      return o->args.options();
    });
    options.set.insert(options.set.end(), o->engine.set.begin(), o->engine.set.end());
    options.plan = o->engine.plan, options.device = o->engine.device;
    options.threads = o->engine.threads, options.json = o->engine.json;
    options.parallel.ranks = o->engine.parallel.ranks, options.parallel.trace = o->engine.parallel.trace;
    go_on_after_restart(options);
    o->engine.out = options.out, o->engine.resume = options.resume;
    if (!o->do_train) return evaluate(*o);
    start(options, identity_of(sub), [&](TrainJob& job) { finetune(*o, job); });
  });
}

/// For `gpt finetune`, --train-file becomes --train_file, and --fp16 True becomes --fp16=True.
std::vector<std::string> normalized(const std::vector<std::string>& words) {
  if (words.size() < 2 || words[1] != "finetune") return words;
  static const std::vector<std::string> flags = {"do_train",
                                                 "do_eval",
                                                 "fp16",
                                                 "bf16",
                                                 "dataloader_drop_last",
                                                 "load_best_model_at_end",
                                                 "overwrite_output_dir",
                                                 "gradient_checkpointing"};
  std::vector<std::string> all(words.begin(), words.begin() + 2);
  for (size_t i = 2; i < words.size(); ++i) {
    std::string word = words[i];
    if (word.starts_with("--"))
      std::replace(word.begin() + 2, word.begin() + ptrdiff_t(std::min(word.find('='), word.size())), '-', '_');
    const bool is_flag = word.starts_with("--") && std::find(flags.begin(), flags.end(), word.substr(2)) != flags.end();
    const std::string next = is_flag && i + 1 < words.size() ? engine::lower(words[i + 1]) : "";
    if (next == "true" || next == "false") word += "=" + words[++i];
    all.push_back(word);
  }
  return all;
}

}  // namespace

void add_lora_training_commands(CLI::App& app, std::vector<std::string>& words) {
  if (app.get_name() != "gpt") return;
  words = normalized(words);
  add_command(app);
}

}  // namespace apps
