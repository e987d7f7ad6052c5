// Planted bugs in waiting for concurrent work: for earlier blocks, by turns, and for asynchronous copies.
#include "tests/cudasim/mutants/launch.h"

namespace mutants {
namespace {

// --- blocks that wait for each other ---

enum class Turn { right, wait, acquire, lanes, release, place, pass };
// Each block doubles the values of the block before it, with the lanes reversed, and adds its own.
__global__ void add_in_turns(const float* x, float* sums, unsigned* counters, Turn mistake) {
  LOCKSTEP_SHARED(unsigned, ticket, [1]);
  const unsigned t = threadIdx.x;
  if (t == 0) ticket[0] = mistake == Turn::place ? blockIdx.x : atomicAdd(counters, 1u);
  __syncthreads();
  const unsigned n = ticket[0];
  float sum = x[n * 32 + t];
  if (n > 0) {
    if (mistake == Turn::acquire) {
      while (__atomic_load_n(counters + 1, __ATOMIC_RELAXED) != n) __nanosleep(32);
    } else if (mistake != Turn::wait) {
      while (simt::load_acquire(counters + 1) != n) __nanosleep(32);
    }
    sum += 2 * sums[(n - 1) * 32 + 31 - t];
  }
  sums[n * 32 + t] = sum;
  if (mistake != Turn::lanes) __syncwarp();
  if (t != 0 || mistake == Turn::pass) return;
  if (mistake == Turn::release) __atomic_store_n(counters + 1, n + 1, __ATOMIC_RELAXED);
  else simt::store_release(counters + 1, n + 1);
}
template <Turn mistake> bool turns(bool bug) {
  return in_all_orders([&] {
    const Array x(counting(96)), sums(96), counters(2);
    cudaMemset(counters, 0, 2 * sizeof(unsigned));
    return start(3, 32, add_in_turns, x, sums, reinterpret_cast<unsigned*>(whole(counters)),
                 bug ? mistake : Turn::right) &&
           sums.get()[64] == 65 + 2 * (64 + 2 * 1) && sums.get()[95] == 96 + 2 * (33 + 2 * 32);
  });
}

// --- asynchronous copies ---

enum class Stage { right, wait, barrier, one, ahead, place };
__global__ void sum_of_stages(const float* x, float* out, Stage mistake) {
  LOCKSTEP_SHARED(float, tiles, [2][256]);
  const unsigned t = threadIdx.x;
  const auto tile = [&](unsigned i) { return tiles[mistake == Stage::one ? 0 : i % 2]; };
  const auto fetch = [&](unsigned i) {
    if (i < 4) simt::copy_async<16>(tile(i) + 4 * t, x + 256 * i + 4 * t + (mistake == Stage::place ? 1 : 0));
  };
  fetch(0);
  float sum = 0;
  for (unsigned i = 0; i < 4; ++i) {
    if (mistake != Stage::wait) simt::wait_for_copies();
    if (mistake == Stage::ahead) fetch(i + 1);
    if (mistake != Stage::barrier) __syncthreads();
    if (mistake != Stage::ahead) fetch(i + 1);
    sum += tile(i)[(4 * t + 133) % 256];
  }
  out[t] = sum;
}
template <Stage mistake> bool stages(bool bug) {
  return in_all_orders([&] {
    const Array x(counting(1024)), out(64);
    return start(1, 64, sum_of_stages, x, out, bug ? mistake : Stage::right) &&
           out.get()[0] == 4 * 134 + 256 * (1 + 2 + 3);
  });
}

// Each thread reads a number that it copied itself, while the copy of its next number goes on.
enum class Group { right, wait, end };
__global__ void sum_of_groups(const float* x, float* out, Group mistake) {
  LOCKSTEP_SHARED(float, tiles, [2][256]);
  const unsigned t = threadIdx.x;
  const auto fetch = [&](unsigned i) {
    if (i < 4) simt::copy_async<16>(tiles[i % 2] + 4 * t, x + 256 * i + 4 * t);
    if (mistake != Group::end) simt::end_group_of_copies();
  };
  fetch(0);
  float sum = 0;
  for (unsigned i = 0; i < 4; ++i) {
    fetch(i + 1);
    simt::wait_for_groups(mistake == Group::wait ? 2 : 1);
    sum += tiles[i % 2][4 * t + 3];
  }
  out[t] = sum;
}
template <Group mistake> bool groups(bool bug) {
  return in_all_orders([&] {
    const Array x(counting(1024)), out(64);
    return start(1, 64, sum_of_groups, x, out, bug ? mistake : Group::right) &&
           out.get()[63] == 4 * 256 + 256 * (1 + 2 + 3);
  });
}

}  // namespace

std::vector<Case> turn_cases() {
  return {
      {"turn that is not waited for", turns<Turn::wait>, tsan},
      {"turn waited for without acquiring", turns<Turn::acquire>, tsan},
      {"turn passed on before other lanes wrote", turns<Turn::lanes>, tsan},
      {"turn passed on without releasing", turns<Turn::release>, tsan},
      {"turn by the block's place in the grid", turns<Turn::place>, every},
      {"turn that is not passed on", turns<Turn::pass>, every},
      {"no wait for a copy", stages<Stage::wait>, every},
      {"no barrier behind the wait for a copy", stages<Stage::barrier>, every},
      {"copy into the tile that is read", stages<Stage::one>, every},
      {"copy before others have read the tile", stages<Stage::ahead>, every},
      {"copy of 16 bytes from an odd address", stages<Stage::place>, every},
      {"wait for one group of copies too few", groups<Group::wait>, every},
      {"group of copies that is not ended", groups<Group::end>, every},
  };
}

}  // namespace mutants
