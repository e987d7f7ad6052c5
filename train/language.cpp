// Language models: their description in a run's config.json, loading, loss of a text. See language.h.
#include "train/language.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>

#include "base/check.h"
#include "base/suggest.h"
#include "data/files.h"
#include "data/text.h"
#include "engine/engine.h"
#include "nn/init.h"
#include "train/cli.h"
#include "train/json_paths.h"
#include "train/option_group.h"
#include "train/options.h"
#include "train/team.h"
#include "train/trainer.h"

namespace lockstep::train {

using data::Json;

namespace {

/// Calls fn(key, option, always) for each option that changes what a GPT computes; for an enumeration, its words are a
/// fourth argument. always: the option is in every run's config.json; otherwise only if it differs from the default.
template <class Options, class Fn> void each_option(Options&& o, const Fn& fn) {
  fn("vocab", o.vocab, true);
  fn("context", o.context, true);
  fn("layers", o.layers, true);
  fn("width", o.width, true);
  fn("heads", o.heads, true);
  fn("inner", o.inner, true);
  fn("norm_eps", o.norm_eps, true);
  fn("gelu", o.gelu, true, {"erf", "tanh"});
  fn("tied", o.tied, true);
  fn("kv_heads", o.kv_heads, false);
  fn("head_size", o.head_size, false);
  fn("norm", o.norm, false, {"layer", "rms"});
  fn("feed_forward", o.feed_forward, false, {"gelu", "swiglu"});
  fn("bias", o.bias, false);
  fn("attention_bias", o.attention_bias, false);
  fn("attention_out_bias", o.attention_out_bias, false);
  fn("mlp_bias", o.mlp_bias, false);
  fn("window", o.window, false);
  fn("window_from", o.window_from, false);
}

template <class Rope, class Fn> void each_rope_option(Rope&& r, const Fn& fn) {
  fn("base", r.base, true);
  fn("scaling", r.scaling, true, {"none", "linear", "dynamic", "yarn", "llama3"});
  fn("factor", r.factor, false);
  fn("low_freq_factor", r.low_freq_factor, false);
  fn("high_freq_factor", r.high_freq_factor, false);
  fn("beta_fast", r.beta_fast, false);
  fn("beta_slow", r.beta_slow, false);
  fn("attention_factor", r.attention_factor, false);
  fn("original_context", r.original_context, false);
  fn("truncate", r.truncate, false);
  fn("partial", r.partial, false);
}

using Words = std::initializer_list<const char*>;

/// Writes options as JSON. Leaves out those that equal `usual`. So a run that was started before an option existed can
/// still be resumed.
struct Writer {
  Json& to;
  const Json* usual = nullptr;
  void put(const char* key, Json value, bool always) const {
    if (always || !usual || !(*usual->find(key) == value)) to[key] = std::move(value);
  }
  template <class T> void operator()(const char* key, const T& value, bool always) const { put(key, value, always); }
  void operator()(const char* key, const std::optional<double>& value, bool always) const {
    put(key, value ? Json(*value) : Json(), always);
  }
  template <class T> void operator()(const char* key, const T& value, bool always, Words words) const {
    put(key, words.begin()[int(value)], always);
  }
};

struct Reader {
  const Json& from;
  std::string where;
  const Json* find(const char* key, bool always) const { return always ? &from.at(key, where) : from.find(key); }
  template <class T> void operator()(const char* key, T& to, bool always) const {
    if (const Json* value = find(key, always)) read_as(*value, to, where + ": " + key);
  }
  void operator()(const char* key, std::optional<double>& to, bool always) const {
    if (const Json* value = find(key, always)) read_as(*value, to.emplace(), where + ": " + key);
  }
  template <class T> void operator()(const char* key, T& to, bool always, Words words) const {
    const Json* value = find(key, always);
    if (!value) return;
    const std::string& word = value->as_string(where + ": " + key);
    const auto* const found = std::find(words.begin(), words.end(), word);
    LOCKSTEP_CHECK(found != words.end(), where, ": ", key, ": '", word, "' is not known; expected ",
                   listed({words.begin(), words.end()}));
    to = T(found - words.begin());
  }
};

}  // namespace

Json facts_of(const nn::GPT& model, const std::string& tokenizer, const std::string& experts, const Start& start) {
  Json c = Json::Object{{"program", "gpt"}}, usual, usual_rope;
  each_option(nn::GPT::Options{}, Writer{usual});
  each_rope_option(nn::Rope{}, Writer{usual_rope});
  each_option(model.o, Writer{c, &usual});
  if (model.o.rope) each_rope_option(*model.o.rope, Writer{c["rope"], &usual_rope});
  c["tokenizer"] = tokenizer.empty() ? "" : "tokenizer";  // folder within the run's folder
  c["tokenizer_identity"] = tokenizer_identity(tokenizer);
  for (const auto& [key, value] : start.changes.as_object()) c[key] = value;
  const Experts e = read_experts(experts);
  if (e.options.experts == 0) return c;
  c["expert_count"] = e.options.experts;
  c["expert_every"] = e.every;
  c["top_k"] = e.options.top_k;
  c["residual_experts"] = e.options.use_residual;
  return c;
}

std::unique_ptr<data::Tokenizer> LanguageModel::tokenizer() const {
  auto loaded = load_tokenizer(folder);
  const std::string found = identity.empty() ? "" : tokenizer_identity(folder);
  LOCKSTEP_CHECK(identity.empty() || found == identity, "[tokenizer] ", folder,
                 ": expected the files that the model was trained with (", identity, "), got others (", found,
                 "); put the original files there");
  return loaded;
}

LanguageModel load_language_model(const std::string& path, bool average, const Json& changes) {
  LOCKSTEP_CHECK(std::filesystem::exists(path), path, ": no such file or folder; check the path");
  for (const ModelChange& change : model_changes())
    if (const Json* asked = changes.find(change.key); asked && change.check) change.check(asked->as_string(change.key));
  if (const ModelFormat* const format = model_format_of(path)) {
    LOCKSTEP_CHECK(!average, path, ": --ema is for runs, this is a ", format->name, "; leave --ema out");
    return format->load(path, {.changes = changes});
  }
  const std::string config_path = path + "/config.json";
  const Json c = data::read_json(config_path);
  const auto at = [&](const char* key) -> const Json& { return c.at(key, config_path); };
  if (!c.find("program")) {
    std::string formats;
    for (const ModelFormat& format : model_formats())
      if (!format.files.empty()) formats += format.files + ", or ";
    fail(str(path, ": expected ", formats, "a run of gpt; it has none; check the path"));
  }
  LOCKSTEP_CHECK(at("program").as_string(config_path) == "gpt", config_path, ": expected a run of gpt, got ",
                 at("program").dump(), "; give the folder of one");
  nn::GPT::Options o;
  each_option(o, Reader{c, config_path});
  if (const Json* rope = c.find("rope")) each_rope_option(o.rope.emplace(), Reader{*rope, config_path + ": rope"});
  const Json* const experts = c.find("experts");
  const Experts read = experts ? read_experts(experts->as_string(config_path)) : Experts();
  // check_file_totals() needs the number of layers. Experts count as layers, because each has tensors of its own.
  const auto layers = double(o.layers),
             experts_of_all = layers / double(std::max<int64_t>(1, read.every)) * double(read.options.experts);
  nn::check_file_totals(config_path, held_by(path), std::max(layers, std::floor(experts_of_all)), [&] {
    auto trial = std::make_shared<nn::GPT>(o);
    if (experts) read.add_to(*trial);
    for (const ModelChange& change : model_changes())
      if (change.adds_parameters) change.apply(*trial, c, config_path);
    return trial;
  });
  auto model = std::make_unique<nn::GPT>(o);
  if (experts) read.add_to(*model);
  make_changes(*model, c, config_path);  // the checkpoint contains the changed model, such as its quantized weights
  load_model(*model, path, average);
  make_changes(*model, changes, path);
  const std::string tokenizer = at("tokenizer").as_string(), folder = tokenizer.empty() ? "" : path + "/" + tokenizer;
  return {std::move(model), folder, at("tokenizer_identity").as_string(config_path), end_tokens(folder)};
}

void add_model_options(CLI::App& app, ModelOptions& o, bool shared) {
  std::string folders = "folder of a run";
  for (const ModelFormat& format : model_formats())
    if (folders.find(format.name) == folders.npos) folders += ", or " + format.name;
  app.add_option("model", o.model, folders)->required();
  std::vector<CLI::Option*> changes;
  for (const ModelChange& change : model_changes())
    if (!change.help.empty()) changes.push_back(app.add_option("--" + change.key, o.changes[change.key], change.help));
  for (const ModelRunnerOption& runner : model_runners()) {
    if (!shared) break;
    CLI::Option* const option = app.add_option(runner.option, o.runners[runner.option], runner.help);
    for (CLI::Option* const change : changes) option->excludes(change);  // a runner has its own settings for them
  }
  add_common_options(app, o, false);
}

Tensor LanguageModel::logits(const Tensor& tokens) const {
  const NoGrad no_grad;
  return runner ? runner->logits(tokens) : (*model)(tokens.to(model->tokens_table.weight.device())).tensor();
}

void use_language_model(const ModelOptions& o, const std::string& command,
                        const std::function<void(const LanguageModel&)>& body) {
  const auto asked = std::find_if(model_runners().begin(), model_runners().end(), [&](const ModelRunnerOption& runner) {
    const auto value = o.runners.find(runner.option);
    return value != o.runners.end() && !value->second.empty();
  });
  const bool by_runner = asked != model_runners().end();
  if (!by_runner) check_single_process(command);
  apply_common_options(o);
  OpenedRunner opened;
  if (by_runner) opened = as_usage([&] { return asked->open(o.runners.at(asked->option)); });
  Json changes(Json::Object{});
  for (const auto& [key, value] : o.changes)
    if (!value.empty()) changes[key] = value;
  dist::ProcessGroup* const world = by_runner && engine::is_launched() ? &engine::init_distributed() : nullptr;
  const auto run = [&] {
    std::optional<nn::BuildEmpty> empty;  // each rank loads only its part
    const ModelFormat* const format = model_format_of(o.model);
    if (by_runner && format && format->loads_empty) empty.emplace();
    LanguageModel m = load_language_model(o.model, o.ema, changes);
    empty.reset();
    const Team team(world);
    m.leads = team.leads();
    if (!opened.on_host) m.model->to(device_of(o, team));
    m.model->eval();
    if (by_runner) m.runner = opened.make(m);
    body(m);
  };
  if (world) dist::guard(run);
  else run();
}

std::string tokenizer_of(const CommonOptions& run, const std::string& given, const std::string& model) {
  const std::string of_model = has_tokenizer(model) ? model : "", found = given.empty() ? of_model : given,
                    stored = run.out + "/tokenizer";
  return run.resume && has_tokenizer(stored) && !has_tokenizer(found) ? stored : found;
}

void keep_tokenizer(const std::string& tokenizer, const std::string& given, const std::string& out) {
  prepare_output("--out", out);
  if (!given.empty() && tokenizer != given)
    std::cerr << "note: --tokenizer " << given
              << " contains no tokenizer; continuing with the run's own copy: " << tokenizer << "\n";
  copy_tokenizer(tokenizer, out + "/tokenizer");
}

std::vector<int64_t> integers(const std::string& option, const std::string& list) {
  std::vector<int64_t> numbers;
  std::stringstream in(list);
  for (std::string word; std::getline(in, word, ',');) {
    const bool good = integer(INT64_MIN, INT64_MAX)(word).empty();
    LOCKSTEP_CHECK(good, option, ": expected numbers with commas between, got '", word, "'");
    numbers.push_back(std::stoll(word));
  }
  LOCKSTEP_CHECK(!numbers.empty(), option, ": expected at least one number, got none; give some, such as 5,17,3");
  return numbers;
}

TextLoss loss_of_text(nn::GPT& model, const Tensor& tokens, int64_t batch) {
  const int64_t context = std::min(model.o.context, tokens.numel() - 1);
  LOCKSTEP_CHECK(context > 0, "expected a text of at least 2 tokens, got ", tokens.numel(), "; give more text");
  model.eval();
  const data::TextDataset windows(tokens, {.context = context, .stride = context});
  const std::vector<double> means =
      means_of(windows, batch, model.tokens_table.weight.device(),
               [&](const data::Example& some) { return std::vector<Variable>{model.loss(some.input, some.target)}; });
  return {means.at(0), windows.size() * context};
}

}  // namespace lockstep::train
