// Prepares models for inference, and runs them. See engine.h.
#include "extensions/inference/engine.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "autograd/tape.h"
#include "base/clock.h"
#include "dist/numbers.h"
#include "engine/engine.h"
#include "extensions/device_map/dispatch.h"
#include "extensions/hugging_face/pretrained.h"
#include "extensions/hugging_face/weights.h"
#include "extensions/inference/candidates.h"
#include "extensions/inference/checks.h"
#include "extensions/inference/heads.h"
#include "extensions/inference/ranks.h"
#include "extensions/inference/weights.h"
#include "nn/init.h"
#include "parallel/agreement.h"
#include "parallel/moe/expert_parallel.h"
#include "parallel/tensor_parallel/apply.h"
#include "parallel/tensor_parallel/shards.h"
#include "tensor/random.h"
#include "tensor/stream.h"

namespace lockstep::inference {

// The state of an engine, and the steps of init_inference().
struct InferenceEngine::Impl : Ranks {
  InferenceConfig config;
  InitArgs args;
  std::unique_ptr<nn::GPT> own;
  nn::GPT* model = nullptr;
  std::vector<Widened> widened;
  std::optional<tensor_parallel::TensorParallel> sharded;
  std::optional<device_map::Dispatched> dispatched;
  int begins = 0, ends = 0;  // ids of the hooks on the token table and the head
  nn::Module::Calls table, head;
  std::optional<double> begun;
  std::vector<double> times;

  Impl(const InferenceConfigSource& source, const InitArgs& args_) : config(source.read()), args(args_) {
    static_cast<Ranks&>(*this) = join(config, args);
  }
  ~Impl() {
    table.remove_hook(begins);
    head.remove_hook(ends);
  }
  void say(const std::string& text) const { Ranks::say(args, text); }
  void share_experts();
  void place();
  void save() const;
  Device device() const { return model->tokens_table.weight.device(); }
};

namespace {

std::string text_of(const Tensor& tokens) {
  std::string text = str(tokens.shape(), ":");
  for (const int64_t id : tokens.to(cpu).to_vector<int64_t>()) text += str(" ", id);
  return text;
}

template <class List> std::string text_of(const List& list) {
  std::string text;
  for (const auto& item : list) text += str(text.empty() ? "" : ",", item);
  return text;
}

std::vector<std::string> lines_of(const nn::Generation& g) {
  std::string bias;
  for (const auto& [id, value] : g.logit_bias) bias += str(" ", id, ":", value);
  return {
      str("max_new_tokens ", g.max_new_tokens, ", min_new_tokens ", g.min_new_tokens, ", do_sample ", g.do_sample,
          ", seed ", g.seed ? str(*g.seed) : "none", ", num_return_sequences ", g.num_return_sequences, ", num_beams ",
          g.num_beams, ", length_penalty ", g.length_penalty, ", early_stopping ", g.early_stopping, ", overflow ",
          int(g.overflow), ", logprobs ", g.logprobs, ", cache ", g.cache_dtype ? str(*g.cache_dtype) : "as computed"),
      "eos_token_id " + text_of(g.eos_token_id) + ", suppress_tokens " + text_of(g.suppress_tokens) + ", stop " +
          text_of(g.stop) + ", logit_bias" + bias,
      str("repetition_penalty ", g.repetition_penalty, ", presence_penalty ", g.presence_penalty,
          ", frequency_penalty ", g.frequency_penalty, ", no_repeat_ngram_size ", g.no_repeat_ngram_size,
          ", temperature ", g.temperature, ", top_k ", g.top_k, ", top_p ", g.top_p, ", min_p ", g.min_p)};
}

/// Runs `compute` without recording; a backward from its result is an Error.
Variable without_gradient(const std::function<Variable()>& compute) {
  const Variable value = [&] {
    const NoGrad no_grad;
    return compute();
  }();
  if (!NoGrad::grad_enabled()) return value;
  const Variable none(zeros({}), true);
  return record("InferenceEngine", {&none}, value.tensor(),
                [](Backward&) { fail("[InferenceEngine] made for inference; use engine::initialize to train"); });
}

InferenceEngine start(std::unique_ptr<InferenceEngine::Impl> impl) {
  InferenceEngine::Impl& m = *impl;
  const InferenceConfig& c = m.config;
  for (const std::string& warning : c.warnings) m.say("warning: " + warning);
  check_model(c, *m.model);
  check_policy(c, *m.model);
  const NoGrad no_grad;
  m.model->eval();
  if (const auto dtype = c.parameter_dtype()) m.model->to(*dtype);
  if (const auto files = c.checkpoint_files(); !files.empty())
    start_with_checkpoint(*m.model, files, m.several(), [&m](const std::string& text) { m.say("warning: " + text); });
  if (!c.triangular_masking)
    for (auto& block : m.model->blocks.items) block->attention.o.causal = false;
  m.share_experts();
  if (m.tp) m.widened = fit_to_ranks(*m.model, m.tp->size());
  if (c.is_int8() && !nn::is_quantized(*m.model)) m.say(nn::quantize(*m.model, quantize_options(c, *m.model)).text());
  if (m.tp) m.sharded = tensor_parallel::apply(*m.model, *m.tp);
  LOCKSTEP_CHECK(!c.enable_cuda_graph || (m.device().is_cpu() && default_device().is_cpu()),
                 "[init_inference] enable_cuda_graph: steps of different lengths are not captured yet; leave it out");
  check_memory(c, *m.model);
  m.save();
  m.place();
  return InferenceEngine(std::move(impl));
}

}  // namespace

/// Each rank of the expert-parallel group `ep` keeps only its own experts.
void InferenceEngine::Impl::share_experts() {
  for (moe::MoeLayer* layer : moe::layers_of(*model)) {
    const int there = layer->group ? layer->group->size() : 1;
    if (!ep) {
      LOCKSTEP_CHECK(there == 1, "[init_inference] the model's experts are shared by ", there,
                     " ranks; write moe.ep_size ", there);
      continue;
    }
    const int64_t ranks = ep->size(), n = layer->o.experts;
    LOCKSTEP_CHECK(there == 1 || there == ranks, "[init_inference] moe.ep_size: the model's experts are shared by ",
                   there, " ranks, got ", ranks, "; write ", there);
    LOCKSTEP_CHECK(n % ranks == 0, "[init_inference] moe.ep_size: expected a divisor of ", n,
                   ", the number of experts, got ", ranks);
    if (there > 1) continue;
    layer->experts = {layer->experts.begin() + ep->rank() * (n / ranks),
                      layer->experts.begin() + (ep->rank() + 1) * (n / ranks)};
    layer->group = ep;
  }
}

/// Loads this rank's parameters onto their device. With ZeRO-Inference, blocks stay in host memory or in files.
void InferenceEngine::Impl::place() {
  const zero::OffloadParam& offload = config.zero.offload_param;
  const bool moves = !config.keep_module_on_host && device().is_cpu() && !default_device().is_cpu();
  if (config.zero.stage != 3 || offload.device == zero::Offload::none) {
    if (moves) model->to(default_device());
    return nn::fill(*model);
  }
  const Device there = moves ? default_device() : device();
  const device_map::DeviceMap map{{"", there}, {"blocks", offload.device == zero::Offload::cpu ? "cpu" : "disk"}};
  dispatched.emplace(
      device_map::dispatch(*model, device_map::infer(*model, map), {.offload_folder = offload.nvme_path}));
}

void InferenceEngine::Impl::save() const {
  const std::string path = config.save_path();
  if (path.empty()) return;
  nn::fill(*model);
  const bool in_codes = nn::is_quantized(*model), first = !world || world->rank() < config.tp() * config.ep();
  LOCKSTEP_CHECK(
      !in_codes || (widened.empty() && !ep),
      "[init_inference] save_mp_checkpoint_path: quantized weights can only be written if tp_size divides "
      "heads and widths and each rank has all experts; use another tp_size, or leave save_mp_checkpoint_path out");
  nn::State state;
  for (const nn::NamedParameter& p : model->named_parameters()) {
    const auto wide =
        std::ranges::find(widened, p.variable.impl().get(), [](const Widened& w) { return w.parameter.impl().get(); });
    const auto* const shard = sharded ? sharded->find(p.variable) : nullptr;
    const Tensor tensor =
        (shard ? tensor_parallel::joined(p.variable.tensor(), shard->cut, *tp) : p.variable.tensor()).to(cpu);
    state.emplace_back(p.name, wide == widened.end() ? tensor : wide->narrowed(tensor));
  }
  if (!first) return;
  if (in_codes) save_codes(*model, state, path, all.get());
  else save_model(model->o, state, !moe::layers_of(*model).empty(), path, args.tokenizer, all.get());
}

InferenceEngine::InferenceEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
InferenceEngine::InferenceEngine(InferenceEngine&&) noexcept = default;
InferenceEngine::~InferenceEngine() = default;

InferenceEngine::Impl& InferenceEngine::open(const char* call) const {
  LOCKSTEP_CHECK(impl_, "[InferenceEngine] ", call, "() after destroy(); make another engine with init_inference()");
  return *impl_;
}

Variable InferenceEngine::operator()(const Tensor& tokens) {
  Impl& m = open("operator()");
  if (m.tp) parallel::check_agreement("InferenceEngine", {"tokens " + text_of(tokens)}, *m.tp);
  return without_gradient([&] { return (*m.model)(tokens.to(m.device())); });
}

Variable InferenceEngine::loss(const Tensor& tokens, const Tensor& targets) {
  Impl& m = open("loss");
  if (m.tp)
    parallel::check_agreement("InferenceEngine", {"tokens " + text_of(tokens), "targets " + text_of(targets)}, *m.tp);
  return without_gradient([&] { return m.model->loss(tokens.to(m.device()), targets.to(m.device())); });
}

std::vector<nn::Generated> InferenceEngine::generate(std::span<const std::vector<int64_t>> prompts,
                                                     const nn::Generation& generation,
                                                     const std::function<bool(size_t, int64_t)>& emit) {
  Impl& m = open("generate");
  LOCKSTEP_CHECK(m.config.triangular_masking,
                 "[InferenceEngine] generate() needs causal attention; triangular_masking is false, leave it out");
  nn::Generation g = generation;
  auto goes_on = emit;
  if (m.all && emit)  // a sequence ends on all ranks if it ends on one
    goes_on = [&emit, all = m.all.get()](size_t sequence, int64_t token) {
      const std::vector<int32_t> wanted{emit(sequence, token)};
      return dist::all_reduced(wanted, *all, {.op = dist::ReduceOp::min, .tag = "whether a sequence goes on"})[0] != 0;
    };
  if (m.all) {
    std::vector<std::string> lines = lines_of(g);
    for (size_t i = 0; i < prompts.size(); ++i) lines.push_back(str("prompt ", i, ": ") + text_of(prompts[i]));
    parallel::check_agreement("generate", lines, *m.all);
    if (!g.greedy() && g.num_beams == 1 && !g.seed) {  // use random draws of rank 0
      const auto own_seed = int64_t(philox(next_random_key(), 0)[0]);
      g.seed = uint64_t(dist::all_gathered(std::vector<int64_t>{own_seed}, *m.all, {.tag = "seed of the draws"})[0]);
    }
  }
  g.check(m.model->o.vocab);  // all ranks raise the same Error
  if (m.config.max_out_tokens)
    for (size_t i = 0; i < prompts.size(); ++i)
      LOCKSTEP_CHECK(int64_t(prompts[i].size()) + g.max_new_tokens <= *m.config.max_out_tokens,
                     "[InferenceEngine] prompt ", i, " has ", prompts[i].size(), " tokens, and max_new_tokens is ",
                     g.max_new_tokens, ": expected at most max_out_tokens ", *m.config.max_out_tokens, " together");
  if (!m.tp) return nn::generate(*m.model, prompts, g, goes_on);
  const CandidateScope scope(m.model->head, m.model->o.vocab, g, *m.tp);
  return nn::generate(*m.model, prompts, g, goes_on);
}

nn::Generated InferenceEngine::generate(const std::vector<int64_t>& prompt, const nn::Generation& generation) {
  return generate(std::span(&prompt, 1), generation)[0];
}

nn::GPT& InferenceEngine::module() { return *open("module").model; }
const InferenceConfig& InferenceEngine::config() const { return open("config").config; }

void InferenceEngine::profile_model_time() {
  Impl& m = open("profile_model_time");
  if (m.begins != 0) return;
  // Every run of the model begins with the token table and ends with the head: measure the time between the two.
  m.begins = m.model->tokens_table.before_forward([&m](auto&&...) {
    if (!m.begun) m.begun = steady_seconds();
  });
  m.ends = m.model->head.after_forward([&m](auto&&...) {
    synchronize(m.device());
    if (m.begun) m.times.push_back(steady_seconds() - *m.begun);
    m.begun.reset();
  });
  m.table = m.model->tokens_table.calls(), m.head = m.model->head.calls();
}

std::vector<double> InferenceEngine::model_times() {
  Impl& m = open("model_times");
  LOCKSTEP_CHECK(m.begins != 0,
                 "[InferenceEngine] model_times() has no times; call profile_model_time() before the model runs");
  return std::exchange(m.times, {});
}

void InferenceEngine::destroy() { impl_.reset(); }

InferenceEngine init_inference(nn::GPT& model, const InferenceConfigSource& config, const InitArgs& args) {
  auto impl = std::make_unique<InferenceEngine::Impl>(config, args);
  impl->model = &model;
  return start(std::move(impl));
}

InferenceEngine init_inference(const std::string& folder, const InferenceConfigSource& config, const InitArgs& args) {
  auto impl = std::make_unique<InferenceEngine::Impl>(config, args);
  if (std::filesystem::exists(folder + "/" + codes_file)) {
    const nn::GPT::Options o = nn::pretrained_options(folder);
    const nn::Weights codes = nn::Weights::of_files({folder + "/" + codes_file}, "");
    nn::check_file_totals(folder + "/config.json", codes.held(), double(o.layers),
                          [&] { return std::make_shared<nn::GPT>(o); });
    impl->own = std::make_unique<nn::GPT>(o);
    start_with_checkpoint(*impl->own, {folder}, nullptr, {});
  } else {
    const nn::BuildEmpty scope;  // each rank fills only its own part
    impl->own = nn::from_pretrained(folder, {.dtype = impl->config.parameter_dtype()});
  }
  impl->model = impl->own.get();
  if (args.tokenizer.empty()) impl->args.tokenizer = folder;
  return start(std::move(impl));
}

}  // namespace lockstep::inference
