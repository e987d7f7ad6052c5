// `gpt eval` and `gpt score`: how likely a model finds a text, and continuations of contexts.
#include <fmt/core.h>

#include <cmath>
#include <memory>
#include <sstream>

#include "apps/gpt_commands.h"
#include "data/files.h"
#include "data/text.h"
#include "train/cli.h"
#include "train/language.h"
#include "train/options.h"
#include "train/scoring.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;
using data::Json;

namespace {

struct ScoreOptions : ModelOptions {
  std::string input;
  int64_t batch = 16, stride = 0;
};

void eval_text(const ScoreOptions& o, const LanguageModel& m) {
  const auto tokenizer = m.tokenizer();
  const Tensor tokens = load_tokens(o.input, *tokenizer, m.folder).tensor();
  if (o.stride == 0) {
    const TextLoss t = loss_of_text(*m.model, tokens, o.batch);
    if (m.leads)
      print_result(Json::Object{{"loss", t.loss}, {"perplexity", std::exp(t.loss)}, {"tokens", t.tokens}}, o.json);
    return;
  }
  const StridedLoss s = loss_in_strides(*m.model, *tokenizer, tokens.to(i64).to_vector<int64_t>(), o.stride);
  if (m.leads)
    print_result(Json::Object{{"loss", s.nats},
                              {"perplexity", std::exp(s.nats)},
                              {"bits_per_byte", s.bits_per_byte},
                              {"tokens", s.tokens},
                              {"bytes", s.bytes}},
                 o.json);
}

void score_file(const ScoreOptions& o, const LanguageModel& m) {
  const auto tokenizer = m.tokenizer();
  std::vector<ToScore> all;
  std::istringstream lines(data::read_file(o.input, int64_t(4) << 30));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = str(o.input, ":", number);
    const Json json = data::parse_json(line, where);
    try {
      all.push_back(to_score(*tokenizer, json.at("context", where).as_string(where + ": context"),
                             json.at("continuation", where).as_string(where + ": continuation"),
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

}  // namespace

void add_eval_command(CLI::App& app) {
  const auto o = std::make_shared<ScoreOptions>();
  CLI::App& command = *app.add_subcommand("eval", "loss of a model on a text");
  add_model_options(command, *o, true);
  command.add_option("--text", o->input, "text, or its .tokens file (default: this repository's own sources and docs)");
  auto* const batch = OptionGroup{command}("--batch", o->batch, "sequences at a time", whole(1, most_size));
  command
      .add_option(
          "--stride", o->stride,
          "windows overlap, each so many tokens further; also bits per byte (default: windows one after another)")
      ->check(whole(1, most_size))
      ->excludes(batch);
  command.callback([o] { use_language_model(*o, "eval", [&](const LanguageModel& m) { eval_text(*o, m); }); });
}

void add_score_command(CLI::App& app) {
  const auto o = std::make_shared<ScoreOptions>();
  CLI::App& command = *app.add_subcommand("score", "log probabilities of continuations, a line of JSON each");
  add_model_options(command, *o, true);
  command.add_option("file", o->input, "lines of JSON: {\"context\": TEXT, \"continuation\": TEXT}")->required();
  command.remove_option(command.get_option("--json"));  // it is JSON
  command.callback([o] { use_language_model(*o, "score", [&](const LanguageModel& m) { score_file(*o, m); }); });
}

}  // namespace apps
