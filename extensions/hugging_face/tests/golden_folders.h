#pragma once
// Golden Hugging Face folders that tests modify.
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "data/json.h"
#include "data/safetensors.h"
#include "nn/module.h"
#include "tests/golden_folder.h"
#include "tests/temp_dir.h"

namespace testing {

using lockstep::Tensor;
using lockstep::data::Json;
using lockstep::data::SafeTensors;
/// Tensors with their names, in order.
using Named = std::vector<std::pair<std::string, Tensor>>;

/// The path of this extension's golden files, for the tests of any extension.
inline const std::string golden_hugging_face =
    (std::filesystem::path(golden_folder()) / "../../../hugging_face/tests/golden").lexically_normal().string();
/// The folders of golden models and tokenizers.
inline const std::string golden = golden_hugging_face + "/models",
                         golden_tokenizers = golden_hugging_face + "/tokenizer";

/// True if both modules have the same state: names, dtypes and bits.
inline bool same(lockstep::nn::Module& a, lockstep::nn::Module& b) {
  const lockstep::nn::State one = a.state(), other = b.state();
  if (one.size() != other.size()) return false;
  for (size_t i = 0; i < one.size(); ++i)
    if (one[i].first != other[i].first || one[i].second.dtype() != other[i].second.dtype() ||
        !equal(one[i].second, other[i].second))
      return false;
  return true;
}

/// A copy of a golden folder that a test may change: a model of this extension, or an adapter.
struct Folder {
  TempDir at;
  std::string config_name, weights_name;  ///< the names of its two files
  Json config;
  Named tensors;
  explicit Folder(const std::string& model) : Folder(golden + "/" + model, "config.json", "model.safetensors") {}
  Folder(const std::string& from, std::string config_file, std::string weights_file)
      : config_name(std::move(config_file)),
        weights_name(std::move(weights_file)),
        config(lockstep::data::read_json(from + "/" + config_name)) {
    const auto file = SafeTensors::open(from + "/" + weights_name);
    for (const std::string& tensor : file.names()) tensors.emplace_back(tensor, file.tensor(tensor).clone());
  }
  /// The tensor of this name, which is added if there is none.
  Tensor& operator[](const std::string& name) {
    for (auto& [key, tensor] : tensors)
      if (key == name) return tensor;
    return tensors.emplace_back(name, Tensor()).second;
  }
  /// Removes a key of config.json.
  void drop(const std::string& key) {
    Json::Object kept;
    for (const auto& [name, value] : config.as_object())
      if (name != key) kept.emplace_back(name, value);
    config = kept;
  }
  /// Writes the configuration only.
  void write_config() const { at.write(config_name, config.dump()); }
  /// Writes the configuration and the weights; returns the folder.
  std::string write() const {
    write_config();
    lockstep::data::save_safetensors(at / weights_name, tensors);
    return at.str();
  }
  /// Writes the weights as two shards and an index.
  std::string write_shards(const std::function<void(Json& weight_map)>& change = {}) const {
    write_config();
    Json map(Json::Object{});
    const size_t half = tensors.size() / 2;
    const std::string files[] = {"a.safetensors", "b.safetensors"};
    lockstep::data::save_safetensors(at / files[0], Named(tensors.begin(), tensors.begin() + long(half)));
    lockstep::data::save_safetensors(at / files[1], Named(tensors.begin() + long(half), tensors.end()));
    for (size_t i = 0; i < tensors.size(); ++i) map[tensors[i].first] = files[i >= half];
    if (change) change(map);
    at.write("model.safetensors.index.json", Json(Json::Object{{"weight_map", map}}).dump());
    return at.str();
  }
};

}  // namespace testing
