// Bytes promised by ZeRO: the ledger of each rank against the paper's formulas, and traffic against 2 psi and 3 psi.
#include <doctest/doctest.h>

#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::ZeroOptions;

namespace {

/// Sizes that are not divisible by ranks or by blocks of norms.
struct Odd : nn::Layer<Odd> {
  nn::Linear a = linear(64, 509), b = linear(509, 211), c = linear(211, 64);
  Variable forward(const Variable& x) { return c(gelu(b(gelu(a(x))))); }
  void fields(nn::Fields& f) override { f("a", a)("b", b)("c", c); }
};

template <class Model> void backward(Model& model) {
  manual_seed(3);
  sum(square(model(randn({4, 64}).to(bf16)))).backward();
}

/// Makes a step of a bf16 model with AdamW; returns the bytes that this process holds for it afterwards.
template <class Model> Held measure(const ZeroOptions& options, int64_t& padding) {
  const Held before = held();
  Model model;
  model.to(bf16);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
  Zero zero(model, optimizer, options);
  for (const auto& unit : zero.units()) padding += unit.layout.padding();
  backward(model);
  zero.step();
  backward(model);  // now the gradients exist as well
  return held() - before;
}

}  // namespace

TEST_CASE(
    "zero: bytes of each rank are (2+2+K) psi, 4 psi + K psi / N, 2 psi + (2+K) psi / N and (4+K) psi / N, K = 12") {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const int stage : {0, 1, 2, 3}) {
      INFO(ranks, " ranks, stage ", stage);
      on_processes(ranks, [&](int) {
        int64_t padding = 0;
        const Held got = measure<Even>({.stage = stage, .param_persistence_threshold = 0}, padding);
        const zero::ModelState formula = zero::model_state(stage, double(psi), ranks);
        expect("padding", padding, 0);
        expect("parameters", got.parameters, formula.parameters);
        expect("gradients", got.gradients, formula.gradients);
        expect("optimizer", got.optimizer, formula.optimizer);
      });
    }
  }
}

TEST_CASE("zero: sizes that do not divide cost the padding that is stated, and no more") {
  for (const int ranks : {2, 3, 8}) {
    for (const int stage : {1, 2, 3}) {
      INFO(ranks, " ranks, stage ", stage);
      on_processes(ranks, [&](int) {
        int64_t padding = 0;
        const Held got = measure<Odd>({.stage = stage, .param_persistence_threshold = 0}, padding);
        const double odd = 64 * 509 + 509 + 509 * 211 + 211 + 211 * 64 + 64, flat = 2 * (odd + double(padding));
        LOCKSTEP_CHECK(padding > 0 && double(padding) < 0.6 * odd, "padding ", padding);
        expect("parameters", got.parameters, stage == 3 ? flat / ranks : flat);
        expect("gradients", got.gradients, stage >= 2 ? flat / ranks : flat);
        LOCKSTEP_CHECK(got.optimizer <= int64_t(6 * flat) / ranks, "optimizer ",
                       got.optimizer);  // state is held in pieces without padding
        const Tensor all = Tensor::from({double(got.optimizer)}, {1});
        dist::world().all_reduce(all);
        expect("optimizer of all ranks", int64_t(all.item()), 12 * odd);
      });
    }
  }
}

TEST_CASE("zero: a step moves 2 psi elements in stages 0 to 2 and 3 psi in stage 3, times (n-1)/n, and nothing else") {
  for (const int ranks : {2, 4, 8}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool overlap : {true, false}) {
        on_ranks(ranks, [&](int) {
          Even model;
          model.to(bf16);
          optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
          Zero zero(model, optimizer,
                    {.stage = stage,
                     .overlap_comm = overlap,
                     .nonfinite = zero::NonFinite::propagate,
                     .param_persistence_threshold = 0});
          for (int step = 0; step < 3; ++step) {  // in the first step, ranks also agree on an order
            const dist::Traffic before = dist::world().traffic();
            backward(model);
            zero.step();
            if (step > 0)
              expect("sent", dist::world().traffic().sent - before.sent,
                     (stage == 3 ? 3. : 2.) * psi * 2 * (ranks - 1) / ranks);
          }
        });
      }
    }
  }
}

TEST_CASE("zero 3: no more than one module and what is gathered ahead is whole; a model built empty never has more") {
  on_processes(2, [](int) {
    const int64_t before = held().parameters;
    reset_peak_memory();
    const auto peak = [&] { return held().peak - before; };
    Even model = built_empty<Even>();
    model.to(bf16);
    optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
    LOCKSTEP_CHECK(peak() == 0, "building: ", peak());
    Zero zero(model, optimizer, {.stage = 3, .prefetch_bucket_size = 0, .param_persistence_threshold = 0});
    expect("shards", held().parameters - before, psi);
    reset_peak_memory();
    for (int step = 0; step < 3; ++step) {
      backward(model);
      zero.step();
    }
    expect("peak", peak(), psi + 512 * 512 * 2);  // shards, and the largest module gathered
    expect("shards again", held().parameters - before, psi);
  });
}
