// The kernels of RMSprop, Adagrad and Lion on the device, against the CPU.
#include "extensions/optimizers/fused_rules.h"
#include "extensions/optimizers/matrix_rules.h"
#include "tests/cuda/limit_cases.h"
#include "tests/cuda/steps.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace testing;

namespace {

std::vector<NamedRule> step_rules() {
  using namespace optim;
  return {
      {"Adagrad", made<Adagrad>(AdagradOptions{.lr = 0.5, .lr_decay = 0.1, .initial_accumulator = 0.1})},
      {"RMSprop", made<RMSprop>(RMSpropOptions{.lr = 0.02})},
      {"RMSprop momentum", made<RMSprop>(RMSpropOptions{.lr = 0.02, .momentum = 0.5})},
      {"RMSprop centered", made<RMSprop>(RMSpropOptions{.lr = 0.02, .centered = true})},
      {"RMSprop both", made<RMSprop>(RMSpropOptions{.lr = 0.02, .momentum = 0.5, .centered = true})},
      {"Lion", made<Lion>(LionOptions{.lr = 0.02, .weight_decay = 0.1})},
  };
}

std::vector<LimitCase> limits_of_steps() {
  using T = Tensors;
  std::vector<LimitCase> cases;
  cases.push_back(step_case("rmsprop", [](Device on, T& in) {
    Tensor none;
    kernels::rmsprop(on, in[0], in[1], in[3], none, in[2], in[4],
                     {.lr = 0.1, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1, .momentum = 0.5, .centered = false});
  }));
  cases.push_back(step_case("adagrad", [](Device on, T& in) {
    kernels::adagrad(on, in[0], in[1], in[3], in[4], {.lr = 0.1, .eps = 1e-3, .weight_decay = 0.1});
  }));
  cases.push_back(step_case("lion", [](Device on, T& in) {
    kernels::lion(on, in[0], in[1], in[2], in[4], {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1});
  }));
  return cases;
}
[[maybe_unused]] const bool added = (more_limit_cases().push_back(limits_of_steps), true);

}  // namespace

TEST_CASE("cuda: steps of rare rules have the CPU's bits") {
  check_steps([](const auto& compare) {
    for (const double momentum : {0.0, 0.9})
      for (const bool centered : {true, false})
        compare("rmsprop", [&](Device on, const Tensor& g, Arguments& to) {
          to[2].fill_(1);  // keeps the variance positive
          kernels::rmsprop(on, to[0], g, to[2], to[1], to[3], to[4], {1e-2, 0.9, 1e-3, 0.1, momentum, centered});
        });
    compare("adagrad", [&](Device on, const Tensor& g, Arguments& to) {
      kernels::adagrad(on, to[0], g, to[2], to[4], {0.1, 1e-8, 0.1});
    });
    compare("lion", [&](Device on, const Tensor& g, Arguments& to) {
      kernels::lion(on, to[0], g, to[1], to[4], {0.1, 0.9, 0.99, 0.1});
    });
  });
}

TEST_CASE("cuda: a step over all parameters has the CPU's bits, for rare rules") { check_together(step_rules()); }

TEST_CASE("cuda: a clipped step of rare rules") { check_clipped(step_rules()); }

TEST_CASE("cuda: a recorded step of rare rules") { check_recorded(step_rules()); }

TEST_CASE("cuda: a step of LAMB is rejected in a graph") {
  Model lamb(made<optim::LAMB>(optim::LAMBOptions{}), {f32}, cuda0);
  CHECK_ERROR(Graph(cuda0).capture([&] { lamb.optimizer->step(); }), "cannot be captured");
}
