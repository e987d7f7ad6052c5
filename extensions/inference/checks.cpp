// Checks a configuration against a model. See checks.h.
#include "extensions/inference/checks.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/suggest.h"
#include "nn/named_fields.h"
#include "parallel/moe/layer.h"
#include "tensor/memory.h"

namespace lockstep::inference {

using data::Json;

namespace {

/// Bytes that this rank can still allocate on a device; nullopt if unknown.
std::optional<int64_t> free_bytes(Device device) {
  if (const int64_t limit = memory_limit(device); limit > 0)
    return std::max<int64_t>(0, limit - device_memory(device).total.current);
  if (!device.is_cpu()) return {};
  const std::string key = "MemAvailable:";  // the value is in KiB
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) return std::atoll(line.c_str() + key.size()) * 1024;
  return {};
}

}  // namespace

void check_model(const InferenceConfig& config, nn::GPT& model) {
  const auto layers = moe::layers_of(model);
  LOCKSTEP_CHECK(config.ep() == 1 || !layers.empty(), "[init_inference] moe.ep_size ", config.ep(),
                 " needs a model with experts, this ", model.kind(), " has none; leave it out");
  const auto& wanted = config.moe.num_experts;
  const bool one = wanted == std::vector<int64_t>{1}, counted = config.has("moe.num_experts") || !one;
  for (const char* const key : {"moe.num_experts", "moe.type"})
    LOCKSTEP_CHECK(!layers.empty() || !config.has(key) || (key == std::string_view("moe.num_experts") && one),
                   "[init_inference] ", key, ": only for models with experts, this ", model.kind(),
                   " has none; leave it out");
  for (size_t i = 0; counted && i < layers.size(); ++i) {
    const int64_t n = wanted.empty() ? 0 : wanted[std::min(i, wanted.size() - 1)];
    LOCKSTEP_CHECK(n == layers[i]->o.experts, "[init_inference] moe.num_experts: expected the model's ",
                   layers[i]->o.experts, " experts in layer ", i, " of its layers with experts, got ", n);
  }
  for (const moe::MoeLayer* layer : layers)
    LOCKSTEP_CHECK(!config.has("moe.type") || (config.moe.type == "residual") == layer->o.use_residual,
                   "[init_inference] moe.type: the model's experts are ",
                   layer->o.use_residual ? "residual" : "standard", ", got ", config.moe.type, "; leave it out");
  LOCKSTEP_CHECK(!config.max_out_tokens || *config.max_out_tokens <= model.o.context,
                 "[init_inference] max_out_tokens: expected at most the model's context ", model.o.context, ", got ",
                 config.max_out_tokens.value_or(0));
  LOCKSTEP_CHECK(config.min_out_tokens <= model.o.context,
                 "[init_inference] min_out_tokens: expected at most the model's context ", model.o.context, ", got ",
                 config.min_out_tokens);
}

void check_policy(const InferenceConfig& config, nn::GPT& model) {
  if (!config.injection_policy.is_object()) return;
  std::vector<std::string> kinds, summed;
  std::vector<std::pair<std::string, bool>> layers;
  const auto visit = [&](const auto& self, nn::Module& module, const std::string& prefix) -> void {
    kinds.push_back(module.kind());
    nn::Fields fields;
    module.fields(fields);
    for (const nn::Fields::Entry& entry : fields.entries) {
      if (!entry.module) continue;
      const std::string name = nn::joined(prefix, entry.name);
      layers.emplace_back(name, entry.cut.kind == nn::Cut::Kind::rows);
      if (layers.back().second) summed.push_back(name);
      self(self, *entry.module, name);
    }
  };
  visit(visit, model, "");
  const auto ends = [](const std::string& name, const std::string& end) {
    return name == end || name.ends_with("." + end);
  };
  for (const auto& [kind, names] : config.injection_policy.as_object()) {
    LOCKSTEP_CHECK(std::count(kinds.begin(), kinds.end(), kind),
                   "[init_inference] injection_policy: expected classes of this model's layers, but no module is a '",
                   kind, "'", suggestion(kind, kinds));
    for (const Json& name : names.is_string() ? Json::Array{names} : names.as_array()) {
      const std::string& end = name.as_string();
      const auto found = std::find_if(layers.begin(), layers.end(), [&](const auto& l) { return ends(l.first, end); });
      LOCKSTEP_CHECK(found != layers.end(), "[init_inference] injection_policy: no layer ends with '", end,
                     "'; name one of ", list_names(summed, 6));
      LOCKSTEP_CHECK(found->second, "[init_inference] injection_policy: the outputs of ", found->first,
                     " are not summed over ranks in this model; name layers among ", list_names(summed, 6));
    }
  }
}

nn::QuantizeOptions quantize_options(const InferenceConfig& config, nn::Module& model) {
  nn::QuantizeOptions o{.format = QuantFormat::row8, .dynamic = config.quant.activation.enabled};
  if (!config.quant.qkv.enabled) o.skip.emplace_back("in_proj");
  const WeightQuantConfig& w = config.quant.weight;
  int64_t rows = INT64_MAX, groups = INT64_MAX;  // minima over all matrices
  for (const auto& [name, module] : model.named_modules()) {
    const auto* const linear = dynamic_cast<const nn::Linear*>(module);
    if (!linear || !linear->weight.defined()) continue;
    const Shape& shape = linear->weight.shape();
    rows = std::min(rows, shape[0]), groups = std::min(groups, shape[0] * ((shape[1] + quant_group - 1) / quant_group));
    LOCKSTEP_CHECK(numel_of(shape) % w.q_groups == 0, "[init_inference] quant.weight.q_groups: ", w.q_groups,
                   " does not divide the ", numel_of(shape), " elements of ", name, ".weight; write a divisor");
  }
  LOCKSTEP_CHECK(w.q_groups <= groups, "[init_inference] quant.weight.q_groups: expected at most ", groups,
                 " (the smallest weight has so many groups of ", quant_group, " numbers), got ", w.q_groups);
  if (w.num_bits == 4) o.format = QuantFormat::group4;
  else if (w.q_groups > rows) o.format = QuantFormat::group8;
  LOCKSTEP_CHECK(!o.dynamic || o.format == QuantFormat::row8,
                 "[init_inference] quant.activation.enabled: expected quant.weight.q_groups of at most ", rows,
                 " with it, got ", w.q_groups);
  return o;
}

void check_memory(const InferenceConfig& config, nn::GPT& model) {
  const Device device = model.tokens_table.weight.device();
  int64_t bytes = 0;
  for (auto& block : model.blocks.items)
    bytes += 2 * block->attention.o.kv_heads * block->attention.o.head_size * size_of(model.norm.weight.dtype()) *
             config.min_out_tokens;
  const auto free = free_bytes(device);
  LOCKSTEP_CHECK(!free || bytes <= *free, "[init_inference] min_out_tokens: the keys and values of ",
                 config.min_out_tokens, " tokens take ", bytes, " bytes, ", device, " has ", free.value_or(0),
                 " free; lower min_out_tokens");
}

}  // namespace lockstep::inference
