// Tensor-parallel operations and layers against unsharded ones, in f64: values, every gradient, bytes, errors on all
// ranks.
#include <doctest/doctest.h>

#include <cmath>

#include "dist/shard.h"
#include "nn/container.h"
#include "parallel/tensor_parallel/apply.h"
#include "parallel/tensor_parallel/linear.h"
#include "parallel/tensor_parallel/vocabulary.h"
#include "tensor/ops.h"
#include "tests/parallel/tensor_parallel/util.h"

using namespace lockstep;
using namespace testing;
namespace tp = lockstep::tensor_parallel;

TEST_CASE("bytes sent in forward and backward, along any dim") {
  for (const int n : worlds) {
    on_ranks(n, [n](dist::ProcessGroup& g) {
      const int rank = g.rank();
      for (const int64_t dim : {0, 1, 2, -2}) {
        Shape small{2, 3, 1}, large = small;
        large[dim < 0 ? 1 : int(dim)] *= n;
        using List = std::vector<Tensor>;
        const auto of_ranks = [&](int number, const Shape& shape) {
          List list;
          for (int r = 0; r < n; ++r) list.push_back(values(uint64_t(number + r), shape));
          return list;
        };
        const auto sum_of = [&](const List& list) { return sum(stack(list), {0}); };
        const auto sum_of_parts = [&](List list) {
          for (Tensor& x : list) x = part(x, dim, n, rank);
          return sum_of(list);
        };
        const auto check = [&](const char* name, const Tensor& in, const Tensor& expected, const Tensor& grad,
                               const std::function<Variable(const Variable&)>& fn) {
          const Variable v = leaf(in);
          const Variable out = fn(v);
          expect_near(out.tensor(), expected, str(name, " dim ", dim));
          out.backward(values(uint64_t(100 + rank), expected.shape()));
          expect_near(v.grad(), grad, str("gradient of ", name, " dim ", dim));
          const NoGrad no_grad;
          expect_near(fn(in).tensor(), expected, name);
        };
        const List inputs = of_ranks(0, small), full_inputs = of_ranks(0, large), ups = of_ranks(100, small),
                   full_ups = of_ranks(100, large);
        const Tensor mine = inputs[size_t(rank)], full = full_inputs[size_t(rank)], up = ups[size_t(rank)],
                     part_of_up = part(full_ups[size_t(rank)], dim, n, rank), joined = cat(inputs, dim);
        check("copy_to", mine, mine, sum_of(ups), [&](auto& v) { return tp::copy_to(v, g); });
        check("reduce_from", mine, sum_of(inputs), up, [&](auto& v) { return tp::reduce_from(v, g); });
        check("scatter_to", full_inputs[0], part(full_inputs[0], dim, n, rank), cat(ups, dim),
              [&](auto& v) { return tp::scatter_to(v, dim, g); });
        check("gather_from", mine, joined, part_of_up, [&](auto& v) { return tp::gather_from(v, dim, g); });
        check("all_gather", mine, joined, sum_of_parts(full_ups), [&](auto& v) { return tp::all_gather(v, dim, g); });
        check("reduce_scatter", full, sum_of_parts(full_inputs), cat(ups, dim),
              [&](auto& v) { return tp::reduce_scatter(v, dim, g); });
      }
      if (n == 1) return;
      for (const auto& fn : {tp::scatter_to, tp::reduce_scatter})
        CHECK_ERROR(fn(values(1, {2, int64_t(n) + 1}), 1, g),
                    str("expected a size that ", n, " ranks divide along dim 1, got (2, ", n + 1, ")"));
      const Tensor nothing = empty({0, int64_t(n)}, {.dtype = f64});
      LOCKSTEP_CHECK(tp::scatter_to(nothing, 1, g).shape() == Shape({0, 1}) &&
                         tp::all_gather(nothing, 1, g).shape() == Shape({0, n * n}),
                     "empty tensors");
    });
  }
}

namespace {

constexpr Activation activations[] = {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf,
                                      Activation::silu};

}  // namespace

TEST_CASE("column and row: values and gradients of nn::Linear") {
  constexpr int64_t in = 48, out = 24, batch = 2, tokens = 24;
  const Tensor x = values(1, {batch, tokens, in}), w = values(2, {out, in}), b = values(3, {out}),
               up = values(4, {batch, tokens, out});
  for (const Activation activation : activations) {
    for (const bool with_bias : {true, false}) {
      const Variable rx = leaf(x), rw = leaf(w), rb = with_bias ? leaf(b) : Variable();
      const Variable reference = linear(rx, rw, rb, activation);
      reference.backward(up);
      for (const int n : worlds) {
        if (activation != Activation::gelu_tanh && n != 3) continue;
        on_ranks(n, [&](dist::ProcessGroup& g) {
          const int rank = g.rank();
          for (const bool sequence : {false, true}) {
            // true: gather the output of columns, take the input of rows whole; with overlap
            for (const bool other : {false, true}) {
              const std::string what =
                  str("n ", n, " activation ", int(activation), sequence ? " sequence" : "", other ? " other" : "");
              {
                const Variable px = leaf(sequence ? part(x, 1, n, rank) : x), pw = leaf(part(w, 0, n, rank)),
                               pb = with_bias ? leaf(part(b, 0, n, rank)) : Variable();
                const Variable y = tp::column_linear(
                    px, pw, pb, activation, {.gather_output = other, .sequence = sequence, .overlap = other}, g);
                expect_near(y.tensor(), other ? reference.tensor() : part(reference.tensor(), 2, n, rank),
                            "column " + what);
                y.backward(other ? up : part(up, 2, n, rank).contiguous());
                expect_near(px.grad(), sequence ? part(rx.grad(), 1, n, rank) : rx.grad(), "column x " + what);
                expect_near(pw.grad(), part(rw.grad(), 0, n, rank), "column w " + what);
                if (with_bias) expect_near(pb.grad(), part(rb.grad(), 0, n, rank), "column bias " + what);
              }
              const bool entire = other && !sequence;
              const Variable px = leaf(entire ? x : part(x, 2, n, rank)), pw = leaf(part(w, 1, n, rank)),
                             pb = with_bias ? leaf(b) : Variable();
              const Variable y =
                  tp::row_linear(px, pw, pb, activation, {.input_is_parallel = !entire, .sequence = sequence}, g);
              expect_near(y.tensor(), sequence ? part(reference.tensor(), 1, n, rank) : reference.tensor(),
                          "row " + what);
              y.backward(sequence ? part(up, 1, n, rank).contiguous() : up);
              expect_near(px.grad(), entire ? rx.grad() : part(rx.grad(), 2, n, rank), "row x " + what);
              expect_near(pw.grad(), part(rw.grad(), 1, n, rank), "row w " + what);
              if (with_bias) expect_near(pb.grad(), rb.grad(), "row bias " + what);
            }
          }
        });
      }
    }
  }
}

TEST_CASE("inputs that need no gradient get none") {
  on_ranks(4, [](dist::ProcessGroup& g) {
    const Variable x = leaf(values(1, {2, 4, 6})), w(values(2, {2, 6}), false), frozen_x(values(1, {2, 4, 6}), false),
                   w2 = leaf(values(2, {2, 6}));
    const dist::Traffic before = g.traffic();
    tp::column_linear(frozen_x, w2, {}, Activation::none, {}, g).backward(values(3, {2, 4, 2}));
    LOCKSTEP_CHECK(g.traffic().collectives == before.collectives && w2.grad().defined(), "a sum that nobody asked for");
    tp::column_linear(x, w, {}, Activation::none, {}, g).backward(values(3, {2, 4, 2}));
    LOCKSTEP_CHECK(x.grad().defined() && g.traffic().collectives == before.collectives + 1,
                   "gradient of a layer with a frozen weight");
  });
}

TEST_CASE("slices of layers start as the ones that are not cut") {
  const auto make = [] {
    return nn::Sequential(nn::Embedding({.num = 7, .dim = 6}), nn::Linear({.in = 6, .out = 12}),
                          nn::Linear({.in = 12, .out = 6}));
  };
  const tp::TensorParallelOptions options{
      .rules = {{"0", nn::cut::rows_of_vocabulary}, {"1", nn::cut::columns}, {"2", nn::cut::rows}}};
  for (const int n : {1, 2, 3}) {
    on_ranks(n, [&](dist::ProcessGroup& g) {
      const int rank = g.rank();
      manual_seed(3);
      nn::Sequential entire = make();
      manual_seed(rank == 0 ? 3 : 1003);  // only rank 0's initial values matter
      nn::Sequential cut = make();
      const auto sharded = tp::apply(cut, g, options);
      LOCKSTEP_CHECK(sharded.shards().size() == 4, "slices");
      const dist::Range mine = dist::shard_range(7, n, rank);
      const std::vector<Variable> all = entire.parameters(), own = cut.parameters();
      LOCKSTEP_CHECK(equal(own[0].tensor(), all[0].tensor().narrow(0, mine.begin, mine.size())), "embedding");
      LOCKSTEP_CHECK(equal(own[1].tensor(), part(all[1].tensor(), 0, n, rank)) &&
                         equal(own[2].tensor(), part(all[2].tensor(), 0, n, rank)),
                     "column");
      LOCKSTEP_CHECK(
          equal(own[3].tensor(), part(all[3].tensor(), 1, n, rank)) && equal(own[4].tensor(), all[4].tensor()), "row");
      const Tensor tokens = ids(1, {2, 5}, 7);
      expect_near(cut.call(tokens).tensor(), entire.call(tokens).tensor(), "all of them", 1e-5);
      if (n == 1) return;
      CHECK_ERROR(tp::column_linear(values(1, {2, 5, 7}), values(2, {4, 6}), {}, Activation::none, {}, g),
                  "[column_linear] expected x (..., 6), got (2, 5, 7)");
    });
  }
}

TEST_CASE("a vocabulary of any size: rows and cross entropy") {
  constexpr int64_t dim = 3;
  for (const int n : worlds) {
    for (const int64_t vocab : {1, 2, 7, 16, 29}) {
      const Tensor table = values(1, {vocab, dim}), index = ids(2, {3, 4}, vocab),
                   logits = mul_scalar(values(3, {3, 4, vocab}), 5), up = values(4, {3, 4, dim});
      const Tensor targets = ids(5, {3, 4}, vocab);
      const Variable rt = leaf(table);
      const Variable reference = embedding(rt, index);
      reference.backward(up);
      on_ranks(n, [&](dist::ProcessGroup& g) {
        const dist::Range mine = dist::shard_range(vocab, n, g.rank());
        const auto own = [&](const Tensor& x, int64_t d) { return x.narrow(d, mine.begin, mine.size()); };
        const std::string what = str("n ", n, " vocab ", vocab);
        const Variable pt = leaf(own(table, 0));
        const Variable rows = tp::vocab_parallel_embedding(pt, index, vocab, g);
        // each row is a sum with zeros, so it is exact
        LOCKSTEP_CHECK(equal(rows.tensor(), reference.tensor()), "rows ", what);
        rows.backward(up);
        expect_near(pt.grad(), own(rt.grad(), 0), "gradient of the table " + what);
        if (n > 1 || vocab == 7)
          CHECK_ERROR(tp::vocab_parallel_embedding(pt, full({2}, double(vocab), {.dtype = i64}), vocab, g),
                      n > 1 ? str("expected ids in [0, ", vocab, ")") : "[embedding]");

        for (const auto& [ignore, reduction] : {std::pair(int64_t(-100), Reduction::mean),
                                                {-100, Reduction::none},
                                                {0, Reduction::mean},
                                                {vocab - 1, Reduction::sum},
                                                {-1, Reduction::mean}}) {
          const Tensor aims = targets.clone();
          if (ignore < 0) aims.narrow(0, 1, 1).fill_(double(ignore));
          if (vocab == 1 && ignore >= 0) continue;  // all targets would be ignored: tested below
          const Variable rl = leaf(logits), pl = leaf(own(logits, 2));
          const Variable loss =
              cross_entropy(rl.view({12, vocab}), aims.view({12}), {.ignore_index = ignore, .reduction = reduction});
          const Variable sharded =
              tp::vocab_parallel_cross_entropy(pl, aims, vocab, g, {.ignore_index = ignore, .reduction = reduction});
          const Tensor seed = values(6, sharded.shape());
          expect_near(sharded.tensor(), loss.tensor().view(sharded.shape()), "loss " + what);
          loss.backward(seed.view(loss.shape()));
          sharded.backward(seed);
          expect_near(pl.grad(), own(rl.grad(), 2), str("gradient of the logits ", what, " ignoring ", ignore));
        }
        const Tensor none =
            tp::vocab_parallel_cross_entropy(own(logits, 2), full({3, 4}, -100, {.dtype = i64}), vocab, g).tensor();
        LOCKSTEP_CHECK(std::isnan(none.item()), "the mean of nothing, as cross_entropy() has it");
        if (n == 1) return;
        CHECK_ERROR(
            tp::vocab_parallel_cross_entropy(own(logits, 2), full({3, 4}, double(vocab), {.dtype = i64}), vocab, g),
            str("expected ids in [0, ", vocab, ")"));
        CHECK_ERROR(tp::vocab_parallel_cross_entropy(logits, targets, vocab * n + n, g), "ids that rank");
        CHECK_ERROR(tp::vocab_parallel_cross_entropy(own(logits, 2), targets.view({12}), vocab, g),
                    "expected targets i64 (3, 4)");
      });
    }
  }
}

TEST_CASE("cross entropy of large logits, and of 16 bits, stays as exact as the whole one") {
  for (const DType dtype : {f32, f16}) {
    const Tensor logits = mul_scalar(values(3, {6, 10}), 30).to(dtype), targets = ids(1, {6}, 10);
    const Variable rl = leaf(logits);
    const Variable loss = cross_entropy(rl, targets);
    loss.backward();
    on_ranks(3, [&](dist::ProcessGroup& g) {
      const dist::Range mine = dist::shard_range(10, 3, g.rank());
      const Variable pl = leaf(logits.narrow(1, mine.begin, mine.size()));
      const Variable sharded = tp::vocab_parallel_cross_entropy(pl, targets, 10, g);
      LOCKSTEP_CHECK(sharded.dtype() == f32, "the loss is f32");
      expect_near(sharded.tensor(), loss.tensor(), "loss", 1e-5 * std::max(1.0, loss.item()));
      sharded.backward();
      expect_near(pl.grad(), rl.grad().narrow(1, mine.begin, mine.size()), "gradient", dtype == f32 ? 2e-6 : 1e-3);
    });
  }
}
