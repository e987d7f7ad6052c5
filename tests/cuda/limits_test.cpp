// Limits: no rows, memory that begins at odd elements, 64 streams, all devices of a process, and launches that the
// driver rejects.
#include "tensor/cuda/runtime.h"
#include "tests/cuda/against_cpu.h"
#include "tests/cuda/limit_cases.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace testing;

namespace {

/// A copy on the device whose memory begins `shift` elements past an aligned address.
Tensor shifted(const Tensor& x, int64_t shift) {
  const Tensor there = empty({x.numel() + shift}, {x.dtype(), cuda0}).narrow(0, shift, x.numel()).view(x.shape());
  there.copy_(x);
  return there;
}

/// Checks one case at a number of rows that fits a test.
void check_rows(const LimitCase& c, int64_t rows, int64_t shift) {
  CAPTURE(c.name);
  CAPTURE(shift);
  Tensors here, there;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    here.push_back(limit_rows(c.inputs[i], int(i), 0, rows));
    there.push_back(shifted(here[i], shift));
  }
  Tensors expected, got;
  const std::string on_cpu = message([&] { expected = c.run(here); });
  CHECK_ERROR_IS((got = c.run(there), synchronize(cuda0)), on_cpu);
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) check_close(got[i], expected[i], c.bound, str(c.name, ", result ", i));
}

}  // namespace

TEST_CASE("cuda limits: no rows") {
  for (const LimitCase& c : limit_cases()) check_rows(c, 0, 0);
}

TEST_CASE("cuda limits: memory that begins at odd elements") {
  for (const LimitCase& c : limit_cases()) {
    if (c.slow) continue;
    for (const int64_t shift : {1, 7}) check_rows(c, 3, shift);
  }
}

TEST_CASE("cuda limits: 64 streams") {
  // Each stream adds the value of the stream before it, across all rounds.
  constexpr int count = 64, rounds = 3;
  std::vector<Stream> streams;
  std::vector<Event> done;
  for (int i = 0; i < count; ++i) streams.emplace_back(cuda0), done.emplace_back(cuda0);
  std::vector<Tensor> values;
  for (int i = 0; i < count; ++i) values.push_back(full({1000}, i, {.device = cuda0}));
  Event begin(cuda0);
  begin.record();
  for (int round = 0; round < rounds; ++round)
    for (int i = 0; i < count; ++i) {
      const StreamScope scope(streams[size_t(i)]);
      (round == 0 && i == 0 ? begin : done[size_t((i + count - 1) % count)]).wait();
      if (round == 0) begin.wait();
      add_(values[size_t(i)], values[size_t((i + count - 1) % count)]);
      done[size_t(i)].record();
    }
  done[count - 1].wait();
  std::vector<double> expected(count);
  for (int i = 0; i < count; ++i) expected[size_t(i)] = i;
  for (int i = 0; i < rounds * count; ++i) expected[size_t(i % count)] += expected[size_t((i + count - 1) % count)];
  for (int i = 0; i < count; ++i) {
    done[size_t(i)].synchronize();
    CHECK(values[size_t(i)].to_vector<float>()[999] == float(expected[size_t(i)]));
  }
}

TEST_CASE("cuda limits: every device of the process") {
  const std::vector<Device> devices = all_devices(Device::Type::cuda);
  Tensor sum;
  for (size_t i = 0; i < devices.size(); ++i) {  // across all devices and back
    const Tensor x = full({1001}, double(i + 1), {.device = devices[i]}),
                 w = full({1001, 3}, 1, {.device = devices[i]});
    const Tensor here = softmax(matmul(x.view({1, 1001}), w), 1);
    CHECK(here.device() == devices[i]);
    CHECK(here.to_vector<float>()[0] == doctest::Approx(1. / 3));
    sum = sum.defined() ? sum.to(devices[i]) + x : x;
  }
  const double all = double(devices.size() * (devices.size() + 1)) / 2;
  for (const Device from : devices)
    for (const Device to : devices) CHECK(sum.to(from).to(to).to_vector<float>()[1000] == float(all));
}

#if defined(SIMT_CPU)
namespace {
void kernel_of_nothing(int) {}
void another_kernel(int) {}
}  // namespace

TEST_CASE("cuda limits: launches that the driver rejects") {
  full({1}, 0, {.device = cuda0});
  constexpr unsigned max_x = 0x7fffffff, max_y = 65535;
  const auto refused = [](dim3 grid, dim3 block, size_t shared = 0) {
    return simt::check_launch(reinterpret_cast<const void*>(kernel_of_nothing), grid, block, shared);
  };
  const struct {
    dim3 grid, block;
    bool good;
  } rows[] = {{{max_x, 1, 1}, {1, 1, 1}, true},      {{max_x + 1, 1, 1}, {1, 1, 1}, false},
              {{1, max_y, max_y}, {1, 1, 1}, true},  {{1, max_y + 1, 1}, {1, 1, 1}, false},
              {{1, 1, max_y + 1}, {1, 1, 1}, false}, {{0, 1, 1}, {1, 1, 1}, false},
              {{1, 1, 1}, {1024, 1, 1}, true},       {{1, 1, 1}, {1025, 1, 1}, false},
              {{1, 1, 1}, {1, 1, 64}, true},         {{1, 1, 1}, {1, 1, 65}, false},
              {{1, 1, 1}, {32, 33, 1}, false},       {{1, 1, 1}, {0, 1, 1}, false}};
  for (const auto& row : rows) {
    INFO(row.grid.x << " x " << row.grid.y << " x " << row.grid.z << " of " << row.block.x);
    CHECK(refused(row.grid, row.block) == (row.good ? cudaSuccess : cudaErrorInvalidConfiguration));
  }
  // Dynamic shared memory: every kernel may use 48 KiB; more must be requested for the kernel, per device.
  constexpr size_t unasked = 48 * 1024, asked = 100 * 1024;
  const auto ask = [](void (*kernel)(int), size_t bytes) {
    return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                int(bytes));
  };
  CHECK(refused(1, 1, unasked) == cudaSuccess);
  CHECK(refused(1, 1, unasked + 1) == cudaErrorInvalidValue);
  CHECK(ask(another_kernel, asked) == cudaSuccess);
  CHECK(refused(1, 1, unasked + 1) == cudaErrorInvalidValue);
  CHECK(ask(kernel_of_nothing, asked) == cudaSuccess);
  CHECK(refused(1, 1, asked) == cudaSuccess);
  CHECK(refused(1, 1, asked + 1) == cudaErrorInvalidValue);
  CHECK(ask(kernel_of_nothing, size_t(cuda::limits().shared_per_block) + 1) == cudaErrorInvalidValue);
  cudaGetLastError();
  if (device_count(Device::Type::cuda) > 1) {
    cudaSetDevice(1);
    CHECK(refused(1, 1, asked) == cudaErrorInvalidValue);
    cudaSetDevice(0);
  }
}
#endif
