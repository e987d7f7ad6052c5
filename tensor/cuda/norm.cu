// Layer norm and RMS norm along rows (rows, C), and their gradients, on the engines of rows.h. Memory bound: forward
// reads and writes each element once, backward reads x and the gradient once and writes once. Variances are taken
// around the mean in a second walk, never as E[x^2] - E[x]^2.
//
// A fused norm (of a sum) has the same bits as the sum followed by the norm, forward and backward. So norms and
// fused norms share one kernel with one walk, and every product and sum says how it rounds: the compiler would fuse
// multiplications and additions in one instance and not in another. Only the row's length determines how a row is
// walked.
//
// Gradients of weight and bias are sums over the rows: every thread adds in its own columns, and the grid's blocks
// finish the sums together (column_sums.h). The same code computes the column sums of the written gradient: they are
// the gradient of a bias that was added to the norm's input.
#include "tensor/cuda/column_sums.h"
#include "tensor/kernels.h"
#include "tensor/random.h"

namespace lockstep::on_cuda {
namespace {

/// Dropout fused with a norm: element i of the tensor is kept if its random word is at least `least`.
template <class T> struct Drops {
  PhiloxKey key = {};
  uint32_t least = 0;
  Compute<T> scale = 1;
  bool any = false, all = false;

  Drops(double p, PhiloxKey key) : key(key), any(p > 0) {
    const uint64_t threshold = uint64_t(std::ceil(p * 0x1p32));  // p == 1 exceeds every word
    all = threshold > 0xffffffffu;
    least = uint32_t(std::min<uint64_t>(threshold, 0xffffffffu));
    scale = Compute<T>(all ? 0 : 1 / (1 - p));
  }
  __device__ void keep(uint32_t word, Compute<T>& value) const {
    value = Compute<T>(T(word >= least && !all ? times(value, scale) : Compute<T>(0)));
  }
  /// Applies dropout to V values; values[j] is element first + j of the tensor.
  template <int V> __device__ void apply(int64_t first, Compute<T>* values) const {
    if constexpr (V % 4 == 0) {
#pragma unroll
      for (int j = 0; j < V; j += 4) {
        const auto words = philox(key.known(), uint64_t((first + j) / 4));
        keep(words[0], values[j]), keep(words[1], values[j + 1]);
        keep(words[2], values[j + 2]), keep(words[3], values[j + 3]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const int64_t at = first + j;
        const auto words = philox(key.known(), uint64_t(at / 4));
        const uint32_t low = at & 1 ? words[1] : words[0], high = at & 1 ? words[3] : words[2];
        keep(at & 2 ? high : low, values[j]);
      }
    }
  }
};

/// The input of a norm: the rows of x.
template <class T> struct Plain {
  static constexpr int inputs = 1;
  const T* __restrict__ x;
};
/// The input of a fused norm: the rows of add + dropout(x), which are also written to `sum`.
template <class T> struct Summed {
  static constexpr int inputs = 2;
  const T* __restrict__ x, * __restrict__ add;
  T* __restrict__ sum;
  Drops<T> drops;
};

template <class Row, class T> __device__ inline Row rows_of(const RowSize& size, const Plain<T>& from) {
  return rows_of<Row>(size, {from.x}, {from.x});
}
template <class Row, class T> __device__ inline Row rows_of(const RowSize& size, const Summed<T>& from) {
  return rows_of<Row>(size, {from.x, from.add}, {from.sum});
}

/// Number of blocks that a multiprocessor should hold at once. It limits the number of registers of a thread.
template <class Row, class From> constexpr int norm_blocks() {
  if (!Row::in_registers) return sizeof(typename Row::T) == 8 || From::inputs > 1 ? 1 : 2;
  return 3;
}

/// Normalises rows (centered: layer norm, else RMS norm) and saves the statistics. The mean is kept as mean + shift,
/// more precisely than one A could, and variances are taken around it.
template <bool centered, class Row, class From>
__global__ void __launch_bounds__(Row::threads, norm_blocks<Row, From>())
    norm_kernel(From from, const typename Row::T* __restrict__ weight, const typename Row::T* __restrict__ bias,
                typename Row::A eps, typename Row::T* __restrict__ out, typename Row::A* means, typename Row::A* rstds,
                RowSize size) {
  using T = typename Row::T;
  using A = typename Row::A;
  constexpr int V = Row::V;
  const A n = A(size.columns);
  Row row = rows_of<Row>(size, from);
  for (row.begin(); row.more(); row.advance()) {
    A mean = 0;
    row.read([&](int64_t i, int, typename Row::In in, typename Row::Kept kept) {
      A v[V];
      widen(in[0], v);
      if constexpr (From::inputs == 1) {
        kept[0] = in[0];
      } else {
        A more[V];
        widen(in[1], more);
        if (from.drops.any) from.drops.template apply<V>(row.start() + i, v);
#pragma unroll
        for (int j = 0; j < V; ++j) {
          kept[0].v[j] = T(plus(more[j], v[j]));
          v[j] = A(kept[0].v[j]);
        }
        *reinterpret_cast<Vector<T, V>*>(from.sum + row.start() + i) = kept[0];
      }
      if constexpr (centered) {
#pragma unroll
        for (int j = 0; j < V; ++j) mean += v[j];
      }
    });
    if constexpr (centered) mean = row.sum(mean) / n;
    A rest = 0, squares = 0;
    row.each([&](int64_t, int, typename Row::Kept kept) {
      A v[V];
      widen(kept[0], v);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const A d = v[j] - mean;
        if constexpr (centered) rest += d;
        squares = fused(d, d, squares);
      }
    });
    // The rounded mean is off by `shift`, which is removed from the variance and from the result.
    if constexpr (centered) row.sum(rest, squares);
    else squares = row.sum(squares);
    const A shift = rest / n;
    const A variance = larger_of(A(0), fused(-shift, shift, squares / n));  // NaN passes through
    const A rstd = A(1) / root_of(variance + eps);
    if (row.thread() == 0) {
      rstds[row.number()] = rstd;
      if constexpr (centered) means[row.number()] = mean + shift;
    }
    row.each([&](int64_t i, int, typename Row::Kept kept) {
      A y[V], w[V];
      widen(kept[0], y);
#pragma unroll
      for (int j = 0; j < V; ++j) y[j] = times((y[j] - mean) - shift, rstd);
      if (weight) {
        load_values<V>(weight + i, w);
        // RMS norm rounds twice, as Llama does
#pragma unroll
        for (int j = 0; j < V; ++j) y[j] = times(centered ? y[j] : A(T(y[j])), w[j]);
      }
      if (bias) {
        load_values<V>(bias + i, w);
#pragma unroll
        for (int j = 0; j < V; ++j) y[j] = plus(y[j], w[j]);
      }
      store_values<V>(out + row.start() + i, y);
    });
  }
}

/// The output of the gradient of a norm: grad_x = dx.
template <class T> struct PlainGrad {
  static constexpr int inputs = 2;
  T* __restrict__ grad_x;
};
/// Outputs of the gradient of a fused norm: grad_x = dx or, if `adds`, round(dx) + add; dropped = dropout of grad_x.
/// dropped may be null; add may be grad_x itself. Without `adds`, add is x, because the kernel reads from add anyway.
template <class T> struct SummedGrad {
  static constexpr int inputs = 3;
  const T* add;
  bool adds;
  T *grad_x, *dropped;
  Drops<T> drops;
};

/// The sums over a thread's rows, in its columns: of g y, of g (if centered), and of the gradient that the kernel
/// writes (if `writes`, in kernels that `may_write`). With a WarpRow, the sums of g y are in registers, which have no
/// room for more, and the others in shared memory that each warp has for itself. With a BlockRow, all are in shared
/// memory or, for long rows, at their final place.
template <bool centered, class Row, bool may_write, bool in_registers = Row::in_registers> class ColumnSums {
 public:
  using A = typename Row::A;
  static constexpr int V = Row::V, columns = warp_columns<typename Row::T, Row::kept>;
  using Places = SumPlaces<A, V>;
  using Word = typename Places::Word;

  __device__ ColumnSums(A*, const RowSize&, bool writes) : writes_(writes) {
    for (int i = int(threadIdx.x); i < strips * columns / Places::W; i += warp)
      reinterpret_cast<Word*>(strip(int(threadIdx.y), 0))[i] = Word{};
  }
  __device__ void add(int k, const A* g, const A* y) {
#pragma unroll
    for (int j = 0; j < V; ++j) weight_[k * V + j] = fused(g[j], y[j], weight_[k * V + j]);
    if constexpr (centered) change<0>(k, [&](int j) { return g[j]; });
  }
  __device__ void add_written(int k, const Vector<typename Row::T, V>& dx) {
    change<centered>(k, [&](int j) { return A(dx.v[j]); });
  }
  /// Adds up the sums of the block's warps, in order of warps, and writes them to `to`. All threads call it.
  __device__ void store(A* to, const RowSize& size) {
    const int64_t all = places().size(size.columns);
    LOCKSTEP_SHARED(A, weights, [columns]);
    for (int w = 0; w < lines_of<Row>; ++w) {
      if (int(threadIdx.y) == w) {
#pragma unroll
        for (int k = 0; k < Row::steps; ++k) {
#pragma unroll
          for (int j = 0; j < V; ++j) {
            const int at = int(places().of(k, j, int(threadIdx.x)));
            weights[at] = (w > 0 ? weights[at] : A(0)) + weight_[k * V + j];
          }
        }
      }
      __syncthreads();
    }
    for (int64_t i = threadIdx.y * warp + threadIdx.x; i < all; i += Row::threads) {
      to[i] = weights[i];
      for (int kind = 0; kind < centered + (may_write && writes_); ++kind) {
        A sum = strip(0, kind)[i];
#pragma unroll
        for (int w = 1; w < lines_of<Row>; ++w) sum += strip(w, kind)[i];
        to[(kind + 1) * all + i] = sum;
      }
    }
  }

 private:
  static constexpr int strips = centered + may_write;

  __device__ static Places places() { return {warp}; }
  /// Warp w's sums in shared memory. kind: 0 for the first of its sums there (of g, if centered), 1 for the second.
  __device__ static A* strip(int w, int kind) {
    LOCKSTEP_SHARED(Word, words, [lines_of<Row>][strips > 0 ? strips : 1][strips > 0 ? columns / Places::W : 1]);
    return reinterpret_cast<A*>(words[w][kind]);
  }
  template <int kind, class Fn> __device__ void change(int k, Fn fn) {
#pragma unroll
    for (int j = 0; j < V; j += Places::W) {
      Word& mine = *reinterpret_cast<Word*>(strip(int(threadIdx.y), kind) + places().of(k, j, int(threadIdx.x)));
      Word sum = mine;
#pragma unroll
      for (int e = 0; e < Places::W; ++e) sum.v[e] += fn(j + e);
      mine = sum;
    }
  }

  A weight_[Row::steps * V] = {};
  bool writes_;
};
template <bool centered, class Row, bool may_write> class ColumnSums<centered, Row, may_write, false> {
 public:
  using A = typename Row::A;
  static constexpr int V = Row::V;
  using Places = SumPlaces<A, V>;
  using Word = typename Places::Word;

  __device__ ColumnSums(A* at, const RowSize& size, bool writes) : at_(at), writes_(writes) {
    if (!at) return;
    all_ = places().size(size.columns);
    each([](Word* mine) { *mine = Word{}; });
  }
  __device__ void add(int k, const A* g, const A* y) {
    if (!at_) return;
    change<0>(k, [&](int j, A sum) { return fused(g[j], y[j], sum); });
    if constexpr (centered) change<1>(k, [&](int j, A sum) { return sum + g[j]; });
  }
  __device__ void add_written(int k, const Vector<typename Row::T, V>& dx) {
    change<centered ? 2 : 1>(k, [&](int j, A sum) { return sum + A(dx.v[j]); });
  }
  /// Copies the sums to their final place, if they are elsewhere.
  __device__ void store(A* to, const RowSize&) {
    if (to == at_) return;
    each([&](Word* mine) { *reinterpret_cast<Word*>(to + (reinterpret_cast<A*>(mine) - at_)) = *mine; });
  }

 private:
  __device__ static Places places() { return {int(blockDim.x)}; }
  template <int kind, class Fn> __device__ void change(int k, Fn fn) {
#pragma unroll
    for (int j = 0; j < V; j += Places::W) {
      Word* const mine = reinterpret_cast<Word*>(at_ + kind * all_ + places().of(k, j, int(threadIdx.x)));
      Word sum = *mine;
#pragma unroll
      for (int e = 0; e < Places::W; ++e) sum.v[e] = fn(j + e, sum.v[e]);
      *mine = sum;
    }
  }
  template <class Fn> __device__ void each(Fn fn) const {
    const int64_t words = ((centered ? 2 : 1) + writes_) * all_ / Places::W;
    for (int64_t i = threadIdx.x; i < words; i += blockDim.x) fn(reinterpret_cast<Word*>(at_) + i);
  }

  A* at_;
  int64_t all_ = 0;
  bool writes_;
};

/// With y = (x - mean) rstd and h = g w: dx = rstd (h - mean(h) - y mean(h y)). `args` says where to write dw = sum
/// of g y, db = sum of g (if centered) and the sums of the gradient written. `shared_sums`: bytes of dynamic shared
/// memory for the sums while the block runs.
template <bool centered, class Row, class To>
__global__ void __launch_bounds__(Row::threads, Row::in_registers ? 2 : 1)
    norm_grad_kernel(const typename Row::T* __restrict__ grad, const typename Row::T* __restrict__ x,
                     const typename Row::A* means, const typename Row::A* rstds,
                     const typename Row::T* __restrict__ weight, To to, SumArgs<typename Row::T> args,
                     int64_t shared_sums, RowSize size) {
  using T = typename Row::T;
  using A = typename Row::A;
  constexpr int V = Row::V, of_weights = centered ? 2 : 1;
  const A n = A(size.columns);
  const bool writes = To::inputs == 3 && args.to[of_weights];
  const int kinds = of_weights + writes;
  const SumPlaces<A, V> places{Row::in_registers ? warp : int(blockDim.x)};
  const auto mine = [&] { return args.sums + int64_t(blockIdx.x) * kinds * places.size(size.columns); };
  A* collected = nullptr;
  if constexpr (!Row::in_registers) {
    LOCKSTEP_DYNAMIC_SHARED(unsigned char, shared);
    if (args.sums) collected = shared_sums > 0 ? reinterpret_cast<A*>(shared) : mine();
  }
  ColumnSums<centered, Row, To::inputs == 3> column_sums(collected, size, writes);
  Row row = [&] {
    if constexpr (To::inputs == 2) return rows_of<Row, T, 2, 2>(size, {x, grad}, {x, grad}, shared_sums);
    else return rows_of<Row, T, 3, 3>(size, {x, grad, to.add}, {x, grad, to.add}, shared_sums);
  }();
  for (row.begin(); row.more(); row.advance()) {
    const A mean = centered ? means[row.number()] : A(0), rstd = rstds[row.number()];
    // y and h of a vector
    const auto parts = [&](int64_t i, typename Row::Kept kept, A* y, A* h) {
      widen(kept[0], y), widen(kept[1], h);
#pragma unroll
      for (int j = 0; j < V; ++j) y[j] = times(y[j] - mean, rstd);
      if (!weight) return;
      A w[V];
      load_values<V>(weight + i, w);
#pragma unroll
      for (int j = 0; j < V; ++j) h[j] = times(h[j], w[j]);
    };
    A sum_h = 0, sum_hy = 0;
    row.read([&](int64_t i, int k, typename Row::In in, typename Row::Kept kept) {
      kept[0] = in[0], kept[1] = in[1];
      A y[V], h[V], g[V];
      parts(i, kept, y, h);
      widen(kept[1], g);
      column_sums.add(k, g, y);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if constexpr (centered) sum_h += h[j];
        sum_hy = fused(h[j], y[j], sum_hy);
      }
    });
    if constexpr (centered) row.sum(sum_h, sum_hy);
    else sum_hy = row.sum(sum_hy);
    const A mean_h = sum_h / n, mean_hy = sum_hy / n;
    row.each([&](int64_t i, int k, typename Row::Kept kept) {
      A y[V], dx[V];
      parts(i, kept, y, dx);
#pragma unroll
      for (int j = 0; j < V; ++j) dx[j] = times(fused(-y[j], mean_hy, dx[j] - mean_h), rstd);
      const int64_t at = row.start() + i;
      if constexpr (To::inputs == 3) {
        if (to.adds) {
          A more[V];
          widen(kept[2], more);
#pragma unroll
          for (int j = 0; j < V; ++j) dx[j] = plus(more[j], A(T(dx[j])));
        }
      }
      Vector<T, V> made;
      const auto store = [&](T* place) {
#pragma unroll
        for (int j = 0; j < V; ++j) made.v[j] = T(dx[j]);
        *reinterpret_cast<Vector<T, V>*>(place + at) = made;
      };
      store(to.grad_x);
      if constexpr (To::inputs == 3) {
        if (to.dropped) {
          widen(made, dx);
          to.drops.template apply<V>(at, dx);
          store(to.dropped);
        }
        if (writes) column_sums.add_written(k, made);
      }
    });
  }
  if (!args.sums) return;
  column_sums.store(mine(), size);
  finish_sums<finish_flight<Row>>(args, places, size.columns, kinds);
}

/// Launches norm_kernel(). `places`: the addresses of the tensors that are read or written by rows; with_rows() checks
/// their alignment.
template <bool centered, class T, class From>
void norm(const char* op, const From& from, Pointers places, const Tensor& weight, const Tensor& bias, double eps,
          Tensor& out, Tensor* mean, Tensor& rstd) {
  using A = Compute<T>;
  const int64_t rows = out.size(0), n = out.size(1);
  const T *const w = data_or_null<T>(weight), *const b = data_or_null<T>(bias);
  with_rows<T, From::inputs, 1>(n, n, places, [&]<class Row> {
    const RowLaunch config = launch_of<Row>({rows, n, n}, norm_blocks<Row, From>());
    cuda::launch({op, config.grid, config.block, config.shared}, norm_kernel<centered, Row, From>, from, w, b, A(eps),
                 out.data<T>(), mean ? mean->data<A>() : nullptr, rstd.data<A>(), config.size);
  });
}

/// Launches norm_grad_kernel(). `sums`, if given and defined, receives the column sums of the gradient that it writes.
template <bool centered, class T, class To>
void norm_grad(const char* op, const Tensor& grad, const Tensor& x, const Tensor* mean, const Tensor& rstd,
               const Tensor& weight, const To& to, Pointers places, Tensor& grad_weight, Tensor* grad_bias,
               Tensor* sums = nullptr) {
  using A = Compute<T>;
  const int64_t rows = x.size(0), n = x.size(1);
  const T* const w = data_or_null<T>(weight);
  T *const dw = data_or_null<T>(grad_weight), *const db = grad_bias ? data_or_null<T>(*grad_bias) : nullptr,
           *const ds = sums ? data_or_null<T>(*sums) : nullptr;
  const bool wanted = dw || db || ds;
  with_rows<T, To::inputs, To::inputs>(n, n, places, [&]<class Row> {
    const int64_t blocks = sum_blocks<Row>(rows);
    const SumPlaces<A, Row::V> at{Row::in_registers ? warp : threads_for((n + Row::V - 1) / Row::V, Row::threads)};
    const int64_t all = ((centered ? 2 : 1) + (ds ? 1 : 0)) * at.size(n) * int64_t(sizeof(A));
    const cuda::Scratch memory(wanted ? size_t(blocks * all) : 0);
    SumArgs<T> args{memory.as<A>(), wanted ? cuda::counters(op, counters_of(blocks)) : nullptr, {dw, db, ds}};
    if (!centered) args.to[1] = ds, args.to[2] = nullptr;
    const int64_t shared_sums = wanted && !Row::in_registers && all <= half_of_shared() ? all : 0;
    RowLaunch config = launch_of<Row>({rows, n, n}, 2, shared_sums);
    config.grid = dim3(unsigned(blocks));
    cuda::launch({op, config.grid, config.block, config.shared}, norm_grad_kernel<centered, Row, To>, grad.data<T>(),
                 x.data<T>(), mean ? mean->data<A>() : nullptr, rstd.data<A>(), w, to, args, shared_sums, config.size);
  });
}

}  // namespace

void layer_norm(const Tensor& in, const Tensor& scale, const Tensor& shift, double eps, Tensor& out, Tensor& mean,
                Tensor& rstd) {
  const Tensor x = aligned(in), weight = aligned(scale), bias = aligned(shift);
  for_floats("layer_norm", x, [&]<class T> {
    const Plain<T> from{x.data<T>()};
    norm<true, T>("layer_norm", from, {from.x, out.raw_data(), data_or_null<T>(weight), data_or_null<T>(bias)}, weight,
                  bias, eps, out, &mean, rstd);
  });
}

void layer_norm_grad(const Tensor& upstream, const Tensor& in, const Tensor& mean, const Tensor& rstd,
                     const Tensor& scale, Tensor& grad_x, Tensor& grad_weight, Tensor& grad_bias) {
  const Tensor grad = aligned(upstream), x = aligned(in), weight = aligned(scale);
  for_floats("layer_norm_grad", x, [&]<class T> {
    const PlainGrad<T> to{grad_x.data<T>()};
    norm_grad<true, T>("layer_norm_grad", grad, x, &mean, rstd, weight, to,
                       {grad.raw_data(), x.raw_data(), to.grad_x, data_or_null<T>(weight)}, grad_weight, &grad_bias);
  });
}

void rms_norm(const Tensor& in, const Tensor& scale, double eps, Tensor& out, Tensor& rstd) {
  const Tensor x = aligned(in), weight = aligned(scale);
  for_floats("rms_norm", x, [&]<class T> {
    const Plain<T> from{x.data<T>()};
    norm<false, T>("rms_norm", from, {from.x, out.raw_data(), data_or_null<T>(weight)}, weight, {}, eps, out, nullptr,
                   rstd);
  });
}

void rms_norm_grad(const Tensor& upstream, const Tensor& in, const Tensor& rstd, const Tensor& scale, Tensor& grad_x,
                   Tensor& grad_weight) {
  const Tensor grad = aligned(upstream), x = aligned(in), weight = aligned(scale);
  for_floats("rms_norm_grad", x, [&]<class T> {
    const PlainGrad<T> to{grad_x.data<T>()};
    norm_grad<false, T>("rms_norm_grad", grad, x, nullptr, rstd, weight, to,
                        {grad.raw_data(), x.raw_data(), to.grad_x, data_or_null<T>(weight)}, grad_weight, nullptr);
  });
}

void add_norm(const Tensor& in, const Tensor& residual, const Tensor& scale, const Tensor& shift,
              const AddNormArgs& args, Tensor& sum, Tensor& out, Tensor& mean, Tensor& rstd) {
  const Tensor x = aligned(in), add = aligned(residual), weight = aligned(scale), bias = aligned(shift);
  for_floats("add_norm", x, [&]<class T> {
    const Summed<T> from{x.data<T>(), add.data<T>(), sum.data<T>(), Drops<T>(args.p, args.key)};
    const Pointers places = {
        from.x, from.add, from.sum, out.raw_data(), data_or_null<T>(weight), data_or_null<T>(bias)};
    if (args.centered) norm<true, T>("add_norm", from, places, weight, bias, args.eps, out, &mean, rstd);
    else norm<false, T>("add_norm", from, places, weight, {}, args.eps, out, nullptr, rstd);
  });
}

void add_norm_grad(const Tensor& upstream, const Tensor& more, const Tensor& in, const Tensor& mean, const Tensor& rstd,
                   const Tensor& scale, const AddNormArgs& args, Tensor& grad_x, Tensor& dropped, Tensor& grad_weight,
                   Tensor& grad_bias, Tensor& sums) {
  const Tensor grad = aligned(upstream), add = aligned(more), sum = aligned(in), weight = aligned(scale);
  Tensor made = aligned(grad_x);
  for_floats("add_norm_grad", sum, [&]<class T> {
    const SummedGrad<T> to{(add.defined() ? add : sum).data<T>(), add.defined(), made.data<T>(),
                           data_or_null<T>(dropped), Drops<T>(args.p, args.key)};
    const Pointers places = {grad.raw_data(), sum.raw_data(), to.add, to.grad_x, to.dropped, data_or_null<T>(weight)};
    if (args.centered)
      norm_grad<true, T>("add_norm_grad", grad, sum, &mean, rstd, weight, to, places, grad_weight, &grad_bias, &sums);
    else
      norm_grad<false, T>("add_norm_grad", grad, sum, nullptr, rstd, weight, to, places, grad_weight, nullptr, &sums);
  });
  if (made.raw_data() != grad_x.raw_data()) grad_x.copy_(made);
}

}  // namespace lockstep::on_cuda
