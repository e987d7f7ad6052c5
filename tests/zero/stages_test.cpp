// Every policy of the reducer, DDP and stages 0 to 3: the bits of one process for any partition; errors leave nothing
// behind.
#include <doctest/doctest.h>

#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::ZeroOptions;

namespace {

constexpr int ddp = -1;
constexpr int stages[] = {0, 1, 2, 3}, policies[] = {ddp, 0, 1, 2, 3};

ZeroPlan plan_of(int policy, const ZeroPlan& plan, int ranks, int64_t size, bool overlap) {
  ZeroPlan of = divided(plan, ranks, {.stage = policy, .overlap_comm = overlap, .reduce_bucket_size = size});
  if (policy == ddp) {
    of.options.reset();
    of.ddp = parallel::DdpOptions{.bucket_mib = double(size) * 4 / (1 << 20), .overlap = overlap};
  }
  return of;
}

}  // namespace

TEST_CASE("zero: DDP and every stage, any ranks, size of units, overlap or not: bit-identical to one process") {
  for (const double max_norm : {0., 0.05}) {
    const ZeroPlan plan{.max_norm = max_norm};
    const Tensors one = train(plan);
    CHECK(one.size() == (max_norm > 0 ? 9 : 8));
    for (const int policy : policies) {
      for (const int ranks : {1, 2, 4, 8}) {
        for (const int64_t size : {int64_t(1), int64_t(1000), int64_t(1) << 40}) {
          INFO("policy ", policy, ", ", ranks, " ranks, size ", size, ", max_norm ", max_norm);
          CHECK(differing(one, train(plan_of(policy, plan, ranks, size, size != 1000))) == "");
        }
      }
    }
  }
}

TEST_CASE("zero: bf16 and f16 parameters with f32 master weights: the same bits in every stage") {
  for (const DType dtype : {bf16, f16}) {
    for (const double max_norm : {0., 0.05}) {
      const ZeroPlan plan{.dtype = dtype, .max_norm = max_norm};
      const Tensors one = train(divided(plan, 1, {.stage = 0}));
      // Without ZeRO, with the optimizer's own master weights.
      if (dtype == bf16 && max_norm == 0) CHECK(differing(one, train(plan)) == "");
      for (const int stage : stages) {
        for (const int ranks : {1, 2, 4, 8}) {
          INFO("stage ", stage, ", ", ranks, " ranks, max_norm ", max_norm, ", ", dtype);
          CHECK(differing(one, train(divided(plan, ranks, {.stage = stage, .reduce_bucket_size = 1000}))) == "");
        }
      }
    }
  }
}

TEST_CASE("zero: DDP with a static graph gives the same bits, and so does looking for unused parameters") {
  const Tensors one = train({});
  CHECK(differing(one, train({.ranks = 2,
                              .accumulation = 4,
                              .ddp = parallel::DdpOptions{.bucket_mib = 1e-6, .static_graph = true}})) == "");
  CHECK(differing(one, train({.ranks = 4,
                              .accumulation = 2,
                              .ddp = parallel::DdpOptions{.bucket_mib = 1e-6, .find_unused_parameters = true}})) == "");
}

TEST_CASE("zero: odd numbers of ranks and of micro-batches run, and every rank gets the same") {
  for (const int policy : policies) {
    for (const int ranks : {3, 5}) {
      const ZeroPlan all{.accumulation = 3 * ranks, .max_norm = 0.05, .steps = 2},
          plan = plan_of(policy, all, ranks, 6'500'000, true);
      CHECK(differing(train(plan), train(plan)) == "");
    }
  }
}

TEST_CASE("zero: an exception inside a backward leaves nothing of it behind") {
  const auto run = [](int policy, bool fails) {
    ZeroPlan plan = plan_of(policy, {.accumulation = 2, .steps = 1}, 2, 6'500'000, true);
    if (plan.options) plan.options->param_persistence_threshold = 500;
    plan.loss = [&](nn::Module& module, const Call&, int, int64_t micro) {
      Net& net = static_cast<Net&>(module);
      if (fails) {
        // the last gradient to be computed
        const int hook = net.a.weight.on_grad([](const Tensor&) -> Tensor { fail("a hook fails"); });
        CHECK_ERROR(loss_of_micro_batch(net, 0, micro).backward(), "a hook fails");
        net.a.weight.remove_hook(hook);
        for (const Variable& p : net.parameters()) LOCKSTEP_CHECK(!p.grad().defined(), "a gradient is left");
      }
      return loss_of_micro_batch(net, 7, micro);
    };
    return train(plan);
  };
  for (const int policy : policies) {
    CAPTURE(policy);
    CHECK(differing(run(policy, false), run(policy, true)) == "");
  }
}
