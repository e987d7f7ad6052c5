// Reads generation_config.json. See generation_config.h.
#include "extensions/generation/generation_config.h"

#include <filesystem>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "data/json.h"

namespace lockstep::nn {

using data::Json;

namespace {

constexpr const char* file_name = "/generation_config.json";

/// Keys that change the text and that generate() lacks, with the value at which they have no effect.
const std::vector<std::pair<const char*, Json>>& unsupported() {
  static const std::vector<std::pair<const char*, Json>> all = {{"typical_p", 1.},
                                                                {"epsilon_cutoff", 0.},
                                                                {"eta_cutoff", 0.},
                                                                {"top_h", Json()},
                                                                {"penalty_alpha", 0.},
                                                                {"dola_layers", Json()},
                                                                {"diversity_penalty", 0.},
                                                                {"num_beam_groups", 1},
                                                                {"encoder_repetition_penalty", 1.},
                                                                {"guidance_scale", 1.},
                                                                {"bad_words_ids", Json()},
                                                                {"sequence_bias", Json()},
                                                                {"forced_bos_token_id", Json()},
                                                                {"forced_eos_token_id", Json()},
                                                                {"begin_suppress_tokens", Json()},
                                                                {"exponential_decay_length_penalty", Json()},
                                                                {"watermarking_config", Json()},
                                                                {"constraints", Json()},
                                                                {"stop_strings", Json()}};
  return all;
}

bool is_same(const Json& a, const Json& b) {
  return a.is_number() && b.is_number() ? a.as_number() == b.as_number() : a == b;
}

}  // namespace

std::vector<std::string> use_generation_config(const std::string& folder, Generation& g,
                                               const std::set<std::string>& keep) {
  const std::string path = folder + file_name;
  if (folder.empty() || !std::filesystem::exists(path)) return {};
  const Json config = data::read_json(path, data::python_json);
  config.as_object(path);
  const auto find = [&](const char* key) {
    const Json* const value = keep.count(key) ? nullptr : config.find(key);
    return value && !value->is_null() ? value : nullptr;
  };
  Generation found = g;
  const auto read = [&](const char* key, auto& to) {
    const Json* const value = find(key);
    if (!value) return;
    const std::string where = path + ": " + key;
    if constexpr (std::is_same_v<decltype(to), bool&>) return void(to = value->as_bool(where));
    const double number =
        std::is_same_v<decltype(to), int64_t&> ? double(value->as_int(where)) : value->as_number(where);
    const std::string wrong = wrong_option(key, number);
    LOCKSTEP_CHECK(wrong.empty(), where, ": ", wrong, "; correct the file");
    to = std::remove_reference_t<decltype(to)>(number);
  };
  read("max_new_tokens", found.max_new_tokens), read("min_new_tokens", found.min_new_tokens);
  read("do_sample", found.do_sample), read("num_return_sequences", found.num_return_sequences);
  read("num_beams", found.num_beams), read("length_penalty", found.length_penalty);
  read("repetition_penalty", found.repetition_penalty), read("no_repeat_ngram_size", found.no_repeat_ngram_size);
  read("temperature", found.temperature), read("top_k", found.top_k), read("top_p", found.top_p);
  read("min_p", found.min_p);
  std::vector<std::string> notes;
  if (const Json* const stops = find("early_stopping")) {
    // "never" waits longer than false does, which stops when no running beam can still win.
    if (*stops == Json("never")) notes.push_back("early_stopping \"never\"");
    else found.early_stopping = stops->as_bool(path + ": early_stopping");
  }
  if (const Json* const tokens = find("suppress_tokens"))
    for (const Json& id : tokens->as_array(path + ": suppress_tokens"))
      found.suppress_tokens.push_back(id.as_int(path + ": suppress_tokens"));
  for (const auto& [key, neutral] : unsupported())
    if (const Json* const value = find(key); value && !is_same(*value, neutral))
      notes.push_back(str(key, " ", value->dump()));
  if (found.num_beams > 1 && find("num_beams")) {
    if (find("do_sample") && found.do_sample)
      notes.push_back("num_beams with do_sample"), found.num_beams = g.num_beams;
    else if (keep.count("do_sample") && found.do_sample) found.num_beams = g.num_beams;
    else found.do_sample = false, found.overflow = Generation::Overflow::error;
  }
  g = std::move(found);
  return notes;
}

}  // namespace lockstep::nn
