// gpt: trains a GPT or a Llama on a text. Extensions add commands that continue texts, and read and write models in
// other file formats.
#include <fmt/format.h>

#include "apps/gpt_commands.h"
#include "data/safetensors.h"
#include "data/text.h"
#include "nn/init.h"
#include "optim/schedule.h"
#include "train/cli.h"
#include "train/language.h"
#include "train/optimizer.h"
#include "train/option_group.h"
#include "train/trainer.h"

namespace {

using namespace lockstep;
using namespace lockstep::train;
using data::Json;

struct GptOptions : TrainOptions {
  GptOptions() { steps = 1000, eval_every = 250, optimizer.weight_decay = 0.1, optimizer.beta2 = 0.99; }
  std::string text, tokenizer, sizes = "gpt:4x128x4", init, export_to, experts;
  double validation = 0.1, dropout = 0;
  int64_t context = 128, warmup = 100, eval_batches = 20;
  OptimizerOptions optimizer;
};

struct LogitsOptions : ModelOptions {
  std::string ids, to;
};

std::shared_ptr<nn::GPT> make_model(const GptOptions& o, const Start& start, TrainJob& job, int64_t vocab) {
  std::optional<nn::BuildEmpty> empty;  // each rank loads only its part
  if (job.plan().pp * job.plan().tp > 1) empty.emplace();
  nn::GPT::Options sizes = as_usage([&] { return model_options(o.sizes, {.context = o.context}); });
  sizes.vocab = vocab, sizes.dropout = o.dropout;
  if (o.is_given("context")) sizes.context = o.context;
  std::shared_ptr<nn::GPT> model = start.folder.empty() ? nullptr : from_start(start);
  if (!model) model = std::make_shared<nn::GPT>(sizes);
  add_experts(*model, o.experts, job);
  return model;
}

void train_gpt(const GptOptions& o, TrainJob& job) {
  const Start start = read_start(o.init);
  const std::string tokenizer = tokenizer_of(o, o.tokenizer, start.folder), name = o.text.empty() ? "the text" : o.text;
  const auto known = load_tokenizer(tokenizer);
  const data::Tokens all = apps::load_tokens(o.text, *known, tokenizer);
  check_configured(job, {"warmup"});
  const std::shared_ptr<nn::GPT> model = make_model(o, start, job, known->vocab_size());
  const nn::GPT::Options sizes = model->o;
  const int64_t sample_length = o.is_given("context") ? o.context : sizes.context;
  LOCKSTEP_CHECK(sample_length <= sizes.context, "--context ", o.context, ": expected at most the model's context, ",
                 sizes.context);
  apps::check_rows(all, *known, sizes.vocab, name);
  const auto [learn, validation] = data::split_text(all, o.validation, sample_length, name);
  job.team().check_same(name, all.size(), all.checksum());
  const data::TokenBatches batches(learn, job.options().seed);
  apps::OnDevices devices;
  if (o.parallel.strategy == "dp") devices = apps::copy_to_devices(*model, job.devices());
  const double last = o.optimizer.last_lr < 0 || o.optimizer.lr == 0 ? 0.1 : o.optimizer.last_lr / o.optimizer.lr;
  std::optional<Trainer> trainer;
  TrainerOptions t{
      .batches = [&](int64_t step, int64_t micro,
                     int64_t samples) { return batches.sample(step, micro, samples, sample_length); },
      .evaluate = validation.size() == 0
                      ? nullptr
                      : data::share(data::TextDataset(validation, {.context = sample_length, .stride = sample_length})),
      .optimizer =
          [&](nn::Module& m) {
            return make_optimizer(o.optimizer, matrices_decay(m, o.optimizer.weight_decay), o.steps, job);
          },
      .schedule =
          [&](optim::Optimizer& optimizer, int64_t steps) {
            return std::make_unique<optim::LambdaLR>(optimizer, optim::warmup_cosine(o.warmup, steps, last));
          },
      .warmup_steps = double(o.warmup),
      .config = Json::Object{{"gradient_clipping", 1}},
      .facts = facts_of(*model, tokenizer, o.experts, start),
      .notes = Json::Object{{"text", o.text},
                            {"lr", o.optimizer.lr},
                            {"warmup", o.warmup},
                            {"dropout", o.dropout},
                            {"experts", o.experts}},
      .unit = "tokens",
      .per_sample = double(sample_length),
      .max_eval_batches = o.eval_batches,
      .summary = false,
      .callbacks = {{.on_train_begin =
                         [&](RunState&) {
                           if (job.talks())
                             fmt::print("{} tokens to learn, {} for validation\n", learn.size(), validation.size());
                           if (!job.team().leads()) return;
                           if (!o.export_to.empty()) prepare_export(job, start, o.export_to);
                           if (!o.out.empty()) keep_tokenizer(tokenizer, o.tokenizer, o.out);
                         },
                     .on_train_end =
                         [&](RunState&) {
                           if (devices.traffic && job.talks()) fmt::print("{}", devices.traffic());
                           if (o.export_to.empty()) return;
                           const nn::State state = trainer->full_model();
                           if (job.team().leads()) export_model(sizes, start, state, o.export_to, tokenizer);
                         }}}};
  t.forward = devices.forward;
  trainer.emplace(job, std::shared_ptr<nn::Module>(model), std::move(t));
  trainer->fit();
}

void logits(const LogitsOptions& o, const LanguageModel& m) {
  const std::vector<int64_t> ids = integers("--ids", o.ids);
  const Tensor scores = m.logits(Tensor::from(ids, {1, int64_t(ids.size())})).to(cpu);
  if (m.leads) data::save_safetensors(o.to, {{"logits", scores}});
}

}  // namespace

int main(int argc, char** argv) {
  GptOptions o;
  CLI::App app("A GPT that learns from a text and continues it", "gpt");
  CLI::App& training = *app.add_subcommand("train", "train on a text; the last part of it is kept for validation");
  apps::add_eval_command(app);
  CLI::App& scoring = *app.add_subcommand("logits", "write a model's logits for given token ids");
  add_options(training, o, true);
  training.remove_option(training.get_option("--epochs"));  // TokenBatches draws batches without end
  training.get_option("--steps")->check(integer(1, steps_limit))->description("optimizer steps");
  training.get_option("--eval-every")->description("steps between evaluations");
  training.get_option("--save-every")->description("steps between checkpoints in --out (0: at the end and on Ctrl-C)");
  const OptionGroup data(training, "Data"), model(training, "Model"), steps(training, "Training");
  data("--text", o.text,
       "text to learn, or its .tokens file of `gpt tokenize` (default: this repository's own sources and docs)");
  if (const std::string help = tokenizer_help(); !help.empty()) data("--tokenizer", o.tokenizer, help);
  data("--validation", o.validation, "part of the text, from its end, kept for validation (0: none)", number(0, 1));
  data("--eval-batches", o.eval_batches, "batches per evaluation (the last one uses all)", integer(1, steps_limit));
  const bool starts = !start_help().empty();
  auto* const init = starts ? model("--init", o.init, start_help()) : nullptr;
  auto* const sizes = model("--model", o.sizes, "gpt: or llama:LAYERSxWIDTHxHEADS" + model_files_help());
  model("--context", o.context, str("tokens that the model sees", starts ? "; with --init, of a sample" : ""),
        integer(1, max_size));
  auto* const dropout = model("--dropout", o.dropout, "probability of dropout", number(0, 1))->default_str("0");
  auto* const experts = model("--experts", o.experts, experts_help);
  if (init) init->excludes(sizes, dropout, experts);
  if (const std::string help = export_help(); !help.empty())
    model("--export", o.export_to, help)->excludes(experts);  // the files of other libraries hold no such experts
  add_optimizer_options(training, o.optimizer, true);
  steps("--warmup", o.warmup, "steps up to --lr, from where it falls along a cosine", integer(0, steps_limit));
  LogitsOptions use;
  add_model_options(scoring, use, true);
  scoring.add_option("--ids", use.ids, "token ids: 5,17,3")->required();
  scoring.add_option("--to", use.to, "safetensors file to write")->required();
  training.callback([&] {
    as_usage([&] {
      check_optimizer(o.optimizer, o);
      LOCKSTEP_CHECK(o.parallel.strategy != "dp" || apps::copy_to_devices,
                     "--parallel dp: expected a build with the extension data_parallel, got one without it; use "
                     "--parallel ddp with lockstep run -n N, or --ranks N");
      const Json changes = read_start(o.init).changes;
      LOCKSTEP_CHECK(changes.as_object().empty() || o.parallel.strategy != "dp", "--init ... ",
                     changes.as_object()[0].first,
                     "= cannot be combined with --parallel dp, which copies models by their options; "
                     "use --parallel ddp with lockstep run -n N, or --ranks N");
    });
    start(o, identity_of(training), [&](TrainJob& job) { train_gpt(o, job); });
  });
  scoring.callback([&use] { use_language_model(use, "logits", [&](const LanguageModel& m) { logits(use, m); }); });
  apps::add_tokenize_command(app);
  std::vector<std::string> words(argv, argv + argc);
  apps::add_training_commands_of_extensions(app, words);
  return run_cli(app, std::move(words));
}
