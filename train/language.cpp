// Language models: their description in a run's config.json, loading, generation, loss of a text. See language.h.
#include "train/language.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "base/suggest.h"
#include "data/files.h"
#include "data/text.h"
#include "engine/engine.h"
#include "nn/build_empty.h"
#include "nn/hugging_face/adapter.h"
#include "nn/hugging_face/pretrained.h"
#include "nn/text_stream.h"
#include "train/cli.h"
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

/// Writes options as JSON. Leaves out those that equal `usual`, so that a run from before an option existed can resume.
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
  c["tokenizer_identity"] = data::tokenizer_identity(tokenizer);
  if (start.lora) c["lora"] = facts_of(*start.lora);
  if (!start.quantize.empty()) c["quantize"] = start.quantize;
  const Experts e = read_experts(experts);
  if (e.options.experts == 0) return c;
  c["expert_count"] = e.options.experts;
  c["expert_every"] = e.every;
  c["top_k"] = e.options.top_k;
  c["residual_experts"] = e.options.use_residual;
  return c;
}

std::unique_ptr<data::Tokenizer> LanguageModel::tokenizer() const {
  auto loaded = data::load_tokenizer(folder);
  const std::string found = identity.empty() ? "" : data::tokenizer_identity(folder);
  LOCKSTEP_CHECK(identity.empty() || found == identity, "[tokenizer] ", folder,
                 ": expected the files that the model was trained with (", identity, "), got others (", found,
                 "); put the original files there");
  return loaded;
}

LanguageModel load_language_model(const std::string& path, bool average, const std::string& quantize) {
  LOCKSTEP_CHECK(std::filesystem::exists(path), path, ": no such file or folder; check the path");
  std::optional<nn::QuantizeOptions> quantization;
  if (!quantize.empty()) quantization = nn::quantize_options(quantize);
  const bool adapter = nn::is_adapter(path);
  if (adapter || nn::is_pretrained(path)) {
    LOCKSTEP_CHECK(!average, path, ": --ema is for runs, this is a Hugging Face folder; leave it out");
    const std::string base = adapter ? nn::adapter_base(path) : path, words = data::has_tokenizer(path) ? path : base;
    auto model = nn::from_pretrained(base, {.quantize = quantization});
    if (adapter) nn::load_adapter(*model, path);
    // True for a model that reads bytes and was written by --export: its folder has no tokenizer.
    const bool of_bytes = !data::has_tokenizer(words) && model->o.vocab == 256;
    return {std::move(model), of_bytes ? "" : words, "", nn::eos_tokens(base)};
  }
  const std::string config_path = path + "/config.json";
  const Json c = data::read_json(config_path);
  const auto at = [&](const char* key) -> const Json& { return c.at(key, config_path); };
  LOCKSTEP_CHECK(c.find("program"), path,
                 ": expected model.safetensors, or model.safetensors.index.json and its shards, "
                 "or a run of gpt; it has none of them");
  LOCKSTEP_CHECK(at("program").as_string(config_path) == "gpt", config_path, ": expected a run of gpt, got ",
                 at("program").dump());
  nn::GPT::Options o;
  each_option(o, Reader{c, config_path});
  if (const Json* rope = c.find("rope")) each_rope_option(o.rope.emplace(), Reader{*rope, config_path + ": rope"});
  const Json *const experts = c.find("experts"), *const lora = c.find("lora");
  const Experts read = experts ? read_experts(experts->as_string(config_path)) : Experts();
  // check_held() needs the number of layers. Experts count as layers, because each has tensors of its own.
  const auto layers = double(o.layers),
             experts_of_all = layers / double(std::max<int64_t>(1, read.every)) * double(read.options.experts);
  nn::check_held(config_path, held_by(path), std::max(layers, std::floor(experts_of_all)), [&] {
    auto trial = std::make_shared<nn::GPT>(o);
    if (experts) read.add_to(*trial);
    if (lora) nn::add_lora(*trial, lora_options(*lora, config_path + ": lora"));
    return trial;
  });
  auto model = std::make_unique<nn::GPT>(o);
  if (experts) read.add_to(*model);
  const Json* const codes = c.find("quantize");
  // The checkpoint contains quantized weights, so the model must be quantized before it is loaded.
  if (codes) nn::quantize(*model, nn::quantize_options(codes->as_string(config_path)));
  if (lora) nn::add_lora(*model, lora_options(*lora, config_path + ": lora"));
  if (const Json* settings = c.find("engine")) {
    engine::Config trained;
    if (const Json* sparse = settings->find("sparse_attention")) trained.sparse_attention = *sparse;
    if (const Json* seed = settings->find("seed")) trained.seed = seed->as_int(config_path);
    if (const auto sparse = engine::sparse_attention(trained)) nn::set_sparse_attention(*model, *sparse);
  }
  load_model(*model, path, average);
  if (quantization) nn::quantize(*model, *quantization);
  const std::string tokenizer = at("tokenizer").as_string(), folder = tokenizer.empty() ? "" : path + "/" + tokenizer;
  return {std::move(model), folder, at("tokenizer_identity").as_string(config_path), nn::eos_tokens(folder)};
}

void add_model_options(CLI::App& app, ModelOptions& o, bool shared) {
  app.add_option("model", o.model, "folder of a run, or Hugging Face folder")->required();
  auto* const quantize = app.add_option("--quantize", o.quantize, quantize_help);
  if (shared)
    app.add_option("--config", o.config, "inference configuration, by which ranks may share the model")
        ->excludes(quantize);  // the configuration has its own dtype setting
  add_common_options(app, o, false);
}

Tensor LanguageModel::logits(const Tensor& tokens) const {
  const NoGrad no_grad;
  return (engine ? (*engine)(tokens) : (*model)(tokens.to(model->tokens_table.weight.device()))).tensor();
}

void use_language_model(const ModelOptions& o, const std::string& command,
                        const std::function<void(const LanguageModel&)>& body) {
  const bool by_config = !o.config.empty();
  if (!by_config) check_alone(command);
  apply_common_options(o);
  const inference::Config known =
      by_config ? as_usage([&] { return inference::read_config(o.config); }) : inference::Config();
  dist::ProcessGroup* const world = by_config && engine::is_launched() ? &engine::init_distributed() : nullptr;
  const auto run = [&] {
    std::optional<nn::BuildEmpty> empty;  // each rank loads only its part
    if (by_config && nn::is_pretrained(o.model) && !nn::is_adapter(o.model)) empty.emplace();
    LanguageModel m = load_language_model(o.model, o.ema, o.quantize);
    empty.reset();
    const Team team(world);
    m.leads = team.leads();
    if (!known.keep_module_on_host) m.model->to(device_of(o, team));
    m.model->eval();
    if (by_config)
      m.engine = std::make_shared<inference::InferenceEngine>(
          inference::init_inference(*m.model, known, {.tokenizer = m.folder}));
    body(m);
  };
  if (world) dist::guard(run);
  else run();
}

std::string tokenizer_of(const CommonOptions& run, const std::string& given, const std::string& model) {
  const std::string of_model = data::has_tokenizer(model) ? model : "", found = given.empty() ? of_model : given,
                    stored = run.out + "/tokenizer";
  return run.resume && data::has_tokenizer(stored) && !data::has_tokenizer(found) ? stored : found;
}

void keep_tokenizer(const std::string& tokenizer, const std::string& given, const std::string& out) {
  prepare_output("--out", out);
  if (!given.empty() && tokenizer != given)
    std::cerr << "note: --tokenizer " << given
              << " contains no tokenizer; continuing with the run's own copy: " << tokenizer << "\n";
  if (tokenizer.empty()) return;
  data::copy_tokenizer(tokenizer, out + "/tokenizer");
  const Json generation = nn::folder_notes(tokenizer).generation;
  const std::string file = out + "/tokenizer/generation_config.json";
  if (generation.as_object().empty()) std::filesystem::remove(file);
  else data::write_atomically(file, generation.dump(2) + "\n");
}

std::vector<int64_t> whole_numbers(const std::string& option, const std::string& list) {
  std::vector<int64_t> numbers;
  std::stringstream in(list);
  for (std::string word; std::getline(in, word, ',');) {
    const bool good = whole(INT64_MIN, INT64_MAX)(word).empty();
    LOCKSTEP_CHECK(good, option, ": expected numbers with commas between, got '", word, "'");
    numbers.push_back(std::stoll(word));
  }
  LOCKSTEP_CHECK(!numbers.empty(), option, ": expected at least one number, such as 5,17,3");
  return numbers;
}

std::string continue_prompt(const LanguageModel& m, const std::string& prompt, bool by_ids, nn::Generation generation,
                            std::ostream* shown) {
  const auto tokenizer = by_ids ? nullptr : m.tokenizer();
  std::optional<data::Decoder> decoder;
  std::vector<int64_t> ids;
  if (by_ids) ids = whole_numbers("--ids", prompt);
  else {
    decoder.emplace(*tokenizer, false);
    for (const int32_t id : tokenizer->encode(prompt)) {
      ids.push_back(id);
      decoder->push(id);  // otherwise the first new token would be decoded as the start of a text
    }
    decoder->flush();
  }
  LOCKSTEP_CHECK(!ids.empty(), "--prompt: expected at least one token");
  LOCKSTEP_CHECK(!by_ids || generation.stop.empty(), "--stop: expected a prompt that is a text, got --ids");
  generation.text = [&](int64_t id) { return std::string(tokenizer->token_bytes(int32_t(id))); };
  if (tokenizer) generation.suppress_tokens = tokenizer->unknown(m.model->o.vocab);
  // The folder's end-of-text tokens can lie beyond the vocabulary, if a small model uses a large model's tokenizer.
  for (const int64_t id : m.ends)
    if (id < m.model->o.vocab) generation.eos_token_id.push_back(id);
  std::string made;
  const bool on_terminal = shown == &std::cout && isatty(STDOUT_FILENO) == 1;
  bool begun = false;  // true once the prompt is printed: only with the first new text, as an Error may come before
  nn::TextStream stream(generation.stop);
  const auto show = [&](const std::string& text) {
    made += text;
    if (shown && !std::exchange(begun, true) && !by_ids) *shown << prompt;
    if (shown) *shown << (on_terminal ? printable(text) : text) << std::flush;
  };
  const auto take = [&](size_t, int64_t id) {
    const bool ends = std::ranges::count(generation.eos_token_id, id) > 0;
    if (by_ids) show((made.empty() ? "" : ",") + std::to_string(id));
    else if (!ends) show(stream.push(decoder->push(int32_t(id))));
    return true;
  };
  if (m.engine) m.engine->generate(std::span(&ids, 1), generation, take);
  else nn::generate(*m.model, std::span(&ids, 1), generation, take);
  if (decoder) show(stream.push(decoder->flush()) + stream.flush());
  if (shown) *shown << "\n";
  return made;
}

nn::Generation drawn_text() {
  return {.max_new_tokens = 300,
          .do_sample = true,
          .overflow = nn::Generation::Overflow::slide,
          .temperature = 0.8,
          .top_k = 50};
}

void add_generation_options(CLI::App& app, nn::Generation& g) {
  const OptionGroup add(app);
  const auto check = [](const char* name) -> OptionCheck {
    return [name](const std::string& text) {
      const auto value = read_number<double>(text);
      return value ? nn::wrong_option(name, *value) : "expected a number, got '" + text + "'";
    };
  };
  add("--tokens", g.max_new_tokens, "tokens to add", whole(1, int64_t(nn::most_of_option("max_new_tokens"))));
  add("--temperature", g.temperature, "0: always the likeliest token; higher: more random", check("temperature"));
  add("--top-k", g.top_k, "choose among the k likeliest (0: all)", check("top_k"));
  add("--top-p", g.top_p, "choose among the likeliest that make up this probability", check("top_p"));
  add("--min-p", g.min_p, "choose among those at least this much as likely as the likeliest", check("min_p"));
  add("--repetition-penalty", g.repetition_penalty, "above 1: makes repeated tokens less likely",
      check("repetition_penalty"));
  add("--no-repeat-ngram", g.no_repeat_ngram_size, "never repeat a sequence of this many tokens (0: no limit)",
      check("no_repeat_ngram_size"));
  app.add_flag_callback(
      "--greedy", [&] { g.do_sample = false; }, "the likeliest token each time");
  app.add_option_function<int64_t>(
         "--beams",
         [&](int64_t beams) {
           g.num_beams = beams;
           if (beams == 1) return;
           g.do_sample = false, g.overflow = nn::Generation::Overflow::error;
         },
         "beam search with N beams; stops when the context is full")
      ->check(check("num_beams"));
  app.add_option("--stop", g.stop, "end before this text (can be given several times)")->allow_extra_args(false);
}

TextLoss loss_of_text(nn::GPT& model, const Tensor& tokens, int64_t batch) {
  const int64_t context = std::min(model.o.context, tokens.numel() - 1);
  LOCKSTEP_CHECK(context > 0, "expected a text of at least 2 tokens, got ", tokens.numel());
  model.eval();
  const data::TextDataset windows(tokens, {.context = context, .stride = context});
  const std::vector<double> means =
      means_of(windows, batch, model.tokens_table.weight.device(),
               [&](const data::Example& some) { return std::vector<Variable>{model.loss(some.input, some.target)}; });
  return {means.at(0), windows.size() * context};
}

}  // namespace lockstep::train
