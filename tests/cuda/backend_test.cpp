// The CUDA backend: memory, copies, streams and events. Runs on the simulated device and on a GPU.
#include <doctest/doctest.h>

#include <cstdlib>

#include "tensor/backend.h"
#include "tensor/graph.h"
#include "tensor/ops.h"
#include "tensor/stream.h"
#include "tests/cuda/device.h"
#include "tests/messages.h"
#if defined(SIMT_CPU)
#include <cuda_runtime_api.h>

#include "tests/cudasim/fake.h"
#endif

using namespace lockstep;

TEST_CASE("cuda: tensors go to the device and come back, of every dtype and any strides") {
  for (const DType dtype : {f32, f64, f16, bf16, i64, i32, i8, u8, boolean})
    for (const int64_t n : {0, 1, 31, 33, 1000, 4099}) {
      const Tensor x = arange(n).to(dtype), there = x.to(cuda0);
      CHECK(there.device() == cuda0);
      CHECK(equal(there.to(cpu), x));
    }
  const Tensor x = arange(0, 24, 1, {.dtype = f32}).view({2, 3, 4}), y = x.to(cuda0).permute({2, 0, 1});
  CHECK(equal(y.to(cpu), x.permute({2, 0, 1})));
  CHECK(equal(y.clone().to(cpu), x.permute({2, 0, 1})));
  CHECK(y[3][1][2].item() == 23);
  y.select(0, 1).fill_(7);
  CHECK(y.to_vector<float>()[6] == 7);
}

TEST_CASE("cuda: a stream waits for an event of another") {
  const Stream side(cuda0);
  const Tensor x = full({1000}, 1, there);
  Tensor y = empty({1000}, there);
  Event ready(cuda0), finished(cuda0);
  ready.record();
  {
    const StreamScope scope(side);
    ready.wait();
    y.copy_(x);
    finished.record();
  }
  finished.wait();
  const Tensor pinned = empty_pinned({1000}, f32, cuda0);
  copy_async(y, pinned);
  Event copied(cuda0);
  copied.record();
  copied.synchronize();
  CHECK(equal(pinned, full({1000}, 1)));
}

#if defined(SIMT_CPU)
TEST_CASE("cuda: copies between devices go past the host where the machine can") {
  int can = 0;  // LOCKSTEP_FAKE_CUDA_PEERS=0: it cannot
  REQUIRE(cudaDeviceCanAccessPeer(&can, 0, 1) == cudaSuccess);
  const Tensor x = arange(1000).to(f32).to(cuda0), landed = empty({1000}, {.dtype = f32, .device = cuda1});
  Graph graph(cuda0);
  Tensor recorded;  // memory of a graph comes from another allocator than that of other tensors
  graph.record([&] { recorded = x + x; });
  graph.replay();
  fake::take_to_host();
  const Tensor there = x.to(cuda1), back = there.to(cuda0);
  copy_async(x, landed);
  const Tensor of_graph = recorded.to(cuda1);
  CHECK(fake::take_to_host().copies == (can ? 0 : 4));
  for (const Tensor& y : {there, back, landed}) CHECK(equal(y.to(cpu), x.to(cpu)));
  CHECK(equal(of_graph.to(cpu), (x + x).to(cpu)));
}
#endif

TEST_CASE("cuda: the ledger counts the device's memory") {
  const int64_t before = memory_report(cuda0).total.current, on_cpu = memory_report().total.current;
  {
    const Tensor x = empty({1000}, there);
    CHECK(memory_report(cuda0).total.current == before + 4000);
    CHECK(memory_report().total.current == on_cpu);
  }
  CHECK(memory_report(cuda0).total.current == before);
}

TEST_CASE("cuda: tensor cores for bf16 are known by compute capability") {
  CHECK(multiplies_bf16(cuda0));
  CHECK(!multiplies_bf16(cpu));
}

TEST_CASE("cuda: errors name the device, the operation and what would help") {
  CHECK_ERROR(empty({1}, {.device = {Device::Type::cuda, 63}}), "expected one of the devices cuda:0");
  const Tensor x = full({2}, 1, {.device = cuda0});
  CHECK_ERROR(copy_async(x, empty({2}, {.dtype = f64, .device = cpu})), "one shape and dtype");
}

#if defined(SIMT_CPU)
TEST_CASE("cuda: a card that is older than the build's code says so, at first use and in `lockstep env`") {
  const char* const oldest = std::getenv("LOCKSTEP_FAKE_CUDA_CODE");
  const std::string env = backend(cuda0)->describe();
  if (!oldest) {
    CHECK(!contains(env, "no code"));
    return;
  }
  CHECK_MESSAGE(contains(env,
                         "cuda:0 simulated, compute capability 9.0, 4 multiprocessors, 2048 MiB; this build has no "
                         "code for it (set -Dgpu_arch=90)"),
                env);
  for (int i = 0; i < 2; ++i) {
    const std::string text = message([] { full({2}, 1, {.device = cuda0}); });
    CHECK_MESSAGE(contains(text,
                           "[device] cuda:0 (simulated) has compute capability 9.0, for which this build has no "
                           "code: build it with -Dgpu_arch=90"),
                  text);
  }
}
#endif
