// The counter-based generator; its state (seed, step, micro-batch, call) determines every draw.
#include "tensor/random.h"

#include <atomic>
#include <optional>
#include <thread>

#include "tensor/graph.h"

namespace lockstep {
namespace {

std::atomic<uint64_t> default_seed{0}, other_threads{0};
const std::thread::id main_thread = std::this_thread::get_id();
thread_local bool seeded = false;
thread_local RandomState state;
thread_local uint64_t streams = 0;

RandomState& this_threads_state() {
  if (!seeded) [[unlikely]] {
    state = {.seed = default_seed.load(std::memory_order_relaxed)};
    if (std::this_thread::get_id() != main_thread) {  // a stream of its own, at a step that training never reaches
      state.step = ~uint64_t(0) - 1;
      state.micro_batch = 1 + other_threads.fetch_add(1, std::memory_order_relaxed);
    }
    seeded = true;
  }
  return state;
}

}  // namespace

void manual_seed(uint64_t seed) {
  default_seed.store(seed, std::memory_order_relaxed);
  streams = 0;
  set_random_state({.seed = seed});
}

void set_random_step(uint64_t step, uint64_t micro_batch, uint64_t call) {
  RandomState& now = this_threads_state();
  now = {.seed = now.seed, .step = step, .micro_batch = micro_batch, .call = call};
}

uint64_t next_stream() { return streams++; }
RandomState random_state() { return this_threads_state(); }

void set_random_state(const RandomState& wanted) {
  state = wanted;
  seeded = true;
}

PhiloxKey key_of_call(const RandomState& state) {
  // Philox also makes the stream number: step and micro-batch are its PhiloxKey, and call is its index.
  const auto words = philox({.seed = state.step, .stream = state.micro_batch}, state.call);
  return {.seed = state.seed, .stream = uint64_t(words[1]) << 32 | words[0]};
}

PhiloxKey next_random_key(Device device) {
  RandomState& now = this_threads_state();
  if (const std::optional<PhiloxKey> recorded = recorded_random_key(device, now)) [[unlikely]] {
    ++now.call;
    return *recorded;
  }
  const PhiloxKey key = key_of_call(now);
  ++now.call;
  return key;
}

}  // namespace lockstep
