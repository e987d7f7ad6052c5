#pragma once
// Counter-based random numbers (Philox 4x32-10, Salmon et al., SC'11). A number depends on (seed, step, micro-batch,
// call, element) only, never on rank, thread or device, so dropout gives the same bits however a job is parallelised.
#include <array>
#include <cstdint>

#include "tensor/device.h"
#include "tensor/host_device.h"

namespace lockstep {

/// A key in device memory, for recorded work that draws different numbers in each replay (graph.h).
struct RecordedKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
};

/// Input of one random operation: the key and the upper half of the counter. Element i uses counter (i / 4, stream).
struct PhiloxKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
  /// Set while a graph is recorded: the address in device memory at which each replay writes a new key. Kernels call
  /// known(), which reads that key and combines its seed with `seed` by xor.
  const RecordedKey* recorded = nullptr;

  /// The key to draw numbers with: this one, or the one in memory at `recorded` if that is set.
  LOCKSTEP_HD PhiloxKey known() const {
    return recorded ? PhiloxKey{recorded->seed ^ seed, recorded->stream, nullptr} : *this;
  }
};

/// Philox 4x32 with ten rounds: four 32-bit words for counter (index, key.stream).
LOCKSTEP_HD inline std::array<uint32_t, 4> philox(PhiloxKey key, uint64_t index) {
  uint32_t x0 = uint32_t(index), x1 = uint32_t(index >> 32), x2 = uint32_t(key.stream), x3 = uint32_t(key.stream >> 32);
  uint32_t k0 = uint32_t(key.seed), k1 = uint32_t(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * x0, b = uint64_t(0xCD9E8D57u) * x2;
    x0 = uint32_t(b >> 32) ^ x1 ^ k0;
    x1 = uint32_t(b);
    x2 = uint32_t(a >> 32) ^ x3 ^ k1;
    x3 = uint32_t(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {x0, x1, x2, x3};
}

/// State of a thread's generator. Checkpoints save it. Activation checkpointing sets it back before it recomputes.
struct RandomState {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t micro_batch = 0;
  uint64_t call = 0;
  friend bool operator==(const RandomState&, const RandomState&) = default;
};

/// Seeds this thread's generator; threads with one seed draw the same numbers (dist::spawn() gives each rank the
/// caller's seed). A thread that never calls this uses the seed set last by any thread, with a stream of its own;
/// such streams are numbered in the order in which the threads first draw. For reproducible results seed each thread,
/// e.g. with manual_seed(seed + i).
void manual_seed(uint64_t seed);
/// Enters a training step and micro-batch; the call counter restarts at `call`.
void set_random_step(uint64_t step, uint64_t micro_batch = 0, uint64_t call = 0);
/// This thread's generator state.
RandomState random_state();
/// Sets this thread's generator state.
void set_random_state(const RandomState& state);
/// Restores this thread's generator state in its destructor. So a part of a program can draw random numbers without
/// changing the numbers that are drawn after it.
class RandomScope {
 public:
  RandomScope() = default;
  /// Sets the generator to this state.
  explicit RandomScope(const RandomState& state) { set_random_state(state); }
  ~RandomScope() { set_random_state(before_); }
  RandomScope(const RandomScope&) = delete;

 private:
  const RandomState before_ = random_state();
};
/// Returns 0, 1, 2, ... in successive calls by this thread, from 0 again after manual_seed(). Code that needs a random
/// stream of its own can use the stream with this number.
uint64_t next_stream();
/// The key of the next random operation; advances the call counter. `device` is where the numbers are drawn. While a
/// graph is recorded, a key for the graph's device refers to memory that gets another key in each replay. A key for the
/// CPU is then an Error, because every replay would draw the same numbers.
PhiloxKey next_random_key(Device device = cpu);
/// The key that a generator in this state gives to its next random operation.
PhiloxKey key_of_call(const RandomState& state);

}  // namespace lockstep
