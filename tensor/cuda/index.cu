// Moving elements by index. scatter_add sums elements in the index tensor's order, without atomics: it sorts the source
// elements by the output element that they add to (merge_sort.h, stable), then one thread computes each output element.
// If scatter writes several elements to one place, it keeps the last one, which an integer maximum of positions finds.
// Memory bound. A wrong index is reported (report.h) and skipped. Sums of rows are in add_rows.cu.
#include "tensor/cuda/merge_sort.h"
#include "tensor/cuda/nest.h"
#include "tensor/cuda/report.h"
#include "tensor/cuda/vector.h"
#include "tensor/functors.h"
#include "tensor/kernels.h"
#include "tensor/lines.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256;

/// The accumulator for sums of T: 16-bit floats are summed in f32 and rounded once.
template <class T> using Carried = Compute<T>;

__device__ inline int64_t first_item() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t item_step() { return int64_t(gridDim.x) * blockDim.x; }

// --- rows ---

/// 16 bytes, to copy rows in wide words.
struct Word16 {
  alignas(16) uint32_t w[4];
};

/// out[o, i, :] = x[o, index[i], :]; rows are copied as `width` words.
template <class Word>
__global__ void __launch_bounds__(threads)
    select_kernel(const Word* x, int64_t n, const int64_t* index, int64_t count, int64_t width, Divider by_width,
                  Word* out, int64_t total, cuda::RangeCheck good) {
  const bool narrow = total < max_narrow;
  for (int64_t i = first_item(); i < total; i += item_step()) {
    const int64_t row = narrow ? by_width.divide(uint32_t(i)) : i / width, column = i - row * width;
    const int64_t o = row / count, k = row - o * count, from = index[k];
    if (good(from, k)) out[i] = x[(o * n + from) * width + column];
  }
}

void select_rows(const char* op, const Tensor& x, int dim, const Tensor& index, Tensor& out) {
  if (out.numel() == 0) return;
  const Tensor rows = x.contiguous(), places = index.contiguous();
  const Lines lines(x, dim);
  const int64_t bytes = lines.inner * size_of(x.dtype());
  const auto run = [&]<class Word> {
    const int64_t width = bytes / int64_t(sizeof(Word)), total = lines.outer * places.numel() * width;
    cuda::launch({op, dim3(cuda::blocks_for(total, threads)), dim3(threads)}, select_kernel<Word>,
                 static_cast<const Word*>(rows.raw_data()), lines.n, places.data<int64_t>(), places.numel(), width,
                 width < max_narrow ? Divider(uint32_t(width)) : Divider(), static_cast<Word*>(out.raw_data()), total,
                 cuda::check_indices(op, lines.n));
  };
  const uintptr_t together =
      uintptr_t(bytes) | reinterpret_cast<uintptr_t>(rows.raw_data()) | reinterpret_cast<uintptr_t>(out.raw_data());
  if (together % 16 == 0) run.template operator()<Word16>();
  else dispatch_width(x.dtype(), run);
}

// --- elements ---

/// A loop over the elements of an index tensor computes four numbers for each: its offset in the index tensor, the
/// offsets in the tensors that are read and written, and its position along `dim`. The kernel adds index times stride
/// to the offset in the indexed tensor.
enum { in_index, in_source, in_out, along, places };
/// The loop over the elements of an index tensor, in row-major order.
struct ElementWalk {
  Nest<places> nest;
  int64_t count;
  int64_t stride;  // stride of the indexed dim
};

ElementWalk make_element_walk(const Tensor& index, int dim, const Strides& source, const Strides& out, int64_t stride) {
  ElementWalk walk{.nest = {}, .count = index.numel(), .stride = stride};
  for (int d = 0; d < index.dim(); ++d) {
    if (index.shape()[d] == 1) continue;  // row-major order, so flat indices are positions
    const int at = walk.nest.rank++;
    walk.nest.size[at] = index.shape()[d];
    const int64_t strides[places] = {index.strides()[d], source[d], out[d], d == dim};
    std::copy(strides, strides + places, walk.nest.stride[at]);
  }
  walk.nest.join();
  walk.nest.prepare();
  return walk;
}

/// Returns `strides` with that of `dim` set to 0.
Strides without(Strides strides, int dim) {
  if (dim < strides.rank()) strides[dim] = 0;
  return strides;
}
int64_t stride_at(const Tensor& x, int dim) { return x.dim() == 0 ? 1 : x.strides()[dim]; }
int64_t size_at(const Tensor& x, int dim) { return x.dim() == 0 ? 1 : x.shape()[dim]; }

template <class T>
__global__ void __launch_bounds__(threads)
    gather_kernel(ElementWalk walk, const int64_t* index, const T* x, T* out, cuda::RangeCheck good) {
  for (int64_t i = first_item(); i < walk.count; i += item_step()) {
    int64_t at[places] = {};
    walk.nest.find(i, at);
    const int64_t from = index[at[in_index]];
    if (good(from, i)) out[at[in_out]] = x[at[in_source] + from * walk.stride];
  }
}

/// last[k] = the largest position along `dim` of the source elements that go to element k of out (in row-major order).
__global__ void __launch_bounds__(threads)
    find_last_kernel(ElementWalk walk, const int64_t* index, int* last, cuda::RangeCheck good) {
  for (int64_t i = first_item(); i < walk.count; i += item_step()) {
    int64_t at[places] = {};
    walk.nest.find(i, at);
    const int64_t to = index[at[in_index]];
    if (good(to, i)) atomicMax(last + at[in_out] + to * walk.stride, int(at[along]));
  }
}
/// Writes the elements that find_last_kernel() chose. `dense` is `walk` with the offsets of a row-major out.
template <class T>
__global__ void __launch_bounds__(threads) scatter_kernel(ElementWalk walk, ElementWalk dense, const int64_t* index,
                                                          const int* last, const T* source, T* out, int64_t limit) {
  for (int64_t i = first_item(); i < walk.count; i += item_step()) {
    int64_t at[places] = {}, row_major[places] = {};
    walk.nest.find(i, at);
    dense.nest.find(i, row_major);
    const int64_t to = index[at[in_index]];
    if (uint64_t(to) >= uint64_t(limit) || last[row_major[in_out] + to * dense.stride] != int(at[along])) continue;
    out[at[in_out] + to * walk.stride] = source[at[in_source]];
  }
}

/// The load() of sort_lines() for scatter_add: the key of element i of the index is the row-major number of the output
/// element that it adds to, or ~0 if the index is wrong.
template <class K> struct ByPlace {
  ElementWalk dense;
  const int64_t* index;
  cuda::RangeCheck good;
  __device__ void operator()(int64_t, int64_t i, K& key, uint32_t& place) const {
    int64_t at[places] = {};
    dense.nest.find(i, at);
    const int64_t to = index[at[in_index]];
    key = good(to, i) ? K(at[in_out] + to * dense.stride) : ~K(0);
    place = uint32_t(i);
  }
};

/// Calls add(load(place)) in order for each entry of the run of equal keys that starts at `head`. Several loads are in
/// flight at a time.
template <class K, class Load, class Add>
__device__ void each_of_run(const Entries<K>& sorted, int64_t head, int64_t n, Load load, Add add) {
  constexpr int batch = 4;
  const K key = sorted.key[head];
  for (int64_t at = head; at < n && sorted.key[at] == key;) {
    decltype(load(0)) loaded[batch] = {};
    int have = 1;
    while (have < batch && at + have < n && sorted.key[at + have] == key) ++have;
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      if (u < have) loaded[u] = load(sorted.place[at + u]);
    }
#pragma unroll
    for (int u = 0; u < batch; ++u) {
      if (u < have) add(loaded[u]);
    }
    at += have;
  }
}
/// scatter_add: equal keys are neighbours after the sort. The thread at the first of them adds all their elements in
/// order.
template <class T, class K>
__global__ void __launch_bounds__(threads)
    add_elements_kernel(ElementWalk walk, const int64_t* index, Entries<K> sorted, const T* source, T* out) {
  for (int64_t s = first_item(); s < walk.count; s += item_step()) {
    if (!is_head(sorted, s)) continue;
    int64_t head[places] = {};
    walk.nest.find(sorted.place[s], head);
    T& to = out[head[in_out] + index[head[in_index]] * walk.stride];
    Carried<T> sum = Carried<T>(to);
    const auto load = [&](int64_t i) {
      int64_t at[places] = {};
      walk.nest.find(i, at);
      return source[at[in_source]];
    };
    each_of_run(sorted, s, walk.count, load, [&](T v) { sum = functor::plus(sum, Carried<T>(v)); });
    to = T(sum);
  }
}

// --- triangles ---

template <class T>
__global__ void __launch_bounds__(threads)
    triangle_kernel(const T* x, T* out, int64_t count, int64_t n, int64_t m, int64_t diagonal, bool upper) {
  for (int64_t i = first_item(); i < count; i += item_step()) {
    const int64_t row = i / m, above = i - row * m - row % n;  // distance above the main diagonal
    out[i] = (upper ? above >= diagonal : above <= diagonal) ? x[i] : T(0);
  }
}

dim3 grid_for(int64_t n) { return dim3(cuda::blocks_for(n, threads)); }

}  // namespace

void embedding(const Tensor& weight, const Tensor& index, Tensor& out) {
  select_rows("embedding", weight, 0, index, out);
}

void index_select(const Tensor& x, int dim, const Tensor& index, Tensor& out) {
  select_rows("index_select", x, dim, index, out);
}

void gather(const Tensor& x, int dim, const Tensor& index, Tensor& out) {
  if (out.numel() == 0) return;
  const ElementWalk walk = make_element_walk(index, dim, without(x.strides(), dim), out.strides(), stride_at(x, dim));
  dispatch_width(x.dtype(), [&]<class T> {
    cuda::launch({"gather", grid_for(walk.count), dim3(threads)}, gather_kernel<T>, walk, index.data<int64_t>(),
                 static_cast<const T*>(x.raw_data()), static_cast<T*>(out.raw_data()),
                 cuda::check_indices("gather", size_at(x, dim)));
  });
}

void scatter(bool add, const Tensor& source, int dim, const Tensor& index, Tensor& out) {
  if (index.numel() == 0) return;
  const char* op = add ? "scatter_add_" : "scatter";
  const Strides row_major = contiguous_strides(out.shape());
  const ElementWalk walk =
      make_element_walk(index, dim, source.strides(), without(out.strides(), dim), stride_at(out, dim));
  const ElementWalk dense =
      make_element_walk(index, dim, source.strides(), without(row_major, dim), out.dim() == 0 ? 1 : row_major[dim]);
  const cuda::RangeCheck good = cuda::check_indices(op, size_at(out, dim));
  const int64_t* values = index.data<int64_t>();
  if (!add) {
    LOCKSTEP_CHECK(size_at(index, dim) < int64_t(1) << 31, "[scatter] expected fewer than 2^31 indices along dim ", dim,
                   " on cuda, got ", index.shape(), "; scatter them in parts");
    const cuda::Scratch last(size_t(out.numel()) * sizeof(int));
    cuda::check(op, cudaMemsetAsync(last.as<int>(), 0xff, size_t(out.numel()) * sizeof(int), cuda::current_stream()));
    cuda::launch({op, grid_for(dense.count), dim3(threads)}, find_last_kernel, dense, values, last.as<int>(), good);
    return dispatch_width(out.dtype(), [&]<class T> {
      cuda::launch({op, grid_for(walk.count), dim3(threads)}, scatter_kernel<T>, walk, dense, values, last.as<int>(),
                   static_cast<const T*>(source.raw_data()), static_cast<T*>(out.raw_data()), size_at(out, dim));
    });
  }
  check_count(op, walk.count);
  dispatch_key(out.numel(), [&]<class K>(K) {
    SortBuffers<K> buffers(walk.count);
    const Entries<K> sorted = sort_lines(op, ByPlace<K>{dense, values, good}, {1, walk.count}, buffers);
    dispatch_numbers(out.dtype(), op, [&]<class T> {
      cuda::launch({op, grid_for(walk.count), dim3(threads)}, add_elements_kernel<T, K>, walk, values, sorted,
                   source.data<T>(), out.data<T>());
    });
  });
}

void triangle(const Tensor& x, int64_t diagonal, bool upper, Tensor& out) {
  if (x.numel() == 0) return;
  const Tensor rows = x.contiguous();
  dispatch_width(x.dtype(), [&]<class T> {
    cuda::launch({"triangle", grid_for(x.numel()), dim3(threads)}, triangle_kernel<T>,
                 static_cast<const T*>(rows.raw_data()), static_cast<T*>(out.raw_data()), x.numel(), x.size(-2),
                 x.size(-1), diagonal, upper);
  });
}

}  // namespace lockstep::on_cuda
