// What gpt does with a trained model: loading, evaluation, sampling.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <sstream>

#include "apps/gpt/hugging_face.h"
#include "apps/gpt/sharing.h"
#include "data/files.h"
#include "data/safetensors.h"
#include "data/text.h"
#include "data/unicode.h"

namespace apps {

using namespace lockstep;
namespace fs = std::filesystem;

namespace {

/// The folder of this repository: where it was built, or above the current one.
fs::path repository() {
  std::vector<fs::path> places{LOCKSTEP_SOURCE_DIR};
  for (fs::path at = fs::current_path(); at.has_relative_path(); at = at.parent_path()) places.push_back(at);
  for (const fs::path& place : places) if (fs::exists(place / "tensor/tensor.h") && fs::exists(place / "README.md")) return place;
  fail("no --text was given and the repository's own sources were not found; give --text FILE");
}

std::vector<int64_t> parse_ids(const std::string& list) {
  std::vector<int64_t> ids;
  std::stringstream in(list);
  for (std::string word; std::getline(in, word, ',');) {
    size_t used = 0;
    try { ids.push_back(std::stoll(word, &used)); } catch (const std::exception&) { used = 0; }
    LOCKSTEP_CHECK(used > 0 && used == word.size(), "--ids: expected numbers with commas between, got '", word, "'");
  }
  LOCKSTEP_CHECK(!ids.empty(), "--ids: expected at least one id");
  return ids;
}

/// Bytes that a model made need not be UTF-8, JSON must be: what does not fit becomes U+FFFD.
std::string as_utf8(const std::string& bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    const data::Char c = data::decode_utf8(bytes, at);
    data::append_utf8(text, c.valid ? c.code : 0xfffd);
    at += size_t(c.bytes);
  }
  return text;
}

}  // namespace

std::string load_text(const std::string& path) {
  constexpr int64_t limit = int64_t(4) << 30;
  if (!path.empty()) return data::read_file(path, limit);
  // Sources and docs in a fixed order, so that the same checkout gives the same text.
  const fs::path root = repository();
  std::vector<fs::path> files;
  for (const char* folder : {"docs", "tensor", "autograd", "nn", "optim", "data", "apps", "examples"}) {
    if (!fs::is_directory(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension().string();
      if (entry.is_regular_file() && (extension == ".h" || extension == ".cpp" || extension == ".md")) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::string text;
  for (const fs::path& file : files) text += data::read_file(file.string(), limit) + "\n";
  return text;
}

LoadedModel load_gpt(const std::string& path) {
  const bool is_folder = fs::is_directory(path);
  LOCKSTEP_CHECK(is_folder || fs::exists(path), path, ": no such file or folder");
  if (is_folder && fs::exists(path + "/model.safetensors")) return {load_hugging_face(path), load_tokenizer(path)};
  const std::string folder = is_folder ? path : fs::path(path).parent_path().string();
  const std::string config_path = (folder.empty() ? "." : folder) + "/config.json";
  const Json c = data::read_json(config_path);
  LOCKSTEP_CHECK(c.at("program", config_path).as_string(config_path) == "gpt", config_path, ": expected a run of gpt, got ", c.at("program").dump());
  auto model = std::make_unique<nn::GPT>(nn::GPT::Options{
      .vocab = c.at("vocab", config_path).as_int(), .context = c.at("context", config_path).as_int(), .layers = c.at("layers", config_path).as_int(),
      .width = c.at("width", config_path).as_int(), .heads = c.at("heads", config_path).as_int(), .inner = c.at("inner", config_path).as_int(),
      .norm_eps = c.at("norm_eps", config_path).as_number(), .gelu = c.at("gelu", config_path).as_string() == "tanh" ? Gelu::tanh : Gelu::erf, .tied = c.at("tied", config_path).as_bool()});
  add_saved_experts(*model, c, config_path);
  load_model(*model, is_folder ? path + "/checkpoint.safetensors" : path);
  return {std::move(model), load_tokenizer(c.at("tokenizer", config_path).as_string())};
}

TextLoss evaluate_text(nn::GPT& model, const Tensor& tokens, int64_t batch, int64_t batches, const Team& team, data::ToDevice& to_device, bool in_step) {
  const NoGrad no_grad;
  const bool was_training = model.is_training();
  model.eval();
  const int64_t context = std::min(model.o.context, tokens.numel() - 1);
  LOCKSTEP_CHECK(context > 0, "expected a text of at least 2 tokens, got ", tokens.numel());
  const data::TextDataset windows(tokens, {.context = context, .stride = context});
  const int64_t count = batches > 0 ? std::min(batches * batch, windows.size()) : windows.size();
  std::vector<double> losses(size_t((count + batch - 1) / batch));  // of each batch; rank r has r, r + ranks, ...
  std::vector<int64_t> indices;
  std::vector<std::pair<size_t, Tensor>> made;  // read when all are under way
  const int64_t rounds = (int64_t(losses.size()) + team.size() - 1) / team.size(), end = in_step ? rounds * team.size() : int64_t(losses.size());
  for (int64_t turn = team.rank(); turn < end; turn += team.size()) {
    const int64_t b = std::min(turn, int64_t(losses.size()) - 1), at = b * batch;
    indices.clear();
    // A part is spread evenly over the text.
    for (int64_t i = at; i < std::min(at + batch, count); ++i) indices.push_back(i * windows.size() / count);
    const auto pair = to_device(*windows.get_batch(indices));
    const Variable loss = model.loss(pair.input, pair.target);
    if (turn == b) made.emplace_back(size_t(b), loss.tensor());
  }
  for (const auto& [b, loss] : made) losses[b] = loss.item() * double(std::min(batch, count - int64_t(b) * batch) * context);
  team.sum(losses, "evaluation");
  model.train(was_training);
  const int64_t seen = count * context;
  return {std::accumulate(losses.begin(), losses.end(), 0.0) / double(seen), seen};
}

void gpt_eval(const GptOptions& o) {
  check_alone("eval");
  apply_common_options(o.common);
  const LoadedModel m = load_gpt(o.model);
  const Team alone(nullptr);
  data::ToDevice to_device(device_of(o.common, alone));
  m.model->to(to_device.device());
  const TextLoss r = evaluate_text(*m.model, m.tokenizer->encode_tensor(load_text(o.text)), o.batch, 0, alone, to_device);
  Json result(Json::Object{});
  result["program"] = "gpt";
  result["loss"] = r.loss;
  result["perplexity"] = std::exp(r.loss);
  result["tokens"] = r.tokens;
  print_result(result, o.common.json);
}

void gpt_sample(const GptOptions& o) {
  check_alone("sample");
  apply_common_options(o.common);
  const LoadedModel m = load_gpt(o.model);
  std::vector<int64_t> ids;
  if (!o.ids.empty()) ids = parse_ids(o.ids);
  else for (const int32_t id : m.tokenizer->encode(o.prompt)) ids.push_back(id);
  LOCKSTEP_CHECK(!ids.empty(), "--prompt: expected at least one token");
  nn::Sampling sampling = o.sampling;
  if (o.greedy) sampling.temperature = 0;
  const Device device = device_of(o.common, Team(nullptr));
  m.model->to(device);
  const bool stream = !o.common.json;
  if (stream && o.ids.empty()) std::cout << o.prompt;
  std::string made;
  const auto emit = [&](int64_t id) {
    const int32_t token = int32_t(id);
    const std::string piece = o.ids.empty() ? m.tokenizer->decode(std::span(&token, 1)) : (made.empty() ? "" : ",") + std::to_string(id);
    made += piece;
    if (stream) std::cout << piece << std::flush;
    return true;
  };
  m.model->generate(Tensor::from(ids, {1, int64_t(ids.size())}).to(device), o.tokens, sampling, emit);
  if (stream) { std::cout << "\n"; return; }
  Json result(Json::Object{});
  result["program"] = "gpt";
  result["prompt"] = o.ids.empty() ? o.prompt : o.ids;
  result["text"] = as_utf8(made);
  print_result(result, true);
}

void gpt_logits(const GptOptions& o) {
  check_alone("logits");
  apply_common_options(o.common);
  const LoadedModel m = load_gpt(o.model);
  const NoGrad no_grad;
  m.model->eval();
  const Device device = device_of(o.common, Team(nullptr));
  m.model->to(device);
  const std::vector<int64_t> ids = parse_ids(o.ids);
  data::save_safetensors(o.logits_out, {{"logits", (*m.model)(Tensor::from(ids, {1, int64_t(ids.size())}).to(device)).tensor().to(cpu)}});
}

}  // namespace apps
