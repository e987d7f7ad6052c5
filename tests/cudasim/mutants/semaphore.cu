// Planted bugs in waiting for concurrent work: for earlier blocks by semaphores, and for asynchronous copies.
#include "tests/cudasim/mutants/launch.h"

namespace mutants {
namespace {

// --- blocks that wait for each other ---

// Each block doubles the values of the block before it, with the lanes reversed, and adds its own.
__global__ void add_in_order(const float* x, float* sums, unsigned* counters, Bug bug) {
  LOCKSTEP_SHARED(unsigned, ticket, [1]);
  const unsigned t = threadIdx.x;
  if (t == 0) ticket[0] = bug("place") ? blockIdx.x : atomicAdd(counters, 1u);
  __syncthreads();
  const unsigned n = ticket[0];
  float sum = x[n * 32 + t];
  if (n > 0) {
    if (bug("acquire")) {
      while (__atomic_load_n(counters + 1, __ATOMIC_RELAXED) != n) __nanosleep(32);
    } else if (!bug("wait")) {
      while (simt::load_acquire(counters + 1) != n) __nanosleep(32);
    }
    sum += 2 * sums[(n - 1) * 32 + 31 - t];
  }
  sums[n * 32 + t] = sum;
  if (!bug("lanes")) __syncwarp();
  if (t != 0 || bug("pass")) return;
  if (bug("release")) __atomic_store_n(counters + 1, n + 1, __ATOMIC_RELAXED);
  else simt::store_release(counters + 1, n + 1);
}
bool semaphores(Bug bug) {
  return in_all_orders([&] {
    const Array x(counting(96)), sums(96), counters(2);
    cudaMemset(counters, 0, 2 * sizeof(unsigned));
    return start(3, 32, add_in_order, x, sums, counters.as<unsigned>(), bug) &&
           sums.get()[64] == 65 + 2 * (64 + 2 * 1) && sums.get()[95] == 96 + 2 * (33 + 2 * 32);
  });
}

// --- asynchronous copies ---

__global__ void sum_of_stages(const float* x, float* out, Bug bug) {
  LOCKSTEP_SHARED(float, tiles, [2][256]);
  const unsigned t = threadIdx.x;
  const auto tile = [&](unsigned i) { return tiles[bug("one") ? 0 : i % 2]; };
  const auto fetch = [&](unsigned i) {
    if (i < 4) simt::copy_async<16>(tile(i) + 4 * t, x + 256 * i + 4 * t + (bug("place") ? 1 : 0));
  };
  fetch(0);
  float sum = 0;
  for (unsigned i = 0; i < 4; ++i) {
    if (!bug("wait")) simt::wait_for_copies();
    if (bug("ahead")) fetch(i + 1);
    if (!bug("barrier")) __syncthreads();
    if (!bug("ahead")) fetch(i + 1);
    sum += tile(i)[(4 * t + 133) % 256];
  }
  out[t] = sum;
}
bool stages(Bug bug) {
  return in_all_orders([&] { return results(1, 64, sum_of_stages, 1024, 64, bug)[0] == 4 * 134 + 256 * (1 + 2 + 3); });
}

// Each thread reads a number that it copied itself, while the copy of its next number goes on.
__global__ void sum_of_groups(const float* x, float* out, Bug bug) {
  LOCKSTEP_SHARED(float, tiles, [2][256]);
  const unsigned t = threadIdx.x;
  const auto fetch = [&](unsigned i) {
    if (i < 4) simt::copy_async<16>(tiles[i % 2] + 4 * t, x + 256 * i + 4 * t);
    if (!bug("end")) simt::end_group_of_copies();
  };
  fetch(0);
  float sum = 0;
  for (unsigned i = 0; i < 4; ++i) {
    fetch(i + 1);
    simt::wait_for_groups(bug("wait") ? 2 : 1);
    sum += tiles[i % 2][4 * t + 3];
  }
  out[t] = sum;
}
bool groups(Bug bug) {
  return in_all_orders([&] { return results(1, 64, sum_of_groups, 1024, 64, bug)[63] == 4 * 256 + 256 * (1 + 2 + 3); });
}

const Cases cases{
    {"turn that is not waited for", semaphores, "wait", tsan},
    {"turn waited for without acquiring", semaphores, "acquire", tsan},
    {"turn passed on before other lanes wrote", semaphores, "lanes", tsan},
    {"turn passed on without releasing", semaphores, "release", tsan},
    {"turn by the block's place in the grid", semaphores, "place"},
    {"turn that is not passed on", semaphores, "pass"},
    {"no wait for a copy", stages, "wait"},
    {"no barrier behind the wait for a copy", stages, "barrier"},
    {"copy into the tile that is read", stages, "one"},
    {"copy before others have read the tile", stages, "ahead"},
    {"copy of 16 bytes from an odd address", stages, "place"},
    {"wait for one group of copies too few", groups, "wait"},
    {"group of copies that is not ended", groups, "end"},
};

}  // namespace
}  // namespace mutants
