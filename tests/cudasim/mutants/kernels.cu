// Planted bugs in kernels.
#include "tests/cudasim/mutants/launch.h"

namespace mutants {
namespace {

__global__ void block_sum(const float* x, float* out, bool bug) {
  LOCKSTEP_SHARED(float, part, [32]);
  const float sum = warp_sum(x[threadIdx.x]);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  if (!bug) __syncthreads();
  if (threadIdx.x != 0) return;
  float total = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) total += part[w];
  *out = total;
}
bool no_barrier_before_reading(bool bug) {
  return in_all_orders([&] {
    const Array x(counting(256)), out(1);
    return start(1, 256, block_sum, x, out, bug) && out.get()[0] == 256 * 257 / 2;
  });
}

__global__ void rotate(const float* x, float* out, bool bug) {
  LOCKSTEP_SHARED(float, buffer, [64]);
  float sum = 0;
  for (int round = 1; round <= 4; ++round) {
    buffer[threadIdx.x] = x[threadIdx.x] * float(round);
    __syncthreads();
    sum += buffer[(threadIdx.x + 33) % 64];
    if (!bug) __syncthreads();
  }
  out[threadIdx.x] = sum;
}
bool no_barrier_before_writing_again(bool bug) {
  return in_all_orders([&] {
    const Array x(counting(64)), out(64);
    return start(1, 64, rotate, x, out, bug) && out.get()[0] == 34 * 10;
  });
}

__global__ void fill_some(float* out, unsigned n, bool bug) {
  if (bug && threadIdx.x >= n) return;
  __syncthreads();
  if (threadIdx.x < n) out[threadIdx.x] = 1;
}
bool return_before_a_barrier(bool bug) {
  const Array out(64);
  return start(1, 64, fill_some, out, 40u, bug) && sum_of(out.get()) != 0;
}

__global__ void two_halves(float* out, bool bug) {
  if (bug && threadIdx.x < 32) {
    __syncthreads();
    out[threadIdx.x] = 1;
  } else {
    out[threadIdx.x] = 1;
    __syncthreads();
  }
}
bool threads_at_two_barriers(bool bug) {
  const Array out(64);
  return start(1, 64, two_halves, out, bug) && sum_of(out.get()) == 64;
}

__global__ void partial_sum(const float* x, float* out, unsigned n, bool bug) {
  float sum = 0;
  if (!bug) sum = warp_sum(threadIdx.x < n ? x[threadIdx.x] : 0);
  else if (threadIdx.x < n) sum = warp_sum(x[threadIdx.x]);
  out[threadIdx.x] = sum;
}
bool full_mask_in_a_branch(bool bug) {
  const Array x(counting(32)), out(32);
  return start(1, 32, partial_sum, x, out, 20u, bug) && out.get()[0] == 210;
}

__global__ void read_lane(const float* x, float* out, unsigned mask) {
  if (mask >> threadIdx.x & 1) out[threadIdx.x] = __shfl_sync(mask, x[threadIdx.x], 8);
}
bool shuffle_from_a_lane_outside_the_mask(bool bug) {
  const Array x(counting(32)), out(32);
  return start(1, 32, read_lane, x, out, bug ? 0xffu : 0x1ffu) && out.get()[3] == 9;
}

__global__ void copy_up_to(const float* x, float* out, unsigned n, bool bug) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n || (bug && i == n)) out[i] = x[i];
}
bool one_element_too_many(bool bug) {
  const Array x(counting(100)), out(99);
  const bool good = start(2, 64, copy_up_to, x, out, 99u, bug) && out.get()[98] == 99;
  return good;  // the red zone behind the allocation is checked when it is freed
}
bool one_element_past_a_page(bool bug) {
  const Array x(counting(1025)), out(1024);
  return start(17, 64, copy_up_to, x, out, 1024u, bug) && out.get()[1023] == 1024;
}

__global__ void through_shared(float* out, unsigned n) {
  LOCKSTEP_SHARED(float, buffer, [64]);
  if (threadIdx.x <= n) buffer[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x < 64) out[threadIdx.x] = buffer[threadIdx.x];
}
bool one_shared_element_too_many(bool bug) {
  const Array out(64);
  return start(1, 96, through_shared, out, bug ? 64u : 63u) && sum_of(out.get()) == 64;
}

__global__ void accumulate(float* out, bool bug) {
  LOCKSTEP_SHARED(float, sum, [1]);
  if (!bug && threadIdx.x == 0) sum[0] = 0;
  if (threadIdx.x == 0) sum[0] += 1;
  __syncthreads();
  out[threadIdx.x] = sum[0];
}
bool shared_memory_taken_for_zero(bool bug) {
  const Array out(64);
  return start(1, 64, accumulate, out, bug) && sum_of(out.get()) == 64;
}

__global__ void add_to_what_is_there(float* out) { out[threadIdx.x] += 1; }
bool device_memory_taken_for_zero(bool bug) {
  const Array out(64);
  if (!bug) cudaMemset(out, 0, 64 * sizeof(float));
  return start(1, 64, add_to_what_is_there, out) && sum_of(out.get()) == 64;
}

__global__ void grid_sum(const float* x, float* out, bool bug) {
  const float sum = warp_sum(x[blockIdx.x * 32 + threadIdx.x]);
  if (threadIdx.x != 0) return;
  if (bug) *out = *out * 0.5f + sum;  // the result depends on the order of blocks
  else atomicAdd(out, sum);
}
bool blocks_write_one_place(bool bug) {
  std::vector<float> first;
  return in_all_orders([&] {
    const Array x(counting(128)), out(std::vector<float>{0});
    const bool good = start(4, 32, grid_sum, x, out, bug);
    if (first.empty()) first = out.get();
    return good && out.get() == first;
  });
}

__global__ void pass_on(const float* x, float* out, bool bug) {
  LOCKSTEP_SHARED(float, buffer, [32]);
  buffer[threadIdx.x] = x[threadIdx.x];
  const int one = __shfl_sync(~0u, 1, 0);  // all lanes meet here, but this does not order memory
  if (!bug) __syncwarp();
  out[threadIdx.x] = buffer[(threadIdx.x + 1) % 32] * float(one);
}
bool shuffle_taken_for_a_barrier(bool bug) {
  return in_all_orders([&] {
    const Array x(counting(32)), out(32);
    return start(1, 32, pass_on, x, out, bug) && out.get()[0] == 2;
  });
}

__global__ void halve(const float* x, float* out, bool bug) {
  LOCKSTEP_SHARED(float, buffer, [64]);
  buffer[threadIdx.x] = x[threadIdx.x];
  buffer[threadIdx.x + 32] = 0;
  __syncwarp();
  for (unsigned step = 16; step > 0; step /= 2) {
    const float other = buffer[threadIdx.x + step];
    if (!bug) __syncwarp();
    buffer[threadIdx.x] += other;
    if (!bug) __syncwarp();
  }
  if (threadIdx.x == 0) *out = buffer[0];
}
bool lanes_taken_for_being_in_step(bool bug) {
  return in_all_orders([&] {
    const Array x(counting(32)), out(1);
    return start(1, 32, halve, x, out, bug) && out.get()[0] == 528;
  });
}

__global__ void last_block_adds(const float* x, float* parts, unsigned* counter, float* out, bool bug) {
  const float sum = warp_sum(x[blockIdx.x * 32 + threadIdx.x]);
  if (threadIdx.x != 0) return;
  parts[blockIdx.x] = sum;
  if (!bug) __threadfence();
  if (atomicAdd(counter, 1u) != gridDim.x - 1) return;
  if (!bug) __threadfence();
  float total = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) total += parts[i];
  *out = total;
}
bool last_block_without_a_fence(bool bug) {
  const Array x(counting(128)), parts(4), counter(1), out(1);
  cudaMemset(counter, 0, sizeof(unsigned));
  return start(4, 32, last_block_adds, x, parts, reinterpret_cast<unsigned*>(static_cast<float*>(counter)), out, bug) &&
         out.get()[0] == 128 * 129 / 2;
}

bool too_many_threads(bool bug) {
  const Array out(64);
  return start(1, bug ? 2048 : 1024, fill_some, out, 40u, false) && sum_of(out.get()) != 0;
}

__global__ void through_dynamic(float* out) {
  LOCKSTEP_DYNAMIC_SHARED(float, buffer);
  buffer[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = buffer[31 - threadIdx.x];
}
bool dynamic_memory_not_asked_for(bool bug) {
  const Array out(32);
  return simt::launch("mutant", 1, 32, bug ? 0 : 32 * sizeof(float), nullptr, through_dynamic, out) == cudaSuccess &&
         sum_of(out.get()) == 32;
}
bool more_dynamic_memory_than_there_is(bool bug) {
  const Array out(32);
  return ask_for(200 * 1024, through_dynamic) &&
         simt::launch("mutant", 1, 32, (bug ? 300 : 200) * 1024, nullptr, through_dynamic, out) == cudaSuccess &&
         sum_of(out.get()) == 32;
}

}  // namespace

std::vector<Case> kernel_cases() {
  return {
      {"no barrier before reading", no_barrier_before_reading, every},
      {"no barrier before writing again", no_barrier_before_writing_again, every},
      {"return before a barrier", return_before_a_barrier, every},
      {"threads at two barriers", threads_at_two_barriers, every},
      {"full mask in a branch", full_mask_in_a_branch, every},
      {"shuffle from a lane outside the mask", shuffle_from_a_lane_outside_the_mask, every},
      {"one element too many", one_element_too_many, every},
      {"one element past a page", one_element_past_a_page, every},
      {"one shared element too many", one_shared_element_too_many, every},
      {"shared memory taken for zero", shared_memory_taken_for_zero, every},
      {"device memory taken for zero", device_memory_taken_for_zero, every},
      {"blocks write one place", blocks_write_one_place, every},
      {"shuffle taken for a barrier", shuffle_taken_for_a_barrier, tsan},
      {"lanes taken for being in step", lanes_taken_for_being_in_step, every},
      {"last block without a fence", last_block_without_a_fence, tsan},
      {"too many threads", too_many_threads, every},
      {"dynamic memory not asked for", dynamic_memory_not_asked_for, every},
      {"more dynamic memory than there is", more_dynamic_memory_than_there_is, every},
  };
}

}  // namespace mutants
