// Products in chunks: the bits and gradients of whole products for any number of rows and ranks; and the number of
// chunks.
#include <doctest/doctest.h>

#include "autograd/activation_checkpoint.h"
#include "autograd/autocast.h"
#include "autograd/split_backward.h"
#include "parallel/tensor_parallel/apply.h"
#include "parallel/tensor_parallel/linear.h"
#include "parallel/tensor_parallel/overlap.h"
#include "tensor/ops.h"
#include "tests/parallel/tensor_parallel/util.h"

using namespace lockstep;
using namespace testing;
namespace tp = lockstep::tensor_parallel;

namespace {

constexpr int64_t in = 24, outputs = 48;

struct Layers {
  bool sequence;
  bool overlap = true;
  int64_t chunks = 0;
  bool frozen = false;  // true: freezes the weights
};

/// The output and all gradients of activation(x W^T + b), column-parallel, and row-parallel with and without gelu in
/// front.
std::vector<Tensor> results(const Layers& setup, const Shape& rows, DType dtype, Activation activation,
                            dist::ProcessGroup& g) {
  const int n = g.size(), rank = g.rank();
  const auto shape = [&](int64_t width, bool part) {
    Shape s = rows;
    s.push_back(width);
    if (part) s[s.rank() - 2] /= n;
    return s;
  };
  const auto own = [&](uint64_t number, const Shape& s) { return leaf(values(number + uint64_t(rank), s, dtype)); };
  std::vector<Tensor> all;
  const auto take = [&](const Variable& y, const std::vector<Variable>& leaves) {
    y.backward(values(99, y.shape(), dtype));
    all.push_back(y.tensor());
    for (const Variable& v : leaves)
      if (v.requires_grad()) all.push_back(v.grad());
  };
  const auto weight = [&](uint64_t number, const Shape& s) {
    const Variable w = own(number, s);
    return setup.frozen ? Variable(w.tensor()) : w;
  };
  {
    const Variable x = setup.sequence ? own(10, shape(in, true)) : leaf(values(10, shape(in, false), dtype)),
                   w = weight(20, {outputs / n, in}), b = weight(30, {outputs / n});
    take(tp::column_linear(x, w, b, activation,
                           {.sequence = setup.sequence, .overlap = setup.overlap, .chunks = setup.chunks}, g),
         {x, w, b});
  }
  const Variable before = own(40, shape(in / n, false)), plain = own(45, shape(in / n, false)),
                 w = weight(50, {outputs, in / n}), b = leaf(values(60, {outputs}, dtype));
  for (const bool folds : {true, false}) {  // true: gelu's derivative is fused into the product's backward
    const Variable x = folds ? gelu_tanh(before) : plain;
    take(tp::row_linear(x, w, b, activation,
                        {.sequence = setup.sequence, .overlap = setup.overlap, .chunks = setup.chunks}, g),
         {folds ? before : plain, w, b});
  }
  return all;
}

/// Bit for bit on the CPU; elsewhere a library's rounding depends on the size of a product.
void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b, const std::string& what) {
  LOCKSTEP_CHECK(a.size() == b.size(), what, ": ", a.size(), " and ", b.size(), " results");
  for (size_t i = 0; i < a.size(); ++i) {
    LOCKSTEP_CHECK(a[i].defined() && b[i].defined(), what, ": result ", i, " is missing");
    const double tolerance = size_of(a[i].dtype()) == 2 ? 2e-2 : 1e-4;
    LOCKSTEP_CHECK(a[i].device().is_cpu() ? equal(a[i], b[i]) : allclose(a[i], b[i], tolerance, tolerance), what,
                   ": result ", i, " differs");
  }
}

}  // namespace

TEST_CASE("products in chunks are bit-identical to whole ones: rows, ranks, dtypes, activations") {
  for (const int n : worlds) {
    on_ranks(n, [n](dist::ProcessGroup& g) {
      for (const bool sequence : {false, true}) {
        const std::vector<Shape> full{{0}, {1}, {7}, {2, 3}, {0, 5}},
            parts{{1, n}, {1, 5 * n}, {2, 3 * n}, {5, n}, {0, n}, {2 * n}, {3, 1, 2 * n}};
        for (const Shape& rows : sequence ? parts : full) {
          for (const DType dtype : {f32, f64, f16, bf16}) {
            for (const bool frozen : {false, true}) {
              const Activation activation = frozen ? Activation::gelu_tanh : Activation::relu;
              const auto expected = results({sequence, false, 0, frozen}, rows, dtype, activation, g);
              for (const int64_t chunks : {0, 2, 3, 64})
                expect_equal(results({sequence, true, chunks, frozen}, rows, dtype, activation, g), expected,
                             str(n, " ranks, rows ", rows, sequence ? " in parts" : "", frozen ? " frozen" : "", ", ",
                                 dtype, ", chunks ", chunks));
            }
          }
        }
      }
    });
  }
}

TEST_CASE("products in chunks over shared memory and sockets") {
  for (const char* transport : {"shm", "tcp"}) {
    dist::spawn(3,
                [](int) {
                  dist::ProcessGroup& g = dist::world();
                  for (const bool sequence : {false, true}) {
                    const auto run = [&](bool overlap) {
                      return results({sequence, overlap, 4}, {5, 300}, f32, Activation::gelu_erf, g);
                    };
                    expect_equal(run(true), run(false), sequence ? "in parts" : "whole");
                  }
                },
                {.transport = transport, .timeout = dist::Seconds(60)});
  }
}

TEST_CASE("products in chunks: autocast, recomputation, and a backward in two parts") {
  on_ranks(2, [](dist::ProcessGroup& g) {
    for (const int way : {0, 1, 2, 3}) {
      const bool sequence = way % 2, autocast = way / 2;
      std::vector<Tensor> expected;
      int64_t calls = 0;
      for (const int kind : {0, 1, 2, 3}) {  // whole; in chunks; recomputed in backward; with the backward in two parts
        const Autocast scope(bf16, autocast);
        const Variable x = leaf(values(1, {1, sequence ? 10 : 20, in}, f32)),
                       up = leaf(values(uint64_t(2 + g.rank()), {outputs / 2, in}, f32)),
                       down = leaf(values(uint64_t(4 + g.rank()), {in, outputs / 2}, f32));
        const auto mlp = [&](const Variable& v) {
          const Variable h =
              tp::column_linear(v, up, {}, Activation::silu, {.sequence = sequence, .chunks = kind == 0 ? 1 : 3}, g);
          return tp::row_linear(h, down, {}, Activation::none, {.sequence = sequence, .chunks = kind == 0 ? 1 : 3}, g);
        };
        const Variable y = kind == 2 ? checkpoint(mlp, x) : mlp(x);
        const Variable loss = sum(mul(y.to(f32), values(9, y.shape(), f32)));
        const int64_t before = g.traffic().collectives;
        if (kind == 3) {
          SplitBackward split(loss, {x});
          LOCKSTEP_CHECK(x.grad().defined() && !up.grad().defined(), "x first");
          split.finish();
          // A gathered gradient serves both parts. (With autocast the casts of weights gather theirs in the first
          // part.)
          const int64_t made = g.traffic().collectives - before;
          LOCKSTEP_CHECK(autocast || made == (sequence ? 3 + 3 + 1 : 3), "collectives of both parts: ", made);
        } else {
          loss.backward();
        }
        if (kind == 1) calls = g.traffic().collectives - before;
        const std::vector<Tensor> found{y.tensor(), x.grad(), up.grad(), down.grad()};
        if (kind == 0) expected = found;
        else expect_equal(found, expected, str("kind ", kind, sequence ? " in parts" : "", autocast ? ", bf16" : ""));
      }
      LOCKSTEP_CHECK(calls == (sequence ? 3 + 1 + 1 : 1), "collectives of a backward: ", calls);
    }
  });
}

TEST_CASE("a model in chunks learns with the same bits, and ranks must agree on how many") {
  on_ranks(2, [](dist::ProcessGroup& g) {
    std::vector<Tensor> found[2];
    for (const bool chunks : {false, true}) {
      for (const bool sequence : {false, true}) {
        manual_seed(3);
        nn::GPT model({.vocab = 19, .context = 8, .layers = 2, .width = 16, .heads = 4, .dropout = 0.1});
        const auto cut = tp::apply(model, g, {.sequence = sequence, .chunks = chunks ? 3 : 1});
        set_random_step(1);
        const int64_t before = g.traffic().collectives;
        const Variable loss = model.loss(ids(1, {4, 8}, 19), ids(2, {4, 8}, 19));
        const int64_t made = g.traffic().collectives - before;
        LOCKSTEP_CHECK(!chunks || made > 2 * 2 * 3, "one product a layer, of ", made, " collectives");
        loss.backward();
        found[chunks].push_back(loss.tensor());
        for (const Variable& p : model.parameters()) found[chunks].push_back(p.grad());
      }
    }
    expect_equal(found[1], found[0], "a model");
    nn::GPT model({.vocab = 19, .context = 8, .layers = 1, .width = 16, .heads = 4});
    CHECK_ERROR(tp::apply(model, g, {.chunks = 1 + g.rank()}), "chunks 1");
    CHECK_ERROR(tp::apply(model, g, {.chunks = -1}), "[tensor_parallel] expected chunks >= 0 (0: automatic), got -1");
    const Tensor x = values(1, {2, 7, in}), w = values(2, {outputs, in});
    CHECK_ERROR(tp::row_linear(x, w, {}, Activation::none, {.sequence = true}, g),
                "expected a size that 2 ranks divide along dim -2, got (2, 7, 24)");
  });
}

TEST_CASE("number and content of chunks") {
  on_ranks(2, [](dist::ProcessGroup& g) {
    const Device cuda{Device::Type::cuda, 0};
    for (const auto& [shape, sequence, asked, device, count, apart] :
         {std::tuple{Shape{1 << 20, 8}, false, 0, cpu, 1, false},
          {{1 << 20, 8}, false, 0, cuda, 4, false},
          {{2047, 8}, false, 0, cuda, 1, false},
          {{2048, 8}, false, 0, cuda, 2, false},
          {{8, 1024, 8}, true, 0, cuda, 4, false},
          {{1, 8192, 8}, true, 0, cuda, 4, true},
          {{2, 8192, 8}, true, 0, cuda, 2, false},
          {{3, 8}, false, 5, cpu, 3, false},
          {{1, 6, 8}, true, 5, cuda, 3, true},
          {{1, 2, 8}, true, 5, cuda, 1, false},
          {{0, 8}, false, 5, cuda, 1, false},
          {{0, 2, 8}, true, 5, cuda, 1, false},
          {{8}, false, 5, cpu, 1, false}}) {
      const tp::Chunks chunks(shape, sequence, asked, device, g);
      LOCKSTEP_CHECK(chunks.count() == count && chunks.apart() == apart, shape, " asked ", asked, ": ", chunks.count());
    }
    // Chunks cover every row once, and rank r's rows of the whole tensor are those of its own part.
    for (const Shape& shape : {Shape{1, 10, 3}, Shape{5, 4, 3}}) {
      const Tensor full = arange(numel_of(shape)).view(shape), mine = part(full, 1, 2, g.rank()).contiguous();
      const tp::Chunks chunks(shape, true, 4, cpu, g);
      int64_t rows = 0;
      for (int64_t i = 0; i < chunks.count(); ++i) {
        const Tensor all = chunks.of_full(full, i), own = chunks.of_part(mine, i);
        const Tensor here = chunks.apart() ? all.narrow(0, g.rank(), 1) : part(all, 1, 2, g.rank());
        LOCKSTEP_CHECK(own.is_contiguous() && equal(here.contiguous(), own), "chunk ", i, " of ", shape);
        rows += all.numel() / 3;
      }
      LOCKSTEP_CHECK(rows == numel_of(shape) / 3, shape, ": ", rows, " rows");
    }
  });
}
