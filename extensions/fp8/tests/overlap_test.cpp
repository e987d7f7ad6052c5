// Products in 8-bit floats that are computed in chunks have the same bits and gradients as whole products.
#include <doctest/doctest.h>

#include "autograd/activation_checkpoint.h"
#include "autograd/autocast.h"
#include "autograd/split_backward.h"
#include "extensions/fp8/linear.h"
#include "parallel/tensor_parallel/linear.h"
#include "tensor/ops.h"
#include "tests/parallel/tensor_parallel/util.h"

using namespace lockstep;
using namespace ::testing;
namespace tp = lockstep::tensor_parallel;

TEST_CASE(
    "8-bit floats: a column has the codes of the whole layer; its gradient is summed while the weight's is computed") {
  on_ranks(2, [](dist::ProcessGroup& g) {
    Fp8Scales scales;
    for (size_t i = 0; i < 3; ++i)
      scales.of[i] = {i == 2 ? Fp8Format::e5m2 : Fp8Format::e4m3, ones({1}), ones({1}), zeros({1})};
    const Autocast scope(bf16);
    const int rank = g.rank();
    const Tensor x = values(1, {2, 32, 32}, f32), w = values(2, {64, 32}, f32), b = values(3, {64}, f32),
                 up = values(4, {2, 32, 64}, bf16);
    const Variable rx = leaf(x), rw = leaf(w), rb = leaf(b);
    const Variable full = linear_fp8(rx, rw, rb, Activation::gelu_tanh, scales);
    full.backward(up);
    for (const bool sequence : {false, true}) {
      Tensor sums[2];
      for (const bool overlap : {false, true}) {
        const Variable px = leaf(sequence ? part(x, 1, 2, rank) : x), pw = leaf(part(w, 0, 2, rank)),
                       pb = leaf(part(b, 0, 2, rank));
        const int64_t before = g.traffic().collectives;
        const Variable y = tp::column_linear(px, pw, pb, Activation::gelu_tanh,
                                             {.sequence = sequence, .overlap = overlap}, g, &scales, true);
        LOCKSTEP_CHECK(equal(y.tensor(), part(full.tensor(), 2, 2, rank).contiguous()), "expected a part of y");
        y.backward(part(up, 2, 2, rank).contiguous());
        LOCKSTEP_CHECK(g.traffic().collectives - before == (sequence ? 2 : 1), "expected 2 collectives, or 1");
        LOCKSTEP_CHECK(equal(pw.grad(), part(rw.grad(), 0, 2, rank).contiguous()), "expected a part of rw's");
        LOCKSTEP_CHECK(equal(pb.grad(), part(rb.grad(), 0, 2, rank).contiguous()), "expected a part of rb's");
        expect_near(px.grad(), sequence ? part(rx.grad(), 1, 2, rank) : rx.grad(), "x's gradient", 0.2);
        sums[overlap] = px.grad();
      }
      LOCKSTEP_CHECK(equal(sums[0], sums[1]), "expected the same bits with overlap");
    }
  });
}

TEST_CASE("8-bit floats: chunks of a row have the bits, largest numbers and gradients of the whole") {
  on_ranks(2, [](dist::ProcessGroup& g) {
    const Autocast scope(bf16);
    const Tensor x = values(1, {4, 16, 64}, f32), w = values(2, {32, 64}, f32), up = values(4, {4, 16, 32}, bf16);
    for (const bool sequence : {false, true}) {
      for (const bool single : {false, true}) {  // with a single sequence, chunks are blocks of tokens
        std::vector<Tensor> expected;
        for (const auto& [chunks, way] : {std::pair{1, 0}, {2, 0}, {4, 0}, {64, 0}, {4, 1}, {4, 2}}) {
          Fp8Scales scales;
          for (size_t i = 0; i < 3; ++i)
            scales.of[i] = {i == 2 ? Fp8Format::e5m2 : Fp8Format::e4m3, ones({1}), ones({1}), zeros({1})};
          const Shape rows = single ? Shape{1, 64, 64} : Shape{4, 16, 64};
          const Variable px = leaf(part(x.view(rows), 2, 2, g.rank())), pw = leaf(part(w, 1, 2, g.rank()));
          const auto product = [&, chunks = chunks](const Variable& v) {
            return tp::row_linear(v, pw, {}, Activation::none, {.sequence = sequence, .chunks = chunks}, g, &scales,
                                  NoGrad::grad_enabled());
          };
          const int64_t before = g.traffic().collectives;
          const Variable y = way == 1 ? checkpoint(product, px) : product(px);
          const int64_t made = g.traffic().collectives - before;
          LOCKSTEP_CHECK(made == std::min(chunks, 4), "expected a sum per chunk of 16 rows, got ", made);
          const Tensor gradient = sequence ? part(up.view({rows[0], rows[1], 32}), 1, 2, g.rank()).contiguous()
                                           : up.view({rows[0], rows[1], 32});
          const Variable loss = sum(mul(y.to(f32), gradient.to(f32)));
          if (way == 2) {
            SplitBackward split(loss, {px});
            split.finish();
          } else {
            loss.backward();
          }
          std::vector<Tensor> found{y.tensor(), px.grad(), pw.grad()};
          for (const auto& of : scales.of) found.push_back(of.amax);
          if (expected.empty()) {
            expected = found;
            const auto rounded = [](const Tensor& t) {
              return read_fp8(cast_fp8(t, {.format = Fp8Format::e4m3, .scale = ones({1})}).codes, Fp8Format::e4m3);
            };
            const Tensor full = matmul(rounded(x.to(bf16).view({64, 64})), rounded(w).t()).view({rows[0], rows[1], 32});
            const double rounding = max(abs(full)).item() / 128;
            expect_near(y.tensor(), sequence ? part(full, 1, 2, g.rank()) : full, "the product", rounding);
            LOCKSTEP_CHECK(found[3].item() > 0 && found[4].item() > 0 && found[5].item() > 0, "expected numbers > 0");
          }
          for (size_t i = 0; i < found.size(); ++i)
            LOCKSTEP_CHECK(equal(found[i], expected[i]), "chunks ", chunks, ", way ", way, sequence ? ", in parts" : "",
                           single ? ", one sequence" : "", ": expected the bits of one chunk in ", i);
        }
      }
    }
  });
}
