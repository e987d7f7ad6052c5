// SplitBackward: a backward in two parts gives the same bits as one.
#include <doctest/doctest.h>

#include "autograd/activation_checkpoint.h"
#include "autograd/ops.h"
#include "autograd/split_backward.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

/// Layers of all kinds; w[0] is used twice.
Variable body(const Variable& x, const std::vector<Variable>& w, bool recompute) {
  const auto piece = [&](const Variable& in) { return gelu(linear(layer_norm(in, {8}, w[2], w[3]), w[0], w[1])); };
  const Variable y = recompute ? checkpoint(piece, x) : piece(x);
  const Variable z = add(mul(linear(linear(y, w[0], w[1], Activation::gelu_erf), w[0], w[1], Activation::relu), y),
                         w[4]);  // broadcast
  return mean(mul(softmax(z, -1), z));
}

std::vector<Variable> weights() {
  std::vector<Variable> w;
  manual_seed(3);
  for (const Shape& shape : {Shape{8, 8}, Shape{8}, Shape{8}, Shape{8}, Shape{8}}) w.emplace_back(randn(shape), true);
  return w;
}

}  // namespace

TEST_CASE("split backward: bit-identical to one backward, for inputs at once and weights later") {
  for (const bool recompute : {false, true}) {
    const auto full = weights(), parts = weights();
    const Tensor data = randn({5, 8});
    const Variable x(data, true), y(data, true);
    body(x, full, recompute).backward();
    {
      const Variable root = body(y, parts, recompute);
      SplitBackward split(root, {y});
      CHECK(equal(x.grad(), y.grad()));
      for (const Variable& w : parts) CHECK(!w.grad().defined());
      split.finish();
    }
    for (size_t i = 0; i < full.size(); ++i) CHECK(equal(full[i].grad(), parts[i].grad()));
    // A second backward: it accumulates into existing gradients, and the gradient of the output comes from another
    // graph and is added first.
    body(x, full, recompute).backward();
    SplitBackward again(body(y, parts, recompute), {y});
    again.finish();
    for (size_t i = 0; i < full.size(); ++i) CHECK(equal(full[i].grad(), parts[i].grad()));
  }
}

TEST_CASE("split backward: an activation inside linear() is differentiated once") {
  const auto w = weights();
  const Variable out = linear(Variable(randn({5, 8}), true), w[0], w[1], Activation::silu);
  const Ref<Node> after = out.impl()->node;  // needs no weights, so none of its work is deferred
  CHECK(std::string(after->name()) == "activation");
  REQUIRE(after->inputs().size() == 1);
  CHECK(std::string(after->inputs()[0].node->name()) == "linear");
}

TEST_CASE("split backward: gradients from elsewhere, several roots, and nothing to do") {
  Variable table(ones({3, 2}), true), shared(ones({3, 2}), true);
  const Tensor index = Tensor::from(std::vector<int64_t>{0, 2, 2}, {3}), before = mul_scalar(ones({3, 2}), 0.3);
  {  // the order of a single process: first the head, then the embedding rows
    const Variable embedded = embedding(table, index);
    joined({embedded, table}, {ones({3, 2}), before.clone()}).backward();
  }
  SplitBackward split(joined({embedding(shared, index)}, {ones({3, 2})}), {});
  CHECK(!shared.grad().defined());
  std::vector<std::pair<Variable, Tensor>> first{{shared, before.clone()}};
  split.finish(std::move(first));
  CHECK(equal(table.grad(), shared.grad()));
  const Variable x(ones({2}), true);
  SplitBackward none(sum(mul(x, x)), {x});
  none.finish();
  CHECK(x.grad().to_vector<float>() == std::vector<float>{2, 2});
  joined({}, {}).backward();
  CHECK_ERROR(SplitBackward(sum(Variable(ones({2}))), {}), "this value does not require grad");
  CHECK_ERROR(SplitBackward(sum(x), {sum(x)}), "expected leaves");
}
