#pragma once
// config.json of Hugging Face's folders to a decoder's options, and back.
#include <cmath>
#include <string>
#include <vector>

#include "data/json.h"
#include "nn/models/gpt.h"

namespace lockstep::nn {

/// A JSON object whose keys may be missing or null; then a value counts. Errors name file and key.
class ConfigReader {
 public:
  ConfigReader(const data::Json& object, std::string where) : object_(&object), where_(std::move(where)) {}
  const data::Json* find(const char* key) const {
    const data::Json* value = object_->find(key);
    return value && !value->is_null() ? value : nullptr;
  }
  bool says_null(const char* key) const { return object_->find(key) && object_->find(key)->is_null(); }
  int64_t whole(const char* key, int64_t otherwise, int64_t least = 1, int64_t most = int64_t(1) << 24) const;
  double number(const char* key, double otherwise, double least = -INFINITY) const;
  bool flag(const char* key, bool otherwise) const;
  std::string word(const char* key, const std::string& otherwise) const;
  const std::string& where() const { return where_; }

 private:
  const data::Json* object_;
  std::string where_;
};

/// A key that Transformers writes into config.json and that changes nothing here: it is kept as it is.
bool is_without_effect(const std::string& key);
GPT::Options options_from_config(const data::Json& config, const std::string& path);
/// Error when Transformers has no model with these options.
data::Json config_of(const GPT::Options& o, DType dtype);

// rope_config.cpp
/// rope_parameters, or rope_theta and rope_scaling; error when both are there and differ.
Rope rope_from(const ConfigReader& config, int64_t max_position);
/// Adds all three.
void add_rope(data::Json& config, const Rope& rope, int64_t context);

}  // namespace lockstep::nn
