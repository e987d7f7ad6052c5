// gpt: trains a GPT or a Llama on a text, continues texts, and reads and writes Hugging Face folders.
#include <fmt/format.h>

#include <iostream>

#include "apps/gpt_commands.h"
#include "data/safetensors.h"
#include "data/text.h"
#include "nn/build_empty.h"
#include "nn/hugging_face/pretrained.h"
#include "optim/schedule.h"
#include "parallel/data_parallel.h"
#include "train/cli.h"
#include "train/language.h"
#include "train/optimizer.h"
#include "train/trainer.h"

namespace {

using namespace lockstep;
using namespace lockstep::train;
using data::Json;

struct GptOptions : Options {
  GptOptions() { steps = 1000, eval_every = 250, optimizer.weight_decay = 0.1, optimizer.beta2 = 0.99; }
  std::string text, tokenizer, sizes = "gpt:4x128x4", init, export_to, experts;
  double validation = 0.1, dropout = 0;
  int64_t context = 128, warmup = 100, eval_batches = 20, tokens = 300;
  OptimizerOptions optimizer;
};

struct UseOptions : ModelOptions {  // options of sample and logits
  std::string prompt = "\n", ids, logits_out;
  nn::Generation generation = drawn_text();
};

std::shared_ptr<nn::GPT> make_model(const GptOptions& o, const Start& start, Job& job, int64_t vocab) {
  std::optional<nn::BuildEmpty> empty;  // each rank loads only its part
  if (job.plan().pp * job.plan().tp > 1) empty.emplace();
  nn::GPT::Options sizes = as_usage([&] { return nn::gpt_options(o.sizes, {.context = o.context}); });
  sizes.vocab = vocab, sizes.dropout = o.dropout;
  if (o.is_given("context")) sizes.context = o.context;
  std::shared_ptr<nn::GPT> model = start.folder.empty() ? nullptr : from_start(start);
  if (!model) model = std::make_shared<nn::GPT>(sizes);
  add_experts(*model, o.experts, job);
  if (start.lora) nn::add_lora(*model, *start.lora);
  return model;
}

void train_gpt(const GptOptions& o, Job& job) {
  const Start start = read_start(o.init);
  const std::string tokenizer = tokenizer_of(o, o.tokenizer, start.folder), name = o.text.empty() ? "the text" : o.text;
  const auto known = data::load_tokenizer(tokenizer);
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
  std::optional<parallel::DataParallel<nn::GPT>> devices;
  if (o.parallel.strategy == "dp")
    devices.emplace(
        *model, [&] { return nn::GPT(sizes); }, parallel::DataParallelOptions{.devices = job.devices()});
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
      .evaluate_most = o.eval_batches,
      .on_start =
          [&] {
            if (job.talks()) fmt::print("{} tokens to learn, {} for validation\n", learn.size(), validation.size());
            if (!job.team().leads()) return;
            if (!o.export_to.empty()) prepare_export(job, o.export_to);
            if (!o.out.empty()) keep_tokenizer(tokenizer, o.tokenizer, o.out);
          },
      .on_end =
          [&](Json&) {
            if (devices && job.talks()) fmt::print("{}", to_string(devices->bytes_moved()));
            if (o.export_to.empty()) return;
            const nn::State state = trainer->whole_model();
            if (job.team().leads()) export_model(sizes, start, state, o.export_to, tokenizer);
          }};
  if (devices) t.forward = [&](const Tensor& input) { return (*devices)(input); };
  trainer.emplace(job, std::shared_ptr<nn::Module>(model), std::move(t));
  trainer->fit();
}

void sample(const UseOptions& o, const LanguageModel& m) {
  const bool by_ids = !o.ids.empty();
  const std::string& prompt = by_ids ? o.ids : o.prompt;
  const std::string made = continue_prompt(m, prompt, by_ids, o.generation, o.json || !m.leads ? nullptr : &std::cout);
  if (o.json && m.leads) print_result(Json::Object{{"program", "gpt"}, {"prompt", prompt}, {"text", made}}, true);
}

void logits(const UseOptions& o, const LanguageModel& m) {
  const std::vector<int64_t> ids = whole_numbers("--ids", o.ids);
  const Tensor scores = m.logits(Tensor::from(ids, {1, int64_t(ids.size())})).to(cpu);
  if (m.leads) data::save_safetensors(o.logits_out, {{"logits", scores}});
}

}  // namespace

int main(int argc, char** argv) {
  GptOptions o;
  CLI::App app("A GPT that learns from a text and continues it", "gpt");
  CLI::App& training = *app.add_subcommand("train", "train on a text; the last part of it is kept for validation");
  apps::add_eval_command(app);
  CLI::App& sampling = *app.add_subcommand("sample", "continue a prompt");
  CLI::App& scoring = *app.add_subcommand("logits", "write a model's logits for given token ids");
  add_options(training, o, true);
  training.remove_option(training.get_option("--epochs"));  // batches are endless
  training.get_option("--steps")->check(whole(1, most_steps))->description("optimizer steps");
  training.get_option("--eval-every")->description("steps between evaluations");
  training.get_option("--save-every")->description("steps between checkpoints in --out (0: at the end and on Ctrl-C)");
  const OptionGroup data(training, "Data"), model(training, "Model"), steps(training, "Training");
  data("--text", o.text,
       "text to learn, or its .tokens file of `gpt tokenize` (default: this repository's own sources and docs)");
  data("--tokenizer", o.tokenizer, "folder of a tokenizer.json, or GPT-2's vocab.json and merges.txt (default: bytes)");
  data("--validation", o.validation, "part of the text, from its end, kept for validation (0: none)", number(0, 1));
  data("--eval-batches", o.eval_batches, "batches per evaluation (the last one uses all)", whole(1, most_steps));
  auto* init = model("--init", o.init, start_help);
  init->excludes(model("--model", o.sizes, "gpt: or llama:LAYERSxWIDTHxHEADS, or a config.json"));
  model("--context", o.context, "tokens that the model sees; with --init, of a sample", whole(1, most_size));
  init->excludes(model("--dropout", o.dropout, "probability of dropout", number(0, 1))->default_str("0"));
  init->excludes(model("--experts", o.experts, experts_help));
  model("--export", o.export_to, "write the trained model as a Hugging Face folder, or its adapters as peft's")
      ->excludes(training.get_option("--experts"));  // Transformers has no such models
  add_optimizer_options(training, o.optimizer, true);
  steps("--warmup", o.warmup, "steps up to --lr, from where it falls along a cosine", whole(0, most_steps));
  UseOptions use;
  for (CLI::App* sub : {&sampling, &scoring}) add_model_options(*sub, use, true);
  sampling.add_option("--prompt", use.prompt, "text to continue (default: a new line)");
  sampling.add_option("--ids", use.ids, "token ids to continue instead of a text: 5,17,3 (prints ids)");
  add_generation_options(sampling, use.generation);
  scoring.add_option("--ids", use.ids, "token ids: 5,17,3")->required();
  scoring.add_option("--to", use.logits_out, "safetensors file to write")->required();
  training.callback([&] {
    as_usage([&] {
      check_optimizer(o.optimizer, o);
      LOCKSTEP_CHECK(!read_start(o.init).lora || o.parallel.strategy != "dp",
                     "--init ... lora= cannot be combined with --parallel dp, which copies models by their options; "
                     "use --parallel ddp with lockstep run -n N, or --ranks N");
    });
    start(o, identity_of(training), [&](Job& job) { train_gpt(o, job); });
  });
  const auto on_use = [&](CLI::App& sub, void (*command)(const UseOptions&, const LanguageModel&)) {
    sub.callback([&use, command, name = sub.get_name()] {
      as_usage([&] { use.generation.check(); });
      use_language_model(use, name, [&](const LanguageModel& m) { command(use, m); });
    });
  };
  on_use(sampling, sample), on_use(scoring, logits);
  apps::add_load_command(app);
  apps::add_score_command(app);
  apps::add_tokenize_command(app);
  std::vector<std::string> words(argv, argv + argc);
  apps::add_finetune_command(app, words);
  apps::add_training_commands_of_extensions(app, words);
  return run_cli(app, std::move(words));
}
