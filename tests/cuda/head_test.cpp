// The output layer of a language model on the device: for any vocabulary its products are aligned, nothing copies its
// scores, and they are processed at once if the device has room for them.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "autograd/tape.h"
#include "nn/linear.h"
#include "tensor/memory.h"
#include "tensor/padded.h"
#include "tensor/random.h"
#include "tensor/stream.h"
#include "tests/cuda/device.h"
#include "tests/cudasim/fake.h"

using namespace lockstep;

namespace {

constexpr int64_t tokens = 8, width = 16;

using Counts = std::map<int64_t, int64_t>;

/// A head on both devices, with input and targets.
struct Heads {
  Heads(int64_t vocab, DType dtype, int64_t rows = tokens) {
    manual_seed(uint64_t(vocab));
    for (nn::Head* head : {&here, &there}) *head = nn::Head({.num = vocab, .dim = width});
    there.load_state(here.state());
    here.to(dtype), there.to(dtype).to(cuda0);
    const Tensor values = randn({rows, width}).to(dtype);
    target = randint(0, vocab, {rows}, {.dtype = i64, .device = cpu}), target_there = target.to(cuda0);
    x = Variable(values, true), x_there = Variable(values.to(cuda0), true);
  }
  nn::Head here{{.num = 1, .dim = width}}, there{{.num = 1, .dim = width}};
  Tensor target, target_there;
  Variable x, x_there;
};

/// The loss and the gradients of input and table, on the CPU.
std::vector<Tensor> three(const Variable& loss, const Variable& x, nn::Head& head) {
  const auto grads = grad(loss, {x, head.weight});
  return {loss.tensor().to(cpu), grads[0].tensor().to(cpu), grads[1].tensor().to(cpu)};
}

void check_close(const std::vector<Tensor>& got, const std::vector<Tensor>& expected, DType dtype) {
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    const Tensor wide = expected[i].to(f64);
    const double max_abs = std::max(max(abs(wide)).item(), 1e-3), off = max(abs(sub(got[i].to(f64), wide))).item();
    CHECK(off <= max_abs * (dtype == bf16 ? 2e-2 : 1e-5));
  }
}

}  // namespace

TEST_CASE("cuda head: products of any vocabulary are aligned, and nothing copies scores") {
  // Launches of each check() with a vocabulary that needs no padding; with others they are the same.
  std::map<std::pair<DType, int>, std::map<std::string, int64_t>> unpadded;
  for (const DType dtype : {bf16, f16, f32})
    for (const int64_t vocab : {64, 1, 63, 65, 1003, 32003, 50257, 128256}) {
      int unpadded_case = 0;
      if (vocab > 2000 && dtype != bf16) continue;  // the emulator takes its time
      CAPTURE(dtype);
      CAPTURE(vocab);
      Heads h(vocab, dtype);
      const std::vector<Tensor> expected = three(h.here(h.x, h.target), h.x, h.here);
      const auto check = [&](const std::vector<Tensor>& got, int64_t products) {
        CHECK(fake::take_alignments() == Counts{{16, products}});
        const auto launches = fake::take_launches();
        CHECK(launches == unpadded.emplace(std::pair(dtype, unpadded_case++), launches).first->second);
        if (!got.empty()) check_close(got, expected, dtype == f32 ? f32 : bf16);
      };
      synchronize(cuda0);
      fake::take_alignments(), fake::take_launches();

      check(three(h.there(h.x_there, h.target_there), h.x_there, h.there), 3);
      CHECK(h.there.weight.shape() == Shape{vocab, width});

      {  // as pipelines do
        Variable scores = h.there.scores(h.x_there);
        const Variable loss = h.there.loss(std::exchange(scores, {}), h.target_there);
        check(three(loss, h.x_there, h.there), 3);
      }
      const Variable scores = h.there.scores(h.x_there), loss = h.there.loss(scores, h.target_there);
      check(three(loss, h.x_there, h.there), 3);
      CHECK(has_full_rows(scores.tensor()));
      CHECK(scores.tensor().strides()[0] == padded_columns(vocab));

      const NoGrad no_grad;
      for (const int64_t rows : {int64_t(1), tokens}) {
        const Variable single = h.there(h.x_there.narrow(0, 0, rows).view({1, rows, width})),
                       plain = h.here(h.x.narrow(0, 0, rows).view({1, rows, width}));
        CHECK(single.shape() == Shape{1, rows, vocab});
        check({}, 1);
        check_close({single.tensor().to(cpu)}, {plain.tensor()}, dtype == f32 ? f32 : bf16);
        fake::take_launches(), fake::take_alignments();
      }
    }
}

TEST_CASE("cuda head: one chunk if scores take at most a sixteenth of the device's memory") {
  const int64_t before = memory_limit(cuda0), memory = memory_size(cuda0);
  REQUIRE(memory > 0);
  CHECK(linear_cross_entropy_rows(65, cuda0, bf16) == memory / 16 / (128 * 2) / 16 * 16);
  CHECK(linear_cross_entropy_rows(65, cuda0, f32) == memory / 16 / (128 * 4) / 16 * 16);
  CHECK(linear_cross_entropy_rows(int64_t(1) << 40, cuda0, bf16) == 512);

  constexpr int64_t rows = 2100;
  Heads h(65, bf16, rows);
  const std::vector<Tensor> expected = three(h.here(h.x, h.target), h.x, h.here);
  const auto products = [&] {
    synchronize(cuda0);
    fake::take_alignments(), fake::take_launches();
    check_close(three(h.there(h.x_there, h.target_there), h.x_there, h.there), expected, bf16);
    const auto launches = fake::take_launches();
    CHECK(launches.count("cross_entropy_grad") == 0);  // the forward makes the gradient, too
    CHECK(launches.at("cross_entropy") * 3 == launches.at("matmul"));
    return launches.at("matmul");
  };
  CHECK(products() == 3);
  set_memory_limit(cuda0, 4 << 20);
  CHECK(linear_cross_entropy_rows(65, cuda0, bf16) == 1024);
  CHECK(products() == 9);
  set_memory_limit(cuda0, before);
  h.there.rows_at_once = 1100;
  CHECK(products() == 6);
}
