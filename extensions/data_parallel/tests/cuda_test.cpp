// Replicas on devices: cuBLASLt is asked for each shape once, whatever the number of threads.
#include <doctest/doctest.h>

#include <thread>

#include "extensions/data_parallel/data_parallel.h"
#include "nn/nn.h"
#include "tensor/batch_invariant.h"
#include "tensor/random.h"
#include "tensor/stream.h"
#include "tests/cuda/device.h"
#if defined(SIMT_CPU)
#include "tests/cudasim/fake.h"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

/// Random numbers around 0 on the device.
Tensor noise(const Shape& shape, DType dtype, uint64_t seed) {
  manual_seed(seed);
  return randn(shape, {.device = cpu}).to(dtype).to(cuda0);
}

}  // namespace

TEST_CASE("plans: cuBLASLt is asked once for each shape, though every forward has new threads") {
  Sequential net(Linear({.in = 24, .out = 40}), GELU(), Linear({.in = 40, .out = 8}));
  const std::vector<Device> devices{cuda0, cuda1};
  net.to(cuda0);
  const auto make = [] { return Sequential(Linear({.in = 24, .out = 40}), GELU(), Linear({.in = 40, .out = 8})); };
  parallel::DataParallel<Sequential> model(net, make, {.devices = devices});
  const auto step = [&] {
    sum(model(Variable(noise({10, 24}, f32, 1)))).backward();
    for (const Device& device : devices) synchronize(device);
  };
  fake::take_heuristic_calls();
  step();
  const int64_t asked = fake::take_heuristic_calls();
  CHECK(asked >= 2 * 5);  // on each device two products forward, and three backward
  for (int i = 0; i < 3; ++i) step();
  CHECK(fake::take_heuristic_calls() == 0);

  const Tensor x = noise({11, 24}, f32, 1), w = noise({13, 24}, f32, 2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { linear(x, w); });
  for (std::thread& thread : threads) thread.join();
  synchronize(cuda0);
  CHECK(fake::take_heuristic_calls() == 1);

  const BatchInvariant scope;  // one question for all numbers of rows
  for (int64_t rows = 1; rows < 40; rows += 3) linear(noise({rows, 24}, f32, 1), w);
  CHECK(fake::take_heuristic_calls() == 1);
}
#endif
