#pragma once
// Shared by the tests of NCCL: ranks with devices of their own, and the errors that they throw.
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "dist/process_group.h"
#include "tensor/ops.h"
#include "tensor/stream.h"
#include "tests/cudasim/fake.h"
#include "tests/dist/job.h"
#include "tests/dist/outcomes.h"
#include "tests/environment.h"

namespace testing {

/// The device of a rank; there are eight.
inline lockstep::Device device_of(int rank) { return {lockstep::Device::Type::cuda, int16_t(rank % 8)}; }

/// Throws unless `holds`, which ends the rank.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

/// Makes more calls than the first 100, which are all compared among ranks.
inline void pass_compared_calls(lockstep::Device device) {
  const lockstep::TensorOptions there{.dtype = lockstep::f32, .device = device};
  for (int i = 0; i < 101; ++i) lockstep::dist::world().all_reduce(lockstep::full({3}, 1, there)).synchronize();
}

/// Sets when streams run their work, for the duration of a test.
struct StreamPolicy {
  explicit StreamPolicy(fake::Policy policy, uint64_t seed = 1) { fake::set_policy(policy, seed); }
  ~StreamPolicy() { fake::set_policy(fake::Policy::lazy); }
};

/// What all ranks of the world together copy to the host during work(), and how often they wait; on rank 0.
inline fake::ToHost to_host_during(lockstep::Device device, const std::function<void()>& work) {
  lockstep::dist::ProcessGroup& world = lockstep::dist::world();
  lockstep::synchronize(device);
  world.barrier();
  if (world.rank() == 0) fake::take_to_host();
  world.barrier();
  work();
  world.barrier();
  const fake::ToHost observed = world.rank() == 0 ? fake::take_to_host() : fake::ToHost();
  world.barrier();
  return observed;
}

/// Waits until condition(), for at most 60 s.
template <class Condition> void until(Condition condition) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    require(std::chrono::steady_clock::now() < limit, "waited 60 s for what does not come");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace testing
