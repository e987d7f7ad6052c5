// Adding rows by index: the gradient of an embedding, and index_add. No atomics: the positions of the index are sorted
// by the index there (merge_sort.h, stable), so all rows of x with one index form a run. Runs are cut into parts of 32
// rows (kernel_args.h). A warp adds the rows of a part; a second kernel adds the parts of a long run in order. So a
// frequent index is shared by many warps, and the order of a sum follows from its own rows alone. Memory bound: each
// row is read once, 16 bytes for each lane and four rows in flight; a run of several parts also writes and reads a sum
// for each part. A wrong index is reported (report.h) and skipped.
#include "tensor/cuda/merge_sort.h"
#include "tensor/cuda/report.h"
#include "tensor/cuda/vector.h"
#include "tensor/functors.h"
#include "tensor/kernel_args.h"
#include "tensor/kernels.h"
#include "tensor/lines.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256, warps = threads / 32;
constexpr unsigned full_warp = 0xffffffffu;

/// The accumulator for sums of T: 16-bit floats are summed in f32 and rounded once.
template <class T> using Carried = Compute<T>;

/// load() for sort_lines(): position i of the index gets the key index[i]. If index[i] is `skip` or out of range, the
/// key is ~0, so these positions come last.
template <class K> struct ByIndex {
  const int64_t* index;
  int64_t skip;
  cuda::RangeCheck good;
  __device__ void operator()(int64_t, int64_t i, K& key, uint32_t& place) const {
    const int64_t to = index[i];
    key = to != skip && good(to, i) ? K(to) : ~K(0);
    place = uint32_t(i);
  }
};

static_assert(rows_of_part == 32, "a lane for each row of a part");

/// The part (up to 32 rows of a run) that starts at a position of the sorted entries. rows = 0: no part starts there.
struct Part {
  int rows = 0;
  bool is_first = false, is_last = false;
};
/// Called by a warp: returns the part that starts at `at`. The lanes look at 32 keys at a time.
template <class K> __device__ Part part_at(const Entries<K>& sorted, int64_t at, int64_t count) {
  const int lane = threadIdx.x % 32;
  const K key = sorted.key[at];
  if (key == ~K(0)) return {};
  const auto has_key = [&](int64_t i) { return i >= 0 && i < count && sorted.key[i] == key; };
  const bool is_first = !has_key(at - 1);
  if (!is_first) {  // a part starts here if the run begins a multiple of rows_of_part before
    if (!has_key(at - rows_of_part)) return {};
    int64_t first = at;
    for (int full = 32; full == 32; first -= full * rows_of_part)
      full = __popc(__ballot_sync(full_warp, has_key(first - (lane + 1) * rows_of_part)));
    if (has_key(first - 1)) return {};
  }
  const int rows = __popc(__ballot_sync(full_warp, has_key(at + lane)));
  return {rows, is_first, !has_key(at + rows_of_part)};
}

/// The slot that keeps the sums of a part (up to 32 equal indices) that starts at `at`, until the parts of an index are
/// added. An index can end and the next one begin within the same 32 positions; then their parts have two slots.
__device__ inline int64_t slot_of(int64_t at, bool is_first) { return at / rows_of_part * 2 + is_first; }

/// V neighbouring columns of the rows x[o, i, :], for one o and all i. Each lane handles one strip.
template <int V> struct Strip {
  int64_t o, column;
  int width;
  bool is_mine;  // false: a lane past the end, which repeats the last strip and stores nothing

  __device__ Strip(const Lines& lines, int64_t strip) {
    const int64_t pieces = (lines.inner + V - 1) / V, all = lines.outer * pieces;
    is_mine = strip < all;
    if (!is_mine) strip = all - 1;
    o = lines.outer == 1 ? 0 : strip / pieces, column = (strip - o * pieces) * V;
    width = lines.inner - column < V ? int(lines.inner - column) : V;
  }
};

/// out[o, index[i], :] += x[o, i, :]. A warp adds 32 V columns of the rows of a part. If a run has only one part,
/// the sums go to `out`; else the sums of each part go to `partial`, in Carried<T>.
template <int V, class T, class K>
__global__ void __launch_bounds__(threads)
    add_parts_kernel(const T* x, Lines lines, int64_t count, int64_t groups, Entries<K> sorted, T* out,
                     Carried<T>* partial, Access access) {
  constexpr int batch = 4;  // rows in flight; more would take the registers of other warps
  const int lane = threadIdx.x % 32;
  for (int64_t item = int64_t(blockIdx.x) * warps + threadIdx.x / 32; item < count * groups;
       item += int64_t(gridDim.x) * warps) {
    const int64_t group = item / count, at = item - group * count;  // consecutive items are neighbours in memory
    const Part part = part_at(sorted, at, count);
    if (part.rows == 0) continue;
    const Strip<V> strip(lines, group * 32 + lane);
    const T* from = x + strip.o * count * lines.inner + strip.column;
    T* to = out + (strip.o * lines.n + int64_t(sorted.key[at])) * lines.inner + strip.column;
    const uint32_t place = lane < part.rows ? sorted.place[at + lane] : 0;
    Vector<Carried<T>, V> sum{};
    if (part.is_first) {
      const Vector<T, V> before = load_vector<V>(to, access, 1, strip.width);
#pragma unroll
      for (int j = 0; j < V; ++j) sum.v[j] = Carried<T>(before.v[j]);
    }
    for (int first = 0; first < part.rows; first += batch) {
      Vector<T, V> row[batch];
#pragma unroll
      for (int u = 0; u < batch; ++u) {
        const uint32_t i = __shfl_sync(full_warp, place, first + u);
        if (first + u < part.rows) row[u] = load_vector<V>(from + i * lines.inner, access, 1, strip.width);
      }
#pragma unroll
      for (int u = 0; u < batch; ++u) {
        if (first + u >= part.rows) continue;
#pragma unroll
        for (int j = 0; j < V; ++j) sum.v[j] = functor::plus(sum.v[j], Carried<T>(row[u].v[j]));
      }
    }
    if (!strip.is_mine) continue;
    if (part.is_first && part.is_last) {
      Vector<T, V> result;
#pragma unroll
      for (int j = 0; j < V; ++j) result.v[j] = T(sum.v[j]);
      store_vector<V>(to, result, access, 1, strip.width);
    } else {
      Carried<T>* keep = partial + slot_of(at, part.is_first) * lines.outer * lines.inner;
      store_vector<V>(keep + strip.o * lines.inner + strip.column, sum, access, 1, strip.width);
    }
  }
}

/// Adds the parts of each run of several parts, in order. A warp looks at rows_of_part positions: at most one run of
/// several parts begins there.
template <int V, class T, class K>
__global__ void __launch_bounds__(threads) join_parts_kernel(const Carried<T>* partial, Lines lines, int64_t count,
                                                             int64_t groups, Entries<K> sorted, T* out, Access access) {
  constexpr int batch = 4;
  const int lane = threadIdx.x % 32;
  const int64_t windows = count / rows_of_part;
  for (int64_t item = int64_t(blockIdx.x) * warps + threadIdx.x / 32; item < windows * groups;
       item += int64_t(gridDim.x) * warps) {
    const int64_t group = item / windows, window = item - group * windows, at = window * rows_of_part + lane,
                  next = at + rows_of_part;
    const bool is_long = next < count && sorted.key[next] == sorted.key[at] && is_head(sorted, at);
    const unsigned found = __ballot_sync(full_warp, is_long);
    if (found == 0) continue;
    const int64_t head = window * rows_of_part + __ffs(int(found)) - 1, row = lines.outer * lines.inner;
    const K key = sorted.key[head];
    const Strip<V> strip(lines, group * 32 + lane);
    const Carried<T>* from = partial + strip.o * lines.inner + strip.column;
    using Values = Vector<Carried<T>, V>;
    Values sum = load_vector<V>(from + slot_of(head, true) * row, access, 1, strip.width);
    for (int64_t first = head + rows_of_part;; first += 32 * rows_of_part) {
      const int64_t mine = first + lane * rows_of_part;
      const int parts = __popc(__ballot_sync(full_warp, mine < count && sorted.key[mine] == key));
      for (int p = 0; p < parts; p += batch) {
        Values of_part[batch];
#pragma unroll
        for (int u = 0; u < batch; ++u) {
          const int64_t slot = slot_of(first + (p + u) * rows_of_part, false);
          if (p + u < parts) of_part[u] = load_vector<V>(from + slot * row, access, 1, strip.width);
        }
#pragma unroll
        for (int u = 0; u < batch; ++u) {
          if (p + u >= parts) continue;
#pragma unroll
          for (int j = 0; j < V; ++j) sum.v[j] = functor::plus(sum.v[j], of_part[u].v[j]);
        }
      }
      if (parts < 32) break;
    }
    Vector<T, V> result;
#pragma unroll
    for (int j = 0; j < V; ++j) result.v[j] = T(sum.v[j]);
    T* to = out + (strip.o * lines.n + int64_t(key)) * lines.inner + strip.column;
    if (strip.is_mine) store_vector<V>(to, result, access, 1, strip.width);
  }
}

void add_rows(const char* op, const Tensor& source, int dim, const Tensor& index, int64_t skip, Tensor& out) {
  if (source.numel() == 0) return;
  const Tensor rows = source.contiguous(), places = index.contiguous();
  const int64_t count = places.numel();
  const Lines lines(out, dim);
  check_count(op, count);
  dispatch_key(lines.n, [&]<class K>(K) {
    SortBuffers<K> buffers(count);
    const Entries<K> sorted =
        sort_lines(op, ByIndex<K>{places.data<int64_t>(), skip, cuda::check_indices(op, lines.n)}, {1, count}, buffers);
    dispatch_numbers(out.dtype(), op, [&]<class T> {
      constexpr int V = std::min(8, vector_length<T>),
                    few = vector_length<Carried<T>> < V ? vector_length<Carried<T>> : V;
      T* to = out.data<T>();
      const T* from = rows.data<T>();
      const auto access = [&](int v) {
        return lines.inner % v == 0 && is_aligned(to, v) && is_aligned(from, v) ? Access::run : Access::apart;
      };
      const auto groups = [&](int v) { return (lines.outer * ((lines.inner + v - 1) / v) + 31) / 32; };
      const int64_t windows = count / rows_of_part;
      const cuda::Scratch partial(
          count > rows_of_part ? size_t(2 * (windows + 1) * lines.outer * lines.inner) * sizeof(Carried<T>) : 0);
      cuda::launch({op, dim3(cuda::blocks_for(count * groups(V), warps)), dim3(threads)}, add_parts_kernel<V, T, K>,
                   from, lines, count, groups(V), sorted, to, partial.template as<Carried<T>>(), access(V));
      if (count <= rows_of_part) return;
      cuda::launch({op, dim3(cuda::blocks_for(windows * groups(few), warps)), dim3(threads)},
                   join_parts_kernel<few, T, K>, partial.template as<Carried<T>>(), lines, count, groups(few), sorted,
                   to, access(few));
    });
  });
}

}  // namespace

void embedding_grad(const Tensor& grad, const Tensor& index, int64_t padding_index, Tensor& grad_weight) {
  add_rows("embedding_grad_", grad, 0, index, padding_index, grad_weight);
}

void index_add(const Tensor& source, int dim, const Tensor& index, Tensor& out) {
  add_rows("index_add_", source, dim, index, INT64_MIN, out);  // INT64_MIN: no index is skipped
}

}  // namespace lockstep::on_cuda
