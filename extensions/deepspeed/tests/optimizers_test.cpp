// The 1-bit optimizers: steps before compression are bit-identical to the plain optimizers; compressed ones keep ranks
// equal, converge and send little.
#include <doctest/doctest.h>

#include <cmath>

#include "extensions/deepspeed/onebit/onebit.h"
#include "extensions/optimizers/matrix_rules.h"
#include "optim/loss_scaler.h"
#include "optim/optimizer.h"
#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using namespace lockstep::onebit;

namespace {

using Make = std::function<std::unique_ptr<OneBitOptimizer>(std::vector<Variable>, int freeze)>;
struct Row {
  const char* name;
  MakeOptimizer plain;
  Make make;
};

/// Makes an optimizer that compresses after `freeze` exact steps; ZeroOneAdam compresses gradients before, too.
template <class O, class Options> Make freezing(Options options) {
  return [options](const std::vector<Variable>& p, int freeze) {
    Options o = options;
    if constexpr (requires { o.freeze_step; }) o.freeze_step = freeze;
    else o.var_freeze_step = freeze + 3, o.var_update_scaler = freeze;
    return std::make_unique<O>(p, o);
  };
}

const Row rows[] = {
    {"OneBitAdam", maker<optim::Adam>(optim::AdamOptions{.lr = 0.01}),
     freezing<OneBitAdam>(OneBitAdamOptions{.lr = 0.01})},
    {"OneBitAdam with decay",
     maker<optim::AdamW>(optim::AdamWOptions{.lr = 0.01, .weight_decay = 0.1, .bias_correction = false}),
     freezing<OneBitAdam>(OneBitAdamOptions{.lr = 0.01, .weight_decay = 0.1, .bias_correction = false})},
    {"OneBitAdam, momenta as they are", maker<optim::Adam>(optim::AdamOptions{.lr = 0.01}),
     freezing<OneBitAdam>(OneBitAdamOptions{.lr = 0.01, .precondition = false})},
    {"OneBitLamb", maker<optim::LAMB>(optim::LAMBOptions{.lr = 0.02, .eps = 1e-8, .weight_decay = 0.01}),
     freezing<OneBitLamb>(OneBitLambOptions{.lr = 0.02, .weight_decay = 0.01})},
    {"ZeroOneAdam", maker<optim::AdamW>(optim::AdamWOptions{.lr = 0.01, .weight_decay = 0.1}),
     freezing<ZeroOneAdam>(
         ZeroOneAdamOptions{.lr = 0.01, .weight_decay = 0.1, .local_step_scaler = 4, .local_step_clipper = 3})},
    {"OneBitSGD", maker<optim::SGD>(optim::SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01}),
     freezing<OneBitSGD>(OneBitSGDOptions{.lr = 0.05, .weight_decay = 0.01})},
};

/// Backward from the loss of a rank's own random batch.
void backward(Mlp& net, int step, int rank, DType dtype = f32) {
  loss_of(net, step, rank, [&](const Variable& x) { return net(x.to(dtype)); }).to(f32).backward();
}
/// A step with that batch.
OneBitStepReport step_of(Mlp& net, OneBitOptimizer& optimizer, int step, int rank, DType dtype = f32,
                         double max_norm = 0) {
  backward(net, step, rank, dtype);
  const OneBitStepReport report = optimizer.step({.max_norm = max_norm});
  optimizer.zero_grad();
  return report;
}

Tensors everything(Mlp& net, const optim::Optimizer& optimizer) {
  Tensors all = copy_parameters(net);
  for (auto& [name, tensor] : optimizer.state().tensors) all[name] = tensor.clone();
  return all;
}

/// A parameter of ones after steps with random gradients, each changed by `change`.
Tensor after_steps(const Row& row, int rank, int freeze, int steps, const Shape& shape,
                   const std::function<void(const Tensor& grad)>& change) {
  Variable w(ones(shape), true);
  const auto optimizer = row.make({w}, freeze);
  for (int step = 0; step < steps; ++step) {
    manual_seed(uint64_t(10 * step + rank));
    w.grad() = randn(shape);
    change(w.grad());
    optimizer->step();
  }
  optimizer->synchronize();
  return w.tensor();
}

}  // namespace

TEST_CASE("onebit: exact steps are bit-identical to DDP with the plain optimizer, with clipping, in f32 and bf16") {
  for (const Row& row : rows) {
    for (const int ranks : {1, 2, 4}) {
      for (const DType dtype : {f32, bf16}) {
        // Only in f32: in 16 bits clip_grad_norm() rounds the gradients once more.
        const double max_norm = ranks == 2 && dtype == f32 ? 0.05 : 0;
        CAPTURE(row.name);
        CAPTURE(ranks);
        CAPTURE(dtype);
        constexpr int steps = 4;
        const Tensors plain = alike(ranks, [&](int rank) {
          manual_seed(1);
          Mlp net;
          net.to(dtype);
          const auto optimizer = row.plain(net.parameters());
          parallel::DistributedDataParallel ddp(net);
          for (int step = 0; step < steps; ++step) {
            backward(net, step, rank, dtype);
            if (max_norm > 0) optim::clip_grad_norm(net.parameters(), max_norm);
            optimizer->step();
            optimizer->zero_grad();
          }
          return everything(net, *optimizer);
        });
        const Tensors mine = alike(ranks, [&](int rank) {
          manual_seed(1 + uint64_t(rank));  // only rank 0's values matter
          Mlp net;
          net.to(dtype);
          const auto optimizer = row.make(net.parameters(), steps);
          for (int step = 0; step < steps; ++step) {
            const OneBitStepReport report = step_of(net, *optimizer, step, rank, dtype, max_norm);
            CHECK(!report.compressed);
            CHECK(std::isnan(report.norm) == (max_norm == 0));
          }
          return everything(net, *optimizer);
        });
        CHECK(differing(plain, mine) == "");
      }
    }
  }
}

TEST_CASE("onebit: ranks hold the same bits after every exchange, worlds 1 to 8, f32 and bf16") {
  for (const Row& row : rows) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      CAPTURE(row.name);
      CAPTURE(ranks);
      const DType dtype = ranks % 3 == 2 ? bf16 : f32;
      struct Result {
        std::vector<Tensors> states;
        std::vector<bool> compressed;
      };
      const auto all = on_ranks<Result>(ranks, [&](int rank) {
        manual_seed(1);
        Mlp net;
        net.to(dtype);
        const auto optimizer = row.make(net.parameters(), 6);
        Result result;
        for (int step = 0; step < 14; ++step) {
          result.compressed.push_back(step_of(net, *optimizer, step, rank, dtype, step % 2 ? 0.5 : 0).compressed);
          if (optimizer->is_synchronized()) result.states.push_back(everything(net, *optimizer));
        }
        optimizer->synchronize();
        result.states.push_back(everything(net, *optimizer));
        return result;
      });
      CHECK(!all[0].compressed[1]);
      CHECK(all[0].compressed[13]);
      for (const auto& [name, tensor] : all[0].states.back()) CHECK(all_finite(tensor));
      for (const Result& other : all) {
        REQUIRE(other.states.size() == all[0].states.size());
        for (size_t i = 0; i < other.states.size(); ++i) CHECK(differing(all[0].states[i], other.states[i]) == "");
      }
      CHECK(differing(all[0].states[0], all[0].states[1]) != "");
    }
  }
}

TEST_CASE("onebit: after the freeze a group of one is Adam whose second moment stays") {
  for (const bool correct : {true, false}) {
    on_ranks(1, [&](int) {
      Variable w(ones({5}), true);
      OneBitAdam optimizer(
          {w}, {.lr = 0.1, .weight_decay = 0.2, .freeze_step = 2, .bias_correction = correct, .precondition = correct});
      double m = 0, v = 0, p = 1;
      for (int t = 1; t <= 6; ++t) {
        const double g = 0.3 * t;
        w.grad() = full({5}, 2 * g);
        optimizer.step(0.5);
        m = 0.9 * m + 0.1 * g;
        if (t <= 2) v = 0.999 * v + 0.001 * g * g;
        const double bias1 = correct ? 1 - std::pow(0.9, t) : 1,
                     bias2 = correct ? 1 - std::pow(0.999, std::min(t, 2)) : 1;
        p -= 0.1 * (m / bias1 / (std::sqrt(v / bias2) + 1e-8) + 0.2 * p);
        CHECK(w.tensor()[3].item() == doctest::Approx(p).epsilon(1e-5));
      }
    });
  }
}

TEST_CASE(
    "onebit: compressed training ends within 2 % of the exact optimizer's loss, with less than a sixteenth of its "
    "bytes") {
  struct Model : nn::Layer<Model> {
    nn::Linear a = linear(16, 128), b = linear(128, 64), c = linear(64, 4);
    Variable forward(const Variable& x) { return c(relu(b(relu(a(x))))); }
    void fields(nn::Fields& f) override { f("a", a)("b", b)("c", c); }
  };
  constexpr int ranks = 4, steps = 150, freeze = 40;
  const auto loss_of_step = [](Model& net, int step, int rank) {
    manual_seed(7);
    const Tensor teacher = randn({16, 4});
    set_random_step(uint64_t(step), uint64_t(rank));
    const Tensor x = randn({16, 16});
    return cross_entropy(net(x), argmax(add(matmul(x, teacher), mul_scalar(randn({16, 4}), 4)), -1));
  };
  struct Result {
    double loss = 0;
    Volume volume;
  };
  const auto train = [&](const MakeOptimizer& make) {
    return on_ranks<Result>(ranks, [&](int rank) {
      manual_seed(1);
      Model net;
      const auto optimizer = make(net.parameters());
      const double lr = optimizer->lr();
      auto* mine = dynamic_cast<OneBitOptimizer*>(optimizer.get());
      std::optional<parallel::DistributedDataParallel> ddp;
      if (!mine) ddp.emplace(net);
      Result result;
      for (int step = 0; step < steps; ++step) {
        loss_of_step(net, step, rank).backward();
        optimizer->set_lr(lr * (1 - double(step) / steps));
        optimizer->step();
        optimizer->zero_grad();
      }
      if (mine) mine->synchronize(), result.volume = mine->volume();
      const NoGrad scope;
      for (int i = 0; i < 20; ++i) result.loss += loss_of_step(net, 5000 + i, 0).item() / 20;
      return result;
    })[0];
  };
  const double adam = train(maker<optim::Adam>(optim::AdamOptions{.lr = 2e-3})).loss,
               lamb = train(maker<optim::LAMB>(optim::LAMBOptions{.lr = 0.01})).loss,
               sgd = train(maker<optim::SGD>(optim::SGDOptions{.lr = 0.05, .momentum = 0.9})).loss;
  const struct {
    const char* name;
    double exact;
    MakeOptimizer make;
  } compressing[] = {
      {"OneBitAdam", adam, maker<OneBitAdam>(OneBitAdamOptions{.lr = 2e-3, .freeze_step = freeze})},
      {"ZeroOneAdam", adam,
       maker<ZeroOneAdam>(ZeroOneAdamOptions{
           .lr = 2e-3, .var_freeze_step = freeze, .local_step_scaler = 30, .local_step_clipper = 4})},
      {"OneBitLamb", lamb, maker<OneBitLamb>(OneBitLambOptions{.lr = 0.01, .freeze_step = freeze})},
      {"OneBitSGD", sgd, maker<OneBitSGD>(OneBitSGDOptions{.lr = 0.05})},
  };
  for (const auto& row : compressing) {
    CAPTURE(row.name);
    const Result found = train(row.make);
    const Volume& v = found.volume;
    MESSAGE(row.name, ": loss ", found.loss, " for ", row.exact, ", ", v.exact_steps, " exact steps of ",
            v.exact_bytes / std::max<int64_t>(v.exact_steps, 1), " bytes, ", v.compressed_steps, " compressed of ",
            v.compressed_bytes / v.compressed_steps);
    CHECK(found.loss < 1.02 * row.exact);
    CHECK(v.exact_steps + v.compressed_steps == steps);
    if (v.exact_steps > 0)
      CHECK(double(v.compressed_bytes) / double(v.compressed_steps) * 16 <=
            double(v.exact_bytes) / double(v.exact_steps));
  }
}

TEST_CASE("onebit: a state goes to another optimizer, whose errors start at zero") {
  for (const Row& row : rows) {
    for (const int saved_at : {1, 9}) {
      CAPTURE(row.name);
      CAPTURE(saved_at);
      on_ranks(3, [&](int rank) {
        manual_seed(1);
        Mlp a, b;
        const auto first = row.make(a.parameters(), 3);
        const auto run = [&](Mlp& net, OneBitOptimizer& optimizer, int from, int steps) {
          for (int step = from; step < from + steps; ++step) step_of(net, optimizer, step, rank);
          optimizer.synchronize();
        };
        run(a, *first, 0, saved_at);
        const auto second = row.make(b.parameters(), 3);
        b.load_state(a.state());
        second->load_state(first->state());
        CHECK(second->steps() == saved_at);
        first->load_state(first->state());  // restores its errors, too
        run(a, *first, saved_at, 8);
        run(b, *second, saved_at, 8);
        CHECK(differing(everything(a, *first), everything(b, *second)) == "");
      });
    }
  }
}

TEST_CASE("onebit: a mask keeps momenta of zero at zero") {
  on_ranks(2, [](int rank) {
    Variable w(ones({4, 8}), true);
    OneBitAdam optimizer({w}, {.lr = 0.1, .freeze_step = 2});
    Tensor mask = ones({4, 8});
    mask.narrow(0, 2, 2).zero_();
    optimizer.set_exp_avg_mask(w, mask);
    for (int step = 0; step < 6; ++step) {
      manual_seed(uint64_t(10 * step + rank));
      w.grad() = mul(randn({4, 8}), mask);
      optimizer.step();
    }
    const Tensor m = optimizer.state_of(w).tensors.at("exp_avg");
    CHECK(max(abs(m.narrow(0, 2, 2))).item() == 0);
    CHECK(min(abs(m.narrow(0, 0, 2))).item() > 0);
    CHECK(equal(w.tensor().narrow(0, 2, 2), ones({2, 8})));
    CHECK_ERROR(optimizer.set_exp_avg_mask(w, ones({4})), "expected a mask of the parameter's shape (4, 8), got (4)");
    CHECK_ERROR(optimizer.set_exp_avg_mask(Variable(ones({4, 8})), mask),
                "expected a mask for one of this optimizer's parameters");
  });
}

TEST_CASE("onebit: a parameter that never had a gradient does not change when it is compressed with others") {
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const std::string name = row.name;
    if (name == "OneBitSGD" || name == "OneBitAdam with decay") continue;
    on_ranks(2, [&](int rank) {
      const Tensor w = after_steps(row, rank, 2, 12, {4, 8}, [](const Tensor& grad) { grad.narrow(0, 2, 2).zero_(); });
      const Tensor rest = w.narrow(0, 2, 2);
      CHECK(max(rest).item() == min(rest).item());
      CHECK(max(abs(w)).item() < 2);
    });
  }
}

TEST_CASE("onebit: inputs that are rarely there leave a tiny second moment, and no step that is huge") {
  for (const Row& row : rows) {
    const std::string name = row.name;
    if (name == "OneBitAdam, momenta as they are" || name == "OneBitSGD" || name == "OneBitAdam with decay") continue;
    CAPTURE(row.name);
    on_ranks(2, [&](int rank) {
      const Tensor w =
          after_steps(row, rank, 8, 40, {4, 64}, [](const Tensor& grad) { mul_scalar_(grad.narrow(1, 32, 32), 1e-6); });
      CHECK(max(abs(sub(w, ones({4, 64})))).item() < 1.5);
    });
  }
}

TEST_CASE("onebit: NaN on one rank makes all ranks skip; without skipping it reaches all ranks") {
  for (const Row& row : rows) {
    for (const int bad_step : {0, 6}) {
      CAPTURE(row.name);
      CAPTURE(bad_step);
      on_ranks(3, [&](int rank) {
        manual_seed(1);
        Mlp net;
        const auto optimizer = row.make(net.parameters(), 2);
        for (int step = 0; step < 8; ++step) {
          backward(net, step, rank);
          if (step == bad_step && rank == 1) net.b.weight.grad().fill_(NAN);
          const Tensors before = copy_parameters(net);
          const OneBitStepReport report = optimizer->step({.skip_nonfinite = true});
          CHECK(report.skipped == (step == bad_step));
          CHECK((differing(before, copy_parameters(net)) == "") == report.skipped);
          optimizer->zero_grad();
        }
        backward(net, 8, rank);
        if (rank == 1) net.b.weight.grad().fill_(NAN);
        optimizer->step();
        optimizer->synchronize();
        CHECK(optimizer->steps() == 8);
        CHECK(std::isnan(net.b.weight.tensor().flatten()[0].item()));
      });
    }
  }
}

TEST_CASE("0/1 Adam: intervals grow, and nothing is sent between exchanges") {
  on_ranks(2, [](int rank) {
    manual_seed(1);
    Mlp net;
    ZeroOneAdam optimizer(
        net.parameters(),
        {.var_freeze_step = 12, .var_update_scaler = 2, .local_step_scaler = 4, .local_step_clipper = 3});
    std::string kinds;
    for (int step = 0; step < 32; ++step) {
      const int64_t before = dist::world().traffic().sent;
      const bool compressed = step_of(net, optimizer, step, rank).compressed;
      const bool sent = dist::world().traffic().sent > before;
      kinds += !compressed ? 'E' : !sent ? '.' : step < 12 ? 'g' : 'x';
      CHECK(optimizer.is_synchronized() == (kinds.back() != '.'));
      if (kinds.back() == '.') CHECK_ERROR(optimizer.state(), "local steps apart: call synchronize()");
    }
    // Variance updates at steps 1, 2 | 4, 6 | 8, 12; then exchanges at intervals of 1, 2 and 3 steps.
    CHECK(kinds ==
          "EEgEgEgEgggE"
          "xxxx.x.x..x..x..x..x");
  });
}

TEST_CASE(
    "onebit: values that all ranks write to parameters count at the next step, or are rejected between exchanges") {
  for (const DType dtype : {f32, bf16}) {
    for (const Row& row : rows) {
      CAPTURE(row.name);
      on_ranks(2, [&](int rank) {
        manual_seed(1);
        Mlp net;
        net.to(dtype);
        const bool drifts = std::string(row.name) == "ZeroOneAdam";
        const auto exact = row.make(net.parameters(), 1000), optimizer = row.make(net.parameters(), 2);
        for (int i = 0; i < 3; ++i) {
          step_of(net, *exact, i, rank, dtype);
          net.b.weight.tensor().fill_(0.5);
          step_of(net, *exact, i, rank, dtype);
          CHECK(amax(abs(sub(net.b.weight.tensor().to(f32), full({1}, 0.5)))).item() < 0.3);
        }
        int i = 0;
        while (drifts && optimizer->is_synchronized() && i < 32) step_of(net, *optimizer, i++, rank, dtype);
        CHECK(optimizer->is_synchronized() == !drifts);
        net.b.weight.tensor().fill_(7);
        if (drifts)
          CHECK_ERROR(step_of(net, *optimizer, i, rank, dtype), "was changed by 'fill_' between two exchanges");
      });
    }
  }
}

TEST_CASE("1-bit LAMB: the factor stays in its range and changes slowly") {
  on_ranks(2, [](int rank) {
    manual_seed(1);
    Mlp net;
    OneBitLamb optimizer(
        net.parameters(),
        {.lr = 0.01, .freeze_step = 3, .factor_min = 0.8, .factor_max = 1.3, .factor_threshold = 0.05});
    double before = 1;
    bool moved = false;
    for (int step = 0; step < 20; ++step) {
      step_of(net, optimizer, step, rank);
      const auto& numbers = optimizer.state_of(net.b.weight).numbers;
      if (step < 3) {
        CHECK(numbers.at("coeff_count") == step + 1);
        continue;
      }
      const double factor = numbers.at("last_factor");
      CHECK(factor >= 0.8);
      CHECK(factor <= 1.3);
      CHECK(std::fabs(factor / before - 1) <= 0.0501);
      CHECK(numbers.at("coeff") >= 0.01);
      CHECK(numbers.at("scaling_coeff") > 0);
      moved |= factor != 1;
      before = factor;
    }
    CHECK(moved);
  });
}

TEST_CASE("onebit: unsupported settings are rejected with the reason") {
  on_ranks(1, [](int) {
    Mlp net;
    const auto p = net.parameters();
    CHECK_ERROR(OneBitAdam(p, {.freeze_step = 0}),
                "[OneBitAdam] expected a whole number from 1 to 2^53 for freeze_step, got 0");
    CHECK_ERROR(OneBitAdam(p, {.freeze_step = 1.5}), "got 1.5");
    CHECK_ERROR(OneBitAdam(p, {.beta1 = 1}), "[OneBitAdam] expected beta1 in [0, 1), got 1");
    CHECK_ERROR(OneBitLamb(p, {.min_coeff = 2, .max_coeff = 1}), "expected max_coeff >= min_coeff");
    CHECK_ERROR(OneBitLamb(p, {.factor_min = 2, .factor_max = 1}), "expected factor_max >= factor_min");
    CHECK_ERROR(ZeroOneAdam(p, {.local_step_clipper = 0}),
                "expected a whole number from 1 to 2^53 for local_step_clipper");
    CHECK_ERROR(OneBitSGD(p, {.momentum = 0, .nesterov = true}), "nesterov needs momentum > 0");
    CHECK_ERROR(OneBitSGD(std::vector<Variable>{}, {}), "expected at least one parameter");
    CHECK_ERROR(OneBitSGD({Variable(ones({2}, {.dtype = f64}), true)}, {}),
                "expected f32, bf16 or f16 parameters, got one of f64 (2)");
    CHECK_ERROR(OneBitSGD({Variable(ones({2}))}, {}), "expected parameters that require grad, got none");
    OneBitSGD optimizer(p, {});
    CHECK_ERROR(optimizer.step(), "expected a gradient for every parameter on every rank, got none for 0 (40, 6)");
    CHECK_ERROR(optimizer.step({.max_norm = -1}), "expected");
    {
      parallel::DistributedDataParallel ddp(net);
      backward(net, 0, 0);
      CHECK_ERROR(optimizer.step(), "DistributedDataParallel has reduced them already");
    }
    optimizer.zero_grad();
    backward(net, 0, 0);
    CHECK_ERROR(optim::GradScaler().step(optimizer),
                "[GradScaler] OneBitSGD must agree with other ranks about overflow");
    optimizer.step();
    OneBitAdam two(
        std::vector<OneBitAdam::Group>{{{net.a.weight}, {.freeze_step = 2}}, {{net.b.weight}, {.freeze_step = 3}}});
    backward(net, 0, 0);
    CHECK_ERROR(two.step(), "expected the same freeze_step in every group, got 2 and 3");
    OneBitAdam late({net.a.weight}, {.freeze_step = 1});
    late.step();
    late.add_group({net.b.weight}, {.freeze_step = 1});
    CHECK_ERROR(late.step(), "expected parameters that took part in exact steps, got one of shape (24, 40)");
  });
  CHECK_ERROR(on_ranks(2,
                       [](int rank) {
                         Mlp net;
                         OneBitAdam optimizer(net.parameters(), {.freeze_step = rank == 0 ? 5. : 6.});
                       }),
              "expected the same model and options on all ranks");
}
