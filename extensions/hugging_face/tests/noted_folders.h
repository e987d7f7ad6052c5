#pragma once
// Golden folders whose config.json and generation_config.json have more keys than those for a model's sizes.
#include <doctest/doctest.h>

#include "extensions/hugging_face/pretrained.h"
#include "extensions/hugging_face/tests/golden_folders.h"

namespace testing {

inline const Json noted_ends = Json::Array{Json(2), Json(7)};

/// A golden folder and what is added to its files.
struct NotedFolder {
  std::string type;
  Json::Object config, generation;
  /// Adds the values to a copy of the golden folder, and writes it.
  void write(Folder& folder) const {
    for (const auto& [key, value] : config) folder.config[key] = value;
    folder.config["someones_length"] = 1e30;
    folder.write();
    std::string text = Json(generation).dump();
    if (!generation.empty()) folder.at.write("generation_config.json", text.insert(1, "\"top\": Infinity, "));
  }
  /// Checks that a folder made from this one has the same values.
  void check(const std::string& made) const {
    const Json there = lockstep::data::read_json(made + "/config.json"),
               generated = lockstep::data::read_json(made + "/generation_config.json");
    for (const auto& [key, value] : config) CHECK((key == "eos_token_id" || there.at(key) == value));
    for (const auto& [key, value] : generation) CHECK(generated.at(key) == value);
    CHECK(there.at("eos_token_id") == noted_ends);
    CHECK(lockstep::nn::eos_tokens(made) == std::vector<int64_t>{2, 7});
  }
};
inline std::vector<NotedFolder> noted_folders() {
  return {
      {"llama_main",
       {{"bos_token_id", 3},
        {"eos_token_id", 2},
        {"pad_token_id", 5},
        {"initializer_range", 0.01},
        {"use_cache", false}},
       {{"eos_token_id", noted_ends}, {"temperature", 0.6}, {"do_sample", true}}},
      {"window_qwen2", {{"bos_token_id", Json()}, {"eos_token_id", noted_ends}, {"attention_dropout", 0.125}}, {}},
  };
}

}  // namespace testing
