#pragma once
// Checks that an optimizer goes downhill, resumes from a state with the same bits, and scales gradients.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <vector>

#include "autograd/ops.h"
#include "optim/optimizer.h"
#include "tests/messages.h"

namespace testing {

using namespace lockstep;
using namespace lockstep::optim;

using Make = std::function<std::unique_ptr<Optimizer>(std::vector<Variable>)>;
struct Row {
  const char* name;
  Make make;
};

/// Makes one step towards `target`; returns the loss before it.
inline double step_towards(Variable& w, const Tensor& target, Optimizer& optimizer) {
  const Variable loss = mse_loss(w.dtype() == f32 ? w : w.to(f32), target);
  optimizer.zero_grad();
  loss.backward();
  optimizer.step();
  return loss.item();
}

/// In f32, and through a master copy in bf16.
inline void check_downhill(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    for (DType dtype : {f32, bf16}) {
      CAPTURE(row.name);
      manual_seed(1);
      const Tensor target = randn({8, 6});
      Variable w(randn({8, 6}).to(dtype), true);
      const auto optimizer = row.make({w});
      const double first = step_towards(w, target, *optimizer);
      double last = first;
      for (int i = 0; i < 150; ++i) last = step_towards(w, target, *optimizer);
      CHECK(last < first * 0.3);
      CHECK(w.dtype() == dtype);
      CHECK((optimizer->state_of(w).tensors.count("master") == 1) == (dtype == bf16));
    }
  }
}

/// State by name goes to another optimizer, which then makes the same bits.
inline void check_state(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    CAPTURE(row.name);
    manual_seed(2);
    const Tensor target = randn({5, 7});
    Variable a(randn({5, 7}), true);
    const auto first = row.make({a});
    first->name_parameters({{"w", a}});
    for (int i = 0; i < 3; ++i) step_towards(a, target, *first);
    Variable b(a.tensor().clone(), true);
    const auto second = row.make({b});
    second->name_parameters({{"w", b}});
    second->load_state(first->state());
    for (int i = 0; i < 3; ++i) {
      step_towards(a, target, *first);
      step_towards(b, target, *second);
    }
    CHECK(equal(a.tensor(), b.tensor()));
  }
}

/// grad_scale is the same as scaling the gradients.
inline void check_grad_scale(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    CAPTURE(row.name);
    Variable a(full({4, 4}, 1), true), b(full({4, 4}, 1), true);
    a.grad() = full({4, 4}, 8);
    b.grad() = full({4, 4}, 1);
    row.make({a})->step(0.125);
    row.make({b})->step();
    CHECK(allclose(a.tensor(), b.tensor(), 1e-6, 1e-7));
  }
}

/// All of the above.
inline void check_rules(const std::vector<Row>& rows) {
  check_downhill(rows);
  check_state(rows);
  check_grad_scale(rows);
}

/// `wrong`, a gradient unlike its parameter of 4 elements in f32, is refused, and changes nothing.
inline void check_gradient_like_parameter(const std::vector<Row>& rows, const Tensor& wrong) {
  for (const Row& row : rows) {
    Variable w(ones({4}), true);
    const auto optimizer = row.make({w});
    w.grad() = wrong;
    CAPTURE(row.name);
    CHECK_ERROR(optimizer->step(), "expected a gradient like its parameter, f32 (4) on ");
    CHECK(w.tensor().to_vector<float>() == std::vector<float>(4, 1));
  }
}

}  // namespace testing
