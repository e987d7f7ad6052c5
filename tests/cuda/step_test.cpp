// Optimizer steps over many parameters in one kernel: the bits of the CPU, the number of kernels, and recorded steps,
// which use the current learning rates, step numbers and skips when replayed.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "optim/loss_scaler.h"
#include "optim/optim.h"
#include "optim/optimizer.h"
#include "tensor/graph.h"
#include "tests/cuda/against_cpu.h"
#include "tests/messages.h"
#if defined(SIMT_CPU)
#include "tests/cudasim/fake.h"
#endif

using namespace lockstep;
using namespace testing;

namespace {

using optim::ClippedStep;
using Parameters = std::vector<Variable>;
using Make = std::function<std::unique_ptr<optim::Optimizer>(const Parameters&, const Parameters&)>;

/// An optimizer of two groups with different learning rates.
template <class Rule, class Options> Make made(Options options) {
  return [options](const Parameters& a, const Parameters& b) {
    Options slower = options;
    slower.lr /= 8;
    return std::make_unique<Rule>(std::vector<typename Rule::Group>{{a, options}, {b, slower}});
  };
}

struct NamedRule {
  const char* name;
  Make make;
};
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
      {"Adagrad", made<Adagrad>(AdagradOptions{.lr = 0.5, .lr_decay = 0.1, .initial_accumulator = 0.1})},
      {"RMSprop", made<RMSprop>(RMSpropOptions{.lr = 0.02})},
      {"RMSprop momentum", made<RMSprop>(RMSpropOptions{.lr = 0.02, .momentum = 0.5})},
      {"RMSprop centered", made<RMSprop>(RMSpropOptions{.lr = 0.02, .centered = true})},
      {"RMSprop both", made<RMSprop>(RMSpropOptions{.lr = 0.02, .momentum = 0.5, .centered = true})},
      {"Lion", made<Lion>(LionOptions{.lr = 0.02, .weight_decay = 0.1})},
  };
}

/// Parameters of many sizes, some of them not aligned.
struct Model {
  Parameters all;
  std::unique_ptr<optim::Optimizer> optimizer;

  Model(const Make& make, const std::vector<DType>& dtypes, Device device, int count = 9) {
    const int64_t sizes[] = {5, 4099, 0, 1, 8192, 33, 4096, 257, 12300};
    Parameters groups[2];
    for (int i = 0; i < count; ++i) {
      const int64_t n = count > 9 ? 3 : sizes[i];
      Tensor x = random_tensor({n + 1}, f64, uint32_t(i + 1)).to(dtypes[size_t(i) % dtypes.size()]).to(device);
      all.emplace_back(x.narrow(0, i % 2, n), true);
      all.back().grad() = zeros({n}, {.dtype = x.dtype(), .device = device});
      groups[i % 3 == 0].push_back(all.back());
    }
    optimizer = make(groups[0], groups[1]);
  }
  /// Writes new gradients in place; `bad` is put into one of them.
  void set_gradients(int step, double bad = 0) {
    for (size_t i = 0; i < all.size(); ++i) {
      Tensor& grad = all[i].grad();
      grad.copy_(random_tensor(grad.shape(), f64, uint32_t(100 * step) + uint32_t(i), 4).to(grad.dtype()));
      if (bad != 0 && i == 4) grad.narrow(0, 4097, 1).fill_(bad);
    }
  }
  void clear(size_t i) { all[i].clear_grad(); }
};

std::vector<unsigned char> bits_of(const Model& model) {
  std::vector<unsigned char> bits;
  const auto add = [&](const Tensor& x) {
    const auto more = bytes_of(x);
    bits.insert(bits.end(), more.begin(), more.end());
  };
  for (const Variable& p : model.all) add(p.tensor());
  const optim::OptimizerState state = model.optimizer->state();
  for (const auto& [name, tensor] : state.tensors) add(tensor);
  for (const auto& [name, number] : state.numbers) {
    const auto* p = reinterpret_cast<const unsigned char*>(&number);
    bits.insert(bits.end(), p, p + sizeof number);
  }
  return bits;
}

const std::vector<std::vector<DType>> mixtures{{f32}, {f64}, {f16}, {bf16}, {f32, bf16, f64, f16}};
const double infinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("cuda: a step over all parameters is bit-identical to the CPU's, for every rule and dtype") {
  for (const NamedRule& rule : step_rules()) {
    for (const auto& dtypes : mixtures) {
      CAPTURE(rule.name);
      CAPTURE(dtypes[0]);
      Model here(rule.make, dtypes, cpu), there(rule.make, dtypes, cuda0);
      for (int step = 1; step <= 4; ++step) {
        for (Model* model : {&here, &there}) {
          model->set_gradients(step);
          model->optimizer->set_lr(0.1 / step);
          if (step == 3) {  // parameter 1 misses a step, so its step number lags behind
            Tensor kept = model->all[1].grad();
            model->clear(1);
            model->optimizer->step(0.5);
            model->all[1].grad() = kept;
          } else {
            model->optimizer->step(0.5);
          }
        }
      }
      CHECK(bits_of(here) == bits_of(there));
    }
  }
}

TEST_CASE("cuda: a clipped step is bit-identical to unscale_, clip_grad_norm and step after each other") {
  for (const NamedRule& rule : step_rules()) {
    for (const auto& dtypes : mixtures) {
      for (const double max_norm : {0.5, 1e9}) {
        CAPTURE(rule.name);
        CAPTURE(dtypes[0]);
        CAPTURE(max_norm);
        Model a(rule.make, dtypes, cuda0), b(rule.make, dtypes, cuda0);
        for (int step = 1; step <= 4; ++step) {
          const double bad = step == 1 ? infinity : step == 3 ? -std::nan("") : 0;
          a.set_gradients(step, bad), b.set_gradients(step, bad);
          std::vector<Tensor> grads;
          for (const Variable& p : a.all) grads.push_back(p.grad());
          const bool finite = unscale_(grads, 1.0 / 3);
          double norm = NAN;
          if (finite) {
            norm = optim::clip_grad_norm(a.optimizer->parameters(), max_norm);  // gradients in the order of the groups
            a.optimizer->step();
          }
          b.optimizer->clipped_step({.grad_scale = 1.0 / 3, .max_norm = max_norm, .skip_nonfinite = true});
          if (step == 2) continue;  // last_step() is not called, so nothing waits for the outcome
          const optim::StepOutcome outcome = b.optimizer->last_step();
          CHECK(outcome.skipped == !finite);
          CHECK(finite == (bad == 0));
          if (finite) CHECK(outcome.norm == norm);
        }
        CHECK(bits_of(a) == bits_of(b));
      }
    }
  }
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
  for (const NamedRule& rule : step_rules()) {
    for (const auto& dtypes : mixtures) {
      for (const bool settles : {false, true}) {
        CAPTURE(rule.name);
        CAPTURE(dtypes[0]);
        Model a(rule.make, dtypes, cuda0), b(rule.make, dtypes, cuda0);
        int step = 0;
        const auto request_of = [&](int at) {
          return ClippedStep{.grad_scale = 1.0 / (at + 1), .max_norm = 0.5, .skip_nonfinite = true};
        };
        const auto bad_in = [](int at) { return at == 1 || at == 4 ? infinity : at == 5 ? std::nan("") : 0; };
        const auto eager = [&](Model& model) {
          model.set_gradients(step, bad_in(step));
          for (int g = 0; g < 2; ++g) model.optimizer->set(g, "lr", 0.1 / (step + 1 + g));
          model.optimizer->clipped_step(request_of(step));
        };
        Graph graphs[] = {Graph(cuda0), Graph(cuda0)};
        for (Graph& graph : graphs) {
          ++step;
          eager(a);
          graph.capture([&] {  // the first call runs eagerly
            if (Graph::is_capturing()) b.optimizer->clipped_step(request_of(step));
            else eager(b);
          });
        }
        for (step = 3; step <= 10; ++step) {
          eager(a);
          if (step == 7) {  // an eager step between replays
            eager(b);
            continue;
          }
          b.set_gradients(step, bad_in(step));
          for (int g = 0; g < 2; ++g) b.optimizer->set(g, "lr", 0.1 / (step + 1 + g));
          b.optimizer->before_replay(request_of(step));
          graphs[step % 2].replay();
          if (!settles) continue;
          const optim::StepOutcome outcome = b.optimizer->last_step();
          CHECK(outcome.skipped == (bad_in(step) != 0));
          if (!outcome.skipped) CHECK(outcome.norm == a.optimizer->last_step().norm);
        }
        CHECK(bits_of(a) == bits_of(b));
      }
    }
  }
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
  CHECK_ERROR(b.optimizer->before_replay(), "capture it anew");

  Model lamb(made<optim::LAMB>(optim::LAMBOptions{}), {f32}, cuda0);
  CHECK_ERROR(Graph(cuda0).capture([&] { lamb.optimizer->step(); }), "cannot be captured");
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
