// Reads, checks and prints the inference configuration. See config.h.
#include "extensions/inference/config.h"

#include <algorithm>

#include "base/check.h"
#include "base/suggest.h"
#include "extensions/deepspeed/other_keys.h"

namespace lockstep::inference {

using data::Json;
using namespace engine;  // Key, Range and the functions of engine/config_table.h

namespace {

std::vector<Key> make_table() {
  InferenceConfig defaults;
  std::vector<Key> keys;
#define KEY(field, range, theirs, doc)                                                                            \
  keys.push_back(working_key(                                                                                     \
      #field, [](void* c) -> FieldPointer { return &static_cast<InferenceConfig*>(c)->field; }, &defaults, range, \
      theirs, doc));
#define INERT(path, fallback, range, why) keys.push_back(other_key(path, Status::inert, fallback, range, why));
#define OFF(path, fallback, why) keys.push_back(other_key(path, Status::off, fallback, any(), why));
#define ALIAS(path, now) keys.push_back(other_key(path, Status::alias, "\"" now "\"", any(), ""));
#define RENAMED(path, now) keys.push_back(other_key(path, Status::renamed, "\"" now "\"", any(), ""));
#include "extensions/inference/config_keys.inc"
#undef KEY
#undef INERT
#undef OFF
#undef ALIAS
#undef RENAMED
  return keys;
}

const std::vector<Key>& table() {
  static const std::vector<Key> keys = make_table();
  return keys;
}

/// Converts short forms that DeepSpeed accepts to full ones: "moe": true becomes an object, a single number of experts
/// becomes a list, and "quant": [true, 8] becomes an object.
Json usual_form(const Json& file) {
  Json::Object members = file.as_object();
  for (auto& [name, value] : members) {
    if ((name == "moe" || name == "quant") && value.is_bool()) value = Json::Object{{"enabled", value}};
    if (name == "quant" && value.is_array() && value.as_array().size() == 2 && value.as_array()[0].is_bool())
      value = Json::Object{{"weight", Json::Object{{"q_groups", value.as_array()[1]}}},
                           {"mlp_extra_grouping", value.as_array()[0]}};
    if (name == "moe_experts" && value.is_int()) value = Json::Array{value};
    if (name != "moe" || !value.is_object()) continue;
    Json::Object inner = value.as_object();
    for (auto& [key, experts] : inner)
      if ((key == "num_experts" || key == "moe_experts") && experts.is_int()) experts = Json::Array{experts};
    value = inner;
  }
  return members;
}

void check_dtype(std::optional<std::string>& dtype, std::vector<std::string>& problems) {
  static const std::vector<std::vector<std::string>> dtypes{
      {"fp32", "float32", "float", "torch.float32", "torch.float"},
      {"fp16", "float16", "half", "torch.float16", "torch.half"},
      {"bf16", "bfloat16", "bfloat", "torch.bfloat16"},
      {"int8", "torch.int8"}};  // the first word of each row is our own
  if (!dtype) return;
  std::string known;
  for (const std::vector<std::string>& words : dtypes) {
    if (std::ranges::count(words, lower(*dtype))) return void(dtype = words[0]);
    for (const std::string& word : words) known += (known.empty() ? "" : ", ") + word;
  }
  problems.push_back(str("dtype: '", *dtype, "' is not a dtype; known: ", known));
}

/// Adds a problem if two keys with the same meaning have different values.
void check_same(const char* a, const std::string& one, const char* b, const std::string& other,
                std::vector<std::string>& problems) {
  if (!one.empty() && !other.empty() && one != other)
    problems.push_back(str(a, ": expected the same as ", b, ", got ", one, " and ", other, "; leave one out"));
}

void check_checkpoint(const InferenceConfig& c, std::vector<std::string>& problems) {
  const Json& at = c.checkpoint;
  const char* const wanted = "expected a folder, a safetensors file or {\"checkpoints\": [files]}, got ";
  if (at.is_object()) {
    const std::vector<std::string> known{"type", "checkpoints", "version", "parallelization", "tp_size"};
    for (const auto& [key, value] : at.as_object())
      if (!std::ranges::count(known, key))
        problems.push_back(str("checkpoint.", key, ": no such key", suggestion(key, known)));
    const Json* const files = at.find("checkpoints");
    const auto is_name = [](const Json& file) { return file.is_string() && !file.as_string().empty(); };
    const bool good =
        files && files->is_array() && !files->as_array().empty() && std::ranges::all_of(files->as_array(), is_name);
    if (!good) problems.push_back(str("checkpoint: ", wanted, printed(at)));
  } else if (!at.is_null() && (!at.is_string() || at.as_string().empty())) {
    problems.push_back(str("checkpoint: ", wanted, printed(at)));
  }
  const auto& own = c.checkpoint_config;
  if (!at.is_null() && !own.checkpoint_dir.empty() && at != Json(own.checkpoint_dir))
    problems.push_back(str("checkpoint: expected the same as checkpoint_config.checkpoint_dir, got ", printed(at),
                           " and \"", own.checkpoint_dir, "\"; leave one out"));
  check_same("base_dir", c.base_dir, "checkpoint_config.base_dir", own.base_dir, problems);
  check_same("save_mp_checkpoint_path", c.save_mp_checkpoint_path, "checkpoint_config.save_mp_checkpoint_path",
             own.save_mp_checkpoint_path, problems);
  if (!problems.empty()) return;
  for (const std::string& file : c.checkpoint_files())
    if (file.ends_with(".bin") || file.ends_with(".pt") || file.ends_with(".pth"))
      problems.push_back(
          str("checkpoint: ", file, " is a pickle, which runs code, and is not read: save it again as safetensors"));
}

void check_policy(const Json& policy, std::vector<std::string>& problems) {
  const auto is_names = [](const auto& member) {
    const Json& names = member.second;
    return names.is_string() || (names.is_array() && std::ranges::all_of(names.as_array(), &Json::is_string));
  };
  if (!policy.is_null() && !(policy.is_object() && std::ranges::all_of(policy.as_object(), is_names)))
    problems.push_back(
        str("injection_policy: expected {\"TransformerBlock\": [\"attention.out_proj\", \"mlp.down\"]}, "
            "a module's type, and the names of its layers whose outputs are summed over ranks; got ",
            printed(policy)));
}

/// Raises one Error for `problems` and those that it finds. Adds warnings.
void check_all(InferenceConfig& c, std::vector<std::string> problems = {}) {
  check_ranges(table(), &c, problems);
  const auto warn = [&](const std::string& text) {
    if (!std::count(c.warnings.begin(), c.warnings.end(), text)) c.warnings.push_back(text);
  };
  check_dtype(c.dtype, problems);
  check_checkpoint(c, problems);
  check_policy(c.injection_policy, problems);
  const WeightQuantConfig& w = c.quant.weight;
  if (w.num_bits != 8 && w.num_bits != 4)
    problems.push_back(str("quant.weight.num_bits: expected 4 or 8, got ", w.num_bits));
  if (c.is_int8() && w.q_type != "symmetric")
    problems.push_back("quant.weight.q_type: asymmetric codes are not supported; write symmetric");
  if (c.is_int8() && !(c.quant.enabled && w.enabled))
    problems.push_back("quant: dtype is int8, and quant disables quantisation; leave one of them out");
  if (c.is_int8() && c.quant.activation.enabled && w.num_bits != 8)
    problems.push_back(str("quant.activation.enabled: expected quant.weight.num_bits 8 with it, got ", w.num_bits,
                           "; write 8, or leave quant.activation out"));
  if (!c.is_int8())
    for (const std::string& key : c.given)
      if (key.starts_with("quant.weight.") || key.starts_with("quant.activation.") || key.starts_with("quant.qkv."))
        warn(key + ": no effect, as dtype is not int8");
  const InferenceZeroConfig& z = c.zero;
  if (z.stage == 3 && z.offload_param.device == zero::Offload::none)
    warn("zero.stage: 3 has no effect without zero.offload_param.device: parameters stay where they are");
  if (z.stage != 3 && z.offload_param.device != zero::Offload::none)
    warn(str("zero.offload_param: ignored below stage 3, and zero.stage is ", z.stage));
  if (z.stage == 3 && z.offload_param.device == zero::Offload::nvme && z.offload_param.nvme_path.empty())
    problems.push_back("zero.offload_param.nvme_path: expected a folder, as the device is nvme; got none");
  if (c.max_out_tokens && *c.max_out_tokens < c.min_out_tokens)
    problems.push_back(
        str("max_out_tokens: expected at least min_out_tokens ", c.min_out_tokens, ", got ", *c.max_out_tokens));
  fail_if_any(c.origin, problems);
}

}  // namespace

std::optional<DType> InferenceConfig::parameter_dtype() const {
  if (!dtype || is_int8()) return {};
  return *dtype == "fp32" ? f32 : *dtype == "fp16" ? f16 : bf16;
}

std::vector<std::string> InferenceConfig::checkpoint_files() const {
  std::vector<std::string> files;
  if (checkpoint.is_string()) files = {checkpoint.as_string()};
  else if (checkpoint.is_object())
    for (const Json& file : checkpoint.at("checkpoints").as_array()) files.push_back(file.as_string());
  else if (!checkpoint_config.checkpoint_dir.empty()) files = {checkpoint_config.checkpoint_dir};
  const std::string& base = base_dir.empty() ? checkpoint_config.base_dir : base_dir;
  if (!base.empty())
    for (std::string& file : files)
      if (!file.starts_with("/")) file = base + "/" + file;
  return files;
}

std::string InferenceConfig::save_path() const {
  return save_mp_checkpoint_path.empty() ? checkpoint_config.save_mp_checkpoint_path : save_mp_checkpoint_path;
}

InferenceConfig read_config(const std::string& source) {
  const Json json = usual_form(read_config_json(source));
  InferenceConfig c;
  if (source.find('{') == source.npos) c.origin = source;
  std::vector<std::string> problems;
  read_keys(json, table(), &c, {c.given, c.inert, c.warnings}, problems);
  check_all(c, problems);
  return c;
}

InferenceConfig checked(InferenceConfig config) {
  check_all(config);
  return config;
}

std::string to_text(const InferenceConfig& config) {
  std::vector<Line> lines;
  for (const Key& key : table())
    if (const auto line = line_of(key, &config, config.given, config.inert)) lines.push_back(*line);
  return aligned(lines);
}

Json to_json(const InferenceConfig& config) { return json_of(table(), &config, config.inert); }

std::string config_reference() {
  return R"(# The inference configuration

This file says how [`init_inference`](README.md) runs a model: in which dtype, on how many ranks,
and from which weights. It has the keys of DeepSpeed's inference configuration. `gpt sample`,
`logits`, `eval` and `score` read it with `--config`.

Most files need only these:

| key | what to write |
|---|---|
| `dtype` | `"bf16"`, `"fp16"` or `"fp32"`; `"int8"` quantises the weights ([quantisation](../quantization/README.md)). Without it weights stay as they are |
| `tensor_parallel.tp_size` | number of ranks that share every layer |
| `checkpoint` | where weights come from, for a model that is made in memory |
| `max_out_tokens` | the most tokens of a prompt and its answer together |
| `zero.stage`, `zero.offload_param` | stage 3 for models that do not fit on the device |

- **Check a file** with `lockstep config --inference FILE`. It prints what the file means.
  `lockstep config --inference --reference` prints this page.
- **Errors** come at the start, all of them at once: an unknown key, a wrong type, a value out of
  range, keys that contradict each other.
- **Short forms:** `"moe": true` means `{"enabled": true}`. A single number of experts needs no
  list. `"quant": [true, 8]` is DeepSpeed's older form of `mlp_extra_grouping` true and
  `q_groups` 8.

## Keys

)" + table_of(table()) +
         lists_of(table());
}

}  // namespace lockstep::inference
