// `gpt eval`: the loss of a model on a text.
#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>

#include "apps/gpt_commands.h"
#include "data/text.h"
#include "train/cli.h"
#include "train/language.h"
#include "train/option_group.h"
#include "train/options.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;
using data::Json;

namespace {

struct EvalOptions : ModelOptions {
  std::string text;
  int64_t batch = 16;
};

void eval_text(const EvalOptions& o, const LanguageModel& m) {
  const auto tokenizer = m.tokenizer();
  const data::Tokens all = load_tokens(o.text, *tokenizer, m.folder);
  check_rows(all, *tokenizer, m.model->o.vocab, o.text);
  Json figures;
  if (eval_measure) {
    figures = eval_measure(m, *tokenizer, all.tensor());
  } else {
    const TextLoss t = loss_of_text(*m.model, all.tensor(), o.batch);
    figures = Json::Object{{"loss", t.loss}, {"perplexity", std::exp(t.loss)}, {"tokens", t.tokens}};
  }
  if (m.leads) print_result(figures, o.json);
}

}  // namespace

void add_eval_command(CLI::App& app) {
  const auto o = std::make_shared<EvalOptions>();
  CLI::App& command = *app.add_subcommand("eval", "loss of a model on a text");
  add_model_options(command, *o, true);
  command.add_option("--text", o->text, "text, or its .tokens file (default: this repository's own sources and docs)");
  OptionGroup{command}("--batch", o->batch, "sequences at a time", integer(1, max_size));
  command.callback([o] { use_language_model(*o, "eval", [&](const LanguageModel& m) { eval_text(*o, m); }); });
}

}  // namespace apps
