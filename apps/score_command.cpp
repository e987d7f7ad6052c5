// `gpt eval` and `gpt score`: the loss of a model on a text, and log probabilities of continuations of contexts.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>

#include "apps/gpt_commands.h"
#include "data/json_lines.h"
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
  const data::Tokens all = load_tokens(o.input, *tokenizer, m.folder);
  check_rows(all, *tokenizer, m.model->o.vocab, o.input);
  const Tensor tokens = all.tensor();
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

}  // namespace

void add_eval_command(CLI::App& app) {
  const auto o = std::make_shared<ScoreOptions>();
  CLI::App& command = *app.add_subcommand("eval", "loss of a model on a text");
  add_model_options(command, *o, true);
  command.add_option("--text", o->input, "text, or its .tokens file (default: this repository's own sources and docs)");
  const OptionGroup add(command);
  auto* const batch = add("--batch", o->batch, "sequences at a time", whole(1, most_size));
  add("--stride", o->stride,
      "overlapping windows that start every N tokens; also prints bits per byte (default: consecutive windows)",
      whole(1, most_size))
      ->excludes(batch);
  command.callback([o] { use_language_model(*o, "eval", [&](const LanguageModel& m) { eval_text(*o, m); }); });
}

void add_score_command(CLI::App& app) {
  const auto o = std::make_shared<ScoreOptions>();
  CLI::App& command = *app.add_subcommand("score", "log probabilities of continuations, a line of JSON each");
  add_model_options(command, *o, true);
  command.add_option("file", o->input, "lines of JSON: {\"context\": TEXT, \"continuation\": TEXT}")->required();
  command.remove_option(command.get_option("--json"));  // the output is always JSON
  command.callback([o] { use_language_model(*o, "score", [&](const LanguageModel& m) { score_file(*o, m); }); });
}

}  // namespace apps
