// Planted bugs in indexing: tails, bounds, 32-bit overflow, strides, broadcasts, alignment; and in the limits of
// launches.
#include <cstdlib>

#include "tests/cudasim/fiber.h"
#include "tests/cudasim/mutants/launch.h"

namespace mutants {
namespace {

// --- tails and bounds ---

__global__ void double_all(float* x, unsigned n, Bug bug) {
  const unsigned stride = bug("block_stride") ? blockDim.x : gridDim.x * blockDim.x;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    x[i] *= 2;
    if (bug("once") || bug("fewer_blocks")) break;
  }
}
bool walks(Bug bug) {
  return in_all_orders([&] {
    constexpr unsigned n = 300;
    const Array x(counting(n));
    return start(bug("fewer_blocks") ? n / 64 : 2, 64, double_all, x, n, bug) && sum_of(x.get()) == n * (n + 1);
  });
}

struct alignas(16) Four {
  float v[4];
};
__global__ void double_fours(const float* x, float* out, unsigned n, Bug bug) {
  const unsigned fours = bug("rounded_up") ? (n + 3) / 4 : n / 4, i = threadIdx.x;
  if (i < fours) {
    Four values = reinterpret_cast<const Four*>(x)[i];
    for (float& value : values.v) value *= 2;
    reinterpret_cast<Four*>(out)[i] = values;
  } else if (!bug("dropped") && i < fours + n % 4) {
    const unsigned at = bug("overlapped") ? i : fours * 4 + i - fours;
    out[at] = 2 * x[at];
  }
}
bool tails(Bug bug) { return sum_of(results(1, 64, double_fours, 104, 103, 103u, bug)) == 103 * 104; }

__global__ void largest(const float* x, float* out, unsigned n, float neutral) {
  float value = threadIdx.x < n ? x[threadIdx.x] : neutral;
  for (int step = 16; step > 0; step /= 2) value = max(value, __shfl_xor_sync(~0u, value, step));
  if (threadIdx.x == 0) *out = value;
}
bool tail_taken_for_zero(Bug bug) {
  const Array x(std::vector<float>(20, -3)), out(1);
  return start(1, 32, largest, x, out, 20u, bug ? 0 : -INFINITY) && out.get()[0] == -3;
}

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

// --- windows: query i sees keys j with i - window < j <= i, in tiles of eight ---

__global__ void sum_of_windows(const float* x, float* out, int n, int window, Bug bug) {
  const int i0 = int(blockIdx.x) * 8, i = i0 + int(threadIdx.x), wide = window + bug("one_more");
  const int asks = bug("first_tile") ? i0 + 7 : i0;  // the query whose window determines the first tile
  const int first = asks + 1 - window < 0 ? 0 : (asks + 1 - window) / 8 * 8;
  float sum = 0;
  for (int j0 = first; j0 < i0 + 8; j0 += 8) {
    for (int j = j0; j < j0 + 8 && j < n; ++j) {
      const bool visible = j > i - wide + bug("one_less") && (j <= i || bug("future"));
      if (visible) sum += x[j];
    }
  }
  if (i < n) out[i] = sum;
}
/// The backward pass: counts, for each key j of a tile, the queries i >= j whose window contains it.
__global__ void queries_of_windows(float* out, int n, int window, Bug bug) {
  const int j0 = int(blockIdx.x) * 8, j = j0 + int(threadIdx.x);
  const int end = (bug("first_key") ? j0 : j0 + 7) + window - bug("one_less");
  float count = 0;
  for (int i = j0; i < end && i < n; ++i) count += i >= j && i - j < window;
  if (j < n) out[j] = count;
}
bool windows(Bug bug) {
  bool right = true;
  for (const int window : {1, 7, 8, 9, 13}) {
    const std::vector<float> got = results(6, 8, sum_of_windows, 45, 45, 45, window, bug);
    for (int i = 0; i < 45; ++i) {
      const int count = i + 1 < window ? i + 1 : window;
      right &= got[size_t(i)] == float(count * (2 * (i + 1) - count + 1) / 2);
    }
  }
  return right;
}
bool windows_back(Bug bug) {
  const Array out(45);
  bool right = start(6, 8, queries_of_windows, out, 45, 9, bug);
  const std::vector<float> got = out.get();
  for (int j = 0; j < 45; ++j) right &= got[size_t(j)] == float(45 - j < 9 ? 45 - j : 9);
  return right;
}

// --- 32-bit overflow ---

// Bytes of device memory; large allocations are not committed on the host unless touched.
struct Bytes {
  explicit Bytes(size_t n) { cudaMalloc(reinterpret_cast<void**>(&data), n); }
  ~Bytes() { cudaFree(data); }
  Bytes(const Bytes&) = delete;
  signed char* data = nullptr;
};

template <class Index> __global__ void set_rows(signed char* x, Index stride) {
  x[Index(blockIdx.x) * stride + Index(threadIdx.x)] = (signed char)(blockIdx.x + 1);
}
template <class Index> __global__ void set_last(signed char* x, Index n) { x[n - 1 - Index(threadIdx.x)] = 3; }
template <class Function> bool in_large_memory(Function check) {
  setenv("LOCKSTEP_FAKE_CUDA_MEMORY", "4096", 1);  // before the first CUDA call
  constexpr int64_t row = int64_t(1) << 30, n = 2 * row + 32;
  const Bytes x(n);
  signed char got[3] = {};
  if (!x.data || !check(x.data, row, n)) return false;
  for (int i = 0; i < 3; ++i) cudaMemcpy(&got[i], x.data + i * row + 5, 1, cudaMemcpyDeviceToHost);
  return got[2] == 3;
}
bool row_times_stride_in_32_bits(Bug bug) {
  return in_large_memory([&](signed char* x, int64_t row, int64_t) {
    return bug ? start(3, 32, set_rows<int>, x, int(row)) : start(3, 32, set_rows<int64_t>, x, row);
  });
}
bool count_in_32_bits(Bug bug) {
  return in_large_memory([&](signed char* x, int64_t, int64_t n) {
    return bug ? start(1, 32, set_last<int>, x, int(n)) : start(1, 32, set_last<int64_t>, x, n);
  });
}
// The last block of threads of a long row.
template <class Index> __global__ void nearest(const float* x, float* out, Index inputs, Index outputs, Index first) {
  const Index i = first + Index(threadIdx.x);
  out[threadIdx.x] = x[i * inputs / outputs];
}
bool product_before_a_quotient_in_32_bits(Bug bug) {
  const auto got = bug ? results(1, 64, nearest<unsigned>, 120000, 64, 120000, 40000, 39936)
                       : results(1, 64, nearest<uint64_t>, 120000, 64, 120000, 40000, 39936);
  return got[63] == 39999 * 3 + 1;
}
template <class Offset> __global__ void draw(float* out, Offset offset) {
  const uint64_t mixed = (uint64_t(offset) + threadIdx.x) * 0x9e3779b97f4a7c15u;
  out[threadIdx.x] = float(mixed >> 40);
}
bool offset_of_random_numbers_in_32_bits(Bug bug) {
  const Array first(64), second(64);
  const uint64_t later = uint64_t(1) << 32;
  return start(1, 64, draw<uint64_t>, first, uint64_t(0)) &&
         (bug ? start(1, 64, draw<unsigned>, second, unsigned(later)) : start(1, 64, draw<uint64_t>, second, later)) &&
         first.get() != second.get();
}
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

// --- strides and broadcasts ---

struct Where {
  unsigned divisor, modulus;
};
// Adds a bias that repeats; `where` maps element i to its bias.
__global__ void add_bias(const float* x, const float* bias, float* out, Where where) {
  const unsigned i = threadIdx.x;
  out[i] = x[i] + bias[i / where.divisor % where.modulus];
}
// right: the mapping that the shape requires; wrong: the mapping used by the bug.
template <unsigned n, Where right, Where wrong> bool biases(Bug bug) {
  const Array x(counting(n)), bias(counting(right.modulus)), out(n);
  if (!start(1, n, add_bias, x, bias, out, bug ? wrong : right)) return false;
  const std::vector<float> got = out.get();
  for (unsigned i = 0; i < n; ++i)
    if (got[i] != float(i + 1 + i / right.divisor % right.modulus + 1)) return false;
  return true;
}

// Sums a (rows, columns) matrix along one axis: the gradient of a bias.
__global__ void sum_along(const float* x, float* out, unsigned count, unsigned step, unsigned next) {
  float sum = 0;
  for (unsigned i = 0; i < count; ++i) sum += x[threadIdx.x * next + i * step];
  out[threadIdx.x] = sum;
}

struct Strides {
  unsigned batch, row, column;
};
__global__ void copy_view(const float* x, float* out, Strides from) {
  const unsigned b = blockIdx.x, i = threadIdx.y, j = threadIdx.x;
  out[(b * blockDim.y + i) * blockDim.x + j] = x[b * from.batch + i * from.row + j * from.column];
}
// Views of a (2, 6, 8) array: rows 0 to 3 and columns 0 to 4, of the matrices or of their transposes.
template <bool transposed, Strides wrong> bool views(Bug bug) {
  const Strides right = transposed ? Strides{48, 1, 8} : Strides{48, 8, 1}, used = bug ? wrong : right;
  const std::vector<float> got = results(2, dim3(5, 4), copy_view, 96, 40, used);
  for (unsigned k = 0; k < 40; ++k)
    if (got[k] != float(k / 20 * right.batch + k / 5 % 4 * right.row + k % 5 * right.column + 1)) return false;
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
    {"last part of a block left out", walks, "fewer_blocks"},
    {"grid stride of one block", walks, "block_stride"},
    {"grid stride without its loop", walks, "once"},
    {"vector tail left out", tails, "dropped"},
    {"vector tail rounded up", tails, "rounded_up"},
    {"vector tail at the wrong place", tails, "overlapped"},
    {"tail of a maximum taken for zero", tail_taken_for_zero},
    {"reads the element before the first", bounds, "read_before"},
    {"reads the element after the last", bounds, "read_after"},
    {"writes the element before the first", bounds, "write_before"},
    {"window of a key more", windows, "one_more"},
    {"window of a key less", windows, "one_less"},
    {"first tile by the last query's window", windows, "first_tile"},
    {"window that shows the future", windows, "future"},
    {"last query by the first key of a tile", windows_back, "first_key"},
    {"last query a query too early", windows_back, "one_less"},
    {"row times stride in 32 bits", row_times_stride_in_32_bits},
    {"count in 32 bits", count_in_32_bits},
    {"product before a quotient in 32 bits", product_before_a_quotient_in_32_bits},
    {"offset of random numbers in 32 bits", offset_of_random_numbers_in_32_bits},
    {"size of an allocation in 32 bits", size_of_an_allocation_in_32_bits},
    {"block times threads in 32 bits", beyond_32_bits, "block", plain | asan},
    {"flat index divided in 32 bits", beyond_32_bits, "divided", plain | asan},
    {"what is left in 32 bits", beyond_32_bits, "left", plain | asan},
    {"bias by the number of rows", biases<24, Where{1, 4}, Where{1, 6}>},
    {"bias along the other axis", biases<16, Where{1, 4}, Where{4, 4}>},
    {"bias of channels by the last axis", biases<24, Where{4, 3}, Where{1, 3}>},
    {"bias of channels without the batch", biases<24, Where{4, 3}, Where{4, 24}>},
    {"bias gradient along the wrong axis",
     [](Bug bug) {
       return results(1, 4, sum_along, 16, 4, 4u, bug ? 1u : 4u, bug ? 4u : 1u) == std::vector<float>{28, 32, 36, 40};
     }},
    {"columns of a view for its stride", views<false, Strides{48, 5, 1}>},
    {"batch of a view taken for dense", views<false, Strides{20, 8, 1}>},
    {"transposed view read as dense", views<true, Strides{48, 5, 1}>},
    {"transposed view with its own lead", views<true, Strides{48, 1, 6}>},
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
