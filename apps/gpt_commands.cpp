// Commands of gpt other than training: `load` prints the device of each of a model's parameters; `eval` computes the
// loss of a model on a text; `score` computes log probabilities of continuations of contexts; `tokenize` writes the
// tokens of a text of any size to a file, which other commands read faster than the text.
#include "apps/gpt_commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>

#include "apps/source_folder.h"
#include "data/files.h"
#include "data/json_lines.h"
#include "data/text.h"
#include "nn/build_empty.h"
#include "nn/hugging_face/pretrained.h"
#include "parallel/device_map/dispatch.h"
#include "tensor/quantity.h"
#include "train/cli.h"
#include "train/language.h"
#include "train/options.h"
#include "train/scoring.h"
#include "train/team.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;
using data::Json;

data::Tokens load_tokens(const std::string& path, const data::Tokenizer& tokenizer, const std::string& folder) {
  if (!path.empty() && data::is_token_file(path))
    return data::read_tokens(path, tokenizer, data::tokenizer_identity(folder));
  return tokenizer.encode_tensor(path.empty() ? data::read_sources(apps::source_folder)
                                              : data::read_file(path, int64_t(4) << 30));
}

void check_rows(const data::Tokens& tokens, const data::Tokenizer& tokenizer, int64_t vocab, const std::string& path) {
  if (tokenizer.vocab_size() <= vocab) return;
  int64_t some[1024];
  for (int64_t at = 0; at < tokens.size(); at += 1024) {
    const int64_t* const end = tokens.copy(at, std::min<int64_t>(tokens.size() - at, 1024), some);
    const int64_t* const found = std::find_if(some, some + (end - some), [&](int64_t id) { return id >= vocab; });
    LOCKSTEP_CHECK(found == end, path.empty() ? "the text" : path, ": token ", *found, " (\"",
                   tokenizer.token_bytes(int32_t(*found)), "\") at ", at + (found - some),
                   " has no row in the model, which has ", vocab,
                   " rows; take it out of the text, or give the model a row for each of the tokenizer's ",
                   tokenizer.vocab_size(), " tokens");
  }
}

namespace {

struct LoadCommand {
  std::string folder, mode = "auto", offload;
  bool eight = false, four = false;
  std::vector<std::string> limits;

  void operator()() const {
    device_map::Options options;
    for (const std::string& limit : limits) {
      const size_t equals = limit.find('=');
      if (equals == limit.npos)
        throw UsageError("--max-memory: expected PLACE=BYTES such as cpu:0=10GiB, got '" + limit + "'");
      options.max_memory.emplace(limit.substr(0, equals), limit.substr(equals + 1));
    }
    std::unique_ptr<nn::GPT> model;
    {
      const nn::BuildEmpty scope;  // unquantized weights are loaded directly to their place
      model = nn::from_pretrained(folder, {.load_in_8bit = eight, .load_in_4bit = four});
    }
    const device_map::Placement plan = device_map::infer(*model, mode, options);
    const auto dispatched = device_map::dispatch(*model, plan, {.offload_folder = offload});
    std::map<std::string, std::string> places;
    for (size_t i = 0; i < plan.parts.size(); ++i)
      for (const std::string& name : plan.parts[i].tensors) places[name] = plan.places[i].name;
    int64_t number = 0;
    for (const auto& p : model->named_parameters())
      fmt::print("{},\t{}\t{}\t{}\n", number++, p.name, places.at(p.name), name_of(p.variable.dtype()));
    for (const auto& [place, bytes] : plan.held) fmt::print("{} on {}\n", memory_text(bytes), place);
  }
};

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

struct TokenizeCommand {
  std::string text, to, tokenizer;
  bool json = false;

  void operator()() const {
    check_alone("tokenize");
    LOCKSTEP_CHECK(!data::is_token_file(text), "[tokenize] expected a text, got a .tokens file: ", text);
    LOCKSTEP_CHECK(!std::filesystem::exists(to) || !std::filesystem::equivalent(text, to),
                   "[tokenize] expected --to to name another file than the text, got ", to);
    const bool shows = ::isatty(STDERR_FILENO);
    const auto whole = double(std::filesystem::file_size(text));
    const auto known = data::load_tokenizer(tokenizer);
    const data::Tokenized done = data::tokenize_file(
        text, to, *known, data::tokenizer_identity(tokenizer), int64_t(8) << 20, [&](const data::Tokenized& so_far) {
          if (shows) fmt::print(stderr, "\r{:3.0f} %  {} tokens", 100 * double(so_far.bytes) / whole, so_far.tokens);
        });
    if (shows) fmt::print(stderr, "\n");
    print_result(Json::Object{{"tokens", done.tokens},
                              {"bytes", done.bytes},
                              {"vocabulary", known->vocab_size()},
                              {"tokenizer", data::tokenizer_identity(tokenizer)}},
                 json);
  }
};

}  // namespace

void add_load_command(CLI::App& app) {
  CLI::App& loading = *app.add_subcommand("load", "load a Hugging Face folder, and say where each parameter is");
  const auto command = std::make_shared<LoadCommand>();
  loading.add_option("model", command->folder, "Hugging Face folder")->required();
  auto* const eight = loading.add_flag("--load-in-8bit", command->eight, "weights in 8 bits (LLM.int8)");
  loading.add_flag("--load-in-4bit", command->four, "weights in 4 bits (group4)")->excludes(eight);
  loading.add_option("--device-map", command->mode, "auto, balanced, balanced_low_0 or sequential")
      ->capture_default_str();
  loading.add_option("--max-memory", command->limits, "bytes of a place, as cpu:0=10GiB; can be given several times")
      ->allow_extra_args(false);
  loading.add_option("--offload-folder", command->offload, "folder for offloaded parameters");
  loading.callback([command] { (*command)(); });
}

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

void add_tokenize_command(CLI::App& app) {
  const auto o = std::make_shared<TokenizeCommand>();
  CLI::App& sub = *app.add_subcommand("tokenize", "write the tokens of a text to a file, for train --text");
  sub.add_option("text", o->text, "text, of any size")->required();
  sub.add_option("--to", o->to, "file to write: NAME.tokens")->required();
  sub.add_option("--tokenizer", o->tokenizer,
                 "folder of a tokenizer.json, or GPT-2's vocab.json and merges.txt (default: bytes)");
  sub.add_flag("--json", o->json, "print all final figures as one line of JSON");
  sub.callback([o] { (*o)(); });
}

}  // namespace apps
