// Planted bugs in cooperation: barriers in loops, warp operations, atomics, blocks that communicate through memory.
#include "tests/cudasim/mutants/launch.h"

namespace mutants {
namespace {

// --- barriers ---

// y (n, n) = a b in tiles; the last tiles are partial.
__global__ void tiled_product(const float* a, const float* b, float* y, unsigned n, Bug bug) {
  LOCKSTEP_SHARED(float, left, [8][8]);
  LOCKSTEP_SHARED(float, right, [8][8]);
  const unsigned tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 8 + ty, column = blockIdx.x * 8 + tx;
  float sum = 0;
  for (unsigned k = 0; k < n; k += 8) {
    const bool has_a = row < n && k + tx < n, has_b = k + ty < n && column < n;
    if (has_a || !bug("stale_edge")) left[ty][tx] = has_a ? a[row * n + k + tx] : 0;
    if (has_b || !bug("stale_edge")) right[ty][tx] = has_b ? b[(k + ty) * n + column] : 0;
    if (!bug("before_use")) __syncthreads();
    for (unsigned i = 0; i < 8; ++i) sum += left[ty][i] * right[i][tx];
    if (!bug("before_reuse")) __syncthreads();
  }
  if (row < n && column < n) y[row * n + column] = sum;
}
bool tiles(Bug bug) {
  constexpr unsigned n = 20;
  std::vector<float> a(n * n), b(n * n), y(n * n);
  for (unsigned i = 0; i < n * n; ++i) a[i] = float(i % 7), b[i] = float(i % 5);
  for (unsigned i = 0; i < n * n * n; ++i) y[i / n] += a[i / n / n * n + i % n] * b[i % n * n + i / n % n];
  return in_all_orders([&] {
    const Array left(a), right(b), out(n * n);
    return start(dim3(3, 3), dim3(8, 8), tiled_product, left, right, out, n, bug) && out.get() == y;
  });
}

__global__ void running_sum(const float* x, float* out, bool bug) {
  LOCKSTEP_SHARED(float, buffer, [64]);
  const unsigned t = threadIdx.x;
  buffer[t] = x[t];
  __syncthreads();
  for (unsigned step = 1; step < 64; step *= 2) {
    const float before = t >= step ? buffer[t - step] : 0;
    if (!bug) __syncthreads();
    buffer[t] += before;
    __syncthreads();
  }
  out[t] = buffer[t];
}
bool scan_in_one_step(Bug bug) {
  return in_all_orders([&] {
    const std::vector<float> got = results(1, 64, running_sum, 64, 64, bug);
    return got[63] == 64 * 65 / 2 && got[31] == 32 * 33 / 2;
  });
}

__global__ void histogram(const int* x, unsigned n, int* bins, Bug bug) {
  LOCKSTEP_SHARED(int, mine, [16]);
  if (threadIdx.x < 16 && !bug("zero")) mine[threadIdx.x] = 0;
  if (!bug("zeroing")) __syncthreads();
  for (unsigned i = threadIdx.x; i < n; i += blockDim.x) {
    if (bug("atomic")) ++mine[x[i]];
    else atomicAdd(&mine[x[i]], 1);
  }
  if (!bug("counting")) __syncthreads();
  if (threadIdx.x < 16) bins[threadIdx.x] = mine[threadIdx.x];
}
bool bins(Bug bug) {
  return in_all_orders([&] {
    std::vector<int> values(200);
    for (int i = 0; i < 200; ++i) values[size_t(i)] = i * 7 % 16;
    const Array x(200), out(16);
    cudaMemcpy(x, values.data(), 800, cudaMemcpyHostToDevice);
    if (!start(1, 64, histogram, x.as<int>(), 200u, out.as<int>(), bug)) return false;
    const std::vector<int> got = as_integers(out.get());
    for (int bin = 0; bin < 16; ++bin)
      if (got[size_t(bin)] != std::count(values.begin(), values.end(), bin)) return false;
    return true;
  });
}

__global__ void neighbours(const float* x, float* out, bool bug) {
  LOCKSTEP_SHARED(float, buffer, [2][64]);
  float sum = 0;
  for (unsigned round = 1; round <= 4; ++round) {
    float* const values = buffer[round % 2];
    values[threadIdx.x] = x[threadIdx.x] * float(round);
    if (bug) __syncwarp();
    else __syncthreads();
    sum += values[(threadIdx.x + 33) % 64];
  }
  out[threadIdx.x] = sum;
}
bool barrier_of_a_warp(Bug bug) {
  return in_all_orders([&] { return results(1, 64, neighbours, 64, 64, bug)[0] == 34 * 10; });
}

__global__ void reverse_rows(const float* x, float* out, unsigned n, bool bug) {
  LOCKSTEP_SHARED(float, buffer, [64]);
  for (unsigned first = 0; bug ? first + threadIdx.x < n : first < n; first += 64) {
    const unsigned i = first + threadIdx.x;
    buffer[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    if (i < n) out[i] = buffer[63 - threadIdx.x];
    __syncthreads();
  }
}

__global__ void one_before(float* out, bool bug) {
  LOCKSTEP_SHARED(float, buffer, [64]);
  const int at = int(threadIdx.x) - 1;
  if (bug || at >= 0) buffer[at] = 1;
  __syncthreads();
  if (threadIdx.x < 63) out[threadIdx.x] = buffer[threadIdx.x];
}

// --- warps ---

// Each lane gets the sum of its group of eight plus the sum of the first group.
__global__ void group_sums(const float* x, float* out, unsigned n, Bug bug) {
  const unsigned t = threadIdx.x;
  float sum = t < n ? x[t] : 0;
  if (bug("first_only")) {
    for (unsigned step = 4; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step, 8);
  } else {
    for (int step = bug("two_groups") ? 8 : 4; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  }
  const unsigned mask = __ballot_sync(~0u, t < n);
  if (bug("ballot")) sum += __shfl_sync(mask, sum, 0);
  else sum += __shfl_sync(~0u, sum, bug("width") ? 8 : 0, bug("width") ? 8 : 32);
  if (t < n) out[t] = sum;
}
bool lanes(Bug bug) {
  const std::vector<float> got = results(1, 32, group_sums, 32, 32, 24u, bug);
  return got[0] == 36 + 36 && got[9] == 100 + 36 && got[23] == 164 + 36;
}
__global__ void sum_over_block(const float* x, float* out, unsigned n) {
  const float sum = warp_sum(threadIdx.x < n ? x[threadIdx.x] : 0);
  if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = sum;
}
__global__ void sum_over_loop(const float* x, float* out, unsigned n, bool bug) {
  float sum = 0;
  for (unsigned i = threadIdx.x; bug ? i < n : i - threadIdx.x < n; i += 32) sum += warp_sum(i < n ? x[i] : 0);
  if (threadIdx.x == 0) *out = sum;
}

// --- atomics ---

__global__ void gather_all(const float* x, int* out, int* list, Bug bug) {
  const int value = int(x[blockIdx.x * 32 + threadIdx.x]);
  if (bug("none")) out[0] += value;
  else atomicAdd(out, value);
  atomicMax(out + 1, value);
  atomicMin(out + 2, -value);
  int slot = atomicAdd(out + 3, 1);
  if (bug("read_back")) slot = atomicAdd(out + 3, 0) - 1;
  atomicExch(list + slot, value);
}
bool atomics(Bug bug) {
  return in_all_orders([&] {
    const Array x(counting(128)), out(4), list(128);
    cudaMemset(out, 0, 4 * sizeof(int));
    if (!start(4, 32, gather_all, x, out.as<int>(), list.as<int>(), bug)) return false;
    const std::vector<int> got = as_integers(out.get());
    std::vector<int> listed = as_integers(list.get());
    std::sort(listed.begin(), listed.end());
    for (int i = 0; i < 128; ++i)
      if (listed[size_t(i)] != i + 1) return false;
    return got[0] == 128 * 129 / 2 && got[1] == 128 && got[2] == -128;
  });
}

// --- blocks ---

__global__ void last_block_sums(const float* x, float* parts, unsigned* counter, float* out, Bug bug) {
  const float sum = warp_sum(x[blockIdx.x * 32 + threadIdx.x]);
  if (threadIdx.x != 0) return;
  parts[blockIdx.x] = sum;
  if (!bug("fence")) __threadfence();
  const unsigned before = bug("atomic")     ? (*counter)++
                          : bug("put_back") ? atomicAdd(counter, 1u)
                                            : atomicInc(counter, gridDim.x - (bug("limit") ? 0 : 1));
  if (before != gridDim.x - 1) return;
  if (!bug("fence")) __threadfence();
  float total = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) total += parts[i];
  *out = total;
}
bool last_block(Bug bug) {
  const Array x(counting(128)), parts(4), counter(1);
  cudaMemset(counter, 0, sizeof(unsigned));
  // the next launch counts from zero again
  for (int launch = 0; launch < (bug.mistake == "atomic" || bug.mistake == "fence" ? 1 : 2); ++launch) {
    const Array out(1);
    if (!start(4, 32, last_block_sums, x, parts, counter.as<unsigned>(), out, bug) || out.get()[0] != 128 * 129 / 2)
      return false;
  }
  return true;
}

__global__ void twice(const float* x, float* out) {
  out[blockIdx.x * 32 + threadIdx.x] = 2 * x[blockIdx.x * 32 + threadIdx.x];
}
__global__ void shift(const float* x, float* out) {
  const unsigned i = blockIdx.x * 32 + threadIdx.x;
  out[i] = x[(i + 32) % 128];
}
__global__ void twice_and_shift(const float* x, float* middle, float* out) {
  twice(x, middle);
  __syncthreads();  // synchronises only this block
  shift(middle, out);
}
bool halo(Bug bug) {
  return in_all_orders([&] {
    const Array x(counting(128)), middle(128), out(128);
    const bool good = bug ? start(4, 32, twice_and_shift, x, middle, out)
                          : start(4, 32, twice, x, middle) && start(4, 32, shift, middle, out);
    const std::vector<float> shifted = out.get();
    return good && shifted[0] == 66 && shifted[127] == 64 && shifted[96] == 2;
  });
}

const Cases cases{
    {"no barrier before using a tile", tiles, "before_use"},
    {"no barrier before loading the next tile", tiles, "before_reuse"},
    {"last tile not filled up with zeros", tiles, "stale_edge"},
    {"scan that reads and writes at once", scan_in_one_step},
    {"no barrier after zeroing the bins", bins, "zeroing"},
    {"no barrier after counting", bins, "counting"},
    {"bins counted without atomics", bins, "atomic", tsan},
    {"bins taken for zero", bins, "zero"},
    {"barrier of a warp for that of a block", barrier_of_a_warp},
    {"barrier in a loop that some leave",
     [](Bug bug) { return results(1, 64, reverse_rows, 200, 200, 200u, bug)[0] == 64; }},
    {"one shared element before the first", [](Bug bug) { return sum_of(written(1, 64, one_before, 63, bug)) == 63; }},
    {"shuffles over two groups", lanes, "two_groups"},
    {"sum that only the first lane has", lanes, "first_only"},
    {"shuffle from past its width", lanes, "width"},
    {"lanes outside of a ballot's mask", lanes, "ballot"},
    {"shuffle in a warp that is not full",
     [](Bug bug) { return results(1, bug ? 40 : 64, sum_over_block, 40, 2, 40u)[1] == (33 + 40) * 4; }},
    {"shuffle in a loop that some leave",
     [](Bug bug) { return results(1, 32, sum_over_loop, 40, 1, 40u, bug)[0] == 820; }},
    {"sum without an atomic", atomics, "none", tsan},
    {"slot read back from the counter", atomics, "read_back"},
    {"last block without a fence", last_block, "fence", tsan},
    {"last block by a plain counter", last_block, "atomic", tsan},
    {"counter not put back for the next launch", last_block, "put_back"},
    {"counter that wraps one too late", last_block, "limit"},
    {"halo from a block of the same launch", halo},
};

}  // namespace
}  // namespace mutants
