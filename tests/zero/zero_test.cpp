// The public interface of Zero and its errors: unused parameters, gathered(), scaling. Optimizers and state for
// checkpoints: offload_test.cpp.
#include <doctest/doctest.h>

#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::NonFinite;
using zero::ZeroOptions;

namespace {

ZeroOptions at(int stage, ZeroOptions o = {}) {
  o.stage = stage;
  o.param_persistence_threshold = 500;
  return o;
}

/// Runs body(zero, net, optimizer) on two ranks after `backwards` backwards; an error fails the test.
void with_zero(const ZeroOptions& options, int backwards,
               const std::function<void(Zero&, Net&, optim::Optimizer&)>& body) {
  on_ranks(2, [&](int) {
    manual_seed(1);
    Net net;
    optim::AdamW optimizer(net.parameters(), {.lr = 1e-2});
    Zero zero(net, optimizer, options);
    for (int i = 0; i < backwards; ++i)
      loss_of_micro_batch(net, 0, zero.micro_batch(i, std::max(backwards, 1))).backward();
    body(zero, net, optimizer);
  });
}

void expect(const std::string& error, const std::string& part) {
  LOCKSTEP_CHECK(contains(error, part), "expected '", part, "' in: ", error);
}

/// The error of all ranks when body throws on some of them.
std::string error_of(const ZeroOptions& options, int backwards,
                     const std::function<void(Zero&, Net&, optim::Optimizer&)>& body) {
  return message([&] { with_zero(options, backwards, body); });
}

}  // namespace

TEST_CASE("zero: backwards that all reduce, without no_sync, add up to the same gradients") {
  for (const int stage : {0, 1}) {
    // Without no_sync, micro-batches are summed in another order, so results are close but not equal.
    const Tensors a = train({.ranks = 2, .accumulation = 4, .options = at(stage)}),
                  b = train({.ranks = 2, .accumulation = 4, .options = at(stage), .no_sync = false});
    CHECK(distance(a, b) < 1e-3);
    CHECK(differing(b, train({.ranks = 2, .accumulation = 4, .options = at(1 - stage), .no_sync = false})) == "");
  }
}

TEST_CASE("zero: sums and messages in another dtype") {
  for (const int stage : {1, 2, 3}) {
    ZeroOptions o = at(stage, {.communication_data_type = f32});
    const Tensors wide =
        train({.ranks = 1, .options = at(0, {.communication_data_type = f32}), .dtype = bf16, .max_norm = 0.05});
    CHECK(differing(wide, train({.ranks = 4, .accumulation = 2, .options = o, .dtype = bf16, .max_norm = 0.05})) == "");
    o.communication_data_type = bf16;
    CHECK(distance(train({}), train({.ranks = 4, .accumulation = 2, .options = o})) < 0.1);
  }
}

TEST_CASE("zero: unused parameters are named in an Error, or skipped as by an optimizer") {
  const auto run = [](int ranks, std::optional<ZeroOptions> options, bool everywhere) {
    return on_ranks<Tensors>(ranks, [&](int rank) {
      manual_seed(1);
      Branches net;
      net.use_left = everywhere || rank == 0;
      optim::AdamW optimizer(net.parameters(), {.lr = 1e-2, .weight_decay = 0.5});
      std::optional<Zero> zero;
      if (options) zero.emplace(net, optimizer, *options);
      for (int step = 0; step < 3; ++step) {
        sum(square(net(ones({2, 3})))).backward();
        if (zero) zero->step();
        else optimizer.step();
        if (!zero) optimizer.zero_grad();
      }
      std::optional<Zero::Gathered> entire;
      if (zero) entire.emplace(*zero, net.parameters());
      return copy_parameters(net);
    })[0];
  };
  const Tensors one = run(1, {}, true);
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const ZeroOptions ignore = at(stage, {.ignore_unused_parameters = true});
    CHECK(differing(one, run(2, ignore, true)) == "");  // `never` is not changed
    // `left` has a gradient on rank 0 only.
    CHECK(differing(run(2, at(0, {.ignore_unused_parameters = true}), false), run(2, ignore, false)) == "");
    const std::string error = message([&] { run(2, at(stage), true); });
    CHECK(contains(error, "2 parameters got no gradient since the last step: never.weight, never.bias"));
    CHECK(contains(error, "ignore_unused_parameters"));
  }
}

TEST_CASE("zero: calls that step() and gradients() reject") {
  struct Row {
    std::vector<int> stages;
    int backwards;
    std::function<void(Zero& zero, Net& net, optim::Optimizer& optimizer)> body;
    const char* text;
  };
  const std::vector<int> all{0, 1, 2, 3};
  const Row rows[] = {
      {all, 0, [](Zero& zero, auto&, auto&) { zero.step(); }, "expected a backward since the last step"},
      {all, 1, [](Zero& zero, auto&, auto&) { zero.step(), zero.step(); }, "expected a backward since the last step"},
      {all, 1, [](auto&, auto&, optim::Optimizer& optimizer) { optimizer.step(); }, "were released"},
      {all, 1,
       [](auto&, Net& net, auto&) {
         net.a.weight.clear_grad();
         loss_of_micro_batch(net, 0, 1).backward();
       },
       "the gradient of a.weight was cleared between micro-batches, that of"},
      {all, 1, [](Zero& zero, auto&, auto&) { zero.step({.max_norm = -1}); }, "max_norm >= 0"},
      {all, 1,
       [](Zero& zero, auto&, auto&) {
         optim::DynamicLossScaler scaler;
         zero.step({.scaler = &scaler});
       },
       "NonFinite::skip"},
      {{2}, 0, [](Zero& zero, auto&, auto&) { (void)zero.no_sync(); }, "in stage 2 no rank keeps whole gradients"},
      {{3}, 0, [](Zero& zero, auto&, auto&) { (void)zero.no_sync(); }, "in stage 3 no rank keeps whole gradients"},
      {{1},
       0,
       [](Zero& zero, Net& net, auto&) {
         {
           const auto local = zero.no_sync();
           loss_of_micro_batch(net, 0, 0).backward();
         }
         zero.step();
       },
       "the last micro-batch's backward must run outside"},
      {{3},
       1,
       [](Zero& zero, auto&, auto&) {
         const auto entire = zero.gathered();
         zero.step();
       },
       "step() was called while gathered() holds"},
  };
  for (const Row& row : rows)
    for (const int stage : row.stages) CHECK_ERROR(with_zero(at(stage), row.backwards, row.body), row.text);
}

TEST_CASE("zero: clearing all gradients drops the collected ones, whichever function clears them") {
  for (const int stage : {0, 1, 2, 3}) {
    for (int way = 0; way < 3; ++way) {
      CAPTURE(stage);
      CAPTURE(way);
      Tensors twice, once;
      const auto finish = [](Zero& zero, Net& net, Tensors& to) {
        loss_of_micro_batch(net, 7, 3).backward();
        zero.step();
        const auto entire = zero.gathered();
        if (dist::world().rank() == 0) to = copy_parameters(net);
      };
      with_zero(at(stage), 2, [&](Zero& zero, Net& net, optim::Optimizer& optimizer) {
        if (way == 0) zero.zero_grad();
        if (way == 1) optimizer.zero_grad();
        if (way == 2) net.zero_grad();
        finish(zero, net, twice);
      });
      with_zero(at(stage), 0, [&](Zero& zero, Net& net, optim::Optimizer&) { finish(zero, net, once); });
      CHECK(differing(once, twice) == "");
    }
  }
}

TEST_CASE("zero: arguments that the constructor rejects") {
  struct Sender : optim::SGD {  // like the 1-bit optimizers
    using SGD::SGD;
    bool communicates() const override { return true; }
  };
  struct Row {
    std::function<void(Net& net)> body;
    const char* text;
  };
  const auto with = [](const ZeroOptions& options) {
    return [options](Net& net) {
      optim::SGD optimizer(net.parameters(), {.lr = 0.1});
      Zero zero(net, optimizer, options);
    };
  };
  const auto sends = [](int stage) {
    return [stage](Net& net) {
      Sender optimizer(net.parameters(), {.lr = 0.1});
      Zero zero(net, optimizer, {.stage = stage});
    };
  };
  const char* const without_zero =
      "SGD exchanges gradients between ranks itself and needs those of the whole model: use it without ZeRO";
  const Row rows[] = {
      {with({.stage = 4}), "stage 0, 1, 2 or 3, got 4"},
      {with({.stage = -1}), "got -1"},
      {with({.reduce_bucket_size = 0}), "reduce_bucket_size > 0, got 0"},
      {with({.stage = 3, .prefetch_bucket_size = -1}), "prefetch_bucket_size >= 0, got -1"},
      {with({.communication_data_type = i32}), "floating communication_data_type, got i32"},
      {with({.stage = 3, .max_live_parameters = 0}), "max_live_parameters > 0"},
      {sends(0), without_zero},
      {sends(1), without_zero},
      {sends(2), without_zero},
      {sends(3), without_zero},
      {[](Net& net) {
         optim::SGD optimizer(net.a.parameters(), {.lr = 0.1});
         Zero zero(net, optimizer);
       },
       "6 that are in none: norm.weight, norm.bias, b.weight"},
      {[](Net& net) {
         optim::SGD a(net.parameters(), {.lr = 0.1}), b(net.a.parameters(), {.lr = 0.1});
         Zero zero(net, std::vector<optim::Optimizer*>{&a, &b});
       },
       "a.weight is in two optimizers"},
      {[](Net& net) {
         Net other;
         optim::SGD optimizer(other.parameters(), {.lr = 0.1});
         Zero zero(net, optimizer);
       },
       "is not one of the module's 8"},
      {[](Net& net) {
         optim::SGD optimizer(net.parameters(), {.lr = 0.1});
         net.requires_grad_(false);
         Zero zero(net, optimizer);
       },
       "got none in Net"},
      {[&](Net& net) { with({.reduce_bucket_size = 100 + dist::world().rank()})(net); }, "reduce_bucket_size 100"}};
  for (const Row& row : rows) {
    CHECK_ERROR(on_ranks(2,
                         [&](int) {
                           Net net;
                           row.body(net);
                         }),
                row.text);
  }
}

TEST_CASE("zero: gathered() shows whole parameters, and one rank may change them for all") {
  for (const DType dtype : {f32, bf16}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(stage);
      CAPTURE(dtype);
      const auto all = on_ranks<Tensors>(2, [&](int rank) {
        manual_seed(1);
        Net net;
        net.to(dtype);
        const Tensors before = copy_parameters(net);
        optim::AdamW optimizer(net.parameters(), {.lr = 1e-2});
        Zero zero(net, optimizer, at(stage));
        {
          const auto entire = zero.gathered();
          LOCKSTEP_CHECK(differing(before, copy_parameters(net)) == "", "gathered other values");
        }
        loss_of_micro_batch(net, 0, rank, dtype).backward();
        zero.step();  // creates the master weights
        {
          const auto entire = zero.gathered({net.b.weight, net.c.bias}, 1);
          const NoGrad no_grad;
          if (rank == 1) {
            net.b.weight.tensor().fill_(0.5);
            net.c.bias.tensor().fill_(-1);
          }
        }
        const std::string error = message([&] {
          const auto entire = zero.gathered({net.b.weight});
          net.b.weight.tensor().fill_(3);
        });
        if (stage == 3) expect(error, "b.weight was changed (by 'fill_'), but the scope has no modifier rank");
        if (stage < 3) {
          const auto entire = zero.gathered({net.b.weight}, 0);
          net.b.weight.tensor().fill_(0.5);
        }
        loss_of_micro_batch(net, 1, rank, dtype).backward();
        zero.step();
        return gathered_parameters(zero, net);
      });
      CHECK(differing(all[0], all[1]) == "");
      CHECK(amax(abs(sub(all[0].at("b.weight").to(f32), full({97, 130}, 0.5)))).item() < 0.02);
      CHECK(amax(abs(sub(all[0].at("c.bias").to(f32), full({3}, -1)))).item() < 0.02);
    }
  }
}

TEST_CASE(
    "zero: NaN or infinity on one rank: an error on all that names parameter, rank and step, or a step that all skip") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const auto poison = [](Net& net, int step, bool bad) {
      std::optional<int> hook;
      if (bad)
        hook = net.b.weight.on_grad([](const Tensor& grad) {
          Tensor g = grad.clone();
          g.view({-1}).narrow(0, 7000, 1).fill_(INFINITY);
          return g;
        });
      loss_of_micro_batch(net, step, dist::world().rank()).backward();
      if (hook) net.b.weight.remove_hook(*hook);
    };
    const std::string error = error_of(at(stage), 1, [&](Zero& zero, Net& net, optim::Optimizer&) {
      zero.step();
      poison(net, 1, dist::world().rank() == 1);
      zero.step();
    });
    CHECK(contains(error, "first in the gradient of b.weight at rank 1, in step 2"));
    with_zero(at(stage, {.nonfinite = NonFinite::skip}), 0, [&](Zero& zero, Net& net, optim::Optimizer&) {
      optim::DynamicLossScaler scaler({.init_scale = 4, .min_scale = 2});
      const auto weights = [&] { return gathered_parameters(zero, net); };
      const Tensors before = weights();
      poison(net, 0, dist::world().rank() == 1);
      const zero::StepReport report = zero.step({.scaler = &scaler});
      LOCKSTEP_CHECK(report.skipped && report.first_nonfinite == "b.weight" && report.rank == 1, report.first_nonfinite,
                     " ", report.rank);
      LOCKSTEP_CHECK(differing(before, weights()) == "" && scaler.scale() == 2, "a skipped step changed something");
      poison(net, 1, false);
      LOCKSTEP_CHECK(!zero.step({.scaler = &scaler}).skipped && differing(before, weights()) != "",
                     "a clean step changed nothing");
      poison(net, 2, dist::world().rank() == 1);
      const std::string at_minimum = message([&] { zero.step({.scaler = &scaler}); });
      expect(at_minimum, "already at its minimum 2");
      expect(at_minimum, "first in the gradient of b.weight at rank 1, in step 3");
    });
  }
}

TEST_CASE("zero: loss scaling in f16 gives every plan the same steps, skipped ones included") {
  const auto run = [](int ranks, int stage) {
    return alike(ranks, [&](int) {
      manual_seed(1);
      Net net;
      net.to(f16);
      const auto optimizer = adamw(net.parameters());
      Zero zero(net, *optimizer, at(stage, {.nonfinite = NonFinite::skip}));
      optim::DynamicLossScaler scaler({.init_scale = 0x1p24, .scale_window = 3});  // overflows in the first step
      const int accumulation = 4 / ranks;
      std::vector<double> trace;
      for (int step = 0; step < 20; ++step) {
        backwards(zero, accumulation,
                  [&](int64_t micro) { (loss_of_micro_batch(net, step, micro, f16) * scaler.scale()).backward(); });
        trace.push_back(zero.step({.grad_scale = 1. / accumulation, .max_norm = 0.5, .scaler = &scaler}).skipped);
        trace.push_back(scaler.scale());
      }
      const auto entire = zero.gathered();
      Tensors result = copy_parameters(net);
      result["trace"] = Tensor::from(trace, {int64_t(trace.size())});
      return result;
    });
  };
  const Tensors one = run(1, 0);
  const std::vector<double> trace = one.at("trace").to_vector<double>();
  CHECK(trace[0] == 1);  // the first step overflowed
  CHECK(trace[38] + trace[36] + trace[34] + trace[32] < 4);
  for (const int stage : {0, 1, 2, 3})
    for (const int ranks : {2, 4}) CHECK(differing(one, run(ranks, stage)) == "");
}
