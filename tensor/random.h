#pragma once
// Random numbers from a counter (Philox 4x32-10, Salmon et al., SC'11): a number depends on (seed, step, micro-batch,
// call, element) and never on rank, thread or device, so dropout gives the same bits however a job is cut.
#include <array>
#include <cstdint>

#include "tensor/device.h"
#include "tensor/host_device.h"

namespace lockstep {

/// A key as it lies in a device's memory, for recorded work that draws other numbers in each replay (graph.h).
struct RecordedKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
};

/// What one random operation draws from: key and upper half of the counter. Element i uses counter (i / 4, stream).
struct PhiloxKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
  /// Of what a graph records: where the key will lie when the work is done. `seed` is then mixed into it (xor). Kernels
  /// of devices ask known().
  const RecordedKey* recorded = nullptr;

  LOCKSTEP_HD PhiloxKey known() const {
    return recorded ? PhiloxKey{recorded->seed ^ seed, recorded->stream, nullptr} : *this;
  }
};

/// Ten rounds of Philox 4x32: four 32-bit words for counter (index, key.stream).
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

/// The generator of this thread. Saved in checkpoints, replayed by activation checkpointing.
struct RandomState {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t micro_batch = 0;
  uint64_t call = 0;
  friend bool operator==(const RandomState&, const RandomState&) = default;
};

/// Seeds this thread's generator: threads that call it with one seed draw the same numbers (ranks as threads do:
/// dist::spawn() gives each the caller's seed). A thread that never does has a stream of its own under the seed last
/// given anywhere, numbered in the order in which such threads first draw: what must be reproducible seeds its threads
/// itself, say with manual_seed(seed + i).
void manual_seed(uint64_t seed);
/// Enters a training step and micro-batch; the call counter starts again at 0.
void set_random_step(uint64_t step, uint64_t micro_batch = 0);
RandomState random_state();
void set_random_state(const RandomState& state);
/// Key of the next random operation; advances the call counter. `device`: where the numbers are drawn. While a graph of
/// a device is captured, a key for that device is one of its recording, and one for the host is an Error: it would be
/// the same in every replay.
PhiloxKey next_random_key(Device device = cpu);
/// Key of call state.call.
PhiloxKey key_of_call(const RandomState& state);

}  // namespace lockstep
