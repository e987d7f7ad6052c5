// Sort and top k along a dim, by merge_sort.h. For a small k, top k works in rounds. Each round keeps the best k
// entries of each tile. The last round is the one whose input fits in one tile.
#include "tensor/cuda/element.h"
#include "tensor/cuda/merge_sort.h"
#include "tensor/kernels.h"
#include "tensor/lines.h"
#include "tensor/sort_key.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256;

/// dispatch() over all dtypes that can be sorted. A bool is sorted as a byte.
template <class Fn> void dispatch_order(DType dtype, const char* op, Fn&& fn) {
  dispatch<float, double, Half, BFloat16, int64_t, int32_t, int8_t, uint8_t>(dtype == boolean ? u8 : dtype, op, fn);
}

/// The load() function of merge_sort.h for the first round: reads element i of a line, and makes an entry of its key
/// and i. `flip` is XORed with the key: 0, or all bits set to reverse the order.
template <class T> struct FromTensor {
  const T* x;
  Lines lines;
  SortKey<T> flip;
  __device__ void operator()(int64_t line, int64_t i, SortKey<T>& key, uint32_t& place) const {
    key = sort_key(x[lines.start(line) + i * lines.inner]) ^ flip;
    place = uint32_t(i);
  }
};

/// The load() function of merge_sort.h for later rounds: reads the entries that the previous round has kept.
template <class K> struct FromEntries {
  Entries<K> from;
  int64_t n;
  __device__ void operator()(int64_t line, int64_t i, K& key, uint32_t& place) const {
    key = from.key[line * n + i];
    place = from.place[line * n + i];
  }
};

/// For each line, writes the first out.n of its from_n sorted indices (`place`), and the values of x at these indices.
template <class T>
__global__ void take_kernel(const T* x, Lines lines, const uint32_t* place, int64_t from_n, Lines out, T* values,
                            int64_t* indices) {
  const int64_t n = out.count() * out.n;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += int64_t(gridDim.x) * blockDim.x) {
    const int64_t outer = i / (out.n * out.inner), rest = i - outer * out.n * out.inner, k = rest / out.inner,
                  line = outer * out.inner + rest % out.inner;
    const int64_t at = place[line * from_n + k];
    indices[i] = at;
    values[i] = x[lines.start(line) + at * lines.inner];
  }
}

template <class T>
void take(const char* op, const T* x, const Lines& lines, const uint32_t* place, int64_t from_n, const Lines& out,
          Tensor& values, Tensor& indices) {
  cuda::launch({op, dim3(cuda::blocks_for(values.numel(), threads)), dim3(threads)}, take_kernel<T>, x, lines, place,
               from_n, out, static_cast<T*>(values.raw_data()), indices.data<int64_t>());
}

}  // namespace

void sort(const Tensor& x, int dim, bool descending, Tensor& values, Tensor& indices) {
  if (x.numel() == 0) return;
  const Tensor source = x.contiguous();
  const Lines lines(x, dim);
  dispatch_order(x.dtype(), "sort", [&]<class T> {
    using K = SortKey<T>;
    const T* p = static_cast<const T*>(source.raw_data());
    SortBuffers<K> buffers(x.numel());
    const Entries<K> sorted =
        sort_lines("sort", FromTensor<T>{p, lines, descending ? ~K(0) : K(0)}, {lines.count(), lines.n}, buffers);
    take("sort", p, lines, sorted.place, lines.n, lines, values, indices);
  });
}

void topk(const Tensor& x, int dim, int64_t k, bool largest, Tensor& values, Tensor& indices) {
  if (values.numel() == 0) return;
  const Tensor source = x.contiguous();
  const Lines lines(x, dim), best(values, dim);
  dispatch_order(x.dtype(), "topk", [&]<class T> {
    using K = SortKey<T>;
    const T* p = static_cast<const T*>(source.raw_data());
    const FromTensor<T> load{p, lines, largest ? ~K(0) : K(0)};
    if (k > sort_tile / 2) {
      SortBuffers<K> buffers(x.numel());
      const Entries<K> sorted = sort_lines("topk", load, {lines.count(), lines.n}, buffers);
      return take("topk", p, lines, sorted.place, lines.n, best, values, indices);
    }
    // The number of a line's n entries that are left after a round. A round keeps the best k entries of each tile.
    const auto left_of = [&](int64_t n) { return n / sort_tile * k + std::min(k, n % sort_tile); };
    int64_t n = left_of(lines.n);
    SortBuffers<K> buffers(lines.count() * n);
    const auto round = [&](const auto& from, int64_t from_n, const Entries<K>& to) {
      const int64_t tiles = lines.count() * ((from_n + sort_tile - 1) / sort_tile);
      cuda::launch({"topk", dim3(cuda::blocks_for(tiles, 1)), dim3(sort_threads)},
                   sort_tiles_kernel<K, std::decay_t<decltype(from)>>, from, SortLines{lines.count(), from_n}, int(k),
                   left_of(from_n), to);
    };
    Entries<K> now = buffers.first, next = buffers.second;
    round(load, lines.n, now);
    for (bool single = lines.n <= sort_tile; !single; n = left_of(n)) {
      single = n <= sort_tile;
      round(FromEntries<K>{now, n}, n, next);
      std::swap(now, next);
    }
    take("topk", p, lines, now.place, n, best, values, indices);
  });
}

}  // namespace lockstep::on_cuda
