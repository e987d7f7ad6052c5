// Commands of gpt that generate and score: sample, score, and the option --stride of eval.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "apps/gpt_commands.h"
#include "base/printable.h"
#include "extensions/generation/generation_config.h"
#include "extensions/generation/json_lines.h"
#include "extensions/generation/prompt.h"
#include "extensions/generation/scoring.h"
#include "train/cli.h"
#include "train/language.h"
#include "train/option_group.h"
#include "train/options.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;
using data::Json;

namespace {

struct SampleOptions : ModelOptions {
  std::string prompt = "\n", ids;
  nn::Generation generation = sampling_defaults();
  std::set<std::string> given = {};
};

/// The options of Generation that the command line sets: generation_config.json does not change them.
std::set<std::string> options_given(const CLI::App& command) {
  static const std::pair<const char*, std::vector<const char*>> options[] = {
      {"--tokens", {"max_new_tokens"}},
      {"--temperature", {"temperature"}},
      {"--top-k", {"top_k"}},
      {"--top-p", {"top_p"}},
      {"--min-p", {"min_p"}},
      {"--repetition-penalty", {"repetition_penalty"}},
      {"--no-repeat-ngram", {"no_repeat_ngram_size"}},
      {"--greedy", {"do_sample", "num_beams"}},
      {"--beams", {"num_beams", "do_sample"}},
      {"--stop", {"num_beams"}}};                       // beams with stop strings are not supported
  std::set<std::string> given{"num_return_sequences"};  // one text is printed
  for (const auto& [option, names] : options)
    if (command.get_option(option)->count() > 0) given.insert(names.begin(), names.end());
  return given;
}

void sample(SampleOptions& o, const LanguageModel& m) {
  for (const std::string& what : nn::use_generation_config(m.folder, o.generation, o.given))
    if (m.leads)
      std::cerr << "note: " << printable(m.folder) << "/generation_config.json: " << printable(what)
                << " is not supported and has no effect\n";
  const bool by_ids = !o.ids.empty();
  const std::string& prompt = by_ids ? o.ids : o.prompt;
  const std::string made = continue_prompt(m, prompt, by_ids, o.generation, o.json || !m.leads ? nullptr : &std::cout);
  if (o.json && m.leads) print_result(Json::Object{{"program", "gpt"}, {"prompt", prompt}, {"text", made}}, true);
}

void add_sample_command(CLI::App& app) {
  const auto o = std::make_shared<SampleOptions>();
  CLI::App& command = *app.add_subcommand("sample", "continue a prompt");
  add_model_options(command, *o, true);
  command.add_option("--prompt", o->prompt, "text to continue (default: a new line)");
  command.add_option("--ids", o->ids, "token ids to continue instead of a text: 5,17,3 (prints ids)");
  add_generation_options(command, o->generation);
  command.callback([o, &command] {
    as_usage([&] { o->generation.check(); });
    o->given = options_given(command);
    use_language_model(*o, "sample", [&](const LanguageModel& m) { sample(*o, m); });
  });
}

struct ScoreOptions : ModelOptions {
  std::string input;
};

void score_file(const ScoreOptions& o, const LanguageModel& m) {
  const auto tokenizer = m.tokenizer();
  std::vector<ToScore> all;
  data::JsonLines lines(o.input);
  while (const auto json = lines.next()) {
    const std::string where = str(o.input, ":", lines.line());
    try {
      all.push_back(to_score(*tokenizer, json->at("context", where).as_string(where + ": context"),
                             json->at("continuation", where).as_string(where + ": continuation"),
                             m.model->o.context + 1));
    } catch (const Error& error) {
      const std::string what = error.what();
      throw Error(what.starts_with(where) ? what : where + ": " + what);
    }
  }
  for (const Scored& s : score(*m.model, all))
    if (m.leads)
      fmt::print("{}\n",
                 Json(Json::Object{{"logprob", s.logprob}, {"is_greedy", s.greedy}, {"tokens", s.tokens}}).dump());
}

void add_score_command(CLI::App& app) {
  const auto o = std::make_shared<ScoreOptions>();
  CLI::App& command = *app.add_subcommand("score", "log probabilities of continuations, a line of JSON each");
  add_model_options(command, *o, true);
  command.add_option("file", o->input, "lines of JSON: {\"context\": TEXT, \"continuation\": TEXT}")->required();
  command.remove_option(command.get_option("--json"));  // the output is always JSON
  command.callback([o] { use_language_model(*o, "score", [&](const LanguageModel& m) { score_file(*o, m); }); });
}

Json strided_loss(const LanguageModel& m, const data::Tokenizer& tokenizer, const Tensor& tokens, int64_t stride) {
  const StridedLoss s = loss_in_strides(*m.model, tokenizer, tokens.to(i64).to_vector<int64_t>(), stride);
  return Json::Object{{"loss", s.nats},
                      {"perplexity", std::exp(s.nats)},
                      {"bits_per_byte", s.bits_per_byte},
                      {"tokens", s.tokens},
                      {"bytes", s.bytes}};
}

void add_stride_option(CLI::App& app) {
  CLI::App& command = *app.get_subcommand("eval");
  const auto stride = std::make_shared<int64_t>(0);
  OptionGroup{command}(
      "--stride", *stride,
      "overlapping windows that start every N tokens; also prints bits per byte (default: consecutive windows)",
      integer(1, max_size))
      ->excludes(command.get_option("--batch"));
  command.parse_complete_callback([stride] {
    if (*stride == 0) return;
    eval_measure = [stride](const LanguageModel& m, const data::Tokenizer& tokenizer, const Tensor& tokens) {
      return strided_loss(m, tokenizer, tokens, *stride);
    };
  });
}
}  // namespace

void add_generation_training_commands(CLI::App& app, std::vector<std::string>&) {
  if (app.get_name() != "gpt") return;
  add_sample_command(app);
  add_score_command(app);
  add_stride_option(app);
}

}  // namespace apps
