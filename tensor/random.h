#pragma once
// Random numbers from a counter (Philox 4x32-10, Salmon et al., SC'11): a number depends on (seed, step, micro-batch,
// call, element) and never on rank, thread or device, so dropout gives the same bits however a job is cut.
#include <array>
#include <cstdint>

namespace lockstep {

/// What one random operation draws from: key and upper half of the counter. Element i uses counter (i / 4, stream).
struct PhiloxKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
};

/// Ten rounds of Philox 4x32: four 32-bit words for counter (index, key.stream).
std::array<uint32_t, 4> philox(PhiloxKey key, uint64_t index);

/// The generator of this thread. Saved in checkpoints, replayed by activation checkpointing.
struct RandomState {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t micro_batch = 0;
  uint64_t call = 0;
  friend bool operator==(const RandomState&, const RandomState&) = default;
};

/// Seeds this thread's generator and is the default of threads that start later.
void manual_seed(uint64_t seed);
/// Enters a training step and micro-batch; the call counter starts again at 0.
void set_random_step(uint64_t step, uint64_t micro_batch = 0);
RandomState random_state();
void set_random_state(const RandomState& state);
/// Key of the next random operation; advances the call counter.
PhiloxKey next_random_key();

}  // namespace lockstep
