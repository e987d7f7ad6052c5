// The mixture-of-experts layer: against an explicit sum, distributed over ranks, gradients, losses, noise, bytes,
// rejected calls.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "autograd/autocast.h"
#include "autograd/gradcheck.h"
#include "parallel/moe/layer.h"
#include "tests/apart.h"
#include "tests/parallel/util.h"

using namespace lockstep;
using namespace testing;

namespace {

constexpr int64_t width = 6;

std::unique_ptr<moe::MoeLayer> make(moe::MoeOptions o, std::shared_ptr<dist::ProcessGroup> group = nullptr,
                                    DType dtype = f64) {
  o.width = width;
  o.inner = 8;
  o.second_expert_sampling = false;
  manual_seed(1);
  auto layer = std::make_unique<moe::MoeLayer>(o, std::move(group));
  layer->to(dtype);
  for (auto& p : layer->named_parameters()) {  // an unbalanced gate, and biases that matter
    manual_seed(std::hash<std::string>()(p.name));
    p.variable.tensor().copy_(mul_scalar(randn(p.variable.shape(), {.dtype = f64}), 0.7));
  }
  return layer;
}

/// The layer computed explicitly: every expert on every token, weighted by 0 if it was not chosen.
Variable written_out(moe::MoeLayer& layer, const Variable& x) {
  const moe::MoeOptions& o = layer.o;
  const int64_t tokens = x.size(0);
  const Variable logits = matmul(x, layer.gate.t()), p = softmax(logits, -1);
  const Tensor indices = topk(logits.tensor(), o.top_k).indices;
  const Tensor mask =
      scatter(zeros({tokens, o.experts}, {.dtype = f64}), 1, indices, ones(indices.shape(), {.dtype = f64}));
  Variable w = mul(p, mask);
  if (o.weights == moe::GateWeights::normalized) w = div(w, sum(w, {1}, true));
  if (o.weights == moe::GateWeights::softmax_of_chosen)
    w = softmax(masked_fill(logits, logical_not(mask.to(boolean)), -INFINITY), -1);
  Variable y = zeros({tokens, width}, {.dtype = f64});
  for (int64_t e = 0; e < o.experts; ++e) y = add(y, mul(w.narrow(1, e, 1), layer.experts[size_t(e)]->call(x)));
  if (!o.use_residual) return y;
  const Variable share = softmax((*layer.coefficient)(x), -1);
  return add(mul(y, share.narrow(1, 0, 1)), mul((*layer.residual)(x), share.narrow(1, 1, 1)));
}

}  // namespace

TEST_CASE("a layer of experts is the weighted sum of its experts, with its gradients") {
  for (const int64_t k : {1, 2, 3, 5}) {
    for (const moe::GateWeights weights :
         {moe::GateWeights::probability, moe::GateWeights::normalized, moe::GateWeights::softmax_of_chosen}) {
      for (const bool residual : {false, true}) {
        auto layer =
            make({.experts = 5, .top_k = k, .drop_tokens = false, .weights = weights, .use_residual = residual});
        manual_seed(3);
        const Tensor data = randn({11, width}, {.dtype = f64}), grad = randn({11, width}, {.dtype = f64});
        const Variable a(data, true), b(data, true);
        const Variable expected = written_out(*layer, a);
        expected.backward(grad);
        const Tensors gradients = copy_gradients(*layer);
        layer->zero_grad();
        const Variable got = (*layer)(b);
        got.backward(grad);
        CHECK(max_difference(got.tensor(), expected.tensor()) < 1e-12);
        CHECK(max_difference(a.grad(), b.grad()) < 1e-12);
        CHECK(distance(copy_gradients(*layer), gradients) < 1e-12);
        CHECK(layer->routing.dropped() == 0);
      }
    }
  }
}

TEST_CASE("gradients match finite differences, with dropped tokens and with the auxiliary losses") {
  for (const auto& [k, z, residual] : {std::tuple{1, 0.1, false}, {2, 0.0, true}, {3, 0.05, false}}) {
    auto layer = make({.experts = 3,
                       .top_k = k,
                       .capacity_factor = 0.8,
                       .min_capacity = 1,
                       .drop = moe::Drop::position,
                       .use_residual = residual,
                       .balance_coef = 0.3,
                       .z_coef = z});
    manual_seed(8);
    const Variable x(randn({6, width}, {.dtype = f64}), true);
    std::vector<Variable> inputs{x};
    for (const Variable& p : layer->parameters()) inputs.push_back(p);
    // The finite differences are too small to change a token's choice.
    CHECK(gradcheck([&](const std::vector<Variable>&) { return add(mean((*layer)(x)), layer->aux_loss); }, inputs) ==
          "");
    CHECK(layer->routing.dropped() > 0);
  }
}

TEST_CASE("experts over ranks match one process: nothing dropped, any number of tokens on each rank") {
  struct Row {
    int ranks;
    int64_t experts, top_k;
    std::vector<int64_t> tokens;
    bool residual = false;
  };
  for (const Row& row :
       {Row{1, 4, 1, {9}}, Row{2, 4, 1, {6, 7}}, Row{4, 8, 2, {5, 0, 3, 9}}, Row{4, 4, 3, {1, 2, 3, 4}, true},
        Row{2, 2, 2, {0, 0}}, Row{3, 6, 1, {8, 1, 1}}, Row{8, 8, 1, {3, 3, 3, 3, 3, 3, 3, 3}}}) {
    CAPTURE(row.ranks);
    moe::MoeOptions o{.experts = row.experts,
                      .top_k = row.top_k,
                      .drop_tokens = false,
                      .use_residual = row.residual,
                      .balance_over_group = true};
    const int64_t total = std::accumulate(row.tokens.begin(), row.tokens.end(), int64_t(0));
    manual_seed(4);
    const Tensor data = randn({total, width}, {.dtype = f64}), grad = randn({total, width}, {.dtype = f64});
    auto entire = make(o);
    const Variable in(data, true);
    const Variable expected = (*entire)(in);
    add(sum(mul(expected, grad)), entire->aux_loss).backward();
    const Tensors gradients = copy_gradients(*entire);
    const auto parts = on_ranks<std::pair<Tensors, double>>(row.ranks, [&](int rank) {
      const auto group = everyone();
      auto layer = make(o, group);
      const int64_t first = std::accumulate(row.tokens.begin(), row.tokens.begin() + rank, int64_t(0));
      const int64_t n = row.tokens[size_t(rank)];
      const Variable x(data.narrow(0, first, n).clone(), true);
      const Variable y = (*layer)(x);
      // Bytes by the formula of docs/moe.md: rows to the experts of other ranks and back, and a count for each expert.
      // Measured on a layer without the all-reduce of f_e.
      int64_t to_others = 0;
      for (int64_t e = 0; e < row.experts; ++e)
        if (e / int64_t(layer->experts.size()) != rank) to_others += layer->routing.rows[size_t(e)];
      moe::MoeOptions plain = o;
      plain.balance_over_group = false;
      auto second = make(plain, group);
      const dist::Traffic start = group->traffic();
      const Variable again = (*second)(x);
      const dist::Traffic end = group->traffic();
      const int64_t counts = (row.ranks - 1) * int64_t(layer->experts.size()) * 8;
      // Rows of other ranks for experts of this rank.
      const int64_t arrived = (end.received - start.received - counts) / (width * 8) - to_others;
      CHECK(end.sent - start.sent == counts + (to_others + arrived) * width * 8);
      CHECK(equal(again.tensor(), y.tensor()));
      add(sum(mul(y, grad.narrow(0, first, n))),
          mul_scalar(layer->aux_loss, double(n) / double(std::max<int64_t>(total, 1))))
          .backward();
      CHECK(group->traffic().sent - end.sent == (to_others + arrived) * width * 8);
      CHECK(max_difference(y.tensor(), expected.tensor().narrow(0, first, n)) < 1e-12);
      CHECK(max_difference(x.grad(), in.grad().narrow(0, first, n)) < 1e-12);
      Tensors mine = copy_gradients(*layer);
      CHECK(mine.size() == layer->parameters().size());  // includes experts without tokens
      for (auto& [name, g] : mine)
        if (name.starts_with("experts")) CHECK(max_difference(g, gradients.at(name)) < 1e-12);
      return std::pair(mine, layer->aux_loss.item() * double(n) / double(std::max<int64_t>(total, 1)));
    });
    Tensor gate = zeros({row.experts, width}, {.dtype = f64});
    double aux = 0;
    for (const auto& [mine, loss] : parts) {
      gate = add(gate, mine.at("gate"));
      aux += loss;
    }
    // With f_e over the group, the ranks' losses add up to the loss of all tokens.
    CHECK(max_difference(gate, gradients.at("gate")) < 1e-12);
    CHECK(aux == doctest::Approx(total > 0 ? entire->aux_loss.item() : 0).epsilon(1e-12));
  }
}

TEST_CASE(
    "capacity is of each rank: over ranks the same tokens are dropped as in one process that takes one rank's tokens "
    "after the other's") {
  for (const moe::Drop drop : {moe::Drop::position, moe::Drop::probability, moe::Drop::random}) {
    const moe::MoeOptions o{.experts = 4, .top_k = 2, .capacity_factor = 0.6, .min_capacity = 1, .drop = drop};
    manual_seed(6);
    const Tensor data = randn({16, width}, {.dtype = f64});
    on_ranks(4, [&](int rank) {
      auto here = make(o), shared = make(o, everyone());
      const Variable x = data.narrow(0, 4 * rank, 4);
      set_random_step(0, uint64_t(rank));
      const Tensor expected = (*here)(x).tensor();
      set_random_step(0, uint64_t(rank));
      CHECK(max_difference((*shared)(x).tensor(), expected) < 1e-12);
      CHECK(shared->routing.token == here->routing.token);
      CHECK(shared->routing.dropped() > 0);
      for (const int64_t rows : shared->routing.rows) CHECK(rows <= 2);  // ceil(4 / 4 * 0.6 * 2)
    });
  }
}

TEST_CASE("the losses equal the papers' formulas") {
  auto layer = make({.experts = 4, .top_k = 1, .drop_tokens = false, .balance_coef = 1, .z_coef = 0});
  layer->measure = true;
  manual_seed(2);
  const Tensor x = randn({10, width}, {.dtype = f64});
  (*layer)(x);
  const Tensor logits = matmul(x, layer->gate.tensor().t()), p = softmax(logits, -1);
  double balance = 0, z = 0;
  for (int64_t e = 0; e < 4; ++e)
    balance += 4 * mean(p.narrow(1, e, 1)).item() * double(layer->routing.chosen[size_t(e)]) / 10;
  for (int64_t t = 0; t < 10; ++t) z += std::pow(logsumexp(logits[t], {0}).item(), 2) / 10;
  CHECK(layer->balance == doctest::Approx(balance));
  CHECK(layer->z == doctest::Approx(z));
  CHECK(layer->aux_loss.item() == doctest::Approx(balance));
  // With equal logits, balance is 1 whatever is chosen, and z = log(E)².
  layer->gate.tensor().fill_(0);
  (*layer)(x);
  CHECK(layer->balance == doctest::Approx(1));
  CHECK(layer->z == doctest::Approx(std::pow(std::log(4.0), 2)));
  auto three = make({.experts = 4, .top_k = 3, .balance_coef = 1});  // all top_k choices count
  three->gate.tensor().fill_(0);
  (*three)(x);
  CHECK(three->aux_loss.item() == doctest::Approx(1));
}

TEST_CASE("noise: while training only, the same for the same seed, another for another micro-batch") {
  struct Row {
    const char* name;
    moe::MoeOptions o;
    bool second = false;
  };
  for (const Row& row : {Row{"jitter", {.experts = 4, .top_k = 1, .drop_tokens = false, .noise = moe::Noise::jitter}},
                         Row{"rsample", {.experts = 4, .top_k = 1, .drop_tokens = false, .noise = moe::Noise::rsample}},
                         Row{"random drops", {.experts = 4, .top_k = 1, .capacity_factor = 0.3, .min_capacity = 1}},
                         Row{"second expert", {.experts = 4, .top_k = 2, .drop_tokens = false}, true}}) {
    CAPTURE(row.name);
    auto layer = make(row.o);
    layer->o.second_expert_sampling = row.second;
    manual_seed(9);
    const Tensor x = randn({32, width}, {.dtype = f64});
    const auto run = [&](uint64_t micro) {
      set_random_step(5, micro);
      return (*layer)(x).tensor();
    };
    CHECK(equal(run(0), run(0)));
    CHECK(!equal(run(0), run(1)));
    layer->eval();
    CHECK(equal(run(0), run(1)));
    for (const int64_t n : layer->routing.chosen) CHECK(n >= 0);
  }
  // The second expert always differs from the first.
  auto layer = make({.experts = 3, .top_k = 2, .drop_tokens = false});
  layer->o.second_expert_sampling = true;
  (*layer)(randn({200, width}, {.dtype = f64}));
  std::vector<int64_t> last_expert(200, -1);
  for (size_t e = 0, at = 0; e < 3; ++e) {
    for (int64_t i = 0; i < layer->routing.rows[e]; ++i, ++at) {
      CHECK(last_expert[size_t(layer->routing.token[at])] != int64_t(e));
      last_expert[size_t(layer->routing.token[at])] = int64_t(e);
    }
  }
}

TEST_CASE("dtypes, autocast, other experts, and a token that every expert refuses") {
  manual_seed(3);
  const Tensor x = randn({2, 5, width}, {.dtype = f64});
  auto exact = make({.experts = 4, .top_k = 2, .drop_tokens = false});
  const Tensor expected = (*exact)(x).tensor();
  CHECK(expected.shape() == x.shape());
  auto low = make({.experts = 4, .top_k = 2, .drop_tokens = false}, nullptr, bf16);
  CHECK(max_difference((*low)(x.to(bf16)).tensor(), expected) < 0.1);
  auto single = make({.experts = 4, .top_k = 2, .drop_tokens = false}, nullptr, f32);
  {
    const Autocast scope(bf16);
    const Variable y = (*single)(x.to(f32));
    CHECK(y.dtype() == f32);
    CHECK(max_difference(y.tensor(), expected) < 0.1);
  }
  int made = 0;
  moe::MoeOptions own{.width = width, .experts = 3, .make = [&](int64_t) {
                        ++made;
                        return std::make_unique<nn::Linear>(nn::Linear::Options{.in = width, .out = width});
                      }};
  moe::MoeLayer lines(own);
  CHECK(made == 3);
  CHECK(lines(x.to(f32)).shape() == x.shape());
  own.make = [](int64_t) { return std::make_unique<nn::Linear>(nn::Linear::Options{.in = width, .out = 2}); };
  moe::MoeLayer wrong(own);
  CHECK_ERROR(wrong(x.to(f32)), "expected expert 0 to give (N, 6) with N =");
  // An expert's initial values do not depend on which other experts exist.
  on_ranks(2, [&](int rank) {
    manual_seed(1);
    moe::MoeLayer all({.width = width, .experts = 4});
    manual_seed(1);
    moe::MoeLayer half({.width = width, .experts = 4}, everyone());
    CHECK(
        equal(half.experts[1]->parameters()[0].tensor(), all.experts[size_t(2 * rank + 1)]->parameters()[0].tensor()));
    CHECK(equal(half.gate.tensor(), all.gate.tensor()));
  });
  auto full = make({.experts = 2, .top_k = 1, .capacity_factor = 0.01, .min_capacity = 0, .drop = moe::Drop::position});
  const Tensor y = (*full)(x).tensor().reshape({10, width});
  CHECK(full->routing.dropped() == 8);  // each expert has room for one token
  int zero_rows = 0;
  for (int64_t t = 0; t < 10; ++t) zero_rows += max(abs(y[t])).item() == 0;
  CHECK(zero_rows == 8);
}

TEST_CASE("a layer of experts rejects invalid options and inputs") {
  using moe::MoeLayer;
  CHECK_ERROR(MoeLayer({.width = 4, .experts = 2, .top_k = 3}), "top_k from 1 to the 2 experts, got 3");
  CHECK_ERROR(MoeLayer({.width = 4, .experts = 0}), "width and experts > 0, got 4 and 0");
  CHECK_ERROR(MoeLayer({.width = 4, .experts = 2, .capacity_factor = 0}), "capacity factors > 0");
  CHECK_ERROR(MoeLayer({.width = 4, .experts = 2, .z_coef = NAN}), "finite balance_coef and z_coef");
  CHECK_ERROR(MoeLayer({.width = 4, .experts = 2, .make = [](int64_t) { return nullptr; }}),
              "make() to give expert 0, got none");
  const auto one_fails = [](int rank) {
    MoeLayer shared({.width = 4, .experts = 2}, everyone());
    if (rank == 1) fail("oh no");  // rank 0 waits for rank 1's counts
    shared(ones({3, 4}));
  };
  CHECK_ERROR(dist::spawn(2, one_fails), "oh no");
  MoeLayer layer({.width = 4, .experts = 2});
  CHECK_ERROR(layer(zeros({3, 5})), "expected input (..., 4), got (3, 5)");
  CHECK_ERROR(dist::spawn(2, [](int) { MoeLayer odd({.width = 4, .experts = 3}, everyone()); }),
              "a number of experts divisible by the 2 ranks of the group, got 3");
}
