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

/// Runs body on two ranks after `backwards` backwards; an error fails the test.
void with_zero(const ZeroOptions& options, int backwards, const std::function<void(NetOnZero&)>& body) {
  on_ranks(2, [&](int) {
    NetOnZero on(options);
    for (int i = 0; i < backwards; ++i) on.backward(0, on.zero.micro_batch(i, backwards));
    body(on);
  });
}

}  // namespace

TEST_CASE("zero: backwards that all reduce, without no_sync, add up to the same gradients") {
  for (const int stage : {0, 1}) {
    // Without no_sync, micro-batches are summed in another order, so results are close but not equal.
    const ZeroPlan plan{.no_sync = false};
    const Tensors b = train(divided(plan, 2, at(stage)));
    CHECK(distance(train(divided({}, 2, at(stage))), b) < 1e-3);
    CHECK(differing(b, train(divided(plan, 2, at(1 - stage)))) == "");
  }
}

TEST_CASE("zero: sums and messages in another dtype") {
  const ZeroPlan plan{.dtype = bf16, .max_norm = 0.05};
  for (const int stage : {1, 2, 3}) {
    const Tensors wide = train(divided(plan, 1, at(0, {.communication_data_type = f32})));
    CHECK(differing(wide, train(divided(plan, 4, at(stage, {.communication_data_type = f32})))) == "");
    CHECK(distance(train({}), train(divided({}, 4, at(stage, {.communication_data_type = bf16})))) < 0.1);
  }
}

TEST_CASE("zero: unused parameters are named in an Error, or skipped as by an optimizer") {
  const auto run = [](int ranks, std::optional<ZeroOptions> options, bool everywhere) {
    return train({.ranks = ranks,
                  .accumulation = 1,
                  .options = options,
                  .steps = 3,
                  .make = maker<optim::AdamW>(optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.5}),
                  .model =
                      [&] {
                        auto net = std::make_unique<Branches>();
                        net->use_left = everywhere || dist::world().rank() == 0;
                        return net;
                      },
                  .loss =
                      [](auto&, const Call& call, int, int64_t) {
                        return sum(square(call(ones({2, 3}))));
                      }});
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
    std::function<void(NetOnZero& on)> body;
    const char* text;
  };
  const std::vector<int> all{0, 1, 2, 3};
  const Row rows[] = {
      {all, 0, [](NetOnZero& on) { on.zero.step(); }, "expected a backward since the last step"},
      {all, 1, [](NetOnZero& on) { on.zero.step(), on.zero.step(); }, "expected a backward since the last step"},
      {all, 1, [](NetOnZero& on) { on.optimizer->step(); }, "were released"},
      {{1}, 0, [](NetOnZero& on) { on.zero.add(); }, "expected add() with hooks = false"},
      {all, 1, [](NetOnZero& on) { on.net.a.weight.clear_grad(), on.backward(0, 1); },
       "the gradient of a.weight was cleared between micro-batches, that of"},
      {all, 1, [](NetOnZero& on) { on.zero.step({.max_norm = -1}); }, "max_norm >= 0"},
      {all, 1,
       [](NetOnZero& on) {
         optim::DynamicLossScaler scaler;
         on.zero.step({.scaler = &scaler});
       },
       "NonFinite::skip"},
      {{2}, 0, [](NetOnZero& on) { (void)on.zero.no_sync(); }, "in stage 2 no rank keeps whole gradients"},
      {{3}, 0, [](NetOnZero& on) { (void)on.zero.no_sync(); }, "in stage 3 no rank keeps whole gradients"},
      {{1},
       0,
       [](NetOnZero& on) {
         {
           const auto local = on.zero.no_sync();
           on.backward(0, 0);
         }
         on.zero.step();
       },
       "the last micro-batch's backward must run outside"},
      {{3},
       1,
       [](NetOnZero& on) {
         const auto entire = on.zero.gathered();
         on.zero.step();
       },
       "step() was called while gathered() holds"},
  };
  for (const Row& row : rows)
    for (const int stage : row.stages) CHECK_ERROR(with_zero(at(stage), row.backwards, row.body), row.text);
}

TEST_CASE("zero: clearing all gradients drops the collected ones, whichever function clears them") {
  const std::function<void(NetOnZero&)> ways[] = {[](NetOnZero& on) { on.zero.zero_grad(); },
                                                  [](NetOnZero& on) { on.optimizer->zero_grad(); },
                                                  [](NetOnZero& on) { on.net.zero_grad(); }};
  for (const int stage : {0, 1, 2, 3}) {
    const auto after = [&](const std::function<void(NetOnZero&)>& body) {
      return parameters_after(2, at(stage), f32, [&](NetOnZero& on) {
        body(on);
        on.backward(7, 3);
        on.zero.step();
      });
    };
    const Tensors once = after([](NetOnZero&) {});
    for (const auto& clear : ways) {
      CAPTURE(stage);
      CHECK(differing(once, after([&](NetOnZero& on) {
                        for (int i = 0; i < 2; ++i) on.backward(0, on.zero.micro_batch(i, 2));
                        clear(on);
                      })) == "");
    }
  }
}

TEST_CASE("zero: arguments that the constructor rejects") {
  struct Sender : optim::SGD {  // like the 1-bit optimizers
    using SGD::SGD;
    bool communicates() const override { return true; }
  };
  const auto with = [](const ZeroOptions& options) {
    return [options](Net& net) {
      optim::SGD optimizer(net.parameters(), {.lr = 0.1});
      Zero zero(net, optimizer, options);
    };
  };
  std::vector<std::pair<std::function<void(Net & net)>, const char*>> rows = {
      {with({.stage = 4}), "stage 0, 1, 2 or 3, got 4"},
      {with({.stage = -1}), "got -1"},
      {with({.reduce_bucket_size = 0}), "reduce_bucket_size > 0, got 0"},
      {with({.stage = 3, .prefetch_bucket_size = -1}), "prefetch_bucket_size >= 0, got -1"},
      {with({.stage = 3, .hooks = false}), "[zero] stage 3 needs hooks"},
      {with({.communication_data_type = i32}), "floating communication_data_type, got i32"},
      {with({.stage = 3, .max_live_parameters = 0}), "max_live_parameters > 0"},
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
  for (const int stage : {0, 1, 2, 3})
    rows.push_back({[stage](Net& net) {
                      Sender optimizer(net.parameters(), {.lr = 0.1});
                      Zero zero(net, optimizer, {.stage = stage});
                    },
                    "SGD exchanges gradients between ranks itself and needs those of the whole model: use it without "
                    "ZeRO"});
  for (const auto& [body, text] : rows)
    CHECK_ERROR(on_ranks(2,
                         [&, &make = body](int) {
                           Net net;
                           make(net);
                         }),
                text);
}

TEST_CASE("zero: gathered() shows whole parameters, and one rank may change them for all") {
  for (const DType dtype : {f32, bf16}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(stage);
      CAPTURE(dtype);
      Net start = NetOnZero::new_net(dtype);
      const Tensors before = copy_parameters(start);
      const Tensors found = parameters_after(2, at(stage), dtype, [&](NetOnZero& on) {
        const int rank = dist::world().rank();
        Net& net = on.net;
        LOCKSTEP_CHECK(differing(before, on.parameters()) == "", "gathered other values");
        on.backward(0, rank);
        on.zero.step();  // creates the master weights
        {
          const auto entire = on.zero.gathered({net.b.weight, net.c.bias}, 1);
          const NoGrad no_grad;
          if (rank == 1) net.b.weight.tensor().fill_(0.5), net.c.bias.tensor().fill_(-1);
        }
        const std::string error = message([&] {
          const auto entire = on.zero.gathered({net.b.weight});
          net.b.weight.tensor().fill_(3);
        });
        if (stage == 3) CHECK(contains(error, "b.weight was changed (by 'fill_'), but the scope has no modifier rank"));
        if (stage < 3) {
          const auto entire = on.zero.gathered({net.b.weight}, 0);
          net.b.weight.tensor().fill_(0.5);
        }
        on.backward(1, rank);
        on.zero.step();
      });
      CHECK(amax(abs(sub(found.at("b.weight").to(f32), full({97, 130}, 0.5)))).item() < 0.02);
      CHECK(amax(abs(sub(found.at("c.bias").to(f32), full({3}, -1)))).item() < 0.02);
    }
  }
}

TEST_CASE(
    "zero: NaN or infinity on one rank: an error on all that names parameter, rank and step, or a step that all skip") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const auto poison = [](NetOnZero& on, int step, bool bad) {
      std::optional<int> hook;
      if (bad)
        hook = on.net.b.weight.on_grad([](const Tensor& grad) {
          Tensor g = grad.clone();
          g.view({-1}).narrow(0, 7000, 1).fill_(INFINITY);
          return g;
        });
      on.backward(step, dist::world().rank());
      if (hook) on.net.b.weight.remove_hook(*hook);
    };
    CHECK_ERROR(with_zero(at(stage), 1,
                          [&](NetOnZero& on) {
                            on.zero.step();
                            poison(on, 1, dist::world().rank() == 1);
                            on.zero.step();
                          }),
                "first in the gradient of b.weight at rank 1, in step 2");
    with_zero(at(stage, {.nonfinite = NonFinite::skip}), 0, [&](NetOnZero& on) {
      optim::DynamicLossScaler scaler({.init_scale = 4, .min_scale = 2});
      const Tensors before = on.parameters();
      poison(on, 0, dist::world().rank() == 1);
      const zero::StepReport report = on.zero.step({.scaler = &scaler});
      LOCKSTEP_CHECK(report.skipped && report.first_nonfinite == "b.weight" && report.rank == 1, report.first_nonfinite,
                     " ", report.rank);
      LOCKSTEP_CHECK(differing(before, on.parameters()) == "" && scaler.scale() == 2,
                     "a skipped step changed something");
      poison(on, 1, false);
      LOCKSTEP_CHECK(!on.zero.step({.scaler = &scaler}).skipped && differing(before, on.parameters()) != "",
                     "a clean step changed nothing");
      poison(on, 2, dist::world().rank() == 1);
      const std::string at_minimum = message([&] { on.zero.step({.scaler = &scaler}); });
      CHECK(contains(at_minimum, "already at its minimum 2"));
      CHECK(contains(at_minimum, "first in the gradient of b.weight at rank 1, in step 3"));
    });
  }
}

TEST_CASE("zero: loss scaling in f16 gives every plan the same steps, skipped ones included") {
  const auto run = [](int ranks, int stage) {
    return alike(ranks, [&](int) {
      NetOnZero on(at(stage, {.nonfinite = NonFinite::skip}), f16);
      optim::DynamicLossScaler scaler({.init_scale = 0x1p24, .scale_window = 3});  // overflows in the first step
      const int accumulation = 4 / ranks;
      std::vector<double> trace;
      for (int step = 0; step < 20; ++step) {
        backwards(on.zero, accumulation,
                  [&](int64_t micro) { (loss_of_micro_batch(on.net, step, micro, f16) * scaler.scale()).backward(); });
        trace.push_back(on.zero.step({.grad_scale = 1. / accumulation, .max_norm = 0.5, .scaler = &scaler}).skipped);
        trace.push_back(scaler.scale());
      }
      Tensors result = on.parameters();
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
