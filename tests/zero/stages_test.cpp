// Every policy of the reducer, DDP and stages 0 to 3: the bits of one process for any partition; errors leave nothing
// behind.
#include <doctest/doctest.h>

#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::ZeroOptions;

namespace {

constexpr std::pair<int, int> cuts[] = {{1, 8}, {2, 4}, {4, 2}, {8, 1}};  // ranks and micro-batches of each
constexpr int ddp = -1;
constexpr int stages[] = {0, 1, 2, 3}, policies[] = {ddp, 0, 1, 2, 3};

ZeroPlan plan_of(int policy, ZeroPlan plan, int64_t size, bool overlap) {
  if (policy == ddp) plan.ddp = parallel::DdpOptions{.bucket_mib = double(size) * 4 / (1 << 20), .overlap = overlap};
  else plan.options = ZeroOptions{.stage = policy, .overlap_comm = overlap, .reduce_bucket_size = size};
  return plan;
}

}  // namespace

TEST_CASE(
    "zero: DDP and every stage, ranks x accumulation, size of units, overlap or not: bit-identical to one process, "
    "with dropout and clipping") {
  for (const double max_norm : {0., 0.05}) {
    const Tensors one = train({.max_norm = max_norm});
    CHECK(one.size() == (max_norm > 0 ? 9 : 8));
    for (const int policy : policies) {
      for (const auto& [ranks, accumulation] : cuts) {
        for (const int64_t size : {int64_t(1), int64_t(1000), int64_t(1) << 40}) {
          INFO("policy ", policy, ", ", ranks, " ranks, size ", size, ", max_norm ", max_norm);
          CHECK(
              differing(one, train(plan_of(policy, {.ranks = ranks, .accumulation = accumulation, .max_norm = max_norm},
                                           size, size != 1000))) == "");
        }
      }
    }
  }
}

TEST_CASE("zero: bf16 and f16 parameters with f32 master weights: the same bits in every stage") {
  for (const DType dtype : {bf16, f16}) {
    for (const double max_norm : {0., 0.05}) {
      const Tensors one = train({.options = ZeroOptions{.stage = 0}, .dtype = dtype, .max_norm = max_norm});
      // Without ZeRO, with the optimizer's own master weights.
      if (dtype == bf16 && max_norm == 0) CHECK(differing(one, train({.dtype = dtype})) == "");
      for (const int stage : stages) {
        for (const auto& [ranks, accumulation] : cuts) {
          INFO("stage ", stage, ", ", ranks, " ranks, max_norm ", max_norm, ", ", dtype);
          CHECK(differing(one, train({.ranks = ranks,
                                      .accumulation = accumulation,
                                      .options = ZeroOptions{.stage = stage, .reduce_bucket_size = 1000},
                                      .dtype = dtype,
                                      .max_norm = max_norm})) == "");
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
      const ZeroPlan plan =
          plan_of(policy, {.ranks = ranks, .accumulation = 3, .max_norm = 0.05, .steps = 2}, 6'500'000, true);
      CHECK(differing(train(plan), train(plan)) == "");
    }
  }
}

TEST_CASE("zero: an exception inside a backward leaves nothing of it behind") {
  const auto run = [](int policy, bool fails) {
    return on_ranks<Tensors>(2, [&](int rank) {
      manual_seed(1);
      Net net;
      const auto optimizer = adamw(net.parameters());
      std::optional<Zero> zero;
      std::optional<parallel::DistributedDataParallel> wrapper;
      if (policy == ddp) wrapper.emplace(net);
      else zero.emplace(net, *optimizer, ZeroOptions{.stage = policy, .param_persistence_threshold = 500});
      if (fails) {
        // the last gradient to be computed
        const int hook = net.a.weight.on_grad([](const Tensor&) -> Tensor { fail("a hook fails"); });
        CHECK_ERROR(loss_of_micro_batch(net, 0, rank).backward(), "a hook fails");
        net.a.weight.remove_hook(hook);
        for (const Variable& p : net.parameters()) LOCKSTEP_CHECK(!p.grad().defined(), "a gradient is left");
      }
      loss_of_micro_batch(net, 7, rank).backward();
      if (zero) zero->step();
      else optimizer->step();
      std::optional<Zero::Gathered> full;
      if (zero) full.emplace(*zero, net.parameters());
      return copy_parameters(net);
    })[0];
  };
  for (const int policy : policies) {
    CAPTURE(policy);
    CHECK(differing(run(policy, false), run(policy, true)) == "");
  }
}
