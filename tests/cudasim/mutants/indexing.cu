// Planted bugs in indexing: bounds, 32-bit overflow, alignment; and in the limits of launches.
#include <cstdlib>

#include "tests/cudasim/fiber.h"
#include "tests/cudasim/mutants/launch.h"

namespace mutants {
namespace {

// --- bounds ---

struct alignas(16) Four {
  float v[4];
};
__global__ void double_fours(const float* x, float* out, unsigned n, bool bug) {
  const unsigned fours = bug ? (n + 3) / 4 : n / 4, i = threadIdx.x;
  if (i < fours) {
    Four values = reinterpret_cast<const Four*>(x)[i];
    for (float& value : values.v) value *= 2;
    reinterpret_cast<Four*>(out)[i] = values;
  } else if (i < fours + n % 4) {
    const unsigned at = fours * 4 + i - fours;
    out[at] = 2 * x[at];
  }
}
bool tail_rounded_up(Bug bug) { return sum_of(results(1, 64, double_fours, 104, 103, 103u, bug)) == 103 * 104; }

__global__ void neighbour_sums(const float* x, float* out, int n, Bug bug) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) {
    out[i] = x[i] + (i > 0 || bug("read_before") ? x[i - 1] : 0) + (i < n - !bug("read_after") ? x[i + 1] : 0);
    if (bug("write_before") && i == 0) out[i - 1] = 0;
  }
}
bool bounds(Bug bug) {
  const std::vector<float> got = results(2, 64, neighbour_sums, 100, 100, 100, bug);
  return got[0] == 3 && got[50] == 153 && got[99] == 199;
}

// --- 32-bit overflow ---

// Bytes of device memory; large allocations are not committed on the host unless touched.
struct Bytes {
  explicit Bytes(size_t n) { cudaMalloc(reinterpret_cast<void**>(&data), n); }
  ~Bytes() { cudaFree(data); }
  Bytes(const Bytes&) = delete;
  signed char* data = nullptr;
};

__global__ void set_one(float* x, size_t i) { x[i] = 1; }
bool size_of_an_allocation_in_32_bits(Bug bug) {
  constexpr size_t n = (size_t(1) << 30) + 64;
  float* x = nullptr;
  const cudaError_t code =
      cudaMalloc(reinterpret_cast<void**>(&x), bug ? unsigned(n * sizeof(float)) : n * sizeof(float));
  if (code == cudaErrorMemoryAllocation) return true;  // allowed: the failure is reported and nothing is done
  return start(1, 1, set_one, x, n - 1) && cudaFree(x) == cudaSuccess;
}

// A grid over more than 2^32 elements, of which some blocks run.
__global__ void set_columns(signed char* x, int64_t n, int64_t width, Bug bug) {
  constexpr int each = 4;
  const int64_t i = bug("block") ? each * (blockIdx.x * blockDim.x + threadIdx.x)
                                 : each * (int64_t(blockIdx.x) * blockDim.x + threadIdx.x);
  const int64_t left = bug("left") ? int(n - i) : n - i;
  for (int64_t j = i; j < i + min(int64_t(each), left); ++j) {
    const int64_t row = bug("divided") ? uint32_t(j) / width : j / width;
    x[j] = (signed char)(j - row * width);
  }
}
bool beyond_32_bits(Bug bug) {
  if (simt::with_tsan()) return true;  // ThreadSanitizer leaves too little address space
  constexpr int64_t limit = int64_t(1) << 32, n = limit + 1001, width = 100;
  const fake::SomeBlocks some({{.5 * limit / n, .5 * limit / n}, {double(limit) / n, double(limit) / n}});
  const Bytes x(n);
  if (!x.data || !start(unsigned((n + 1023) / 1024), 256, set_columns, x.data, n, width, bug)) return false;
  for (const int64_t i : {int64_t(5), limit / 2 - 1, limit / 2 + 1, limit - 1, limit + 1, n - 1}) {
    signed char got = -1;
    cudaMemcpy(&got, x.data + i, 1, cudaMemcpyDeviceToHost);
    if (got != i % width) return false;
  }
  return true;
}

// --- alignment ---

struct alignas(8) Two {
  float v[2];
};
template <class Vector> __global__ void copy_vectors(const float* x, float* out) {
  reinterpret_cast<Vector*>(out)[threadIdx.x] = reinterpret_cast<const Vector*>(x)[threadIdx.x];
}
template <class Vector> bool vectors(Bug bug) {  // a view that starts at the second element
  const Array x(counting(33)), out(32);
  const float* const from = x + 1;
  const bool good = bug ? start(1, 32 / (sizeof(Vector) / 4), copy_vectors<Vector>, from, out)
                        : start(1, 32, copy_vectors<float>, from, out);
  return good && out.get()[31] == 33;
}
__global__ void through_doubles(float* out, unsigned floats) {
  LOCKSTEP_DYNAMIC_SHARED(float, buffer);
  auto* const sums = reinterpret_cast<double*>(buffer + floats);
  sums[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = float(sums[31 - threadIdx.x]);
}
bool doubles_behind_an_odd_number_of_floats(Bug bug) {
  const Array out(32);
  return simt::launch("mutant", 1, 32, 4 * 34 + 8 * 32, nullptr, through_doubles, out, bug ? 33u : 34u) ==
             cudaSuccess &&
         out.get()[0] == 31;
}

// --- launches ---

// Blocks loop over the rows. The bugs put one row per block in the grid's y or z, which allow at most 65535.
__global__ void set_rows_of_blocks(float* out, unsigned rows) {
  const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
  for (unsigned i = blockIdx.x + blockIdx.y + blockIdx.z; i < rows; i += blocks) out[i] = 1;
}
bool grids(Bug bug) {
  constexpr unsigned rows = 65600, none = 0;
  const Array out(rows);
  const dim3 grid = bug("y") ? dim3(1, rows) : bug("z") ? dim3(1, 1, rows) : dim3(64);
  bool good = start(grid, bug("block_z") ? dim3(1, 1, 65) : dim3(1), set_rows_of_blocks, out, rows);
  // the grid of an empty tensor
  if (none > 0 || bug("none")) good = good && start(none, 1, set_rows_of_blocks, out, none);
  return good && sum_of(out.get()) == rows;
}

__global__ void through_dynamic(float* out) {
  LOCKSTEP_DYNAMIC_SHARED(float, buffer);
  buffer[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = buffer[31 - threadIdx.x];
}
__global__ void use_much(float* out, bool bug) {
  LOCKSTEP_SHARED(float, first, [8000]);
  first[threadIdx.x] = 1;
  if (bug) {
    LOCKSTEP_SHARED(float, second, [8000]);
    second[threadIdx.x] = 1;
  }
  out[threadIdx.x] = first[threadIdx.x];
}
__global__ void use_both(float* out) {
  LOCKSTEP_SHARED(float, first, [8000]);
  LOCKSTEP_DYNAMIC_SHARED(float, more);
  first[threadIdx.x] = more[threadIdx.x] = 1;
  out[threadIdx.x] = first[threadIdx.x];
}
/// True if 32 threads of the kernel write ones, with so many bytes of dynamic shared memory.
template <class Kernel, class... Args> bool writes_ones(int bytes, Kernel kernel, Args... args) {
  const Array out(32);
  return simt::launch("mutant", 1, 32, size_t(bytes), nullptr, kernel, out, args...) == cudaSuccess &&
         sum_of(out.get()) == 32;
}
bool shared_memory(Bug bug) {
  constexpr int kib = 1024;
  if (bug.mistake == "static") return writes_ones(0, use_much, bug);
  if (bug.mistake == "none") return writes_ones(bug ? 0 : 32 * 4, through_dynamic);
  if (bug.mistake == "unasked")
    return (bug || ask_for(50 * kib, through_dynamic)) && writes_ones(50 * kib, through_dynamic);
  if (bug.mistake == "asked")
    return ask_for(200 * kib, through_dynamic) && writes_ones((bug ? 300 : 200) * kib, through_dynamic);
  return ask_for(210 * kib, use_both) && writes_ones((bug ? 210 : 180) * kib, use_both);
}
bool shared_memory_of_another_card(Bug bug) {
  setenv("LOCKSTEP_FAKE_CUDA_CAPABILITY", "75", 1);
  cudaDeviceProp card;
  cudaGetDeviceProperties(&card, 0);
  const int max_shared = bug ? 160 * 1024 : int(card.sharedMemPerBlockOptin);
  return ask_for(max_shared, through_dynamic) && writes_ones(max_shared, through_dynamic);
}

const Cases cases{
    {"vector tail rounded up", tail_rounded_up},
    {"reads the element before the first", bounds, "read_before"},
    {"reads the element after the last", bounds, "read_after"},
    {"writes the element before the first", bounds, "write_before"},
    {"size of an allocation in 32 bits", size_of_an_allocation_in_32_bits},
    {"block times threads in 32 bits", beyond_32_bits, "block", plain | asan},
    {"flat index divided in 32 bits", beyond_32_bits, "divided", plain | asan},
    {"what is left in 32 bits", beyond_32_bits, "left", plain | asan},
    {"vector of 16 bytes not aligned", vectors<Four>, "", asan},
    {"vector of 8 bytes not aligned", vectors<Two>, "", asan},
    {"doubles behind an odd number of floats", doubles_behind_an_odd_number_of_floats, "", asan},
    {"rows in the grid's y", grids, "y"},
    {"rows in the grid's z", grids, "z"},
    {"grid without blocks", grids, "none"},
    {"too many threads in a block's z", grids, "block_z"},
    {"more static memory than ptxas allows", shared_memory, "static"},
    {"static and dynamic memory together", shared_memory, "both"},
    {"much shared memory without asking", shared_memory, "unasked"},
    {"dynamic memory not asked for", shared_memory, "none"},
    {"more dynamic memory than there is", shared_memory, "asked"},
    {"shared memory of another card", shared_memory_of_another_card},
};

}  // namespace
}  // namespace mutants
