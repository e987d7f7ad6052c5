#include "train/language.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <sstream>

#include "data/text.h"
#include "data/to_device.h"
#include "data/unicode.h"
#include "nn/hugging_face/gpt2.h"
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
  if (const Json* settings = c.find("engine")) {
    engine::Config trained;
    if (const Json* sparse = settings->find("sparse_attention")) trained.sparse_attention = *sparse;
    if (const Json* seed = settings->find("seed")) trained.seed = seed->as_int(config_path);
    if (const auto sparse = engine::sparse_attention(trained)) nn::set_sparse_attention(*model, *sparse);
  }
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

std::string continue_prompt(const LanguageModel& m, const std::string& prompt, bool by_ids, int64_t count,
                            const nn::Sampling& sampling, std::ostream* shown) {
  const auto tokenizer = by_ids ? nullptr : m.tokenizer();
  std::vector<int64_t> ids;
  if (by_ids) ids = whole_numbers("--ids", prompt);
  else
    for (const int32_t id : tokenizer->encode(prompt)) ids.push_back(id);
  LOCKSTEP_CHECK(!ids.empty(), "--prompt: expected at least one token");
  if (shown && !by_ids) *shown << prompt;
  std::string made;
  const auto emit = [&](int64_t id) {
    const int32_t token = int32_t(id);
    const std::string piece =
        by_ids ? (made.empty() ? "" : ",") + std::to_string(id) : tokenizer->decode(std::span(&token, 1));
    made += piece;
    if (shown) *shown << piece << std::flush;
    return true;
  };
  const Device device = m.model->tokens_table.weight.device();
  m.model->generate(Tensor::from(ids, {1, int64_t(ids.size())}).to(device), count, sampling, emit);
  if (shown) *shown << "\n";
  // Bytes that a model made need not be UTF-8, JSON must be.
  std::string text;
  for (size_t at = 0; at < made.size();) {
    const data::Char c = data::decode_utf8(made, at);
    data::append_utf8(text, c.valid ? c.code : 0xfffd);
    at += size_t(c.bytes);
  }
  return text;
}

void add_sampling_options(CLI::App& app, nn::Sampling& sampling) {
  app.add_option("--temperature", sampling.temperature, "0 takes the likeliest token; higher is wilder")
      ->check(number(0, 1e6))
      ->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "choose among the k likeliest (0: all)")
      ->check(whole(0, most_size))
      ->capture_default_str();
  app.add_option("--top-p", sampling.top_p, "choose among the likeliest that make up this probability")
      ->check(number(0, 1))
      ->capture_default_str();
  app.add_flag_callback(
      "--greedy", [&] { sampling.temperature = 0; }, "the likeliest token each time");
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
