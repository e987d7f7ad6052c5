#pragma once
// Conversion between config.json of Hugging Face folders and GPT::Options.
#include <cmath>
#include <string>

#include "data/json.h"
#include "nn/models/gpt.h"

namespace lockstep::nn {

/// Reads values of a JSON object. A key that is missing or null gives the default. Errors name file and key.
class ConfigReader {
 public:
  /// A reader of `object`. where: the file and the object's place in the file, for errors.
  ConfigReader(const data::Json& object, std::string where) : object_(&object), where_(std::move(where)) {}
  /// The value of `key`; nullptr if the key is missing or its value is null.
  const data::Json* find(const char* key) const {
    const data::Json* value = object_->find(key);
    return value && !value->is_null() ? value : nullptr;
  }
  /// True if the key is present and its value is null.
  bool says_null(const char* key) const { return object_->find(key) && object_->find(key)->is_null(); }
  /// The integer under `key`, or `otherwise` if the key is missing. Error for integers outside [least, greatest].
  int64_t integer(const char* key, int64_t otherwise, int64_t least = 1, int64_t greatest = int64_t(1) << 24) const {
    const data::Json* value = find(key);
    const int64_t n = value ? value->as_int(place(key)) : otherwise;
    LOCKSTEP_CHECK(n >= least && n <= greatest, place(key), ": expected a number from ", least, " to ", greatest,
                   ", got ", n, "; correct the file");
    return n;
  }
  /// The number under `key`, or `otherwise` if the key is missing. Error for infinity, NaN and numbers below `least`.
  double number(const char* key, double otherwise, double least = -INFINITY) const {
    const data::Json* value = find(key);
    const double n = value ? value->as_number(place(key)) : otherwise;
    LOCKSTEP_CHECK(std::isfinite(n), place(key), ": expected a finite number, got ", n, "; correct the file");
    LOCKSTEP_CHECK(n >= least, place(key), ": expected a number >= ", least, ", got ", n, "; correct the file");
    return n;
  }
  /// The boolean under `key`, or `otherwise` if the key is missing.
  bool flag(const char* key, bool otherwise) const { return find(key) ? find(key)->as_bool(place(key)) : otherwise; }
  /// The string under `key`, or `otherwise` if the key is missing.
  std::string word(const char* key, const std::string& otherwise) const {
    return find(key) ? find(key)->as_string(place(key)) : otherwise;
  }
  /// File and place of the object, for errors.
  const std::string& where() const { return where_; }

 private:
  std::string place(const char* key) const { return where_ + ": " + key; }
  const data::Json* object_;
  std::string where_;
};

/// True for a key of Transformers' config.json that does not affect the model; such keys are preserved on saving.
bool is_without_effect(const std::string& key);
/// Options from a config.json. Error, naming file and key, for models that are not supported.
GPT::Options options_from_config(const data::Json& config, const std::string& path);
/// The config.json for these options. Error if Transformers has no such model.
data::Json config_of(const GPT::Options& o, DType dtype);

}  // namespace lockstep::nn
