// Optimizers, schedules and scalers beyond the golden cases, which have their values (tests/golden).
#include <doctest/doctest.h>

#include <cmath>
#include <memory>

#include "autograd/ops.h"
#include "optim/loss_scaler.h"
#include "optim/optim.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "tests/messages.h"
#include "tests/optim/every_rule.h"

using namespace testing;

namespace {

const std::vector<Row> rules = {
    {"SGD", [](auto p) { return std::make_unique<SGD>(p, SGDOptions{.lr = 0.1, .momentum = 0.9}); }},
    {"Adam", [](auto p) { return std::make_unique<Adam>(p, AdamOptions{.lr = 0.05, .amsgrad = true}); }},
    {"AdamW", [](auto p) { return std::make_unique<AdamW>(p, AdamWOptions{.lr = 0.05}); }},
};

}  // namespace

TEST_CASE("every optimizer goes downhill, resumes with the same bits, and scales gradients") { check_rules(rules); }

TEST_CASE("parameters without a gradient, and frozen ones, stay") {
  Variable used = Variable(ones({2}), true), unused(ones({2}), true), frozen(ones({2}), true);
  SGD optimizer({used, unused, frozen}, {.lr = 1});
  sum(used * frozen).backward();
  frozen.requires_grad_(false);
  optimizer.step();
  CHECK(used.tensor()[0].item() == 0);
  CHECK(unused.tensor()[0].item() == 1);
  CHECK(frozen.tensor()[0].item() == 1);
  optimizer.zero_grad(true);
  CHECK(used.grad().defined());
  optimizer.zero_grad();
  CHECK(!used.grad().defined());
}

TEST_CASE("an average of the parameters, of their f32 copies where they have 16 bits") {
  for (const DType dtype : {f32, f64, bf16}) {
    Variable p(full({3}, 1, {.dtype = dtype}), true);
    optim::SGD sgd({p}, {.lr = 1});
    sgd.keep_average(0.75);
    double average = 0, value = 1;
    for (int step = 1; step <= 4; ++step) {
      p.grad() = full({3}, 0.125 * step, {.dtype = dtype});
      sgd.step();
      value -= 0.125 * step;
      average = step == 1 ? value : average + 0.25 * (value - average);
      const Tensor kept = sgd.state_of(p).tensors.at("ema");
      CHECK(kept.dtype() == (dtype == f64 ? f64 : f32));
      CHECK(kept.to(f64).to_vector<double>() == std::vector<double>(3, average));
    }
  }
  Variable p(ones({3}), true);
  optim::SGD sgd({p}, {.lr = 1});
  for (const double decay : {-0.1, 1., 2.}) CHECK_ERROR(sgd.keep_average(decay), "decay");
}

TEST_CASE("groups have options of their own, turned by name") {
  Variable a(ones({1}), true), b(ones({1}), true);
  AdamW optimizer({a}, {.lr = 1e-3});
  optimizer.add_group({b}, {.lr = 1e-2, .weight_decay = 0});
  CHECK(optimizer.group_count() == 2);
  CHECK(optimizer.get(1, "weight_decay") == 0);
  optimizer.set_lr(0.5);
  CHECK(optimizer.lr(1) == 0.5);
  CHECK_ERROR(optimizer.get(0, "momentun"), "got 'momentun'");
}

TEST_CASE("optimizers reject invalid parameters, options and states") {
  Variable w(ones({2, 2}), true);
  const auto bad_state = [&] {
    SGD a({w}, {.lr = 0.1, .momentum = 0.9});
    a.name_parameters({{"w", w}});
    w.grad() = ones({2, 2});
    a.step();
    OptimizerState state = a.state();
    state.tensors[0].second = zeros({3});
    a.load_state(state);
  };
  CHECK_ERROR(SGD({w * 2.0}, {.lr = 0.1}), "expected leaf variables");
  CHECK_ERROR(SGD({w}, {.lr = 1, .nesterov = true}), "nesterov needs momentum");
  CHECK_ERROR(Adam({w}, {.lr = 1, .beta1 = 1}), "expected beta1 in [0, 1)");
  CHECK_ERROR(bad_state(), "expected 'state.w.momentum_buffer' of shape (2, 2), got (3");
  CHECK_ERROR(SGD({w}, {.lr = 1}).name_parameters({}), "is not among the 0 names");
  CHECK_ERROR(clip_grad_norm({w}, -1), "expected max_norm >= 0");
  w.grad() = full({2, 2}, INFINITY);
  CHECK_ERROR(clip_grad_norm({w}, 1, 2, true), "the norm of the gradients is inf");
}

TEST_CASE("schedules refuse nonsense") {
  SGD sgd({Variable(ones({1}), true)}, {.lr = 1});
  CHECK_ERROR(WarmupLR(sgd, {.warmup_min_lr = std::vector<double>{1, 2}}), "or one for each of 1 groups, got 2");
  CHECK_ERROR(WarmupLR(sgd, {}).load_state({}), "expected 'step' in the saved state");
}

TEST_CASE("WarmupCosineLR has the rates of DeepSpeed 0.19.8, from its first step on") {
  const std::pair<WarmupCosineLR::Options, std::vector<double>> rows[] = {
      {{.total_num_steps = 12, .warmup_min_ratio = 0.1, .warmup_num_steps = 4, .warmup_type = Warmup::linear},
       {0, 0.003, 0.00975, 0.0165, 0.02325, 0.0288583072, 0.0256070411, 0.0207411775}},
      {{6, 0.1, 2, 0.2, Warmup::log}, {0, 0.003, 0.03, 0.0264852814, 0.018, 0.00951471863, 0.006, 0.006, 0.006}},
      {{5, 0.1, 7, 0.1, Warmup::linear},
       {0, 0.003, 0.00685714286, 0.0107142857, 0.0145714286, 0.0184285714, 0.0222857143, 0.0261428571, 0.003, 0.003}},
  };
  for (const auto& [options, rates] : rows) {
    SGD optimizer({Variable(ones({1}), true)}, {.lr = 0.03});
    WarmupCosineLR schedule(optimizer, options);
    for (const double rate : rates) {
      CHECK(optimizer.lr() == doctest::Approx(rate).epsilon(1e-7));
      schedule.step();
    }
  }
}

TEST_CASE("every user of a gradient rejects one whose shape, dtype or device differs from its parameter's") {
  for (const Tensor& wrong : {ones({2}), ones({4, 1}), ones({4}, {.dtype = f64}), ones({1})}) {
    check_gradient_like_parameter(rules, wrong);
    Variable w(ones({4}), true);
    w.grad() = wrong;
    SGD sgd({w}, {.lr = 1});
    GradScaler scaler{GradScaler::Options{}};
    const char* const refused = "expected a gradient like its parameter";
    CHECK_ERROR(clip_grad_norm({w}, 1), refused);
    CHECK_ERROR(clip_grad_value({w}, 1), refused);
    CHECK_ERROR(scaler.unscale(sgd), refused);
    CHECK_ERROR(has_overflow({w}), refused);
    if (wrong.dtype() == f32) CHECK_ERROR(sum(w).backward(), "[backward] expected .grad of shape (4), got");
  }
}

TEST_CASE("norms of 16-bit gradients are computed in f32") {
  for (const DType dtype : {f16, bf16, f32}) {
    for (const double type : {2., 1., 3., double(INFINITY)}) {
      Variable a(zeros({2}).to(dtype), true), b(zeros({1}).to(dtype), true);
      a.grad() = full({2}, 60000, {.dtype = dtype}), b.grad() = full({1}, 60000, {.dtype = dtype});
      const double each = b.grad().to(f64).item(), expected = std::isinf(type) ? each : each * std::pow(3, 1 / type);
      INFO("dtype ", dtype, ", type ", type);
      CHECK(clip_grad_norm({a, b}, 1000, type) == doctest::Approx(expected).epsilon(1e-7));
      CHECK(b.grad().to(f64).item() == doctest::Approx(each * 1000 / expected).epsilon(4e-3));
    }
  }
  Variable many(zeros({1000}, {.dtype = bf16}), true);
  many.grad() = full({1000}, 1, {.dtype = bf16});
  CHECK(grad_norm({many}) == doctest::Approx(std::sqrt(1000.)).epsilon(1e-7));
}

TEST_CASE("scalers reject calls in the wrong order and a scale at its minimum, and go on from a state") {
  Variable w(ones({1}), true);
  SGD optimizer({w}, {.lr = 1});
  GradScaler scaler;
  CHECK_ERROR(scaler.update(), "needs an optimizer");
  scaler.unscale(optimizer);
  CHECK_ERROR(scaler.unscale(optimizer), "twice");
  w.grad() = full({1}, NAN);
  CHECK(has_overflow({w}));
  DynamicLossScaler dynamic({.init_scale = 2, .min_scale = 1});
  dynamic.update(true);
  CHECK(dynamic.scale() == 1);
  CHECK_ERROR(dynamic.update(true), "already at its minimum 1");
  DynamicLossScaler other;
  other.load_state(dynamic.state());
  CHECK(other.scale() == 1);
  // The trace of DeepSpeed 0.19 with window 4 and hysteresis 2.
  DynamicLossScaler traced({.init_scale = 65536, .scale_window = 4, .hysteresis = 2});
  for (bool overflow : {true, true, true, false, false, false, false}) traced.update(overflow);
  CHECK(traced.scale() == 16384);
  traced.update(false);
  CHECK(traced.scale() == 32768);
  CHECK(traced.hysteresis() == 2);
}
