#include "train/language.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <sstream>

#include "data/text.h"
#include "data/to_device.h"
#include "nn/hugging_face/gpt2.h"
#include "nn/text_stream.h"
#include "tensor/check.h"
#include "train/cli.h"
#include "train/options.h"
#include "train/trainer.h"

namespace lockstep::train {

using data::Json;

Json facts_of(const nn::GPT& model, const std::string& tokenizer, const std::string& experts) {
  const nn::GPT::Options& o = model.o;
  Json c = Json::Object{{"program", "gpt"},
                        {"vocab", o.vocab},
                        {"context", o.context},
                        {"layers", o.layers},
                        {"width", o.width},
                        {"heads", o.heads},
                        {"inner", o.inner},
                        {"norm_eps", o.norm_eps},
                        {"gelu", o.gelu == Gelu::tanh ? "tanh" : "erf"},
                        {"tied", o.tied},
                        {"tokenizer", tokenizer.empty() ? "" : "tokenizer"},  // in the run's folder
                        {"tokenizer_identity", data::tokenizer_identity(tokenizer)}};
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
  const std::string found = data::tokenizer_identity(folder);
  LOCKSTEP_CHECK(identity.empty() || found == identity, "[tokenizer] ", folder,
                 ": expected the files that the model was trained with (", identity, "), got others (", found, ")");
  return loaded;
}

LanguageModel load_language_model(const std::string& path, bool average) {
  LOCKSTEP_CHECK(std::filesystem::exists(path), path, ": no such file or folder");
  if (std::filesystem::exists(path + "/model.safetensors")) {
    LOCKSTEP_CHECK(!average, path, ": --ema is for runs, this is a Hugging Face folder");
    auto model = nn::load_hugging_face(path);
    const bool of_bytes =
        !data::has_tokenizer(path) && model->o.vocab == 256;  // what --export leaves of a model of bytes
    return {std::move(model), of_bytes ? "" : path, ""};
  }
  const std::string config_path = path + "/config.json";
  const Json c = data::read_json(config_path);
  const auto at = [&](const char* key) -> const Json& { return c.at(key, config_path); };
  LOCKSTEP_CHECK(at("program").as_string(config_path) == "gpt", config_path, ": expected a run of gpt, got ",
                 at("program").dump());
  auto model =
      std::make_unique<nn::GPT>(nn::GPT::Options{.vocab = at("vocab").as_int(),
                                                 .context = at("context").as_int(),
                                                 .layers = at("layers").as_int(),
                                                 .width = at("width").as_int(),
                                                 .heads = at("heads").as_int(),
                                                 .inner = at("inner").as_int(),
                                                 .norm_eps = at("norm_eps").as_number(),
                                                 .gelu = at("gelu").as_string() == "tanh" ? Gelu::tanh : Gelu::erf,
                                                 .tied = at("tied").as_bool()});
  if (const Json* experts = c.find("experts")) read_experts(experts->as_string(config_path)).add_to(*model);
  load_model(*model, path, average);
  const std::string tokenizer = at("tokenizer").as_string();
  return {std::move(model), tokenizer.empty() ? "" : path + "/" + tokenizer,
          at("tokenizer_identity").as_string(config_path)};
}

std::string tokenizer_of(const CommonOptions& run, const std::string& given, const std::string& model) {
  const std::string found = !given.empty()               ? given
                            : data::has_tokenizer(model) ? model
                                                         : "",
                    stored = run.out + "/tokenizer";
  return run.resume && data::has_tokenizer(stored) && !data::has_tokenizer(found) ? stored : found;
}

void keep_tokenizer(const std::string& tokenizer, const std::string& given, const std::string& out) {
  prepare_output("--out", out);
  if (!given.empty() && tokenizer != given)
    std::cerr << "note: --tokenizer " << given
              << " holds no tokenizer, so the copy that the run has goes on being used: " << tokenizer << "\n";
  data::copy_tokenizer(tokenizer, out + "/tokenizer");
}

std::vector<int64_t> whole_numbers(const std::string& option, const std::string& list) {
  std::vector<int64_t> numbers;
  std::stringstream in(list);
  for (std::string word; std::getline(in, word, ',');) {
    const bool good = whole(INT64_MIN, INT64_MAX)(word).empty();
    LOCKSTEP_CHECK(good, option, ": expected numbers with commas between, got '", word, "'");
    numbers.push_back(std::stoll(word));
  }
  LOCKSTEP_CHECK(!numbers.empty(), option, ": expected at least one");
  return numbers;
}

std::string continue_prompt(const LanguageModel& m, const std::string& prompt, bool by_ids, nn::Generation generation,
                            std::ostream* shown) {
  const auto tokenizer = by_ids ? nullptr : m.tokenizer();
  std::vector<int64_t> ids;
  if (by_ids) ids = whole_numbers("--ids", prompt);
  else
    for (const int32_t id : tokenizer->encode(prompt)) ids.push_back(id);
  LOCKSTEP_CHECK(!ids.empty(), "--prompt: expected at least one token");
  LOCKSTEP_CHECK(!by_ids || generation.stop.empty(), "--stop: expected a prompt that is a text, got --ids");
  generation.text = [&](int64_t id) {
    const int32_t token = int32_t(id);
    return tokenizer->decode(std::span(&token, 1));
  };
  if (shown && !by_ids) *shown << prompt;
  std::string made;
  nn::TextStream stream(generation.stop);
  const auto show = [&](const std::string& text) {
    made += text;
    if (shown) *shown << text << std::flush;
  };
  nn::generate(*m.model, std::span(&ids, 1), generation, [&](size_t, int64_t id) {
    show(by_ids ? (made.empty() ? "" : ",") + std::to_string(id) : stream.push(generation.text(id)));
    return true;
  });
  show(stream.flush());
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
  const auto add = [&](const char* name, auto& to, const char* what, const OptionCheck& check) {
    app.add_option(name, to, what)->check(check)->capture_default_str();
  };
  add("--tokens", g.max_new_tokens, "tokens to add", whole(1, most_steps));
  add("--temperature", g.temperature, "0 takes the likeliest token; higher is wilder", number(0, 1e6));
  add("--top-k", g.top_k, "choose among the k likeliest (0: all)", whole(0, most_size));
  add("--top-p", g.top_p, "choose among the likeliest that make up this probability", number(0, 1));
  add("--min-p", g.min_p, "choose among those at least this much as likely as the likeliest", number(0, 1));
  add("--repetition-penalty", g.repetition_penalty, "above 1: tokens that were there before become less likely",
      number(1e-3, 1e3));
  add("--no-repeat-ngram", g.no_repeat_ngram_size, "never so many tokens in a row twice (0: they may)",
      whole(0, most_size));
  app.add_flag_callback(
      "--greedy", [&] { g.do_sample = false; }, "the likeliest token each time");
  app.add_option_function<int64_t>(
         "--beams",
         [&](int64_t beams) {
           g.num_beams = beams;
           if (beams == 1) return;
           g.do_sample = false, g.overflow = nn::Generation::Overflow::error;
         },
         "follow so many of the likeliest texts; ends where the context is full")
      ->check(whole(1, 1024));
  app.add_option("--stop", g.stop, "end before this text (can be given several times)")->allow_extra_args(false);
}

TextLoss loss_of_text(nn::GPT& model, const Tensor& tokens, int64_t batch) {
  data::ToDevice to_device(model.tokens_table.weight.device());
  const int64_t context = std::min(model.o.context, tokens.numel() - 1);
  LOCKSTEP_CHECK(context > 0, "expected a text of at least 2 tokens, got ", tokens.numel());
  const NoGrad no_grad;
  model.eval();
  const data::TextDataset windows(tokens, {.context = context, .stride = context});
  double sum = 0;
  for (int64_t first = 0; first < windows.size(); first += batch) {
    std::vector<int64_t> indices(size_t(std::min(batch, windows.size() - first)));
    std::iota(indices.begin(), indices.end(), first);
    const data::Example some = to_device(*windows.get_batch(indices));
    sum += model.loss(some.input, some.target).item() * double(indices.size());
  }
  return {sum / double(windows.size()), windows.size() * context};
}

}  // namespace lockstep::train
