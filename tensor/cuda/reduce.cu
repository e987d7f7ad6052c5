// Reductions over any dims of tensors of any strides, in one of two ways, depending on which dim is contiguous:
//
//   along a reduced dim   threads share the elements of an output: 1 to 32 threads, or a block, for each
//   along a kept dim      a thread sums some rows of a few columns; the block then joins these sums (bias gradients)
//
// If there are few outputs, their elements are split into chunks, and a second kernel joins the totals of the chunks.
// All of this depends only on the shape, and so does the order of every sum. A thread accumulates at most 64 vectors in
// f32, then adds the result to an f64 sum. Memory bound: each element is read once, 16 bytes at a time, and a thread
// has 4 or 8 such loads in flight.
#include "tensor/cuda/nest.h"
#include "tensor/cuda/reduce_ops.h"
#include "tensor/cuda/reduce_shape.h"
#include "tensor/cuda/vector.h"
#include "tensor/kernels.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256;
constexpr unsigned full_warp = 0xffffffffu;
constexpr int run_vectors = 64;  // vectors that one sum accumulates in the narrow type

/// For fold_columns_kernel: loads in flight per thread, and most threads per block. Less for 8-byte accumulators A.
template <class A> inline constexpr int batch = sizeof(A) == 8 ? 4 : 8;
template <class A> inline constexpr int max_threads = sizeof(A) == 8 ? 256 : 512;

/// The plan of a reduction.
struct Reduction {
  Nest<2> kept;  // strides of x and of out
  Nest<1> reduced;
  bool along_reduced;
  // The dim along which neighbouring elements are read; `lanes` is its length. If it is a kept dim, it is removed from
  // `kept`. If it is a reduced dim, it stays the innermost dim of `reduced`, with its size counted in vectors.
  int64_t lanes = 1, x_stride = 1, out_stride = 1;
  Access access;
  bool is_line;            // true: all elements of an output lie along one dim, and can be read in whole vectors
  int64_t outputs, items;  // items: vectors, or rows, that are reduced to one output
  int64_t chunk, chunks;   // chunk: items of a chunk
  int shared;              // threads that add up one chunk of an output; if `lanes` is a kept dim: columns of a block
  int block;               // threads of a block
  bool finite_centers;     // true: use 0 for a center that is not finite
  const double* centers;   // one center for each output, or null
};

template <class T> inline constexpr int width = std::min(8, int(16 / sizeof(T)));

__device__ inline double center_of(const Reduction& plan, int64_t output) {
  if (!plan.centers) return 0;
  const double c = plan.centers[output];
  return plan.finite_centers && !std::isfinite(c) ? 0 : c;
}

/// Partial sums of one output: after run_vectors steps, the narrow sums are added to the wide sums.
template <class Op, class A, int parts> struct Sums {
  A narrow[parts];
  Total<A> wide[parts];
  int held = 0;

  __device__ Sums() {
#pragma unroll
    for (int k = 0; k < parts; ++k) narrow[k] = Op::template identity<A>, wide[k] = Total<A>(Op::template identity<A>);
  }
  __device__ void flush() {
#pragma unroll
    for (int k = 0; k < parts; ++k)
      wide[k] = Op::join(wide[k], Total<A>(narrow[k])), narrow[k] = Op::template identity<A>;
    held = 0;
  }
  __device__ void count(int vectors) {
    if ((held += vectors) >= run_vectors) flush();
  }
};

// --- along a reduced dim ---

template <class Op, class T>
__global__ void __launch_bounds__(threads, sizeof(typename Op::template Lane<T>) == 8 ? 1 : 4)
    fold_rows_kernel(const T* x, Reduction plan, Total<typename Op::template Lane<T>>* partial, Finish finish) {
  using A = typename Op::template Lane<T>;
  using Sum = Total<A>;
  constexpr int V = width<T>, parts = V < 4 ? V : 4, in_flight = 4;
  const int lane = threadIdx.x % plan.shared;
  const int64_t per_block = threads / plan.shared, work = plan.outputs * plan.chunks;
  // All threads of a block loop together, because they exchange values.
  for (int64_t first = int64_t(blockIdx.x) * per_block; first < work; first += int64_t(gridDim.x) * per_block) {
    const int64_t item = first + threadIdx.x / plan.shared;
    int64_t start[2] = {}, chunk = 0;
    Sums<Op, A, parts> sums;
    if (item < work) {
      const int64_t output = plan.chunks == 1 ? item : item / plan.chunks;
      chunk = item - output * plan.chunks;
      plan.kept.find(output, start);
      const A center = A(center_of(plan, start[1])), neutral = Op::neutral(center);
      const int64_t last = chunk + 1 < plan.chunks ? (chunk + 1) * plan.chunk : plan.items;
      int64_t i = chunk * plan.chunk + lane;
      if (plan.is_line && plan.lanes % V == 0) {
        const T* const line = x + start[0];
        for (; i + (in_flight - 1) * plan.shared < last; i += in_flight * plan.shared) {
          Vector<T, V> v[in_flight];
#pragma unroll
          for (int u = 0; u < in_flight; ++u)
            v[u] = *reinterpret_cast<const Vector<T, V>*>(line + (i + u * plan.shared) * V);
#pragma unroll
          for (int u = 0; u < in_flight; ++u) {
#pragma unroll
            for (int j = 0; j < V; ++j)
              sums.narrow[j % parts] = Op::step(sums.narrow[j % parts], widen<A>(v[u].v[j]), center);
          }
          sums.count(in_flight);
        }
      }
      for (; i < last; i += plan.shared) {
        int64_t at[1] = {start[0]};
        const int64_t left = plan.lanes - plan.reduced.find(i, at) * V;
        const int count = left < V ? int(left) : V;
        const Vector<T, V> v = load_vector<V>(x + at[0], plan.access, plan.x_stride, count);
#pragma unroll
        for (int j = 0; j < V; ++j)
          sums.narrow[j % parts] = Op::step(sums.narrow[j % parts], j < count ? widen<A>(v.v[j]) : neutral, center);
        sums.count(1);
      }
    }
    sums.flush();
    Sum total = sums.wide[0];
#pragma unroll
    for (int k = 1; k < parts; ++k) total = Op::join(total, sums.wide[k]);
    for (int step = min(plan.shared, 32) / 2; step > 0; step /= 2)
      total = Op::join(total, __shfl_xor_sync(full_warp, total, step));
    if (plan.shared == threads) {
      LOCKSTEP_SHARED(Sum, of_warp, [threads / 32]);
      __syncthreads();
      if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = total;
      __syncthreads();
      total = of_warp[0];
#pragma unroll
      for (int w = 1; w < threads / 32; ++w) total = Op::join(total, of_warp[w]);
    }
    if (lane == 0 && item < work) {
      if (plan.chunks == 1) finish(start[1], total);
      else partial[chunk * plan.outputs + start[1]] = total;
    }
  }
}

// --- the last dim is kept: sums of columns ---

// The threads of a block form rows of `across` threads, and each row reads neighbouring columns. If `across` is below
// 32, a warp contains several rows and joins their sums first; then the block joins the sums of its warps, in order. If
// `across` is 32 or more, the block joins the sums of its rows, in order.
template <class Op, class T>
__global__ void __launch_bounds__(max_threads<typename Op::template Lane<T>>, 1)
    fold_columns_kernel(const T* x, Reduction plan, Total<typename Op::template Lane<T>>* partial, Finish finish) {
  using A = typename Op::template Lane<T>;
  using Sum = Total<A>;
  constexpr int V = width<T>;
  LOCKSTEP_SHARED(Sum, of_group, [ReduceShape::max_totals]);
  const int across = plan.shared, down = plan.block / across, column = threadIdx.x % across, row = threadIdx.x / across;
  const int in_group = max(across, 32), groups = plan.block / in_group, group = threadIdx.x / in_group;
  const int64_t strips = (plan.lanes + int64_t(across) * V - 1) / (int64_t(across) * V),
                outer = plan.outputs / plan.lanes;
  const int64_t work = outer * strips * plan.chunks;
  for (int64_t item = blockIdx.x; item < work; item += gridDim.x) {
    const int64_t strip = item % strips, rest = item / strips, o = rest % outer, chunk = rest / outer;
    int64_t start[2] = {};
    plan.kept.find(o, start);
    const int64_t first = (strip * across + column) * V, left = plan.lanes - first;
    const int count = left < V ? int(left) : V;  // may be 0 or less
    Sums<Op, A, V> sums;
    if (count > 0) {
      A center[V];
#pragma unroll
      for (int j = 0; j < V; ++j)
        center[j] = A(center_of(plan, start[1] + (first + (j < count ? j : count - 1)) * plan.out_stride));
      const int64_t last = chunk + 1 < plan.chunks ? (chunk + 1) * plan.chunk : plan.items;
      const T* const from = x + start[0] + first * plan.x_stride;
      int64_t i = chunk * plan.chunk + row;
      if (plan.is_line && count == V) {
        const int64_t step = plan.reduced.stride[0][0] * down;
        const T* p = from + i * plan.reduced.stride[0][0];
        for (; i + (batch<A> - 1) * down < last; i += batch<A> * down) {
          Vector<T, V> v[batch<A>];
#pragma unroll
          for (int u = 0; u < batch<A>; ++u, p += step) v[u] = *reinterpret_cast<const Vector<T, V>*>(p);
#pragma unroll
          for (int u = 0; u < batch<A>; ++u) {
#pragma unroll
            for (int j = 0; j < V; ++j) sums.narrow[j] = Op::step(sums.narrow[j], widen<A>(v[u].v[j]), center[j]);
          }
          sums.count(batch<A>);
        }
      }
      for (; i < last; i += down) {
        int64_t at[1] = {};
        plan.reduced.find(i, at);
        const Vector<T, V> v = load_vector<V>(from + at[0], plan.access, plan.x_stride, count);
#pragma unroll
        for (int j = 0; j < V; ++j) sums.narrow[j] = Op::step(sums.narrow[j], widen<A>(v.v[j]), center[j]);
        sums.count(1);
      }
    }
    sums.flush();
    for (int step = 16; step >= across; step /= 2) {
#pragma unroll
      for (int j = 0; j < V; ++j) sums.wide[j] = Op::join(sums.wide[j], __shfl_xor_sync(full_warp, sums.wide[j], step));
    }
    // Neighbouring threads access neighbouring words.
    if (row % (in_group / across) == 0) {
#pragma unroll
      for (int j = 0; j < V; ++j) of_group[(group * V + j) * across + column] = sums.wide[j];
    }
    __syncthreads();
    for (int n = threadIdx.x; n < across * V; n += plan.block) {
      const int64_t lane = (strip * across + n % across) * V + n / across;
      if (lane >= plan.lanes) continue;
      Sum total = of_group[n];
      for (int g = 1; g < groups; ++g) total = Op::join(total, of_group[g * across * V + n]);
      const int64_t at = start[1] + lane * plan.out_stride;
      if (plan.chunks == 1) finish(at, total);
      else partial[chunk * plan.outputs + at] = total;
    }
    __syncthreads();
  }
}

// --- joining the totals of chunks ---

// A block handles `across` neighbouring outputs. Several threads share an output: each joins the totals of some
// consecutive chunks, then the results of these threads are joined pairwise.
template <class Op, class Sum>
__global__ void __launch_bounds__(threads)
    join_kernel(const Sum* partial, int64_t outputs, int64_t chunks, int across, Finish finish) {
  LOCKSTEP_SHARED(Sum, of_slice, [threads]);
  const int slices = threads / across, lane = threadIdx.x % across, slice = threadIdx.x / across;
  const int64_t length = (chunks + slices - 1) / slices, first = slice * length, last = min(chunks, first + length);
  for (int64_t base = int64_t(blockIdx.x) * across; base < outputs; base += int64_t(gridDim.x) * across) {
    const int64_t output = base + lane;
    Sum total = Sum(Op::template identity<Sum>);
    if (output < outputs) {
#pragma unroll 8
      for (int64_t c = first; c < last; ++c) total = Op::join(total, partial[c * outputs + output]);
    }
    of_slice[threadIdx.x] = total;
    for (int half = slices / 2; half > 0; half /= 2) {
      __syncthreads();
      if (slice < half) of_slice[threadIdx.x] = Op::join(of_slice[threadIdx.x], of_slice[threadIdx.x + half * across]);
    }
    if (slice == 0 && output < outputs) finish(output, of_slice[threadIdx.x]);
    __syncthreads();
  }
}

// --- host ---

int64_t divided(int64_t a, int64_t b) { return (a + b - 1) / b; }

Reduction make_plan(const Tensor& x, uint32_t dims, const Tensor& out, int V, int max_block) {
  Reduction plan{};
  ReduceShape shape;
  for (int d = 0; d < x.dim(); ++d) {
    if (dims >> d & 1) plan.reduced.insert(x.shape()[d], {x.strides()[d]}, 0);
    else plan.kept.insert(x.shape()[d], {x.strides()[d], out.strides()[d]}, 0);
  }
  plan.kept.join();
  plan.reduced.join();
  plan.outputs = plan.kept.count();
  // Prefer the dim with stride 1, if it is not short; else the longer one.
  const auto score = [](const auto& nest) -> int64_t {
    if (nest.rank == 0) return 0;
    const int64_t n = nest.size[nest.rank - 1];
    return nest.stride[nest.rank - 1][0] == 1 && n >= 16 ? INT64_MAX : n;
  };
  plan.along_reduced = score(plan.reduced) >= score(plan.kept);
  const auto aligned = [&](const auto& nest, int rank) {
    bool run = reinterpret_cast<uintptr_t>(x.raw_data()) % uintptr_t(V * size_of(x.dtype())) == 0;
    for (int d = 0; d < rank; ++d) run &= nest.stride[d][0] % V == 0;
    return run;
  };
  const auto access = [&](bool run) { return plan.x_stride == 1 && run ? Access::run : Access::apart; };
  if (plan.along_reduced) {
    Nest<1>& nest = plan.reduced;
    if (nest.rank == 0) nest.rank = 1, nest.size[0] = 1, nest.stride[0][0] = 1;
    const int last = nest.rank - 1;
    plan.lanes = nest.size[last], plan.x_stride = nest.stride[last][0];
    plan.access = access(aligned(nest, last) && aligned(plan.kept, plan.kept.rank));
    nest.size[last] = divided(plan.lanes, V);
    nest.stride[last][0] *= V;
    plan.items = nest.count();
    shape = ReduceShape::of_rows(plan.outputs, plan.items);
  } else {
    Nest<2>& nest = plan.kept;
    const int last = --nest.rank;
    plan.lanes = nest.size[last], plan.x_stride = nest.stride[last][0], plan.out_stride = nest.stride[last][1];
    plan.access = access(aligned(nest, last) && aligned(plan.reduced, plan.reduced.rank));
    plan.items = plan.reduced.count();
    shape = ReduceShape::of_columns(nest.count(), plan.items, plan.lanes, V, size_of(x.dtype()), max_block);
  }
  plan.shared = shape.across, plan.block = shape.block;
  plan.chunk = divided(plan.items, shape.chunks);
  plan.chunks = divided(plan.items, plan.chunk);
  plan.is_line = plan.access == Access::run && plan.reduced.rank == 1;
  plan.kept.prepare();
  plan.reduced.prepare();
  return plan;
}

/// Reduces x over `dims`; finish(output, total) stores each result. centers: a number per output for Op, or null.
template <class Op, class T>
void fold(const Tensor& x, uint32_t dims, const Tensor& out, const Finish& finish, const double* centers = nullptr,
          bool finite_centers = false) {
  using Raw = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
  using Sum = Total<typename Op::template Lane<Raw>>;
  const auto join = [&](const Sum* partial, int64_t chunks) {
    const int across = ReduceShape::power_of_two_from(out.numel(), 32);
    cuda::launch({"reduce", dim3(cuda::blocks_for(out.numel(), across)), dim3(threads)}, join_kernel<Op, Sum>, partial,
                 out.numel(), chunks, across, finish);
  };
  if (x.numel() == 0) return join(nullptr, 0);
  Reduction plan = make_plan(x, dims, out, width<Raw>, max_threads<typename Op::template Lane<Raw>>);
  plan.centers = centers, plan.finite_centers = finite_centers;
  const cuda::Scratch scratch(plan.chunks > 1 ? size_t(plan.chunks * plan.outputs) * sizeof(Sum) : 0);
  const int64_t work = plan.along_reduced
                           ? divided(plan.outputs * plan.chunks, threads / plan.shared)
                           : plan.outputs / plan.lanes * divided(plan.lanes, plan.shared * width<Raw>) * plan.chunks;
  cuda::launch({"reduce", dim3(cuda::blocks_for(work, 1)), dim3(plan.block)},
               plan.along_reduced ? fold_rows_kernel<Op, Raw> : fold_columns_kernel<Op, Raw>,
               static_cast<const Raw*>(x.raw_data()), plan, scratch.as<Sum>(), finish);
  if (plan.chunks > 1) join(scratch.as<Sum>(), plan.chunks);
}

}  // namespace

void reduce(ReduceOp op, const Tensor& x, uint32_t dims, double parameter, Tensor& out) {
  if (out.numel() == 0) return;
  double count = 1;  // elements per output
  for (int i = 0; i < x.dim(); ++i) count *= dims >> i & 1 ? double(x.shape()[i]) : 1;
  Finish finish{.out = out.raw_data(), .dtype = out.dtype()};
  const auto over_all = [&]<class Op>(Op) {
    dispatch_all(x.dtype(), "reduce", [&]<class T> { fold<Op, T>(x, dims, out, finish); });
  };
  const auto over_floats = [&](auto&& fn) { dispatch<float, double, Half, BFloat16>(x.dtype(), "reduce", fn); };
  // Memory for the results of the first pass, for operations that need two: an f64 number per output.
  const auto first = [&] { return cuda::Scratch(size_t(out.numel()) * sizeof(double)); };
  switch (op) {
    case ReduceOp::sum: return over_all(Sum());
    case ReduceOp::prod: return over_all(Prod());
    case ReduceOp::max: return over_all(Max());
    case ReduceOp::min: return over_all(Min());
    case ReduceOp::any: return over_all(Any());
    case ReduceOp::all: return over_all(All());
    case ReduceOp::mean:
      finish.ending = Finish::Ending::divide, finish.divisor = count;
      return over_floats([&]<class T> { fold<Sum, T>(x, dims, out, finish); });
    case ReduceOp::sum_squares: return over_floats([&]<class T> { fold<SumSquares, T>(x, dims, out, finish); });
    case ReduceOp::var: {
      const cuda::Scratch means = first();
      const Finish to_means{
          .ending = Finish::Ending::divide, .divisor = count, .out = means.as<double>(), .dtype = f64};
      finish.ending = Finish::Ending::divide, finish.divisor = std::max(0.0, count - parameter);
      return over_floats([&]<class T> {
        fold<SumWide, T>(x, dims, out, to_means);
        fold<SumCentered, T>(x, dims, out, finish, means.as<double>());
      });
    }
    case ReduceOp::logsumexp: {
      const cuda::Scratch maxima = first();
      const Finish to_maxima{.out = maxima.as<double>(), .dtype = f64};
      finish.ending = Finish::Ending::add_log, finish.maxima = maxima.as<double>();
      return over_floats([&]<class T> {
        fold<Max, T>(x, dims, out, to_maxima);
        fold<SumExp, T>(x, dims, out, finish, maxima.as<double>(), true);
      });
    }
  }
}

}  // namespace lockstep::on_cuda
