// Mixture-of-experts models: reads --experts, adds experts, and counts their tokens. See experts.h.
#include "train/experts.h"

#include <algorithm>

#include "autograd/activation_checkpoint.h"
#include "parallel/moe/expert_parallel.h"
#include "train/cli.h"
#include "train/json_paths.h"
#include "train/words.h"

namespace lockstep::train {

using data::Json;

void Experts::add_to(nn::Module& model, std::shared_ptr<dist::ProcessGroup> ranks) const {
  if (options.experts > 0) moe::add_experts(model, options, every, ranks);
}

Experts read_experts(const std::string& text) {
  Experts e;
  if (text.empty()) return e;
  moe::MoeOptions& m = e.options;
  const auto each = [&](const auto& fn) {
    fn("every", e.every);
    fn("top_k", m.top_k);
    fn("min_capacity", m.min_capacity);
    fn("capacity_factor", m.capacity_factor);
    fn("eval_capacity_factor", m.eval_capacity_factor);
    fn("balance_coef", m.balance_coef);
    fn("z_coef", m.z_coef);
    fn("drop_tokens", m.drop_tokens);
    fn("use_residual", m.use_residual);
  };
  std::vector<std::string> known{"noise"};
  each([&](const char* key, const auto&) { known.emplace_back(key); });
  const auto [count, values] = parse_words(text, known, "--experts");
  m.experts = data::parse_json(count, "--experts").as_int("--experts");
  each([&, &values = values](const char* key, auto& to) {
    if (const Json* value = values.find(key)) read_as(*value, to, str("--experts: ", key));
  });
  if (const Json* noise = values.find("noise")) {
    const std::string& word = noise->as_string("--experts: noise");
    LOCKSTEP_CHECK(word == "none" || word == "jitter" || word == "rsample",
                   "--experts: noise: expected none, jitter or rsample, got '", word, "'");
    m.noise = word == "none" ? moe::Noise::none : word == "jitter" ? moe::Noise::jitter : moe::Noise::rsample;
  }
  LOCKSTEP_CHECK(m.experts >= 0 && (m.experts == 0 || (m.top_k >= 1 && m.top_k <= m.experts)), "--experts ", text,
                 ": a token cannot go to ", m.top_k, " of ", m.experts,
                 " experts; give more experts, or a top_k from 1 to their number");
  return e;
}

void add_experts(nn::Module& model, const std::string& text, const TrainJob& job) {
  const Experts e = as_usage([&] {
    LOCKSTEP_CHECK(text.empty() || job.options().parallel.strategy != "dp",
                   "--experts cannot be combined with --parallel dp, which copies models by their options; use "
                   "--parallel ddp with lockstep run -n N, or --ranks N");
    return read_experts(text);
  });
  check_plan(job.plan(), {.experts = e.options.experts});
  e.add_to(model, job.plan().ep > 1 ? std::shared_ptr<dist::ProcessGroup>(std::shared_ptr<void>(), &job.mesh().ep())
                                    : nullptr);
}

ExpertCounts::ExpertCounts(nn::Module& model, bool counts) {
  for (moe::MoeLayer* layer : moe::layers_of(model)) {
    experts_ = std::max(experts_, layer->o.experts);
    if (!counts) continue;
    const int id = layer->after_forward([this, layer](auto&&...) {
      if (layer->is_training() && !is_recomputing()) add(*layer);
    });
    hooks_.emplace_back(layer->calls(), id);
  }
  tokens_.resize(size_t(experts_) + 2);
}

ExpertCounts::~ExpertCounts() {
  for (const auto& [calls, id] : hooks_) calls.remove_hook(id);
}

void ExpertCounts::add(const moe::MoeLayer& layer) {
  aux_losses_.push_back(layer.aux_loss.tensor());
  for (size_t e = 0; e < layer.routing.chosen.size(); ++e) tokens_[e] += double(layer.routing.chosen[e]);
  tokens_[tokens_.size() - 2] += double(layer.routing.token.size() + size_t(layer.routing.dropped()));
  tokens_.back() += double(layer.routing.dropped());
}

void ExpertCounts::report(Json& line, int64_t times, const Team& team) {
  const size_t n = size_t(experts_);
  std::vector<double> all = tokens_;
  all.push_back(0);
  for (const Tensor& aux : aux_losses_) all.back() += aux.item() / double(times);
  team.sum(all, "experts");
  std::fill(tokens_.begin(), tokens_.end(), 0);
  aux_losses_.clear();
  const double total = std::max(all[n], 1.0);
  Json::Array counts;
  for (size_t e = 0; e < n; ++e) counts.emplace_back(int64_t(all[e]));
  last_["aux_loss"] = line["aux_loss"] = all.back();
  last_["busiest_expert"] = *std::max_element(all.begin(), all.begin() + int64_t(n)) * double(n) / total;
  last_["dropped"] = line["dropped"] = all[n + 1] / total;
  line["expert_tokens"] = Json(std::move(counts));
}

}  // namespace lockstep::train
