// Reductions over any dims of tensors of any strides, in one of two ways, depending on which dim is contiguous:
//
//   along a reduced dim   threads share the elements of an output: 1 to 32 threads, or a block, for each
//   along a kept dim      threads are spread over the outputs; the block joins its rows at the end (sums for a bias)
//
// If there are few outputs, their elements are split into chunks, and a second kernel joins the totals of the chunks.
// All of this depends only on the shape, and so does the order of every sum. A thread accumulates at most 64 vectors in
// f32, then adds the result to an f64 sum. Memory bound.
#include <cmath>

#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/nest.h"
#include "tensor/cuda/reduce_ops.h"
#include "tensor/cuda/vector.h"

namespace lockstep::on_cuda {
namespace {

constexpr int threads = 256;
constexpr unsigned whole_warp = 0xffffffffu;
constexpr int64_t wanted_blocks = 1024;  // fills a large device; a constant, so that sums do not depend on the device
constexpr int run_vectors = 64;          // vectors that one sum accumulates in the narrow type

/// Stores a total: to which memory, in which dtype, by which formula.
struct Finish {
  enum class How : uint8_t { plain, divide, add_log } how = How::plain;
  double divisor = 1;
  const double* most = nullptr;  // add_log: log(total) + most; `most` itself if it is not finite
  void* out;
  DType dtype;

  template <class Total> __device__ void operator()(int64_t at, Total total) const {
    switch (how) {
      case How::plain: return put(at, total);
      case How::divide: return put(at, double(total) / divisor);
      case How::add_log: {
        const double m = most[at];
        return put(at, std::isfinite(m) ? std::log(double(total)) + m : m);
      }
    }
  }
  template <class V> __device__ void put(int64_t at, V value) const {
    switch (dtype) {
      case f32: static_cast<float*>(out)[at] = convert<float>(value); break;
      case f64: static_cast<double*>(out)[at] = convert<double>(value); break;
      case f16: static_cast<Half*>(out)[at] = convert<Half>(value); break;
      case bf16: static_cast<BFloat16*>(out)[at] = convert<BFloat16>(value); break;
      case i64: static_cast<int64_t*>(out)[at] = convert<int64_t>(value); break;
      case i32: static_cast<int32_t*>(out)[at] = convert<int32_t>(value); break;
      case i8: static_cast<int8_t*>(out)[at] = convert<int8_t>(value); break;
      case u8: static_cast<uint8_t*>(out)[at] = convert<uint8_t>(value); break;
      case boolean: static_cast<bool*>(out)[at] = convert<bool>(value); break;
    }
  }
};

/// The plan of a reduction.
struct Reduction {
  Nest<2> kept;  // strides of x and of out
  Nest<1> reduced;
  bool along_reduced;
  // The dim along which neighbours are read. A kept one is removed from its nest and has `lanes` columns; a reduced one
  // stays the innermost dim of `reduced`, counted in vectors, with `lanes` elements.
  int64_t lanes = 1, x_stride = 1, out_stride = 1;
  Access access;
  int64_t outputs, items;  // items: vectors, or rows, that are reduced to one output
  int64_t chunk, chunks;   // chunk: items of a chunk
  int shared;              // threads per output and chunk; along a kept dim, threads across the columns
  bool finite_centers;     // true: use 0 for a center that is not finite
  const double* centers;   // one center for each output, or null
};

template <class T> inline constexpr int width = std::min(8, int(16 / sizeof(T)));

__device__ inline double center_of(const Reduction& plan, int64_t output) {
  if (!plan.centers) return 0;
  const double c = plan.centers[output];
  return plan.finite_centers && !std::isfinite(c) ? 0 : c;
}

/// Partial sums of one output: run_vectors steps in the narrow type are then added to the wide type.
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
  __device__ void count() {
    if (++held == run_vectors) flush();
  }
};

// --- along a reduced dim ---

template <class Op, class T>
__global__ void __launch_bounds__(threads)
    fold_rows_kernel(const T* x, Reduction plan, Total<typename Op::template Lane<T>>* partial, Finish finish) {
  using A = typename Op::template Lane<T>;
  using Sum = Total<A>;
  constexpr int V = width<T>, parts = V < 4 ? V : 4;
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
      for (int64_t i = chunk * plan.chunk + lane; i < last; i += plan.shared) {
        int64_t at[1] = {start[0]};
        const int64_t left = plan.lanes - plan.reduced.find(i, at) * V;
        const int count = left < V ? int(left) : V;
        const Vector<T, V> v = load_vector<V>(x + at[0], plan.access, plan.x_stride, count);
#pragma unroll
        for (int j = 0; j < V; ++j)
          sums.narrow[j % parts] = Op::step(sums.narrow[j % parts], j < count ? widen<A>(v.v[j]) : neutral, center);
        sums.count();
      }
    }
    sums.flush();
    Sum total = sums.wide[0];
#pragma unroll
    for (int k = 1; k < parts; ++k) total = Op::join(total, sums.wide[k]);
    for (int step = min(plan.shared, 32) / 2; step > 0; step /= 2)
      total = Op::join(total, __shfl_xor_sync(whole_warp, total, step));
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

// --- along a kept dim ---

template <class Op, class T>
__global__ void __launch_bounds__(threads)
    fold_columns_kernel(const T* x, Reduction plan, Total<typename Op::template Lane<T>>* partial, Finish finish) {
  using A = typename Op::template Lane<T>;
  using Sum = Total<A>;
  constexpr int V = width<T>;
  LOCKSTEP_SHARED(Sum, of_row, [threads * V]);
  const int across = plan.shared, down = threads / across, column = threadIdx.x % across, row = threadIdx.x / across;
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
      for (int64_t i = chunk * plan.chunk + row; i < last; i += down) {
        int64_t at[1] = {start[0] + first * plan.x_stride};
        plan.reduced.find(i, at);
        const Vector<T, V> v = load_vector<V>(x + at[0], plan.access, plan.x_stride, count);
#pragma unroll
        for (int j = 0; j < V; ++j) sums.narrow[j] = Op::step(sums.narrow[j], widen<A>(v.v[j]), center[j]);
        sums.count();
      }
    }
    sums.flush();
    // Rows are joined pairwise, then pairs of pairs. Neighbouring threads access neighbouring words.
#pragma unroll
    for (int j = 0; j < V; ++j) of_row[j * threads + threadIdx.x] = sums.wide[j];
    for (int half = down / 2; half > 0; half /= 2) {
      __syncthreads();
      if (row < half) {
#pragma unroll
        for (int j = 0; j < V; ++j) {
          Sum& mine = of_row[j * threads + threadIdx.x];
          mine = Op::join(mine, of_row[j * threads + threadIdx.x + half * across]);
        }
      }
    }
    if (row == 0) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (j >= count) continue;
        const int64_t at = start[1] + (first + j) * plan.out_stride;
        const Sum total = of_row[j * threads + threadIdx.x];
        if (plan.chunks == 1) finish(at, total);
        else partial[chunk * plan.outputs + at] = total;
      }
    }
    __syncthreads();
  }
}

// --- joining the totals of chunks ---

// A warp joins a slice of the chunks for 32 neighbouring outputs; then the block joins the slices in order.
template <class Op, class Sum>
__global__ void __launch_bounds__(threads)
    join_kernel(const Sum* partial, int64_t outputs, int64_t chunks, Finish finish) {
  constexpr int slices = threads / 32;
  LOCKSTEP_SHARED(Sum, of_slice, [slices][32]);
  const int lane = threadIdx.x % 32, slice = threadIdx.x / 32;
  const int64_t length = (chunks + slices - 1) / slices, first = slice * length, last = min(chunks, first + length);
  for (int64_t base = int64_t(blockIdx.x) * 32; base < outputs; base += int64_t(gridDim.x) * 32) {
    const int64_t output = base + lane;
    Sum total = Sum(Op::template identity<Sum>);
    if (output < outputs) {
#pragma unroll 4
      for (int64_t c = first; c < last; ++c) total = Op::join(total, partial[c * outputs + output]);
    }
    of_slice[slice][lane] = total;
    __syncthreads();
    if (slice == 0 && output < outputs) {
#pragma unroll
      for (int s = 1; s < slices; ++s) total = Op::join(total, of_slice[s][lane]);
      finish(output, total);
    }
    __syncthreads();
  }
}

// --- host ---

int64_t divided(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The smallest power of two that is at least n, but at most `most`.
int power_of_two_from(int64_t n, int most) {
  int p = 1;
  while (p < most && p < n) p *= 2;
  return p;
}

Reduction make_plan(const Tensor& x, uint32_t dims, const Tensor& out, int V) {
  Reduction plan{};
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
    plan.shared = plan.items > 128 ? threads : power_of_two_from(divided(plan.items, 2), 32);
    plan.chunks = std::clamp<int64_t>(wanted_blocks / plan.outputs, 1, divided(plan.items, threads * 8));
  } else {
    Nest<2>& nest = plan.kept;
    const int last = --nest.rank;
    plan.lanes = nest.size[last], plan.x_stride = nest.stride[last][0], plan.out_stride = nest.stride[last][1];
    plan.access = access(aligned(nest, last) && aligned(plan.reduced, plan.reduced.rank));
    plan.items = plan.reduced.count();
    plan.shared = power_of_two_from(divided(plan.lanes, V), 32);
    const int64_t blocks = nest.count() * divided(plan.lanes, plan.shared * V), down = threads / plan.shared;
    plan.chunks = std::clamp<int64_t>(wanted_blocks / blocks, 1, divided(plan.items, down * 4));
  }
  plan.chunk = divided(plan.items, plan.chunks);
  plan.chunks = divided(plan.items, plan.chunk);
  plan.kept.prepare();
  plan.reduced.prepare();
  return plan;
}

/// Reduces x over `dims`; finish(output, total) stores each result. centers: one per output, or null.
template <class Op, class T>
void fold(const Tensor& x, uint32_t dims, const Tensor& out, const Finish& finish, const double* centers = nullptr,
          bool finite_centers = false) {
  using Raw = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
  using Sum = Total<typename Op::template Lane<Raw>>;
  const dim3 block(threads);
  if (x.numel() == 0) {
    return cuda::launch({"reduce", dim3(cuda::blocks_for(out.numel(), 32)), block}, join_kernel<Op, Sum>, nullptr,
                        out.numel(), 0, finish);
  }
  Reduction plan = make_plan(x, dims, out, width<Raw>);
  plan.centers = centers, plan.finite_centers = finite_centers;
  const cuda::Scratch scratch(plan.chunks > 1 ? size_t(plan.chunks * plan.outputs) * sizeof(Sum) : 0);
  const int64_t work = plan.along_reduced
                           ? divided(plan.outputs * plan.chunks, threads / plan.shared)
                           : plan.outputs / plan.lanes * divided(plan.lanes, plan.shared * width<Raw>) * plan.chunks;
  cuda::launch({"reduce", dim3(cuda::blocks_for(work, 1)), block},
               plan.along_reduced ? fold_rows_kernel<Op, Raw> : fold_columns_kernel<Op, Raw>,
               static_cast<const Raw*>(x.raw_data()), plan, scratch.as<Sum>(), finish);
  if (plan.chunks == 1) return;
  cuda::launch({"reduce", dim3(cuda::blocks_for(plan.outputs, 32)), block}, join_kernel<Op, Sum>, scratch.as<Sum>(),
               plan.outputs, plan.chunks, finish);
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
  // Memory for the first of two passes: a number per output.
  const auto first = [&] { return cuda::Scratch(size_t(out.numel()) * sizeof(double)); };
  switch (op) {
    case ReduceOp::sum: return over_all(Sum());
    case ReduceOp::prod: return over_all(Prod());
    case ReduceOp::max: return over_all(Max());
    case ReduceOp::min: return over_all(Min());
    case ReduceOp::any: return over_all(Any());
    case ReduceOp::all: return over_all(All());
    case ReduceOp::mean:
      finish.how = Finish::How::divide, finish.divisor = count;
      return over_floats([&]<class T> { fold<Sum, T>(x, dims, out, finish); });
    case ReduceOp::sum_squares: return over_floats([&]<class T> { fold<SumSquares, T>(x, dims, out, finish); });
    case ReduceOp::var: {
      const cuda::Scratch means = first();
      const Finish to_means{.how = Finish::How::divide, .divisor = count, .out = means.as<double>(), .dtype = f64};
      finish.how = Finish::How::divide, finish.divisor = std::max(0.0, count - parameter);
      return over_floats([&]<class T> {
        fold<SumWide, T>(x, dims, out, to_means);
        fold<SumCentered, T>(x, dims, out, finish, means.as<double>());
      });
    }
    case ReduceOp::logsumexp: {
      const cuda::Scratch most = first();
      const Finish to_most{.out = most.as<double>(), .dtype = f64};
      finish.how = Finish::How::add_log, finish.most = most.as<double>();
      return over_floats([&]<class T> {
        fold<Max, T>(x, dims, out, to_most);
        fold<SumExp, T>(x, dims, out, finish, most.as<double>(), true);
      });
    }
  }
}

}  // namespace lockstep::on_cuda
