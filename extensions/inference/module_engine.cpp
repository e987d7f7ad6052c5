// Prepares any module for inference. See module_engine.h.
#include "extensions/inference/module_engine.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/suggest.h"
#include "extensions/inference/checks.h"
#include "extensions/inference/ranks.h"
#include "extensions/inference/weights.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/named_fields.h"
#include "parallel/tensor_parallel/apply.h"
#include "parallel/tensor_parallel/shards.h"
#include "tensor/stream.h"

namespace lockstep::inference {

using data::Json;

struct ModuleEngineBase::Impl : Ranks {
  nn::Module& model;
  const InferenceConfig config;
  const InitArgs args;
  std::optional<tensor_parallel::TensorParallel> sharded;
  Device device = cpu;
  bool timed = false;
  std::vector<double> times;

  Impl(nn::Module& module, const InferenceConfigSource& source, const InitArgs& args_)
      : model(module), config(source.read()), args(args_) {}
  void say(const std::string& text) const { Ranks::say(args, text); }
  void place();
  void save() const;
};

namespace {

/// Error for keys that need a GPT.
void check_keys(const InferenceConfig& c, nn::Module& model) {
  const std::pair<const char*, bool> of_gpt[] = {
      {"moe", c.ep() > 1 || c.has("moe.num_experts") || c.has("moe.type")},
      {"max_out_tokens", c.max_out_tokens.has_value()},
      {"min_out_tokens", c.min_out_tokens != 1},
      {"triangular_masking", !c.triangular_masking},
      {"zero.stage", c.zero.stage == 3 && c.zero.offload_param.device != zero::Offload::none}};
  for (const auto& [key, asked] : of_gpt)
    LOCKSTEP_CHECK(!asked, "[init_inference] ", key, ": expected a GPT with this key, got a ", model.kind(),
                   "; leave it out", key == std::string_view("zero.stage") ? ", and place it by a device map" : "");
  LOCKSTEP_CHECK(!c.enable_cuda_graph || default_device().is_cpu(),
                 "[init_inference] enable_cuda_graph: calls of different sizes are not captured yet; leave it out");
}

bool ends_with_name(const std::string& name, const std::string& end) {
  return name == end || name.ends_with("." + end);
}

/// How injection_policy cuts the Linears of the blocks that it names; empty without a policy.
std::vector<tensor_parallel::Rule> rules_of(const InferenceConfig& c, nn::Module& model) {
  std::vector<tensor_parallel::Rule> rules;
  if (!c.injection_policy.is_object()) return rules;
  const auto modules = model.named_modules();
  for (const auto& [kind, value] : c.injection_policy.as_object()) {
    std::vector<std::string> ends, kinds, linears;
    for (const Json& name : value.is_string() ? Json::Array{value} : value.as_array()) ends.push_back(name.as_string());
    std::vector<bool> used(ends.size());
    bool is_found = false;
    for (const auto& [prefix, block] : modules) {
      kinds.push_back(block->kind());
      if (block->kind() != kind) continue;
      is_found = true;
      for (const auto& [name, module] : block->named_modules()) {
        if (name.empty() || !dynamic_cast<nn::Linear*>(module)) continue;
        linears.push_back(name);
        const auto end = std::ranges::find_if(ends, [&](const std::string& e) { return ends_with_name(name, e); });
        if (end != ends.end()) used[size_t(end - ends.begin())] = true;
        rules.push_back({nn::joined(prefix, name), end != ends.end() ? nn::cut::rows : nn::cut::columns});
      }
    }
    LOCKSTEP_CHECK(is_found, "[init_inference] injection_policy: expected classes of this model's layers, but no ",
                   "module is a '", kind, "'", suggestion(kind, kinds));
    for (size_t i = 0; i < ends.size(); ++i)
      LOCKSTEP_CHECK(used[i], "[init_inference] injection_policy: no Linear of a ", kind, " ends with '", ends[i],
                     "'; name one of ", list_names(linears, 6));
  }
  // A pattern also fits the ends of longer names, so these come first.
  std::ranges::stable_sort(rules, std::ranges::greater(), [](const auto& rule) { return rule.pattern.size(); });
  return rules;
}

}  // namespace

/// Moves the module to the device where it runs, and makes the parameters that were built empty.
void ModuleEngineBase::Impl::place() {
  const auto parameters = model.parameters();
  device = parameters.empty() ? default_device() : parameters[0].device();
  if (!config.keep_module_on_host && device.is_cpu() && !default_device().is_cpu()) {
    device = default_device();
    model.to(device);
  }
  nn::fill(model);
}

void ModuleEngineBase::Impl::save() const {
  const std::string path = config.save_path();
  if (path.empty()) return;
  nn::fill(model);
  nn::State state;
  for (const nn::NamedParameter& p : model.named_parameters()) {
    const auto* const shard = sharded ? sharded->find(p.variable) : nullptr;
    state.emplace_back(
        p.name, (shard ? tensor_parallel::joined(p.variable.tensor(), shard->cut, *tp) : p.variable.tensor()).to(cpu));
  }
  for (const nn::NamedBuffer& b : model.named_buffers()) state.emplace_back(b.name, b.tensor.to(cpu));
  if (!world || world->rank() < config.tp()) save_module(model, state, path, tp.get());
}

ModuleEngineBase::ModuleEngineBase(nn::Module& module, const InferenceConfigSource& source, const InitArgs& args)
    : impl_(std::make_unique<Impl>(module, source, args)) {
  Impl& m = *impl_;
  const InferenceConfig& c = m.config;
  check_keys(c, module);
  const auto rules = rules_of(c, module);
  static_cast<Ranks&>(m) = Ranks::join(c, args);
  for (const std::string& warning : c.warnings) m.say("warning: " + warning);
  const NoGrad no_grad;
  module.eval();
  if (const auto dtype = c.parameter_dtype()) module.to(*dtype);
  if (const auto files = c.checkpoint_files(); !files.empty())
    start_with_checkpoint(module, files, m.several(), [&m](const std::string& text) { m.say("warning: " + text); });
  if (c.is_int8() && !nn::is_quantized(module)) m.say(nn::quantize(module, quantize_options(c, module)).text());
  if (m.tp) m.sharded = tensor_parallel::apply(module, *m.tp, {.rules = rules});
  m.save();
  m.place();
}

ModuleEngineBase::ModuleEngineBase(ModuleEngineBase&&) noexcept = default;
ModuleEngineBase::~ModuleEngineBase() = default;

ModuleEngineBase::Impl& ModuleEngineBase::open(const char* call) const {
  LOCKSTEP_CHECK(impl_, "[ModuleEngine] ", call, "() after destroy(); make another engine with init_inference()");
  return *impl_;
}

const InferenceConfig& ModuleEngineBase::config() const { return open("config").config; }
void ModuleEngineBase::profile_model_time() { open("profile_model_time").timed = true; }

std::vector<double> ModuleEngineBase::model_times() {
  Impl& m = open("model_times");
  LOCKSTEP_CHECK(m.timed, "[ModuleEngine] model_times() has no times; call profile_model_time() before the model runs");
  return std::exchange(m.times, {});
}

void ModuleEngineBase::destroy() { impl_.reset(); }

ModuleEngineBase::Call::Call(const ModuleEngineBase& engine) : m_(engine.open("operator")), begun_(steady_seconds()) {}

ModuleEngineBase::Call::~Call() {
  if (!m_.timed) return;
  synchronize(m_.device);
  m_.times.push_back(steady_seconds() - begun_);
}

Variable ModuleEngineBase::Call::take(const Variable& input) const { return Variable(take(input.tensor())); }

Tensor ModuleEngineBase::Call::take(const Tensor& input) const {
  const auto dtype = m_.config.parameter_dtype();
  const Tensor here = input.to(m_.device);
  return dtype && is_floating(here.dtype()) ? here.to(*dtype) : here;
}

}  // namespace lockstep::inference
