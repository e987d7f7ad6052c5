// Every operation: its gradients, f16 and bf16, autocast; and it stays on its device, with the same bits as on cpu:0.
#include <doctest/doctest.h>

#include "autograd/autocast.h"
#include "extensions/operations/operations.h"
#include "tests/autograd/device_rows.h"
#include "tests/autograd/op_rows.h"
#include "tests/autograd/sixteen_bits.h"

using namespace ::testing;

namespace {

const std::vector<Row> rows = {
    OP(nll_loss(log_softmax(x[0], 1), on(places))),
    OP(l1_loss(x[0], x[1])),
    OP(smooth_l1_loss(x[0], x[1])),
    OP(huber_loss(x[0], x[1])),
    OP(bce_with_logits(x[0], x[1], on(ones({6})), on(ones({6})))),
    OP(kl_div(log_softmax(x[0], 1), x[1])),
    OP(flip(x[0], {0, 1})),
    OP(roll(x[0], {2}, {1})),
    OP(repeat(x[0], {2, 1})),
    OP(prod(x[0], {1})),
    OP(cumsum(x[0], 1)),
    OP(cumprod(x[0], 1)),
    OP(fmod(x[0], x[1])),
    OP(einsum("ij,kj->ik", Inputs{x[0], x[1]})),
    OP(einsum("ij,kl->i", Inputs{x[0], x[1]})),
    OP(einsum("...i,ji->...j", Inputs{x[3], x[0]})),
};

}  // namespace

TEST_CASE("rare operations stay on their device and keep their bits") { check_devices(rows); }

TEST_CASE("rare operations have the gradient of differences") {
  manual_seed(3);
  const Tensor classes = integers({1, 4, -100, 0}, {4}), spatial = integers({1, 0, 2, -100, 1, 1}, {2, 3});
  const Tensor weights = sampled({5}, 0.5, 1.5).tensor();
  const std::vector<OpRow> rows = {
      OP_ROW(nll_loss(log_softmax(x[0], 1), classes, {.weight = weights}), {4, 5}),
      OP_ROW(nll_loss(x[0], spatial, {.reduction = Reduction::none}), {2, 5, 3}),
      OP_ROW(l1_loss(x[0], x[1]), {3, 4}, {3, 4}),
      OP_ROW(smooth_l1_loss(x[0], x[1], 0.8), {3, 4}, {3, 4}),
      OP_ROW(huber_loss(x[0], x[1], 0.7), {3, 4}, {3, 4}),
      OP_ROW(bce_with_logits(x[0], x[1], weights, weights), {3, 5}, {3, 5}),
      {"kl_div", {{3, 5}, {3, 5}}, [](const Inputs& x) { return kl_div(x[0], x[1], KlReduction::batchmean); }, 0.1, 1},
      OP_ROW(kl_div(x[0], x[1], KlReduction::mean, true), {3, 5}, {3, 5}),
      OP_ROW(einsum("bhqd,bhkd->bhqk", x), {2, 3, 4, 5}, {2, 3, 6, 5}),
      OP_ROW(einsum("ij,kj->i", x), {3, 4}, {5, 4}),
      OP_ROW(einsum("ij, jk", x), {3, 4}, {4, 2}),
      OP_ROW(einsum("ab,bc,ca->ac", x), {3, 4}, {4, 2}, {2, 3}),
      OP_ROW(einsum("ii->", x), {4, 4}),
      OP_ROW(einsum("iji,j->i", x), {3, 4, 3}, {4}),
      OP_ROW(einsum("ij,k->i", x), {3, 4}, {5}),
      OP_ROW(einsum("...i,...ij->j...", x), {2, 1, 3}, {4, 3, 2}),
      OP_ROW(einsum("...i,i->i", x), {2, 3}, {3}),
      OP_ROW(einsum("...ii", x), {2, 3, 3}),
      OP_ROW(einsum("ij,jk->ik", x), {3, 1}, {4, 2}),
      OP_ROW(einsum("ij,jk->ijk", x), {1, 4}, {1, 2}),
      {"fmod", {{2, 3}, {3}}, [](const Inputs& x) { return fmod(x[0], x[1]); }, 0.3, 0.55},
      OP_ROW(flip(x[0], {0, 2}), {2, 3, 4}),
      OP_ROW(roll(x[0], {1, -2}, {0, 2}), {2, 3, 4}),
      OP_ROW(repeat(x[0], {2, 3, 1, 2}), {2, 1, 3}),
      OP_ROW(prod(x[0], {0, 2}), {3, 4, 5}),
      OP_ROW(prod(x[0]), {2, 1, 3}),
      OP_ROW(prod(x[0]), {}),
      OP_ROW(cumsum(x[0], 1), {3, 5, 2}),
      OP_ROW(cumprod(x[0], 1), {3, 5, 2}),
  };
  for (const OpRow& row : rows) check_row(row);
}

TEST_CASE("rare operations in f16 and bf16 are computed wide and rounded once") {
  check_sixteen_bits({
      {"l1_loss", [](const Inputs& x) { return l1_loss(half_of(x[0], true), half_of(x[0], false)); }},
      {"smooth_l1_loss",
       [](const Inputs& x) { return smooth_l1_loss(half_of(x[0], true), half_of(x[0], false), 0.01); }},
      {"huber_loss", [](const Inputs& x) { return huber_loss(half_of(x[0], true), half_of(x[0], false), 0.5); }},
      {"huber_loss none",
       [](const Inputs& x) { return huber_loss(half_of(x[0], true), half_of(x[0], false), 40, Reduction::none); }},
      {"bce_with_logits", [](const Inputs& x) { return bce_with_logits(half_of(x[0], true), x[2], {}, {}); }},
      {"kl_div", [](const Inputs& x) { return kl_div(half_of(x[0], true), x[2]); }},
      {"kl_div log", [](const Inputs& x) { return kl_div(half_of(x[0], true), x[3], KlReduction::sum, true); }},
      {"nll_loss", [](const Inputs& x) { return nll_loss(x[0], labels()); }},
      {"prod", [](const Inputs& x) { return prod(x[0].narrow(1, 0, 3), {1}); }},
      {"cumsum", [](const Inputs& x) { return cumsum(x[0], 1); }},
      {"cumprod", [](const Inputs& x) { return cumprod(x[0].narrow(1, 0, 3), 1); }},
  });
}

TEST_CASE("autocast: einsum is low, running sums and products are f32") {
  const Variable x(randn({4, 8})), w(randn({6, 8}), true), half(ones({2, 3}, {.dtype = bf16}));
  for (const DType dtype : {bf16, f16}) {
    const Autocast scope(dtype);
    CHECK(einsum("ij,kj->ik", std::vector<Variable>{x, w}).dtype() == dtype);
    CHECK(cumsum(half, 0).dtype() == f32);
    CHECK(prod(half).dtype() == f32);
  }
}

TEST_CASE("autocast: losses promote to the widest operand") {
  struct LossRow {
    std::string name;
    std::function<Variable(const Variable&, const Variable&)> fn;
  };
  const std::vector<LossRow> rows{
      {"l1_loss", [](const Variable& a, const Variable& b) { return l1_loss(a, b); }},
      {"smooth_l1_loss", [](const Variable& a, const Variable& b) { return smooth_l1_loss(a, b); }},
      {"huber_loss", [](const Variable& a, const Variable& b) { return huber_loss(a, b); }},
      {"bce_with_logits", [](const Variable& a, const Variable& b) { return bce_with_logits(a, b); }},
      {"kl_div", [](const Variable& a, const Variable& b) { return kl_div(a, b); }},
  };
  const Tensor left = add_scalar(rand({3, 3}), 0.5), right = add_scalar(rand({3, 3}), 0.5);
  const Autocast scope(bf16);
  for (const LossRow& row : rows) {
    for (const auto& [first, second] : {std::pair(f16, f32), {f32, bf16}, {f16, bf16}, {bf16, f64}, {f64, f32}}) {
      INFO("name ", row.name, ", first ", first, ", second ", second);
      const Variable a(left.to(first), true), b(right.to(second), true), y = row.fn(a, b);
      CHECK(y.dtype() == Autocast::wider(first, second));
      CHECK(
          allclose(y.tensor().to(f64), row.fn(left.to(first).to(f64), right.to(second).to(f64)).tensor(), 1e-5, 1e-6));
      y.backward();
      CHECK(a.grad().dtype() == first);
    }
  }
}
