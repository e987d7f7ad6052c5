// Buffers registered with NCCL by all ranks (dist/nccl/window.h): created together, used, and closed in time.
#include <doctest/doctest.h>

#include <cstdlib>

#include "tensor/graph.h"
#include "tensor/ops.h"
#include "tensor/stream.h"
#include "tests/cuda/graph_training.h"
#include "tests/cuda/nccl_util.h"
#include "tests/ranks.h"

using namespace lockstep;
using namespace testing;
using dist::world;

TEST_CASE("nccl windows: collectives on them, with the values of other memory, and all is closed in the end") {
  for (const int n : {2, 3}) {
    CAPTURE(n);
    const fake::NcclWindows before = fake::nccl_windows();
    Tensor outlives;
    check_ranks(n, [&](int rank) {
      const Device device = device_of(rank);
      const Tensor x = world().shared_empty({6 * n}, f32, device), y = world().shared_empty({6}, f32, device);
      const auto fill = [&] { x.copy_(arange(0, 6 * n, 1, {.dtype = f32, .device = cpu}) * double(rank + 1)); };
      const double factor = n * (n + 1) / 2.;
      const auto holds = [&](const Tensor& got, int64_t first) {
        for (int64_t i = 0; i < got.numel(); ++i)
          require(got.to_vector<float>()[size_t(i)] == float(double(first + i) * factor), "values");
      };
      fill();
      world().all_reduce(x);
      holds(x, 0);
      fill();
      world().reduce_scatter(y, x);
      holds(y, 6 * rank);
      world().all_gather(x, y);
      holds(x, 0);
      x.narrow(0, 6 * rank, 6).fill_(double(rank));
      world().all_gather(x, x.narrow(0, 6 * rank, 6));
      require(x.to_vector<float>()[size_t(6 * n - 1)] == float(n - 1), "in place");
      y.fill_(double(rank + 1));
      world().broadcast(y, n - 1);
      require(y.to_vector<float>()[0] == float(n), "broadcast");
      if (rank == 0) outlives = y;
    });
    const fake::NcclWindows after = fake::nccl_windows();
    CHECK(after.made == before.made + 2 * n);
    CHECK(after.open == 0);
    CHECK(after.collectives == before.collectives + 5 * n);
    CHECK(after.allocations == 1);
    outlives = Tensor();
    CHECK(fake::nccl_windows().allocations == 0);
  }
}

TEST_CASE("nccl windows: ranks that make others, none for ranks that share a device, alone, or on the CPU") {
  const auto texts = outcomes(2, [](int rank) { world().shared_empty({rank == 0 ? 8 : 16}, f32, device_of(rank)); });
  CHECK_MESSAGE(contains(texts[0], "window of f32 x 16"), texts[0]);
  const int64_t made = fake::nccl_windows().made;
  check_ranks(2, [](int) { world().shared_empty({8}, f32, device_of(0)).fill_(1); });
  check_ranks(1, [](int) { world().shared_empty({8}, f32, device_of(0)).fill_(1); });
  check_ranks(2, [](int) { world().shared_empty({8}).fill_(1); });
  check_ranks(2, [](int rank) { world().shared_empty({0}, f32, device_of(rank)); });
  CHECK(fake::nccl_windows().made == made);
}

TEST_CASE("nccl windows: memory that a graph reads stays as long as the graph") {
  check_ranks(2, [](int rank) {
    const Device device = device_of(rank);
    Tensor x = world().shared_empty({8}, f32, device);
    const Tensor sum = empty({8}, {.dtype = f32, .device = device});
    x.fill_(1);
    world().all_reduce(x.clone());
    std::optional<Graph> graph(device);
    graph->record([&] {
      sum.copy_(x);
      world().all_reduce(sum);
    });
    const auto calls = world().take_recorded();
    world().barrier();
    x = Tensor();
    // creating a buffer first closes freed buffers
    const Tensor other = world().shared_empty({4}, f32, device);
    world().barrier();
    require(fake::nccl_windows().open == 4, "a graph reads it");
    world().replay(calls, [&] { graph->replay(); });
    require(sum.to_vector<float>()[7] == 2, "sum");
    world().barrier();
    graph.reset();
    const Tensor third = world().shared_empty({4}, f32, device);
    world().barrier();
    require(fake::nccl_windows().open == 4 && fake::nccl_windows().allocations == 4, "closed");
    world().barrier();  // a rank that ends closes its own windows
  });
}

TEST_CASE("nccl windows: training uses windows and has the same bits, with and without graphs") {
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool graphs : {false, true}) {
      CAPTURE(stage);
      CAPTURE(graphs);
      Plan plan{.accumulation = 2, .steps = 4, .stage = stage, .clipping = 0.3, .bucket = 300};
      plan.model.layers = 1, plan.model.width = 8;
      const auto trained = [&] {
        return on_ranks<Result>(2, [&](int rank) { return train(plan, graphs, device_of(rank)); });
      };
      const fake::NcclWindows before = fake::nccl_windows();
      const auto with = trained();
      const fake::NcclWindows after = fake::nccl_windows();
      setenv("LOCKSTEP_NCCL_WINDOWS", "0", 1);
      const auto without = trained();
      unsetenv("LOCKSTEP_NCCL_WINDOWS");
      for (size_t r = 0; r < with.size(); ++r) CHECK(differing(with[r], without[r]) == "");
      CHECK(after.made > before.made);
      CHECK(after.collectives > before.collectives);
      CHECK(after.open == 0);
      CHECK(fake::nccl_windows().made == after.made);
      CHECK(fake::nccl_windows().allocations == 0);
    }
  }
}
