// L-BFGS against PyTorch 2.15 in f64.
#include "extensions/optimizers/lbfgs.h"

#include <doctest/doctest.h>

#include "autograd/ops.h"
#include "nn/linear.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::optim;

namespace {

struct Valley {
  explicit Valley(DType dtype = f64)
      : x(Tensor::from<double>({-1.2, 1.0, 0.5}, {3}).to(dtype), true),
        y(Tensor::from<double>({0.3}, {1, 1}).to(dtype), true) {}
  /// Rosenbrock's valley plus a term with a flat minimum.
  Variable loss() const {
    const Variable rest = x.slice(0, 0, 2, 1);
    return sum(square(x.slice(0, 1, 3, 1) - square(rest))) * 100.0 + sum(square(rest * -1.0 + 1.0)) +
           sum(square(square(y - x.slice(0, 0, 1, 1))));
  }
  Variable x, y;
};

}  // namespace

TEST_CASE("LBFGS: steps match PyTorch, with a line search and without") {
  const struct {
    LBFGSOptions options;
    std::vector<double> losses, x;
    double y;
    int64_t evaluations;
  } rows[] = {
      {{.max_iter = 5, .line_search = true},
       {54.2625, 5.05766162063, 3.25688113318, 3.00769373755, 2.81584997397, 2.17884512351},
       {0.14480799372383543, 0.002412494517358677, -0.01884020095439716},
       0.6289999780799911,
       39},
      {{.lr = 0.5, .max_iter = 8, .history_size = 3, .line_search = true},
       {54.2625, 4.62982898845, 3.10853479643, 2.89393580525, 1.85684489134},
       {0.6243070410943415, 0.3835054756228405, 0.1341031371322813},
       1.1649578263897948,
       50},
      {{.lr = 1e-3, .max_iter = 4},
       {54.2625, 53.8519727795, 53.520692668, 53.1835761142, 52.8425493193},
       {-1.19560328782072, 0.9979813962289087, 0.5052645829117529},
       0.298376442286159,
       20},
  };
  for (const auto& row : rows) {
    const Valley valley;
    LBFGS optimizer({valley.x, valley.y}, row.options);
    for (const double loss : row.losses)
      CHECK(optimizer.step([&] { return valley.loss(); }) == doctest::Approx(loss).epsilon(1e-9));
    const auto x = valley.x.tensor().to_vector<double>();
    for (size_t i = 0; i < 3; ++i) CHECK(x[i] == doctest::Approx(row.x[i]).epsilon(1e-8));
    CHECK(valley.y.item() == doctest::Approx(row.y).epsilon(1e-8));
    CHECK(optimizer.evaluations() == row.evaluations);
  }
}

TEST_CASE("LBFGS goes on from a state with the same bits, and finds the minimum in f32 too") {
  const Valley one, other;
  LBFGS a({one.x, one.y}, {.max_iter = 4, .line_search = true}),
      b({other.x, other.y}, {.max_iter = 4, .line_search = true});
  const auto step = [](LBFGS& optimizer, const Valley& valley) {
    return optimizer.step([&] { return valley.loss(); });
  };
  b.load_state(a.state());  // the state of an optimizer that has made no step
  for (int i = 0; i < 3; ++i) step(a, one);
  Tensor x = other.x.tensor(), y = other.y.tensor();
  x.copy_(one.x.tensor()), y.copy_(one.y.tensor());
  b.load_state(a.state());
  for (int i = 0; i < 3; ++i) CHECK(step(a, one) == step(b, other));
  CHECK(equal(one.x.tensor(), other.x.tensor()));
  const Valley narrow(f32);
  LBFGS c({narrow.x, narrow.y}, {.line_search = true});
  for (int i = 0; i < 6; ++i) step(c, narrow);
  CHECK(step(c, narrow) < 1e-6);
}

TEST_CASE("LBFGS rejects unsupported calls") {
  const Valley valley;
  LBFGS optimizer({valley.x}, {});
  OptimizerState state = optimizer.state();
  CHECK_ERROR(static_cast<Optimizer&>(optimizer).step(), "expected step(loss)");
  CHECK_ERROR(LBFGS({valley.x, Variable(ones({1}), true)}, {}), "all of f32 or all of f64, got f32");
  CHECK_ERROR(LBFGS({Variable(ones({1}, {.dtype = bf16}), true)}, {}), "all of f32 or all of f64, got bf16");
  CHECK_ERROR(LBFGS({valley.x}, {.max_iter = 0}), "expected max_iter in [1");
  CHECK_ERROR(optimizer.load_state({}), "expected 'lbfgs.scale' in the saved state");
  LBFGS two({valley.x}, {});
  two.add_group({valley.y}, {});
  CHECK_ERROR(two.step([&] { return valley.loss(); }), "expected one group of parameters, got 2");
  state.tensors.emplace_back("lbfgs.grad", ones({2}));
  CHECK_ERROR(optimizer.load_state(state),
              "expected 'lbfgs.grad' to begin with 'lbfgs.' and to have shape (3), got (2)");
}

TEST_CASE("LBFGS moves nothing that is frozen, whatever its history says") {
  manual_seed(31);
  nn::Linear a({.in = 4, .out = 5}), b({.in = 5, .out = 2});
  const Tensor x = randn({6, 4}), y = randn({6, 2});
  LBFGS lbfgs({a.weight, a.bias, b.weight, b.bias}, {.lr = 0.5, .max_iter = 3});
  const auto loss = [&] { return mse_loss(b(tanh(a(x))), y); };
  lbfgs.step(loss);
  a.requires_grad_(false);
  const Tensor before = a.weight.tensor().clone(), other = b.weight.tensor().clone();
  lbfgs.step(loss);
  CHECK(equal(a.weight.tensor(), before));
  CHECK_FALSE(equal(b.weight.tensor(), other));
}
