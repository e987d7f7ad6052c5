// Planted bugs in indexing: tails, bounds, 32-bit overflow, strides, broadcasts, alignment; and in the limits of
// launches.
#include <cstdlib>

#include "tests/cudasim/fiber.h"
#include "tests/cudasim/mutants/launch.h"

namespace mutants {
namespace {

// --- tails and bounds ---

enum class Walk { right, fewer_blocks, block_stride, once };
__global__ void double_all(float* x, unsigned n, Walk mistake) {
  const unsigned stride = mistake == Walk::block_stride ? blockDim.x : gridDim.x * blockDim.x;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    x[i] *= 2;
    if (mistake == Walk::once) break;
  }
}
template <Walk mistake> bool walks(bool bug) {
  return in_all_orders([&] {
    constexpr unsigned n = 300;
    const Array x(counting(n));
    const bool one_each = bug && mistake == Walk::fewer_blocks;
    return start(one_each ? n / 64 : 2, 64, double_all, x, n,
                 one_each ? Walk::once
                 : bug    ? mistake
                          : Walk::right) &&
           sum_of(x.get()) == n * (n + 1);
  });
}

struct alignas(16) Four {
  float v[4];
};
enum class Tail { right, dropped, rounded_up, overlapped };
__global__ void double_fours(const float* x, float* out, unsigned n, Tail mistake) {
  const unsigned fours = mistake == Tail::rounded_up ? (n + 3) / 4 : n / 4, i = threadIdx.x;
  if (i < fours) {
    Four values = reinterpret_cast<const Four*>(x)[i];
    for (float& value : values.v) value *= 2;
    reinterpret_cast<Four*>(out)[i] = values;
  } else if (mistake != Tail::dropped && i < fours + n % 4) {
    const unsigned at = mistake == Tail::overlapped ? i : fours * 4 + i - fours;
    out[at] = 2 * x[at];
  }
}
template <Tail mistake> bool tails(bool bug) {
  const Array x(counting(104)), out(103);
  return start(1, 64, double_fours, x, out, 103u, bug ? mistake : Tail::right) && sum_of(out.get()) == 103 * 104;
}

__global__ void largest(const float* x, float* out, unsigned n, float neutral) {
  float value = threadIdx.x < n ? x[threadIdx.x] : neutral;
  for (int step = 16; step > 0; step /= 2) value = max(value, __shfl_xor_sync(~0u, value, step));
  if (threadIdx.x == 0) *out = value;
}
bool tail_taken_for_zero(bool bug) {
  const Array x(std::vector<float>(20, -3)), out(1);
  return start(1, 32, largest, x, out, 20u, bug ? 0 : -INFINITY) && out.get()[0] == -3;
}

enum class Bound { right, read_before, read_after, write_before };
__global__ void neighbour_sums(const float* x, float* out, int n, Bound mistake) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) {
    out[i] = x[i] + (i > 0 || mistake == Bound::read_before ? x[i - 1] : 0) +
             (i < n - (mistake == Bound::read_after ? 0 : 1) ? x[i + 1] : 0);
    if (mistake == Bound::write_before && i == 0) out[i - 1] = 0;
  }
}
template <Bound mistake> bool bounds(bool bug) {
  const Array x(counting(100)), out(100);
  if (!start(2, 64, neighbour_sums, x, out, 100, bug ? mistake : Bound::right)) return false;
  const std::vector<float> got = out.get();
  return got[0] == 3 && got[50] == 153 && got[99] == 199;
}

// --- windows: query i sees keys j with i - window < j <= i, in tiles of eight ---

enum class Seen { right, one_more, one_less, first_tile, future };
__global__ void sum_of_windows(const float* x, float* out, int n, int window, Seen mistake) {
  const int i0 = int(blockIdx.x) * 8, i = i0 + int(threadIdx.x), wide = window + (mistake == Seen::one_more);
  const int asks = mistake == Seen::first_tile ? i0 + 7 : i0;  // the query whose window determines the first tile
  const int first = asks + 1 - window < 0 ? 0 : (asks + 1 - window) / 8 * 8;
  float sum = 0;
  for (int j0 = first; j0 < i0 + 8; j0 += 8) {
    for (int j = j0; j < j0 + 8 && j < n; ++j) {
      const bool seen = j > i - wide + (mistake == Seen::one_less) && (j <= i || mistake == Seen::future);
      if (seen) sum += x[j];
    }
  }
  if (i < n) out[i] = sum;
}
/// The backward pass: counts, for each key j of a tile, the queries i >= j whose window contains it.
enum class SeenBy { right, first_key, one_less };
__global__ void queries_of_windows(float* out, int n, int window, SeenBy mistake) {
  const int j0 = int(blockIdx.x) * 8, j = j0 + int(threadIdx.x);
  const int end = (mistake == SeenBy::first_key ? j0 : j0 + 7) + window - (mistake == SeenBy::one_less ? 1 : 0);
  float count = 0;
  for (int i = j0; i < end && i < n; ++i) count += i >= j && i - j < window;
  if (j < n) out[j] = count;
}
template <Seen mistake> bool windows(bool bug) {
  bool right = true;
  for (const int window : {1, 7, 8, 9, 13}) {
    const Array x(counting(45)), out(45);
    right &= start(6, 8, sum_of_windows, x, out, 45, window, bug ? mistake : Seen::right);
    const std::vector<float> got = out.get();
    for (int i = 0; i < 45; ++i) {
      const int count = i + 1 < window ? i + 1 : window;
      right &= got[size_t(i)] == float(count * (2 * (i + 1) - count + 1) / 2);
    }
  }
  return right;
}
template <SeenBy mistake> bool windows_back(bool bug) {
  const Array out(45);
  bool right = start(6, 8, queries_of_windows, out, 45, 9, bug ? mistake : SeenBy::right);
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
bool row_times_stride_in_32_bits(bool bug) {
  return in_large_memory([&](signed char* x, int64_t row, int64_t) {
    return bug ? start(3, 32, set_rows<int>, x, int(row)) : start(3, 32, set_rows<int64_t>, x, row);
  });
}
bool count_in_32_bits(bool bug) {
  return in_large_memory([&](signed char* x, int64_t, int64_t n) {
    return bug ? start(1, 32, set_last<int>, x, int(n)) : start(1, 32, set_last<int64_t>, x, n);
  });
}
// The last block of threads of a long row.
template <class Index> __global__ void nearest(const float* x, float* out, Index inputs, Index outputs, Index first) {
  const Index i = first + Index(threadIdx.x);
  out[threadIdx.x] = x[i * inputs / outputs];
}
bool product_before_a_quotient_in_32_bits(bool bug) {
  const Array x(counting(120000)), out(64);
  return (bug ? start(1, 64, nearest<unsigned>, x, out, 120000u, 40000u, 39936u)
              : start(1, 64, nearest<uint64_t>, x, out, uint64_t(120000), uint64_t(40000), uint64_t(39936))) &&
         out.get()[63] == 39999 * 3 + 1;
}
template <class Offset> __global__ void draw(float* out, Offset offset) {
  const uint64_t mixed = (uint64_t(offset) + threadIdx.x) * 0x9e3779b97f4a7c15u;
  out[threadIdx.x] = float(mixed >> 40);
}
bool offset_of_random_numbers_in_32_bits(bool bug) {
  const Array first(64), second(64);
  const uint64_t later = uint64_t(1) << 32;
  return start(1, 64, draw<uint64_t>, first, uint64_t(0)) &&
         (bug ? start(1, 64, draw<unsigned>, second, unsigned(later)) : start(1, 64, draw<uint64_t>, second, later)) &&
         first.get() != second.get();
}
__global__ void set_one(float* x, size_t i) { x[i] = 1; }
bool size_of_an_allocation_in_32_bits(bool bug) {
  constexpr size_t n = (size_t(1) << 30) + 64;
  float* x = nullptr;
  const cudaError_t code =
      cudaMalloc(reinterpret_cast<void**>(&x), bug ? unsigned(n * sizeof(float)) : n * sizeof(float));
  if (code == cudaErrorMemoryAllocation) return true;  // allowed: the failure is reported and nothing is done
  return start(1, 1, set_one, x, n - 1) && cudaFree(x) == cudaSuccess;
}

// A grid over more than 2^32 elements, of which some blocks run.
enum class Wide { right, block, divided, left };
__global__ void set_columns(signed char* x, int64_t n, int64_t width, Wide mistake) {
  constexpr int each = 4;
  const int64_t i = mistake == Wide::block ? each * (blockIdx.x * blockDim.x + threadIdx.x)
                                           : each * (int64_t(blockIdx.x) * blockDim.x + threadIdx.x);
  const int64_t left = mistake == Wide::left ? int(n - i) : n - i;
  for (int64_t j = i; j < i + min(int64_t(each), left); ++j) {
    const int64_t row = mistake == Wide::divided ? uint32_t(j) / width : j / width;
    x[j] = (signed char)(j - row * width);
  }
}
template <Wide mistake> bool beyond_32_bits(bool bug) {
  if (simt::with_tsan()) return true;  // ThreadSanitizer leaves too little address space
  constexpr int64_t limit = int64_t(1) << 32, n = limit + 1001, width = 100;
  const fake::SomeBlocks some({{.5 * limit / n, .5 * limit / n}, {double(limit) / n, double(limit) / n}});
  const Bytes x(n);
  if (!x.data || !start(unsigned((n + 1023) / 1024), 256, set_columns, x.data, n, width, bug ? mistake : Wide::right))
    return false;
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
template <unsigned n, Where right, Where wrong> bool biases(bool bug) {
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
bool bias_gradient_along_the_wrong_axis(bool bug) {
  const Array x(counting(16)), out(4);
  return start(1, 4, sum_along, x, out, 4u, bug ? 1u : 4u, bug ? 4u : 1u) &&
         out.get() == std::vector<float>{28, 32, 36, 40};
}

struct Strides {
  unsigned batch, row, column;
};
__global__ void copy_view(const float* x, float* out, Strides from) {
  const unsigned b = blockIdx.x, i = threadIdx.y, j = threadIdx.x;
  out[(b * blockDim.y + i) * blockDim.x + j] = x[b * from.batch + i * from.row + j * from.column];
}
// Views of a (2, 6, 8) array: rows 0 to 3 and columns 0 to 4, of the matrices or of their transposes.
template <bool transposed, Strides wrong> bool views(bool bug) {
  const Strides right = transposed ? Strides{48, 1, 8} : Strides{48, 8, 1}, used = bug ? wrong : right;
  const Array x(counting(96)), out(40);
  if (!start(2, dim3(5, 4), copy_view, x, out, used)) return false;
  const std::vector<float> got = out.get();
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
template <class Vector> bool vectors(bool bug) {  // a view that starts at the second element
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
bool doubles_behind_an_odd_number_of_floats(bool bug) {
  const Array out(32);
  return simt::launch("mutant", 1, 32, 4 * 34 + 8 * 32, nullptr, through_doubles, out, bug ? 33u : 34u) ==
             cudaSuccess &&
         out.get()[0] == 31;
}

// --- launches ---

enum class Grid { y, z, none, block_z };
// Blocks loop over the rows. The bugs put one row per block in the grid's y or z, which allow at most 65535.
__global__ void set_rows_of_blocks(float* out, unsigned rows) {
  const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
  for (unsigned i = blockIdx.x + blockIdx.y + blockIdx.z; i < rows; i += blocks) out[i] = 1;
}
template <Grid mistake> bool grids(bool bug) {
  constexpr unsigned rows = 65600, none = 0;
  const auto is = [=](Grid which) { return bug && mistake == which; };
  const Array out(rows);
  const dim3 grid = is(Grid::y) ? dim3(1, rows) : is(Grid::z) ? dim3(1, 1, rows) : dim3(64);
  bool good = start(grid, is(Grid::block_z) ? dim3(1, 1, 65) : dim3(1), set_rows_of_blocks, out, rows);
  // the grid of an empty tensor
  if (none > 0 || is(Grid::none)) good = good && start(none, 1, set_rows_of_blocks, out, none);
  return good && sum_of(out.get()) == rows;
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
bool more_static_memory_than_ptxas_allows(bool bug) {
  const Array out(32);
  return start(1, 32, use_much, out, bug) && sum_of(out.get()) == 32;
}
__global__ void use_both(float* out) {
  LOCKSTEP_SHARED(float, first, [8000]);
  LOCKSTEP_DYNAMIC_SHARED(float, more);
  first[threadIdx.x] = more[threadIdx.x] = 1;
  out[threadIdx.x] = first[threadIdx.x];
}
bool static_and_dynamic_memory_too_much_together(bool bug) {
  const Array out(32);
  if (!ask_for(210 * 1024, use_both)) return false;
  return simt::launch("mutant", 1, 32, (bug ? 210 : 180) * 1024, nullptr, use_both, out) == cudaSuccess &&
         sum_of(out.get()) == 32;
}
__global__ void use_dynamic(float* out) {
  LOCKSTEP_DYNAMIC_SHARED(float, buffer);
  out[threadIdx.x] = buffer[threadIdx.x] = 1;
}
bool shared_memory_of_another_card(bool bug) {
  setenv("LOCKSTEP_FAKE_CUDA_CAPABILITY", "75", 1);
  const Array out(32);
  int most = 160 * 1024;
  if (!bug) cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
  return ask_for(most, use_dynamic) &&
         simt::launch("mutant", 1, 32, size_t(most), nullptr, use_dynamic, out) == cudaSuccess &&
         sum_of(out.get()) == 32;
}
bool much_shared_memory_without_asking(bool bug) {
  const Array out(32);
  return (bug || ask_for(50 * 1024, use_dynamic)) &&
         simt::launch("mutant", 1, 32, 50 * 1024, nullptr, use_dynamic, out) == cudaSuccess && sum_of(out.get()) == 32;
}

}  // namespace

std::vector<Case> indexing_cases() {
  return {
      {"last part of a block left out", walks<Walk::fewer_blocks>, every},
      {"grid stride of one block", walks<Walk::block_stride>, every},
      {"grid stride without its loop", walks<Walk::once>, every},
      {"vector tail left out", tails<Tail::dropped>, every},
      {"vector tail rounded up", tails<Tail::rounded_up>, every},
      {"vector tail at the wrong place", tails<Tail::overlapped>, every},
      {"tail of a maximum taken for zero", tail_taken_for_zero, every},
      {"reads the element before the first", bounds<Bound::read_before>, every},
      {"reads the element after the last", bounds<Bound::read_after>, every},
      {"writes the element before the first", bounds<Bound::write_before>, every},
      {"window of a key more", windows<Seen::one_more>, every},
      {"window of a key less", windows<Seen::one_less>, every},
      {"first tile by the last query's window", windows<Seen::first_tile>, every},
      {"window that shows the future", windows<Seen::future>, every},
      {"last query by the first key of a tile", windows_back<SeenBy::first_key>, every},
      {"last query a query too early", windows_back<SeenBy::one_less>, every},
      {"row times stride in 32 bits", row_times_stride_in_32_bits, every},
      {"count in 32 bits", count_in_32_bits, every},
      {"product before a quotient in 32 bits", product_before_a_quotient_in_32_bits, every},
      {"offset of random numbers in 32 bits", offset_of_random_numbers_in_32_bits, every},
      {"size of an allocation in 32 bits", size_of_an_allocation_in_32_bits, every},
      {"block times threads in 32 bits", beyond_32_bits<Wide::block>, plain | asan},
      {"flat index divided in 32 bits", beyond_32_bits<Wide::divided>, plain | asan},
      {"what is left in 32 bits", beyond_32_bits<Wide::left>, plain | asan},
      {"bias by the number of rows", biases<24, Where{1, 4}, Where{1, 6}>, every},
      {"bias along the other axis", biases<16, Where{1, 4}, Where{4, 4}>, every},
      {"bias of channels by the last axis", biases<24, Where{4, 3}, Where{1, 3}>, every},
      {"bias of channels without the batch", biases<24, Where{4, 3}, Where{4, 24}>, every},
      {"bias gradient along the wrong axis", bias_gradient_along_the_wrong_axis, every},
      {"columns of a view for its stride", views<false, Strides{48, 5, 1}>, every},
      {"batch of a view taken for dense", views<false, Strides{20, 8, 1}>, every},
      {"transposed view read as dense", views<true, Strides{48, 5, 1}>, every},
      {"transposed view with its own lead", views<true, Strides{48, 1, 6}>, every},
      {"vector of 16 bytes not aligned", vectors<Four>, asan},
      {"vector of 8 bytes not aligned", vectors<Two>, asan},
      {"doubles behind an odd number of floats", doubles_behind_an_odd_number_of_floats, asan},
      {"rows in the grid's y", grids<Grid::y>, every},
      {"rows in the grid's z", grids<Grid::z>, every},
      {"grid without blocks", grids<Grid::none>, every},
      {"too many threads in a block's z", grids<Grid::block_z>, every},
      {"more static memory than ptxas allows", more_static_memory_than_ptxas_allows, every},
      {"static and dynamic memory together", static_and_dynamic_memory_too_much_together, every},
      {"much shared memory without asking", much_shared_memory_without_asking, every},
      {"shared memory of another card", shared_memory_of_another_card, every},
  };
}

}  // namespace mutants
