// Reads the key "sparse_attention", and sets the layout in an engine's model and in one loaded from a run.
#include "extensions/sparse_attention/section.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/suggest.h"
#include "engine/engine.h"
#include "engine/pipeline_module.h"
#include "engine/section.h"
#include "nn/init.h"
#include "train/model_format.h"

namespace lockstep::engine {

using data::Json;
using nn::SparsityConfig;
using Mode = SparsityConfig::Mode;

namespace {

// A key of the configuration's "sparse_attention" object.
struct SparseKey {
  std::string name;
  std::vector<Mode> modes;           ///< modes that use it; empty: all
  std::optional<FieldPointer> slot;  ///< nullopt for mode and attention, which are handled separately
  int64_t least;                     ///< smallest number allowed
  const char* doc;
};

/// Returns all keys of "sparse_attention". Each key's slot points to the field of `c` that holds its value.
std::vector<SparseKey> sparse_keys(SparsityConfig& c) {
  std::vector<SparseKey> keys;
  const auto add = [&](const char* name, std::vector<Mode> modes, std::optional<FieldPointer> slot, int64_t least,
                       const char* doc) {
    keys.push_back({name, std::move(modes), slot, least, doc});
  };
  const std::vector<Mode> windows{Mode::bigbird, Mode::bslongformer, Mode::local},
      picked{Mode::variable, Mode::bslongformer};
  add("mode", {}, {}, 0, "dense, fixed, variable, bigbird, bslongformer or local");
  add("block", {}, &c.block, 1, "tokens of a block; multiples of 16 are fast");
  add("different_layout_per_head", {}, &c.different_layout_per_head, 0,
      "each head has its own random blocks and patterns");
  add("attention", {Mode::fixed, Mode::variable, Mode::bigbird, Mode::bslongformer, Mode::local}, {}, 0,
      "unidirectional or bidirectional; not given: as causal as the model");
  add("num_local_blocks", {Mode::fixed}, &c.num_local_blocks, 1, "blocks of a window");
  add("num_global_blocks", {Mode::fixed, Mode::bigbird}, &c.num_global_blocks, 1,
      "blocks of each window that all see; bigbird: the first blocks");
  add("num_different_global_patterns", {Mode::fixed}, &c.num_different_global_patterns, 1,
      "heads use different blocks of the window in turn");
  add("horizontal_global_attention", {Mode::fixed, Mode::variable}, &c.horizontal_global_attention, 0,
      "global blocks also see all; bidirectional only");
  add("num_random_blocks", {Mode::variable, Mode::bigbird}, &c.num_random_blocks, 0, "in each row");
  add("local_window_blocks", {Mode::variable}, &c.local_window_blocks, 1, "blocks of each window; the last repeats");
  add("global_block_indices", picked, &c.global_block_indices, 0, "blocks that all see");
  add("global_block_end_indices", picked, &c.global_block_end_indices, 1, "where each of them ends; null: one block");
  add("num_sliding_window_blocks", windows, &c.num_sliding_window_blocks, 1, "window around each block, including it");
  return keys;
}

std::vector<std::string> names_of(const std::vector<Mode>& modes) {
  std::vector<std::string> names;
  for (const Mode mode : modes) names.emplace_back(nn::name_of(mode));
  return names;
}

/// Stores the value of a key in its field of `to`. Returns "", or a description of valid values if `value` is invalid.
std::string put_value(const SparseKey& key, const Json& value, SparsityConfig& to) {
  const ValueRange range = between(double(key.least), 1 << 30);
  if (key.slot) return assign(*key.slot, value, range) ? "" : expected(*key.slot, range);
  if (key.name != "attention") return "";  // the mode was read before
  if (value != Json("unidirectional") && value != Json("bidirectional")) return "unidirectional or bidirectional";
  to.unidirectional = value == Json("unidirectional");
  return "";
}

/// Reads `block`, the value of the key. Returns nullopt if it is false or null. Adds its errors to `problems`.
std::optional<SparsityConfig> read_sparse_attention(const Json& block, std::vector<std::string>& problems) {
  if (block.is_null() || block == Json(false)) return std::nullopt;
  if (!block.is_object()) {
    problems.push_back(str("sparse_attention: expected false or an object {...}, got ", printed(block),
                           "; write the block, such as {\"mode\": \"fixed\"}"));
    return std::nullopt;
  }
  SparsityConfig config;
  const size_t before = problems.size();
  const auto wrong = [&](const std::string& name, const auto&... text) {
    problems.push_back(str("sparse_attention.", name, ": ", text...));
  };
  if (const Json* mode = block.find("mode")) {
    const auto* const found = std::ranges::find(nn::mode_names, mode->is_string() ? mode->as_string() : "");
    if (found == std::end(nn::mode_names)) {
      const std::vector<std::string> all(std::begin(nn::mode_names), std::end(nn::mode_names));
      wrong("mode", "expected ", listed(all), ", got ", printed(*mode),
            mode->is_string() ? suggestion(mode->as_string(), all) : "");
      return std::nullopt;
    }
    config.mode = Mode(found - std::begin(nn::mode_names));
  }
  const std::vector<SparseKey> keys = sparse_keys(config);
  for (const auto& [name, value] : block.as_object()) {
    const auto key = std::ranges::find(keys, name, &SparseKey::name);
    if (key == keys.end()) {
      std::vector<std::string> known;
      for (const SparseKey& k : keys) known.push_back(k.name);
      wrong(name, "no such key, expected ", listed(known), suggestion(name, known));
    } else if (!key->modes.empty() && !std::ranges::count(key->modes, config.mode)) {
      wrong(name, "only applies to mode ", listed(names_of(key->modes)), ", but mode is ", nn::name_of(config.mode),
            "; leave it out");
    } else if (const std::string wanted = put_value(*key, value, config); !wanted.empty()) {
      wrong(name, "expected ", wanted, ", got ", printed(value));
    }
  }
  if (problems.size() > before) return std::nullopt;
  try {
    nn::check_sparsity(config);
  } catch (const Error& error) {
    problems.push_back(str("sparse_attention: ", error.what()));
    return std::nullopt;
  }
  return config;
}

}  // namespace

std::optional<SparsityConfig> sparse_attention(const Config& config) {
  std::vector<std::string> problems;
  auto found = read_sparse_attention(config.section<SparseAttentionConfig>().value, problems);
  fail_if_any(config.origin, problems);
  if (found) found->seed = uint64_t(config.seed);
  return found;
}

namespace {

void check_sparse_attention(const Config& config, std::vector<std::string>& problems, std::vector<std::string>&) {
  read_sparse_attention(config.section<SparseAttentionConfig>().value, problems);
}

std::vector<std::string> reasons_against_sparse(const Config& config, const parallel::Plan& plan) {
  if (plan.cp == 1 || !config.section<SparseAttentionConfig>().value.is_object()) return {};
  return {str("sparse_attention with cp", plan.cp, " is not supported; leave one of them out")};
}

/// The section of docs/config.md about "sparse_attention": each key, the modes that use it, and its default.
std::string sparse_attention_reference() {
  std::string text = "\n## sparse_attention\n\n| key | default | modes | |\n|---|---|---|---|\n";
  SparsityConfig defaults;
  for (const SparseKey& key : sparse_keys(defaults))
    text += str("| `", key.name, "` | `",
                (key.slot             ? json_of(*key.slot)
                 : key.name == "mode" ? Json("fixed")
                                      : Json())
                    .dump(),
                "` | ", key.modes.empty() ? "all" : listed(names_of(key.modes)), " | ", key.doc, " |\n");
  return text;
}

/// Gives the config's sparse layout to every attention layer that has no sparse layout yet. If `module` is a list of
/// layers that are built later, each gets the layout when it is built. Returns a message about the change, or "" if the
/// config has no sparse layout. Error for a model without attention.
std::string set_in_module(const Config& config, const InitializeArgs&, PipelineModule& module) {
  const auto asked = sparse_attention(config);
  if (!asked) return "";
  LOCKSTEP_CHECK(!module.forward, "[initialize] ", config.origin,
                 ": sparse_attention is not supported with the program's own forward, such as DataParallel's, whose "
                 "replicas have their own layers; leave it out");
  SparsityConfig sparse = *asked;
  nn::SparseCount count;
  if (module.model) count = nn::set_sparse_attention(*module.model, sparse);
  for (pipeline::LayerSpec& layer : module.layers) {
    if (!layer.make) continue;
    // Builds the layer once, to count its attention layers, because these are numbered across all layers of the model.
    const nn::BuildEmpty scope;
    const nn::SparseCount here = nn::set_sparse_attention(*layer.make(), sparse);
    if (here.all == 0) continue;
    layer.make = [make = layer.make, sparse] {
      auto made = make();
      nn::set_sparse_attention(*made, sparse);
      return made;
    };
    sparse.layer += here.all;
    count.set += here.set, count.all += here.all;
  }
  LOCKSTEP_CHECK(count.all > 0, "[initialize] ", config.origin,
                 ": sparse_attention: expected a model with MultiHeadAttention, got none in ",
                 module.model ? module.model->kind() : "its layers", "; leave it out");
  return str("sparse_attention: ", nn::name_of(sparse.mode), ", blocks of ", sparse.block, ", in ", count.set, " of ",
             count.all, " MultiHeadAttention", count.set < count.all ? " (the others have their own)" : "");
}

/// Gives the model the layout in a run's settings, if they have one.
void set_in_model(nn::GPT& model, const Json& facts, const std::string& where) {
  const Json* const settings = facts.find("engine");
  if (!settings) return;
  Config trained;
  if (const Json* sparse = settings->find("sparse_attention")) trained.section<SparseAttentionConfig>().value = *sparse;
  if (const Json* seed = settings->find("seed")) trained.seed = seed->as_int(where);
  if (const auto sparse = sparse_attention(trained)) nn::set_sparse_attention(model, *sparse);
}

}  // namespace

std::vector<Section> sparse_attention_sections() {
  return {{.name = "sparse_attention",
           .about = "attention to blocks of tokens",
           .page = "[sparse attention](../extensions/sparse_attention/README.md)",
           .keys = {key<&SparseAttentionConfig::value>(
               "sparse_attention", anything(),
               "attend to blocks of tokens only, in every MultiHeadAttention that has no layout of its own; see below "
               "(removed from DeepSpeed in 0.19.8)")},
           .check = check_sparse_attention,
           .reasons = reasons_against_sparse,
           .prepare = set_in_module,
           .fixed = true,
           .reference = sparse_attention_reference}};
}

}  // namespace lockstep::engine

namespace lockstep::train {

std::vector<ModelChange> sparse_attention_changes() {
  return {{.key = "sparse_attention", .apply = engine::set_in_model}};
}

}  // namespace lockstep::train
