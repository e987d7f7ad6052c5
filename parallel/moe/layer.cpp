// The gate, the exchange of tokens, and the auxiliary losses. See layer.h.
#include "parallel/moe/layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/autocast.h"
#include "autograd/tape.h"
#include "nn/init.h"
#include "tensor/random.h"

namespace lockstep::moe {
namespace {

MoeOptions checked(MoeOptions o, int64_t ranks) {
  LOCKSTEP_CHECK(o.width > 0 && o.experts > 0, "[moe] expected width and experts > 0, got ", o.width, " and ",
                 o.experts);
  LOCKSTEP_CHECK(o.experts % ranks == 0, "[moe] expected a number of experts divisible by the ", ranks,
                 " ranks of the group, got ", o.experts);
  LOCKSTEP_CHECK(o.top_k >= 1 && o.top_k <= o.experts, "[moe] expected top_k from 1 to the ", o.experts,
                 " experts, got ", o.top_k);
  LOCKSTEP_CHECK(o.capacity_factor > 0 && o.eval_capacity_factor > 0 && o.min_capacity >= 0,
                 "[moe] expected capacity factors > 0 and min_capacity >= 0, got ", o.capacity_factor, ", ",
                 o.eval_capacity_factor, " and ", o.min_capacity);
  LOCKSTEP_CHECK(std::isfinite(o.balance_coef) && std::isfinite(o.z_coef),
                 "[moe] expected finite balance_coef and z_coef, got ", o.balance_coef, " and ", o.z_coef);
  if (o.drop == Drop::automatic)
    o.drop = o.top_k == 1 ? Drop::random : o.top_k == 2 ? Drop::position : Drop::probability;
  if (o.inner == 0) o.inner = 4 * o.width;
  if (o.weights == GateWeights::automatic)
    o.weights = o.top_k == 1 ? GateWeights::probability : GateWeights::normalized;
  return o;
}

Tensor gumbel_like(const Tensor& x) {
  return neg(log(neg(log(clamp(rand(x.shape(), {x.dtype(), x.device()}), 1e-10, 1 - 1e-7)))));
}

Tensor index_of(const std::vector<int64_t>& values, Device device) {
  return Tensor::from(values, {int64_t(values.size())}).to(device);
}

Tensor exchange(const Tensor& x, const std::vector<int64_t>& to_each, const std::vector<int64_t>& from_each,
                dist::ProcessGroup& group, const char* tag) {
  const Tensor out =
      empty({std::accumulate(from_each.begin(), from_each.end(), int64_t(0)), x.size(1)}, {x.dtype(), x.device()});
  group.all_to_all(out, from_each, x.contiguous(), to_each, {.tag = tag}).wait();
  return out;
}

/// Exchanges rows of x (N, C), which are sorted by receiving rank: to_each[r] rows go to rank r. Returns the rows that
/// arrive, from_each[r] rows from rank r, in order of ranks. Differentiable.
Variable exchange_rows(const Variable& x, const std::vector<int64_t>& to_each, const std::vector<int64_t>& from_each,
                       const std::shared_ptr<dist::ProcessGroup>& group, const char* tag) {
  Tensor out = exchange(x.tensor(), to_each, from_each, *group, tag);
  if (!needs_grad({&x})) return out;
  return record("exchange_rows", {&x}, std::move(out), [to_each, from_each, group, tag](Backward& back) {
    back.give(0, exchange(back.grad(), from_each, to_each, *group, tag));
  });
}

/// out[index[i]] += x[i] in the order of i; out (size, C). Differentiable.
Variable add_rows(const Variable& x, const Tensor& index, int64_t size) {
  Tensor out = zeros({size, x.size(1)}, {x.dtype(), x.device()});
  index_add_(out, 0, index, x.tensor());
  if (!needs_grad({&x})) return out;
  return record("add_rows", {&x}, std::move(out), [index = Saved(index)](Backward& back) {
    back.give(0, index_select(back.grad(), 0, index.get("add_rows")));
  });
}

}  // namespace

MoeLayer::MoeLayer(const MoeOptions& options, std::shared_ptr<dist::ProcessGroup> group_)
    : o(checked(options, group_ ? group_->size() : 1)), group(std::move(group_)) {
  gate = parameter({o.experts, o.width});
  nn::init::kaiming_uniform(gate, std::sqrt(5.0));
  // An expert's initial values depend on its number, not on the experts made before it on this rank.
  const RandomState before = random_state();
  const int64_t here = o.experts / (group ? group->size() : 1);
  for (int64_t e = rank() * here; e < (rank() + 1) * here; ++e) {
    set_random_state({before.seed, before.step, before.micro_batch, before.call + (uint64_t(e + 1) << 32)});
    if (o.make) experts.emplace_back(o.make(e));
    else experts.emplace_back(std::make_shared<nn::Mlp>(nn::Mlp::Options{.width = o.width, .inner = o.inner}));
    LOCKSTEP_CHECK(experts.back(), "[moe] expected make() to give expert ", e,
                   ", got none; return a module from Options::make");
  }
  set_random_state({before.seed, before.step, before.micro_batch, before.call + 1});
  if (!o.use_residual) return;
  residual = std::make_shared<nn::Mlp>(nn::Mlp::Options{.width = o.width, .inner = o.inner});
  coefficient = std::make_shared<nn::Linear>(nn::Linear::Options{.in = o.width, .out = 2});
}

void MoeLayer::fields(nn::Fields& f) {
  f("gate", gate);
  for (size_t i = 0; i < experts.size(); ++i)
    f("experts." + std::to_string(first_expert() + int64_t(i)), *experts[i], nn::cut::experts);
  if (o.use_residual) f("residual", *residual, nn::cut::full)("coefficient", *coefficient);
}

std::string MoeLayer::options() const {
  return str("width ", o.width, ", experts ", o.experts,
             group && group->size() > 1 ? str(", ", experts.size(), " here") : "", ", top ", o.top_k,
             o.drop_tokens ? str(", capacity factor ", o.capacity_factor) : ", no drops",
             o.use_residual ? ", residual" : "");
}

MoeLayer::Gate MoeLayer::choose(const Variable& x) {
  const Autocast exact(f16, false);  // rounding the gate's logits would move tokens between experts
  const int64_t tokens = x.size(0);
  const auto wide = [](const Variable& v) { return size_of(v.dtype()) == 2 ? v.to(f32) : v; };
  Variable input = wide(x);
  if (is_training() && o.noise == Noise::jitter)
    input = mul(input, add_scalar(mul_scalar(rand(input.shape(), {input.dtype(), input.device()}), 0.02), 0.99));
  const Variable weight = wide(gate),
                 logits = linear(input, weight.dtype() == input.dtype() ? weight : weight.to(input.dtype())),
                 probabilities = softmax(logits, -1);
  Tensor scores = logits.tensor(), indices;
  if (is_training() && o.noise == Noise::rsample) scores = add(scores, gumbel_like(scores));
  if (o.top_k == 2 && o.second_expert_sampling && is_training() && tokens > 0) {
    const Tensor first = argmax(scores, -1, true);
    const Tensor others = scatter(add(logits.tensor(), gumbel_like(scores)), 1, first,
                                  full({tokens, 1}, -INFINITY, {scores.dtype(), scores.device()}));
    indices = cat({first, argmax(others, -1, true)}, 1);
  } else {
    indices =
        tokens > 0 ? topk(scores, o.top_k, -1).indices : empty({0, o.top_k}, {.dtype = i64, .device = x.device()});
  }
  const Variable chosen =
      gather(o.weights == GateWeights::softmax_of_chosen ? logits : probabilities, 1, indices);  // (tokens, k)
  const std::vector<int64_t> choices = indices.to_vector<int64_t>();

  std::vector<double> priority;
  if (o.drop_tokens && o.drop == Drop::probability)
    priority = gather(probabilities.tensor(), 1, indices).to_vector<double>();
  if (o.drop_tokens && o.drop == Drop::random && is_training())
    priority = rand({tokens * o.top_k}, {.dtype = f32, .device = cpu}).to_vector<double>();
  const int64_t expert_capacity =
      o.drop_tokens ? capacity(tokens, o.experts, o.top_k, is_training() ? o.capacity_factor : o.eval_capacity_factor,
                               o.min_capacity)
                    : -1;
  Gate g{.routing = route(choices, o.top_k, o.experts, expert_capacity, priority)};
  add_losses(logits, probabilities, choices);

  g.weights = o.weights == GateWeights::softmax_of_chosen ? softmax(chosen, -1) : chosen;
  if (o.weights == GateWeights::normalized) {
    const Tensor kept = zeros({tokens * o.top_k}, {g.weights.dtype(), x.device()});
    index_add_(kept, 0, index_of(g.routing.choice, x.device()),
               ones({int64_t(g.routing.choice.size())}, {kept.dtype(), kept.device()}));
    const Variable taken = mul(g.weights, kept.view({tokens, o.top_k}));
    g.weights = div(taken, clamp(sum(taken, {1}, true),
                                 g.weights.dtype() == f64 ? 2.220446049250313e-16 : 1.1920929e-07, INFINITY));
  }
  return g;
}

void MoeLayer::add_losses(const Variable& logits, const Variable& probabilities, const std::vector<int64_t>& choices) {
  const int64_t tokens = logits.size(0),
                counted = o.top_k <= 2 ? 1 : o.top_k;  // as in DeepSpeed: count first choices for k <= 2, else all
  std::vector<double> part(size_t(o.experts) + 1, 0);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < counted; ++i) part[size_t(choices[size_t(t * o.top_k + i)])] += 1;
  part.back() = double(tokens * counted);
  if (o.balance_over_group && group && group->size() > 1) {
    const Tensor all = Tensor::from(part, {o.experts + 1}).to(cpu);
    group->all_reduce(all, {.tag = "tokens of each expert"}).wait();
    part = all.to_vector<double>();
  }
  const double total = std::max(part.back(), 1.0), mine = double(std::max<int64_t>(tokens, 1));
  part.pop_back();
  for (double& p : part) p *= double(o.experts) / total / mine;
  const Tensor fractions = Tensor::from(part, {o.experts}).to(logits.dtype()).to(logits.device());
  const Variable balanced = sum(mul(sum(probabilities, {0}), fractions));
  aux_loss = mul_scalar(balanced, o.balance_coef);
  if (measure) balance = balanced.item();
  if (o.z_coef == 0 && !measure) return;
  const Variable lse = logsumexp(logits, {1}), squares = div_scalar(sum(mul(lse, lse)), mine);
  if (o.z_coef != 0) aux_loss = add(aux_loss, mul_scalar(squares, o.z_coef));
  if (measure) z = squares.item();
}

Variable MoeLayer::run_experts(const Variable& rows, const std::vector<int64_t>& each) {
  std::vector<Variable> outs;
  int64_t at = 0;
  // Experts without rows run too: they get gradients of zero, and all ranks make the same all-gathers under ZeRO-3.
  for (size_t i = 0; i < experts.size(); ++i) {
    const Variable out = experts[i]->call(rows.narrow(0, at, each[i]));
    LOCKSTEP_CHECK(out.shape() == Shape({each[i], o.width}), "[moe] expected expert ", first_expert() + int64_t(i),
                   " to give (N, ", o.width, ") with N = ", each[i], ", got ", out.shape(), "; keep rows and width");
    outs.push_back(out);
    at += each[i];
  }
  return outs.size() == 1 ? outs[0] : cat(outs, 0);
}

Variable MoeLayer::compute(const Variable& rows, const std::vector<int64_t>& each) {
  if (!group || group->size() == 1) return run_experts(rows, each);
  // The ranks tell each other how many rows each expert gets.
  const int64_t ranks = group->size(), here = int64_t(experts.size());
  const Tensor going = Tensor::from(each, {o.experts}).to(cpu),
               coming = empty({o.experts}, {.dtype = i64, .device = cpu});
  group->all_to_all(coming, going, {.tag = "rows of each expert"}).wait();
  const std::vector<int64_t> from = coming.to_vector<int64_t>();  // [rank, expert here]
  std::vector<int64_t> to_each(static_cast<size_t>(ranks)), from_each(to_each), mine(size_t(here), 0),
      begins(from.size());
  int64_t at = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    to_each[i / size_t(here)] += each[i];
    from_each[i / size_t(here)] += from[i];
    mine[i % size_t(here)] += from[i];
    begins[i] = std::exchange(at, at + from[i]);
  }
  const Variable arrived = exchange_rows(rows, to_each, from_each, group, "rows to experts");
  // sorted: the indices of the arrived rows, in order of expert, then rank. back: the inverse permutation.
  std::vector<int64_t> sorted, back(static_cast<size_t>(at));
  for (int64_t e = 0; e < here; ++e) {
    for (int64_t r = 0; r < ranks; ++r) {
      const size_t i = size_t(r * here + e);
      for (int64_t row = begins[i]; row < begins[i] + from[i]; ++row) {
        back[size_t(row)] = int64_t(sorted.size());
        sorted.push_back(row);
      }
    }
  }
  if (here == 1) return exchange_rows(run_experts(arrived, mine), from_each, to_each, group, "rows from experts");
  const Variable done = run_experts(index_select(arrived, 0, index_of(sorted, rows.device())), mine);
  return exchange_rows(index_select(done, 0, index_of(back, rows.device())), from_each, to_each, group,
                       "rows from experts");
}

Variable MoeLayer::forward(const Variable& input) {
  LOCKSTEP_CHECK(input.dim() >= 1 && input.shape().back() == o.width, "[moe] expected input (..., ", o.width, "), got ",
                 input.shape(), "; reshape the input, or change width");
  const int64_t tokens = input.numel() / o.width;
  const Variable x = input.reshape({tokens, o.width});
  Gate g = choose(x);
  routing = std::move(g.routing);
  const Tensor token = index_of(routing.token, x.device()), choice = index_of(routing.choice, x.device());
  const Variable rows = compute(index_select(x, 0, token), routing.rows);
  const Variable weight = index_select(g.weights.reshape({tokens * o.top_k}), 0, choice).unsqueeze(1);
  Variable out = add_rows(mul(rows.to(x.dtype()), weight.to(x.dtype())), token, tokens);
  if (o.use_residual) {
    const Variable share = softmax((*coefficient)(x), -1).to(x.dtype());
    out = add(mul(out, share.narrow(1, 0, 1)), mul((*residual)(x).to(x.dtype()), share.narrow(1, 1, 1)));
  }
  return out.reshape(input.shape());
}

std::vector<MoeLayer*> layers_of(nn::Module& model) {
  std::vector<MoeLayer*> layers;
  for (const auto& [name, module] : model.named_modules())
    if (auto* layer = dynamic_cast<MoeLayer*>(module)) layers.push_back(layer);
  return layers;
}

std::vector<Variable*> aux_losses(nn::Module& model) {
  std::vector<Variable*> all;
  for (MoeLayer* layer : layers_of(model)) all.push_back(&layer->aux_loss);
  return all;
}

}  // namespace lockstep::moe
