// Activation checkpointing gives the same bits as the plain run; autocast gives the dtypes of its lists.
#include <doctest/doctest.h>

#include <string>

#include "autograd/activation_checkpoint.h"
#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

struct Block {
  Variable w1{randn({16, 8}), true}, w2{randn({8, 16}), true}, scale{ones({8}), true};

  Variable operator()(const Variable& x) const {
    return x + dropout(linear(dropout(linear(layer_norm(x, {8}, scale), w1, {}, Activation::gelu_tanh), 0.2), w2), 0.3);
  }
  std::vector<Variable> parameters() const { return {w1, w2, scale}; }
};

/// Loss and gradients of x and all parameters.
template <class Forward> std::vector<Tensor> run(const Variable& x, const std::vector<Block>& blocks, Forward forward) {
  manual_seed(7);
  std::vector<Variable> leaves{x};
  for (const Block& block : blocks)
    for (const Variable& p : block.parameters()) leaves.push_back(p);
  for (Variable& leaf : leaves) leaf.clear_grad();
  const Variable loss = sum(square(forward(x)));
  std::vector<Tensor> results{loss.tensor()};
  loss.backward();
  for (const Variable& leaf : leaves) results.push_back(leaf.grad().clone());
  results.push_back(rand({4}));  // the generator must have advanced as in the plain run
  return results;
}

void check_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(equal(a[i], b[i]));
}

}  // namespace

TEST_CASE("a checkpointed model gives the same bits, dropout included") {
  manual_seed(1);
  const std::vector<Block> blocks(3);
  const Variable x(randn({5, 8}), true);
  const auto plain = run(x, blocks, [&](Variable h) {
    for (const Block& b : blocks) h = b(h);
    return h;
  });
  check_same(plain, run(x, blocks, [&](Variable h) {
               for (const Block& b : blocks) h = checkpoint(b, h);
               return h;
             }));
  // Nested: the outer piece checkpoints pieces of its own.
  const auto inner = [&](const Variable& h) { return checkpoint(blocks[1], h); };
  const auto outer = [&](const Variable& h) { return blocks[2](checkpoint(inner, checkpoint(blocks[0], h))); };
  check_same(plain, run(x, blocks, [&](const Variable& h) { return checkpoint(outer, h); }));
}

TEST_CASE("checkpointing under autocast, with shared weights and several inputs") {
  manual_seed(2);
  const std::vector<Block> blocks(1);
  const Variable x(randn({5, 8}), true);
  const Block& b = blocks[0];
  const auto plain = run(x, blocks, [&](const Variable& h) {
    const Autocast scope(bf16);
    const Variable g = h * 2.0;
    return b(b(h)) * g;
  });
  check_same(plain, run(x, blocks, [&](const Variable& h) {
               const Autocast scope(bf16);
               // autocast has already cached the cast of w1: the checkpoint must still find w1
               linear(h.detach(), b.w1);
               return checkpoint([&](const std::vector<Variable>& in) { return b(b(in[0])) * in[1]; }, {h, h * 2.0});
             }));
}

TEST_CASE("a checkpoint reads variables of the outer tape that are no inputs") {
  const Variable x(arange(3).to(f32), true), w(full({3}, 2), true);
  const auto gradients = [&](bool checkpointed) {
    const Variable hidden = x * w, again = hidden * hidden;  // two outputs of the outer tape, used differently
    const auto piece = [&](const Variable& h) { return h * hidden + w * again; };
    const auto nested = [&](const Variable& h) {
      return checkpoint([&](const Variable& z) { return checkpoint(piece, z) * hidden; }, h);
    };
    const Variable y = checkpointed ? nested(x) : piece(x) * hidden;
    Variable(x).clear_grad(), Variable(w).clear_grad();
    sum(y + hidden + again).backward();
    return std::vector<Tensor>{y.tensor(), x.grad().clone(), w.grad().clone()};
  };
  check_same(gradients(false), gradients(true));
}

TEST_CASE("hooks of parameters run once per pass, with the gradient of the recomputation") {
  const Variable x(randn({5, 8}), true);
  const std::vector<Block> blocks(2);
  int hook_calls = 0;
  Variable w = blocks[1].w1;
  const int id = w.on_grad([&](const Tensor& grad) { return ++hook_calls, mul_scalar(grad, 3); });
  const auto forward = [&](bool again) {
    return [&blocks, again](Variable y) {
      for (const Block& block : blocks) y = again ? checkpoint(block, y) : block(y);
      return y;
    };
  };
  const auto plain = run(x, blocks, forward(false));
  CHECK(hook_calls == 1);
  check_same(run(x, blocks, forward(true)), plain);
  CHECK(hook_calls == 2);
  w.remove_hook(id);
}

TEST_CASE("checkpoint: a recomputation that differs from the forward is an Error") {
  const Variable x(ones({3}), true);
  int calls = 0;
  const Variable changing = checkpoint([&](const Variable& h) { return ++calls == 1 ? h * 2.0 : sum(h); }, x);
  CHECK_ERROR_BEGINS(sum(changing).backward(), "[checkpoint] the second run returned () f32, the first (3");
  const Variable hidden = x * 3.0;
  calls = 0;
  const Variable captured = checkpoint([&](const Variable& h) { return ++calls == 1 ? h * 2.0 : h * hidden; }, x);
  CHECK_ERROR_BEGINS(sum(captured).backward(), "[checkpoint] the second run of fn also read an output of");
  const NoGrad scope;
  CHECK(!checkpoint([](const Variable& h) { return h * 2.0; }, x).requires_grad());
}

TEST_CASE("autocast: matrix work in 16 bits, sensitive work in f32, gradients in the leaf's dtype") {
  manual_seed(3);
  const Variable x(randn({4, 8})), w(randn({6, 8}), true), scale(ones({6}), true);
  const Tensor labels = Tensor::from<int64_t>({0, 1, 2, 5}, {4});
  const Variable plain = cross_entropy(layer_norm(linear(x, w), {6}, scale), labels);
  plain.backward();
  const Tensor expected = w.grad();
  w.grad() = {};
  for (DType dtype : {bf16, f16}) {
    CAPTURE(dtype);
    const Autocast scope(dtype);
    const Variable y = linear(x, w), low = y;
    CHECK(y.dtype() == dtype);
    CHECK(matmul(x, w.t()).dtype() == dtype);
    CHECK(addmm(scale, x, w.t()).dtype() == dtype);
    CHECK(relu(low).dtype() == dtype);
    for (const Variable& high :
         {exp(low), log(low), pow_scalar(low, 2), sum(low), mean(low), softmax(low, 1), log_softmax(low, 1),
          layer_norm(low, {6}, scale), mse_loss(low, low), low + scale, where(lt(low, low), low, scale),
          cat(std::vector<Variable>{low, x.narrow(1, 0, 6)}, 0), norm(low), logsumexp(low, {1})})
      CHECK(high.dtype() == f32);
    const Variable loss = cross_entropy(layer_norm(y, {6}, scale), labels);
    CHECK(loss.dtype() == f32);
    CHECK(loss.item() == doctest::Approx(plain.item()).epsilon(0.05));
    loss.backward();
    CHECK(w.grad().dtype() == f32);
    CHECK(allclose(w.grad(), expected, 0.1, 0.05));
    w.grad() = {};
    // A second forward and backward in the same scope: a cast whose node was freed is recorded again.
    sum(linear(x, w)).backward();
    CHECK(w.grad().defined());
    w.grad() = {};
    {
      const NoGrad none;
      linear(x, w);
    }
    CHECK(linear(x, w).requires_grad());
    {
      const Autocast off(dtype, false);
      CHECK(linear(x, w).dtype() == f32);
    }
    CHECK(linear(x, w).dtype() == dtype);
  }
  CHECK(linear(x, w).dtype() == f32);
  CHECK_ERROR_IS(linear(x, w) + linear(x, w).to(bf16),
                 "[add] expected operands of one dtype, got f32 and bf16; convert with .to(dtype)");
  CHECK(message([] { Autocast scope(f32); }) == "[autocast] expected bf16 or f16, got f32");
}

TEST_CASE(
    "checkpoint_many: several outputs, of which some are not used, are numbers, or are what fn read: the same bits") {
  std::vector<Tensor> gradients[2];
  for (const bool again : {false, true}) {
    manual_seed(3);
    Variable x(randn({4, 5}), true), y(randn({4, 5}), true), w(randn({5, 5}), true);
    const auto fn = [&w](const std::vector<Variable>& in) {
      const Variable h = matmul(in[0], w);
      return std::vector<Variable>{tanh(h), in[1], Variable(argmax(h.tensor(), -1)), sum(mul(h, h)), w};
    };
    const auto out = again ? checkpoint_many(fn, {x, y}) : fn({x, y});
    CHECK(out.size() == 5);
    CHECK(out[2].dtype() == i64);
    add(add(sum(mul(out[0], out[1])), out[3]), sum(mul(out[4], out[4]))).backward();
    gradients[again] = {x.grad(), y.grad(), w.grad()};
  }
  check_same(gradients[0], gradients[1]);
}

TEST_CASE("autocast: every operation with several operands promotes to the widest") {
  struct Row {
    std::string name;
    std::function<Variable(const Variable&, const Variable&)> fn;
    bool compares = false;
  };
  const Tensor index = Tensor::from<int64_t>({1, 0, 2, 1, 2, 0}, {2, 3}).to(default_device());
  const auto both = [](const Variable& a, const Variable& b) { return std::vector<Variable>{a, b}; };
  std::vector<Row> rows{
#define LOCKSTEP_BINARY(name, functor, types) {#name, [](const Variable& a, const Variable& b) { return name(a, b); }},
#define LOCKSTEP_COMPARE(name, functor) {#name, [](const Variable& a, const Variable& b) { return name(a, b); }, true},
#include "tensor/pointwise.def"
      {"where", [](const Variable& a, const Variable& b) { return where(gt(a, b), a, b); }},
      {"addcmul", [](const Variable& a, const Variable& b) { return addcmul(a, b, a); }},
      {"addcmul a", [](const Variable& a, const Variable& b) { return addcmul(a, a, b); }},
      {"lerp", [](const Variable& a, const Variable& b) { return lerp(a, b, 0.3); }},
      {"cat", [&](const Variable& a, const Variable& b) { return cat(both(a, b)); }},
      {"stack", [&](const Variable& a, const Variable& b) { return stack(both(a, b)); }},
      {"scatter", [&](const Variable& a, const Variable& b) { return scatter(a, 0, index.narrow(0, 0, 1), b); }},
      {"scatter_add", [&](const Variable& a, const Variable& b) { return scatter_add(a, 0, index, b); }},
      {"mse_loss", [](const Variable& a, const Variable& b) { return mse_loss(a, b); }},
  };
  manual_seed(4);
  const Tensor left = add_scalar(rand({3, 3}), 0.5), right = add_scalar(rand({3, 3}), 0.5);
  const Autocast scope(bf16);
  for (const Row& row : rows) {
    for (const auto& [first, second] : {std::pair(f16, f32), {f32, bf16}, {f16, bf16}, {bf16, f64}, {f64, f32}}) {
      INFO("name ", row.name, ", first ", first, ", second ", second);
      if (row.name.starts_with("logical")) continue;  // logical operations return bool
      const Variable a(left.to(first), true), b(right.to(second), true);
      const DType wide = Autocast::wider(first, second);
      const Variable y = row.fn(a, b);
      CHECK(y.dtype() == (row.compares ? boolean : wide));
      CHECK(allclose(y.tensor().to(f64), row.fn(left.to(first).to(f64), right.to(second).to(f64)).tensor().to(f64),
                     1e-5, 1e-6));
      if (row.compares) continue;
      y.backward(ones_like(y.tensor()));
      CHECK(a.grad().dtype() == first);
    }
  }
  Variable sum = Variable(left.clone());
  add_(sum, Variable(right.to(bf16)));
  CHECK(sum.dtype() == f32);
}
