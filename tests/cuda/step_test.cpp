// Optimizer steps over many parameters in one kernel: the bits of the CPU, the number of kernels, and recorded steps,
// which use the current learning rates, step numbers and skips when replayed.

#include "optim/optim.h"
#include "tests/cuda/steps.h"
#include "tests/messages.h"
#if defined(SIMT_CPU)
#include "tests/cudasim/fake.h"
#endif

using namespace lockstep;
using namespace testing;

namespace {

std::vector<NamedRule> step_rules() {
  using namespace optim;
  return {
      {"SGD", made<SGD>(SGDOptions{.lr = 0.1, .weight_decay = 0.01})},
      {"SGD momentum", made<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5})},
      {"SGD nesterov", made<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true, .maximize = true})},
      {"Adam", made<Adam>(AdamOptions{.lr = 0.05, .weight_decay = 0.1})},
      {"Adam amsgrad", made<Adam>(AdamOptions{.lr = 0.05, .amsgrad = true})},
      {"AdamW", made<AdamW>(AdamWOptions{.lr = 0.05})},
      {"AdamW plain", made<AdamW>(AdamWOptions{.lr = 0.05, .bias_correction = false})},
  };
}

}  // namespace

TEST_CASE("cuda: a step over all parameters is bit-identical to the CPU's, for every rule and dtype") {
  check_together(step_rules());
}

TEST_CASE("cuda: a clipped step is bit-identical to unscale_, clip_grad_norm and step after each other") {
  check_clipped(step_rules());
}

TEST_CASE("cuda: norms equal the CPU's to 1e-7, whatever the order of threads") {
  for (const auto& dtypes : mixtures) {
    Model here(step_rules()[0].make, dtypes, cpu), there(step_rules()[0].make, dtypes, cuda0);
    here.set_gradients(1), there.set_gradients(1);
    CHECK(optim::grad_norm(there.all) ==
          doctest::Approx(optim::grad_norm(here.all)).epsilon(tolerance(Near::step_norm, f32)));
    there.set_gradients(1, infinity);
    CHECK(optim::grad_norm(there.all) == infinity);
  }
}

#if defined(SIMT_CPU)
uint64_t started_kernels() {  // started since the last call
  uint64_t all = 0;
  for (const auto& [name, count] : fake::take_launches()) all += name == "memcpy" ? 0 : uint64_t(count);
  return all;
}

TEST_CASE("cuda: a step over many parameters, clipped and unscaled, is at most six kernels") {
  for (const auto& dtypes : std::vector<std::vector<DType>>{{f32}, {f16}, {f32, bf16}}) {
    std::vector<uint64_t> counted;
    for (const int count : {9, 400}) {
      Model model(made<optim::AdamW>(optim::AdamWOptions{}), dtypes, cuda0, count);
      const ClippedStep request{.grad_scale = 0.25, .max_norm = 1, .skip_nonfinite = true};
      for (int step = 0; step < 3; ++step) {
        started_kernels();
        model.optimizer->clipped_step(request);
        const uint64_t started = started_kernels();
        if (step > 0) counted.push_back(started);  // the first step also creates the tables
      }
      model.optimizer->step();
      CHECK(started_kernels() == 1 + dtypes.size());
    }
    CHECK(counted == std::vector<uint64_t>(4, 3 + dtypes.size()));
    CHECK(counted[0] <= 6);
  }
}
#endif

TEST_CASE("cuda: a recorded step is bit-identical to one that is not: rates, step numbers, skipped steps, two graphs") {
  check_recorded(step_rules());
}

TEST_CASE("cuda: plain steps are recorded, too; steps that cannot be recorded are rejected") {
  Model a(made<optim::Adam>(optim::AdamOptions{}), {f32, bf16}, cuda0),
      b(made<optim::Adam>(optim::AdamOptions{}), {f32, bf16}, cuda0);
  a.set_gradients(1), b.set_gradients(1);
  Graph graph(cuda0);
  a.optimizer->step();
  CHECK_ERROR(b.optimizer->before_replay(), "without a captured step");
  graph.capture([&] { b.optimizer->step(); });
  CHECK_ERROR(b.optimizer->before_replay({.max_norm = 1}), "capture clipped_step()");
  for (int step = 2; step < 5; ++step) {
    a.set_gradients(step), b.set_gradients(step);
    a.optimizer->step(1.0 / step);
    b.optimizer->before_replay({.grad_scale = 1.0 / step});
    graph.replay();
  }
  CHECK(bits_of(a) == bits_of(b));
  CHECK_ERROR(Graph(cuda0).capture([&] { b.optimizer->clipped_step({.max_norm = 1}); }), "the same kind of step");
  b.optimizer->load_state(a.optimizer->state());
  CHECK_ERROR(b.optimizer->before_replay(), "capture the step anew");

  Model averaged(made<optim::SGD>(optim::SGDOptions{}), {f32}, cuda0);
  averaged.optimizer->keep_average(0.9);
  CHECK_ERROR(Graph(cuda0).capture([&] { averaged.optimizer->step(); }), "no keep_average()");
  Model behind(made<optim::Adam>(optim::AdamOptions{}), {f32}, cuda0);
  const Tensor grad = behind.all[1].grad();
  behind.clear(1);
  behind.optimizer->step();
  behind.all[1].grad() = grad;
  CHECK_ERROR(Graph(cuda0).capture([&] { behind.optimizer->step(); }), "updated equally often");
  CHECK_ERROR(a.optimizer->clipped_step({.max_norm = -1}), "expected max_norm >= 0");
}
