// Rotary positions in config.json: rope_theta and rope_scaling (Transformers 4), rope_parameters (Transformers 5).
#include <algorithm>
#include <cmath>
#include <iterator>

#include "extensions/hugging_face/config.h"

namespace lockstep::nn {

using data::Json;

namespace {

using Scaling = Rope::Scaling;

constexpr const char* scaling_names[] = {"default", "linear", "dynamic", "yarn", "llama3"};

/// Reads the object under rope_parameters or rope_scaling; keys that it lacks are looked up in `config`.
Rope rope_of(const Json& object, const std::string& where, const ConfigReader& config, int64_t max_position) {
  LOCKSTEP_CHECK(object.is_object(), where, ": expected an object, got ", object.kind(), "; correct the file");
  for (const auto& [key, value] : object.as_object())
    LOCKSTEP_CHECK(!value.is_object(), where, ": ", key,
                   ": positions per kind of layer are not supported; use a model with one rope_type for all layers");
  const ConfigReader c(object, where);
  const std::string type = c.word("rope_type", c.word("type", "default"));
  LOCKSTEP_CHECK(!c.find("type") || c.word("type", "") == type, where, ": expected rope_type and type to agree, got '",
                 type, "' and '", c.word("type", ""), "'; correct the file");
  const auto* const known = std::find(std::begin(scaling_names), std::end(scaling_names), type);
  LOCKSTEP_CHECK(known != std::end(scaling_names), where, ": rope_type '", type,
                 "' is not supported; use a model with default, linear, dynamic, yarn or llama3");
  const auto beside = [&](const char* key) { return c.find(key) ? c : config; };
  const double base = c.number("rope_theta", config.number("rope_theta", 10000));
  LOCKSTEP_CHECK(!c.find("rope_theta") || !config.find("rope_theta") || config.number("rope_theta", 0) == base, where,
                 ": expected the rope_theta beside it, ", config.number("rope_theta", 0), ", got ", base,
                 "; remove one of the two");
  Rope rope{.base = base, .scaling = Scaling(known - std::begin(scaling_names))};
  const double partial = beside("partial_rotary_factor").number("partial_rotary_factor", 1);
  LOCKSTEP_CHECK(partial == 1, where, ": partial_rotary_factor ", partial,
                 " is not supported: Transformers rotates whole heads of these models; leave it out");
  if (rope.scaling == Scaling::none) return rope;
  const char* const original = "original_max_position_embeddings";
  if (rope.scaling == Scaling::dynamic) rope.original_context = max_position;
  else if (rope.scaling != Scaling::linear) rope.original_context = beside(original).integer(original, max_position);
  if (rope.scaling == Scaling::yarn) rope.factor = double(max_position) / double(rope.original_context);
  else LOCKSTEP_CHECK(c.find("factor"), where, ": expected a factor for rope_type '", type, "', there is none; add it");
  rope.factor = c.number("factor", rope.factor, 1);
  if (rope.scaling == Scaling::llama3) {
    for (const char* key : {"low_freq_factor", "high_freq_factor"})
      LOCKSTEP_CHECK(c.find(key), where, ": expected a ", key, " for rope_type 'llama3', there is none; add it");
    rope.low_freq_factor = c.number("low_freq_factor", 1), rope.high_freq_factor = c.number("high_freq_factor", 4);
  }
  if (rope.scaling != Scaling::yarn) return rope;
  const auto or_usual = [&](const char* key, double usual) {
    const double value = c.number(key, usual);
    return value == 0 ? usual : value;  // Transformers replaces 0, too
  };
  rope.beta_fast = or_usual("beta_fast", 32), rope.beta_slow = or_usual("beta_slow", 1);
  rope.truncate = c.flag("truncate", true);
  if (c.find("attention_factor")) rope.attention_factor = c.number("attention_factor", 1);
  const double mscale = c.number("mscale", 0), all = c.number("mscale_all_dim", 0);
  const auto scaled = [&](double by) { return rope.factor <= 1 ? 1 : 0.1 * by * std::log(rope.factor) + 1; };
  if (!rope.attention_factor && mscale != 0 && all != 0) rope.attention_factor = scaled(mscale) / scaled(all);
  return rope;
}

}  // namespace

Rope rope_from(const ConfigReader& config, int64_t max_position) {
  const auto at = [&](const char* key) {
    return rope_of(*config.find(key), config.where() + ": " + key, config, max_position);
  };
  const bool parameters = config.find("rope_parameters"), scaling = config.find("rope_scaling");
  if (!parameters && !scaling) return rope_of(Json::Object{}, config.where(), config, max_position);
  if (!parameters || !scaling) return at(parameters ? "rope_parameters" : "rope_scaling");
  const Rope one = at("rope_parameters"), other = at("rope_scaling");
  LOCKSTEP_CHECK(one == other, config.where(),
                 ": rope_parameters and rope_scaling are both given, and differ; remove one of them");
  return one;
}

void add_rope(Json& config, const Rope& rope, int64_t context) {
  Json scaling(Json::Object{});
  scaling["rope_type"] = scaling_names[int(rope.scaling)];
  if (rope.scaling != Scaling::none) scaling["factor"] = rope.factor;
  if (rope.scaling == Scaling::llama3 || rope.scaling == Scaling::yarn)
    scaling["original_max_position_embeddings"] = rope.original_context > 0 ? rope.original_context : context;
  if (rope.scaling == Scaling::llama3) {
    scaling["low_freq_factor"] = rope.low_freq_factor;
    scaling["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.scaling == Scaling::yarn) {
    scaling["beta_fast"] = rope.beta_fast;
    scaling["beta_slow"] = rope.beta_slow;
    scaling["truncate"] = rope.truncate;
    if (rope.attention_factor) scaling["attention_factor"] = *rope.attention_factor;
  }
  config["rope_theta"] = rope.base;
  config["rope_scaling"] = rope.scaling == Scaling::none ? Json() : scaling;
  Json parameters = scaling;
  parameters["rope_theta"] = rope.base;
  config["rope_parameters"] = parameters;
}

}  // namespace lockstep::nn
