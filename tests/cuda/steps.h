#pragma once
// Optimizer steps on a device, one by one or over many parameters in one kernel: checks for the rules of a table.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "tensor/graph.h"
#include "tests/cuda/against_cpu.h"

namespace testing {
using namespace lockstep;

/// Steps on both devices: step(on, gradient, {p, m, v, v2, copy of p in 16 bits}).
using Step = std::function<void(Device, const Tensor& g, Arguments&)>;
/// Calls all(compare) for every dtype, size and alignment. compare(name, step) checks that a step has the CPU's bits.
inline void check_steps(const std::function<void(const std::function<void(const char*, const Step&)>& compare)>& all) {
  for (const DType dtype : {f32, f64})
    for (const int64_t n : {0, 1, 31, 1000, 4099})
      for (const DType grad_dtype : {dtype, f16, bf16}) {
        if (dtype == f64 && grad_dtype != f64) continue;
        for (const int64_t shift : {0, 1}) {  // aligned to 16 bytes, and not
          const auto state = [&](uint32_t seed) { return random_tensor({n + shift}, dtype, seed).narrow(0, shift, n); };
          const auto positive = [&](uint32_t seed) {
            return abs(random_tensor({n + shift}, dtype, seed)).narrow(0, shift, n);
          };
          const Tensor p = state(1), g = random_tensor({n}, grad_dtype, 2), m = state(3), v = positive(4),
                       v2 = positive(5);
          const Tensor low = dtype == f32 ? p.to(grad_dtype == f32 ? bf16 : grad_dtype) : Tensor();
          const Arguments in{p, g, m, v, v2}, out{p, m, v, v2, low};
          const std::string what = str(dtype, " ", n, " gradient ", grad_dtype, " shift ", shift);
          all([&](const char* name, const Step& step) {
            against_cpu(
                str(name, " ", what), in, out,
                [&](Device on, const Arguments& a, Arguments& to) {
                  kernels::copy(on, a[0], to[0]), kernels::copy(on, a[2], to[1]), kernels::copy(on, a[3], to[2]),
                      kernels::copy(on, a[4], to[3]);
                  step(on, a[1], to);
                },
                0);
          });
        }
      }
}

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

inline std::vector<unsigned char> bits_of(const Model& model) {
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

inline const std::vector<std::vector<DType>> mixtures{{f32}, {f64}, {f16}, {bf16}, {f32, bf16, f64, f16}};
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Calls fn for every rule and mixture of dtypes.
inline void each_rule(const std::vector<NamedRule>& rules,
                      const std::function<void(const NamedRule&, const std::vector<DType>&)>& fn) {
  for (const NamedRule& rule : rules)
    for (const auto& dtypes : mixtures) {
      INFO(rule.name, " of ", dtypes[0]);
      fn(rule, dtypes);
    }
}

/// A step over all parameters has the CPU's bits.
inline void check_together(const std::vector<NamedRule>& rules) {
  each_rule(rules, [](const NamedRule& rule, const std::vector<DType>& dtypes) {
    Model here(rule.make, dtypes, cpu), there(rule.make, dtypes, cuda0);
    for (int step = 1; step <= 4; ++step)
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
    CHECK(bits_of(here) == bits_of(there));
  });
}

/// A clipped step has the bits of unscale_, clip_grad_norm and step after each other.
inline void check_clipped(const std::vector<NamedRule>& rules) {
  each_rule(rules, [](const NamedRule& rule, const std::vector<DType>& dtypes) {
    for (const double max_norm : {0.5, 1e9}) {
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
  });
}

/// A recorded step has the bits of one that is not.
inline void check_recorded(const std::vector<NamedRule>& rules) {
  each_rule(rules, [](const NamedRule& rule, const std::vector<DType>& dtypes) {
    for (const bool settles : {false, true}) {
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
  });
}

}  // namespace testing
