// A checkpointed piece that changes state (buffers, counters) changes it once, however it is written: the recomputation
// starts from the state that the first forward saw.
#include <doctest/doctest.h>

#include "autograd/activation_checkpoint.h"
#include "autograd/ops.h"
#include "autograd/split_backward.h"
#include "tensor/graph.h"

using namespace lockstep;

namespace {

/// One operation that writes to a kept tensor in place.
struct Writer {
  const char* name;
  std::function<void(const Tensor& state, const Tensor& x)> write;
};
#define WRITER(...)                                                                      \
  {                                                                                      \
#__VA_ARGS__, [](const Tensor& s, [[maybe_unused]] const Tensor& x) { __VA_ARGS__; } \
  }
const std::vector<Writer> writers = {
    WRITER(add_scalar_(s, 1)),
    WRITER(mul_scalar_(s, 1.5)),
    WRITER(add_(s, x)),
    WRITER(add_(s, x, 0.5)),
    WRITER(mul_(s, x)),
    WRITER(s.copy_(lerp(s, x, 0.1))),
    WRITER(s.narrow(0, 1, 1).copy_(sum(add(s, x), {0}, true))),
    WRITER(s.fill_(s.select(0, 0).select(0, 0).item() + 1)),
    WRITER(s.select(0, 0).zero_()),
    WRITER(masked_fill_(s, gt(add(s, x), zeros_like(s)), 3)),
    WRITER(index_add_(s, 0, Tensor::from<int64_t>({1}, {1}), x.narrow(0, 0, 1))),
    WRITER(scatter_add_(s, 0, zeros({1, 4}, {.dtype = i64}), x.narrow(0, 0, 1))),
    WRITER(uniform_(s, -1, 1)),
    WRITER(normal_(s.t(), 0, 1)),
    WRITER(matmul_into(s, x, ones({4, 4}), true)),
    WRITER(add_scalar_(s, 1), s.copy_(lerp(s, x, 0.1)), add_(s, x)),
};

using Outcome = std::vector<Tensor>;

/// Gradients, state and random numbers after three steps; `way` runs the piece.
template <class Way> Outcome run(const Writer& writer, Way way) {
  manual_seed(11);
  const Tensor state = randn({4, 4});
  const Variable w(randn({4, 4}), true);
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    const Variable x(randn({4, 4}), true);
    const std::function<Variable(const Variable&)> piece = [&](const Variable& in) {
      const Variable before = Variable(state.clone());  // the value before the write is read as well
      writer.write(state, in.tensor());
      return tanh(linear(mul(add(in, before), Variable(state)), w));  // the tape saves the state itself
    };
    const Variable loss = sum(square(way(piece, x)));
    loss.backward();
    for (const Tensor& one : {loss.tensor(), x.grad(), w.grad(), state}) outcome.push_back(one.clone());
    outcome.push_back(rand({2}));
  }
  return outcome;
}

void check_same_outcome(const Outcome& a, const Outcome& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(equal(a[i], b[i]));
  }
}

}  // namespace

TEST_CASE("state that a checkpointed piece changes in place is bit-identical to the plain run, nested too") {
  using Fn = std::function<Variable(const Variable&)>;
  for (const Writer& writer : writers) {
    CAPTURE(writer.name);
    const Outcome plain = run(writer, [](const Fn& fn, const Variable& x) { return fn(x); });
    check_same_outcome(plain, run(writer, [](const Fn& fn, const Variable& x) { return checkpoint(fn, x); }));
    check_same_outcome(plain, run(writer, [](const Fn& fn, const Variable& x) {
                         return checkpoint([&fn](const Variable& in) { return checkpoint(fn, in); }, x);
                       }));
  }
}

TEST_CASE("checkpoints in flight together, a graph that is kept, and a backward in two parts change state once") {
  const Tensor state = zeros({2});
  const Variable w(ones({2}), true);
  const auto piece = [&](const Variable& in) {
    add_scalar_(state, 1);
    return mul(mul(in, w), Variable(state.clone()));
  };
  std::vector<Variable> inputs, outputs;
  for (int i = 0; i < 3; ++i) {
    inputs.emplace_back(ones({2}), true);
    outputs.push_back(sum(checkpoint(piece, inputs.back())));
  }
  CHECK(equal(state, full({2}, 3)));
  outputs[2].backward({}, true);  // each backward restores the state that its own forward saw, also when repeated
  outputs[2].backward();
  outputs[0].backward();
  SplitBackward halves(outputs[1], {inputs[1]});
  CHECK(equal(state, full({2}, 3)));
  halves.finish();
  CHECK(equal(state, full({2}, 3)));
  CHECK(equal(inputs[0].grad(), full({2}, 1)));
  CHECK(equal(inputs[1].grad(), full({2}, 2)));
  CHECK(equal(inputs[2].grad(), full({2}, 6)));
  CHECK(equal(w.grad(), full({2}, 1 + 2 + 6)));
}

TEST_CASE("a second run that fails, or no run at all, leaves state as it was; others' saved tensors stay valid") {
  const Tensor state = full({2}, 5);
  int runs = 0;
  const auto piece = [&](const Variable& in) {
    add_scalar_(state, 1);
    LOCKSTEP_CHECK(++runs != 2, "the second run");
    return mul(in, Variable(state.clone()));
  };
  const Variable x(ones({2}), true);
  const Variable y = sum(checkpoint(piece, x));
  const Variable reader = sum(mul(Variable(ones({2}), true), Variable(state)));  // saves the state itself
  CHECK_THROWS_AS(y.backward(), Error);
  CHECK(equal(state, full({2}, 6)));
  reader.backward();  // restored to the version that was saved
  add_scalar_(state, 1);
  CHECK(equal(state, full({2}, 7)));
  { const Variable dropped = checkpoint(piece, x); }
  CHECK(equal(state, full({2}, 8)));
  const NoGrad no_grad;
  checkpoint(piece, x);
  CHECK(equal(state, full({2}, 9)));
}

TEST_CASE("functions with state outside tensors can ask is_recomputing()") {
  int counted = 0, runs = 0;
  const auto piece = [&](const Variable& in) {
    ++runs;
    if (!is_recomputing()) ++counted;
    return square(in);
  };
  const Variable x(ones({2}), true);
  sum(checkpoint([&](const Variable& in) { return checkpoint(piece, in); }, x)).backward();
  CHECK(counted == 1);
  CHECK(runs == 3);
  CHECK_FALSE(is_recomputing());
}

TEST_CASE("a checkpoint keeps no copy of tensors that its own function creates and overwrites") {
  const auto bytes = [] { return memory_report().category[int(Memory::activation)].peak; };
  const Variable x(ones({1 << 16}), true);
  reset_peak_memory();
  const int64_t before = bytes();
  const Variable y = sum(checkpoint(
      [](const Variable& in) {
        const Tensor own = in.tensor().clone();
        for (int i = 0; i < 4; ++i) add_scalar_(own, 1);
        return mul(in, Variable(own));
      },
      x));
  CHECK(bytes() - before < 8 << 16);  // Only the result is allocated; a copy of `own` would double that.
  y.backward();
}
