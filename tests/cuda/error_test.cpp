// Device errors, provoked by the fake runtime: each message says what failed, where, and what would help.
#include <doctest/doctest.h>

#include "tensor/ops.h"
#include "tensor/stream.h"
#include "tests/cuda/device.h"
#include "tests/cudasim/fake.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

void check_parts(const std::string& text, std::initializer_list<const char*> parts) {
  CAPTURE(text);
  for (const char* part : parts) CHECK_MESSAGE(contains(text, part), part);
}

/// Clears all injected faults at the end of a test.
struct Clean {
  ~Clean() {
    fake::fail_allocation(0);
    fake::fail_launch(0);
    fake::fail_run(0);
    fake::reset();
  }
};

}  // namespace

TEST_CASE("cuda errors: out of memory names the request, the device and the memory in use") {
  const Clean clean;
  const Tensor held = full({1000}, 1, there);
  check_parts(message([] { empty({int64_t(1) << 40}, there); }),
              {"[memory] could not allocate 4398046511104 bytes on cuda:0", "bytes free", "held now",
               "activation checkpointing"});
  CHECK(full({2}, 3, there).to_vector<float>()[1] == 3);  // the device is still usable
  const int64_t before = memory_report(cuda0).total.current;
  const size_t allocations = fake::held().allocations;
  // Whichever allocation fails, the retry succeeds: the pool first returns its cached memory to the device.
  for (int64_t nth = 1; nth <= 9; ++nth) {
    fake::fail_allocation(nth);
    CHECK_ERROR_IS(matmul(full({70, 70}, 1, there), full({70, 70}, 2, there)), "(no error)");
  }
  fake::fail_allocation(0);
  synchronize(cuda0);
  CHECK(memory_report(cuda0).total.current == before);
  CHECK(fake::held().allocations <= allocations);  // fewer if the pool returned cached memory
}

TEST_CASE("cuda errors: a launch that fails names operation, shape and stream, and the next one works") {
  const Clean clean;
  const Tensor x = full({1000}, 1, there);
  synchronize(cuda0);
  fake::fail_launch(1);
  check_parts(message([&] { x.fill_(2); }),
              {"[fill] could not start a kernel of", "threads", "bytes of shared memory on cuda:0, stream",
               "cudaErrorLaunchOutOfResources"});
  x.fill_(3);
  CHECK(x.to_vector<float>()[0] == 3);
  fake::fail_launch(1);
  check_parts(message([&] { matmul(x.view({1, 1000}), x.view({1000, 1})); }), {"[matmul]", "cublasLtMatmul"});
}

TEST_CASE("cuda errors: after a sticky error, every call says to restart the process and names the first error") {
  const Clean clean;
  const Tensor x = full({1000}, 1, there);
  synchronize(cuda0);
  fake::fail_run(1);
  const std::string first = message([&] { x.fill_(2), synchronize(cuda0); });
  check_parts(first, {"cudaErrorIllegalAddress", "this process can no longer use its devices", "last checkpoint",
                      "CUDA_LAUNCH_BLOCKING=1"});
  for (const auto& call : std::initializer_list<std::function<void()>>{
           [&] { x.fill_(3); }, [&] { x.to(cpu); }, [] { empty({5000}, there); }, [] { synchronize(cuda0); },
           [&] { x.to_vector<float>(); }})
    check_parts(message(call), {"cudaErrorIllegalAddress", "last checkpoint", "The first error was: ["});
}
