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

__global__ void fill_some(float* out, unsigned n, bool bug) {
  if (bug && threadIdx.x >= n) return;
  __syncthreads();
  if (threadIdx.x < n) out[threadIdx.x] = 1;
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

__global__ void partial_sum(const float* x, float* out, unsigned n, bool bug) {
  float sum = 0;
  if (!bug) sum = warp_sum(threadIdx.x < n ? x[threadIdx.x] : 0);
  else if (threadIdx.x < n) sum = warp_sum(x[threadIdx.x]);
  out[threadIdx.x] = sum;
}

__global__ void read_lane(const float* x, float* out, unsigned mask) {
  if (mask >> threadIdx.x & 1) out[threadIdx.x] = __shfl_sync(mask, x[threadIdx.x], 8);
}

// The red zone behind the allocation is checked when it is freed; a page behind it faults at once.
__global__ void copy_up_to(const float* x, float* out, unsigned n, bool bug) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n || (bug && i == n)) out[i] = x[i];
}

__global__ void through_shared(float* out, unsigned n) {
  LOCKSTEP_SHARED(float, buffer, [64]);
  if (threadIdx.x <= n) buffer[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x < 64) out[threadIdx.x] = buffer[threadIdx.x];
}

__global__ void accumulate(float* out, bool bug) {
  LOCKSTEP_SHARED(float, sum, [1]);
  if (!bug && threadIdx.x == 0) sum[0] = 0;
  if (threadIdx.x == 0) sum[0] += 1;
  __syncthreads();
  out[threadIdx.x] = sum[0];
}

__global__ void add_to_what_is_there(float* out) { out[threadIdx.x] += 1; }
bool device_memory_taken_for_zero(Bug bug) {
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
bool blocks_write_one_place(Bug bug) {
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

const Cases cases{
    {"no barrier before reading",
     [](Bug bug) {
       return in_all_orders([&] { return results(1, 256, block_sum, 256, 1, bug)[0] == 256 * 257 / 2; });
     }},
    {"return before a barrier", [](Bug bug) { return written(1, 64, fill_some, 64, 40u, bug)[0] == 1; }},
    {"threads at two barriers", [](Bug bug) { return sum_of(written(1, 64, two_halves, 64, bug)) == 64; }},
    {"full mask in a branch", [](Bug bug) { return results(1, 32, partial_sum, 32, 32, 20u, bug)[0] == 210; }},
    {"shuffle from a lane outside the mask",
     [](Bug bug) { return results(1, 32, read_lane, 32, 32, bug ? 0xffu : 0x1ffu)[3] == 9; }},
    {"one element too many", [](Bug bug) { return results(2, 64, copy_up_to, 100, 99, 99u, bug)[98] == 99; }},
    {"one element past a page",
     [](Bug bug) { return results(17, 64, copy_up_to, 1025, 1024, 1024u, bug)[1023] == 1024; }},
    {"one shared element too many",
     [](Bug bug) { return sum_of(written(1, 96, through_shared, 64, bug ? 64u : 63u)) == 64; }},
    {"shared memory taken for zero", [](Bug bug) { return sum_of(written(1, 64, accumulate, 64, bug)) == 64; }},
    {"device memory taken for zero", device_memory_taken_for_zero},
    {"blocks write one place", blocks_write_one_place},
    {"shuffle taken for a barrier",
     [](Bug bug) { return in_all_orders([&] { return results(1, 32, pass_on, 32, 32, bug)[0] == 2; }); }, "", tsan},
    {"lanes taken for being in step",
     [](Bug bug) { return in_all_orders([&] { return results(1, 32, halve, 32, 1, bug)[0] == 528; }); }},
    {"too many threads", [](Bug bug) { return written(1, bug ? 2048 : 1024, fill_some, 64, 40u, false)[0] == 1; }},
};

}  // namespace
}  // namespace mutants
