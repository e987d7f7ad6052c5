// Collectives of device tensors by NCCL: the tests shared by all backends, over threads and processes; bits of exact
// sums, order relative to the work of streams, ranks that share a device, DDP.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <optional>

#include "dist/shard.h"
#include "tensor/ops.h"
#include "tensor/stream.h"
#include "tests/cuda/nccl_util.h"
#include "tests/cudasim/fake.h"
#include "tests/dist/group_body.h"
#include "tests/zero/util.h"

using namespace lockstep;
using namespace lockstep::dist;
using namespace testing;

namespace {

using Kind = SpawnOptions::Kind;

// Set before anything asks for devices.
const bool eight_devices = setenv("LOCKSTEP_FAKE_CUDA_DEVICES", "8", 0) == 0;

void body(int rank) {
  const GroupBody options{.schedules = false, .exact = Algorithm::direct, .device = device_of(rank)};
  if (std::string(world().device_engine()) != "nccl") throw Error(str("expected NCCL, got ", world().device_engine()));
  check_group(world(), options);
  check_group(world(), {.schedules = false, .device = cpu});  // the same group also reduces tensors on the CPU
}

std::vector<unsigned char> bits(const Tensor& t) {
  const Tensor here = t.to(cpu).contiguous();
  const auto* p = static_cast<const unsigned char*>(here.raw_data());
  return {p, p + here.numel() * size_of(here.dtype())};
}

Tensor noise(int rank, int64_t n, DType dtype) {
  manual_seed(uint64_t(100 + rank));
  return randn({n}, {.device = cpu}).to(dtype);
}

}  // namespace

TEST_CASE("nccl: every collective over threads, each with a device of its own") {
  for (int n = 1; n <= (thread_sanitized ? 2 : 4); ++n) {
    CAPTURE(n);
    check_ranks(n, body);
  }
}

TEST_CASE("nccl: every collective, with streams at random moments and without delay") {
  for (const auto policy : {fake::Policy::random, fake::Policy::eager}) {
    const StreamPolicy streams(policy, 7);
    check_ranks(3, body);
  }
}

TEST_CASE("nccl: every collective over processes") {
  check_ranks(thread_sanitized ? 2 : 3, body, {.kind = Kind::processes});
}

TEST_CASE("nccl: exact sums are bit-identical to the CPU's; NCCL's own are near them, and equal on all ranks") {
  for (const int n : thread_sanitized ? std::vector{2} : std::vector{2, 3, 5, 8}) {
    CAPTURE(n);
    check_ranks(n, [n](int rank) {
      for (const DType dtype : {f32, f64, f16, bf16})
        for (const dist::ReduceOp op :
             {dist::ReduceOp::sum, dist::ReduceOp::mean, dist::ReduceOp::product, dist::ReduceOp::max})
          for (const int64_t count : {1, 7, 1000}) {
            const Tensor given = noise(rank, count, dtype), there = given.to(device_of(rank)), expected = given.clone(),
                         fast = there.clone();
            const std::string what = str(dtype, " ", name_of(op), " x ", count, " on ", n);
            world().all_reduce(expected, {.op = op});
            const Tensor sum = empty_like(there);
            world().all_reduce(sum, there, {.op = op, .algorithm = Algorithm::direct});
            require(bits(sum) == bits(expected), "all_reduce, " + what);
            require(bits(there) == bits(given), "its input, " + what);
            const Range own = shard_range(count, n, rank);
            const Tensor part = empty({own.size()}, {.dtype = dtype, .device = there.device()});
            world().reduce_scatter(part, there, {.op = op, .algorithm = Algorithm::direct});
            require(bits(part) == bits(expected.narrow(0, own.begin, own.size())), "reduce_scatter, " + what);
            world().reduce(there, n - 1, {.op = op, .algorithm = Algorithm::direct});
            if (rank == n - 1) require(bits(there) == bits(expected), "reduce, " + what);
            world().all_reduce(fast, {.op = op});
            const Tensor everywhere = empty({n * count}, {.dtype = dtype, .device = cpu});
            world().all_gather(everywhere, fast.to(cpu));
            for (int r = 1; r < n; ++r)
              require(bits(everywhere.narrow(0, r * count, count)) == bits(fast), "ranks differ, " + what);
          }
    });
  }
}

TEST_CASE("nccl: a call returns before the other ranks make theirs, and streams wait for each other") {
  for (uint64_t seed = 0; seed < (sanitized ? 3 : 8); ++seed) {
    CAPTURE(seed);
    const StreamPolicy streams(seed == 0 ? fake::Policy::lazy : fake::Policy::random, seed);
    std::atomic<bool> returned{false};
    check_ranks(2, [&](int rank) {
      const TensorOptions there{.dtype = f32, .device = device_of(rank)};
      pass_compared_calls(there.device);
      if (rank == 1) until([&] { return returned.load(); });
      std::vector<Tensor> results;
      std::vector<Work> works;
      for (int i = 0; i < 5; ++i) {
        // the caller's stream may run this later
        const Tensor x = mul_scalar(full({1000}, rank + 1, there), i + 1);
        works.push_back(world().all_reduce(x, {.async = true}));
        results.push_back(x);
        if (rank == 0 && i == 1) returned = true;
      }
      std::vector<Tensor> doubled;
      for (int i = 0; i < 5; ++i) {
        works[size_t(i)].wait();
        doubled.push_back(mul_scalar(results[size_t(i)], 2));
      }
      results.clear();  // freeing the memory while NCCL uses it is allowed
      for (int i = 0; i < 5; ++i)
        for (const float v : doubled[size_t(i)].to_vector<float>())
          require(v == float(6 * (i + 1)), str("sum ", i, " is ", v));
      const Tensor y = full({7}, 1, there);
      Work last = world().all_reduce(y, {.async = true});
      last.synchronize();
      require(last.done(), "done after synchronize()");
    });
  }
}

TEST_CASE("nccl: ranks that share a device go through the host, others do not") {
  check_ranks(3, [](int rank) {
    const Device device{Device::Type::cuda, int16_t(rank == 2 ? 1 : 0)};  // ranks 0 and 1 share a device
    const TensorOptions there{.dtype = f32, .device = device};
    check_group(world(), {.device = device});
    require(std::string(world().device_engine()) == "host", "expected the host");
    const auto pair = world().new_group({0, 2}, "pair");
    if (!pair) return;
    const Tensor x = full({5}, rank + 1, there);
    pair->all_reduce(x);
    require(x.to_vector<float>()[4] == 4 && std::string(pair->device_engine()) == "nccl",
            "two ranks with devices of their own");
  });
  const std::string refused = outcome(
      2, [](int) { world().all_reduce(full({3}, 1, {.dtype = f32, .device = device_of(0)})); }, {.backend = "nccl"});
  CHECK(contains(refused,
                 "expected a device for each rank with backend nccl, but ranks 0, 1 share the device at 0000:01:00.0"));
  check_ranks(2,
              [](int rank) {
                const Tensor x = full({3}, rank, {.dtype = f32, .device = device_of(rank)});
                world().all_reduce(x);
                require(x.to_vector<float>()[0] == 1 && std::string(world().device_engine()) == "host",
                        "backend native");
              },
              {.backend = "native"});
}

TEST_CASE("nccl: unsupported calls are rejected, and the group stays usable") {
  check_ranks(2, [](int rank) {
    const Device device = device_of(rank);
    const Tensor x = full({4}, 1, {.dtype = f32, .device = device}),
                 elsewhere = full({4}, 1, {.dtype = f32, .device = device_of(rank + 2)});
    world().all_reduce(x);
    const auto refused = [&](const char* part, const std::function<void()>& call) {
      const std::string got = message(call);
      require(contains(got, part), str("expected \"", part, "\", got \"", got, "\""));
    };
    refused("make another group for it", [&] { world().all_reduce(elsewhere); });
    refused("expected algorithm automatic (NCCL chooses), or direct",
            [&] { world().all_reduce(x, {.algorithm = Algorithm::ring}); });
    world().all_reduce(x);
    require(x.to_vector<float>()[3] == 4, "after refusals");
  });
}

TEST_CASE("nccl: DDP gives the bits of one device when sums are exact, and nearly so when they are not") {
  const auto trained = [](int ranks, std::optional<parallel::DdpOptions> options) {
    return train(
        {.ranks = ranks, .accumulation = 4 / ranks, .ddp = options, .steps = 3, .device = device_of, .model = [] {
           manual_seed(1 + uint64_t(world().rank()));  // rank 0's parameters count
           return std::make_unique<Mlp>();
         }});
  };
  const Tensors one = trained(1, {});
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    for (const bool overlap : {true, false}) {
      CHECK(differing(one, trained(ranks, parallel::DdpOptions{.bucket_mib = 0.002,
                                                               .overlap = overlap,
                                                               .algorithm = Algorithm::direct})) == "");
      CHECK(distance(one, trained(ranks, parallel::DdpOptions{.overlap = overlap})) < 1e-5);
    }
  }
  const StreamPolicy streams(fake::Policy::random, 3);
  CHECK(differing(one, trained(2, parallel::DdpOptions{.bucket_mib = 0.002, .algorithm = Algorithm::direct})) == "");
}
