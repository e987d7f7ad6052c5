// Reductions over any dims of a tensor with any strides. The lanes of a vector register hold neighbours along one dim,
// which the plan (reduce_plan.h) chooses:
//
//   a reduced dim   each row becomes one number: four vectors add up the row, then their lanes are added as a tree
//   a kept dim      a row of outputs is updated with each row of x (column sums, as for the gradient of a bias)
//
// f32 values are summed in f32 over blocks of fixed length. The sums of the blocks are added in f64, one after another.
// Blocks depend on the shape alone, so the bits do not depend on threads. Variance and logsumexp read x twice.
#include <atomic>
#include <cmath>
#include <memory>

#include "tensor/convert.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"
#include "tensor/cpu/reduce_plan.h"
#include "tensor/cpu/rows.h"
#include "tensor/functors.h"
#include "tensor/kernels.h"

namespace lockstep::on_cpu {
namespace {

constexpr int64_t run_block = 4096;     // elements of a row that are summed in the accumulator type A
constexpr int64_t column_block = 1024;  // columns of a strip; also the length of a buffer

// --- operations: Lane is the type of an accumulator, step() adds an input, join() combines two partial results ---

template <class T>
using Same = std::conditional_t<std::is_integral_v<T>, std::conditional_t<sizeof(T) == 8, int64_t, int32_t>, Acc<T>>;
template <class T> using Wide = std::conditional_t<std::is_integral_v<T>, int64_t, double>;

struct Sum {
  template <class T> using Lane = std::conditional_t<std::is_integral_v<T>, int64_t, Acc<T>>;
  template <class A> static constexpr A identity = 0;
  template <class A> static A neutral(A) { return 0; }  // an x that changes nothing
  template <class V> static V step(V a, V x, V) { return functor::plus(a, x); }
  template <class V> static V join(V a, V b) { return functor::plus(a, b); }
};
struct SumWide : Sum {
  template <class T> using Lane = Wide<T>;
};
struct SumSquares : SumWide {
  template <class V> static V step(V a, V x, V) { return functor::plus(a, functor::times(x, x)); }
};
struct SumCentered : SumWide {  // sum of (x - center)^2
  template <class A> static A neutral(A center) { return center; }
  template <class V> static V step(V a, V x, V center) { return a + (x - center) * (x - center); }
};
struct SumExp : Sum {  // sum of exp(x - center)
  template <class A> static A neutral(A) { return -infinity<A>; }
  template <class V> static V step(V a, V x, V center) { return a + exp_lanes(x - center); }
};
struct Prod {
  template <class T> using Lane = Wide<T>;
  template <class A> static constexpr A identity = 1;
  template <class A> static A neutral(A) { return 1; }
  template <class V> static V step(V a, V x, V) { return functor::times(a, x); }
  template <class V> static V join(V a, V b) { return functor::times(a, b); }
};
struct Max {  // NaN if any element is NaN
  template <class T> using Lane = Same<T>;
  template <class A>
  static constexpr A identity = std::is_integral_v<A> ? std::numeric_limits<A>::lowest() : -infinity<A>;
  template <class A> static A neutral(A) { return identity<A>; }
  template <class V> static V join(V a, V b) { return choose((b > a) | (b != b), b, a); }
  template <class V> static V step(V a, V x, V) { return join(a, x); }
};
struct Min {
  template <class T> using Lane = Same<T>;
  template <class A> static constexpr A identity = std::is_integral_v<A> ? std::numeric_limits<A>::max() : infinity<A>;
  template <class A> static A neutral(A) { return identity<A>; }
  template <class V> static V join(V a, V b) { return choose((b < a) | (b != b), b, a); }
  template <class V> static V step(V a, V x, V) { return join(a, x); }
};
struct Any {
  template <class T> using Lane = Same<T>;
  template <class A> static constexpr A identity = 0;
  template <class A> static A neutral(A) { return 0; }
  template <class V> static V join(V a, V b) { return choose(b != 0, V(V{} + 1), a); }
  template <class V> static V step(V a, V x, V) { return join(a, x); }
};
struct All {
  template <class T> using Lane = Same<T>;
  template <class A> static constexpr A identity = 1;
  template <class A> static A neutral(A) { return 1; }
  template <class V> static V join(V a, V b) { return choose(b == 0, V{}, a); }
  template <class V> static V step(V a, V x, V) { return join(a, x); }
};

// --- the loops ---

template <class A> using Total = std::conditional_t<std::is_integral_v<A>, int64_t, double>;

// The elements of x that a loop reads. Everything but a contiguous run of A is first converted into a buffer, so that
// one loop serves all dtypes.
template <class A> struct Source {
  const std::byte* data;
  int64_t bytes;  // bytes of one element
  const A* (*widen)(const std::byte* from, int64_t stride, int64_t n, A* buffer);

  /// The n elements at positions at, at + stride, at + 2 * stride and so on, as a contiguous run of A.
  const A* read(int64_t at, int64_t stride, int64_t n, A* buffer) const {
    return widen(data + at * bytes, stride, n, buffer);
  }
};

template <class T, class A> const A* widen_run(const std::byte* from, int64_t stride, int64_t n, A* buffer) {
  const T* p = reinterpret_cast<const T*>(from);
  if (stride == 1) {
    if constexpr (std::is_same_v<T, A>) return p;
    for (int64_t i = 0; i < n; ++i) buffer[i] = A(Same<T>(p[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) buffer[i] = A(Same<T>(p[i * stride]));
  }
  return buffer;
}

// Loads p[0 .. count), with `fill` in the other lanes. (lanes.h loads floats only.)
template <class A, class Count> [[gnu::always_inline]] inline Lanes<A> take(const A* p, Count count, A fill = 0) {
  Lanes<A> v;
  if constexpr (std::is_same_v<Count, Full<A>>) {
    copy_in(p, v);
  } else {
    A lanes[lane_count<A>];
    std::fill_n(lanes, lane_count<A>, fill);
    std::copy_n(p, count, lanes);
    copy_in(lanes, v);
  }
  return v;
}

template <class Op, class A> A join_lanes(const Lanes<A> (&v)[4]) {
  A lanes[lane_count<A>];
  const Lanes<A> all = Op::join(Op::join(v[0], v[1]), Op::join(v[2], v[3]));
  copy_out(all, lanes);
  for (int half = lane_count<A> / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] = Op::join(lanes[l], lanes[l + half]);
  return lanes[0];
}

// The reduction for a plan in which the lanes of a vector hold neighbours along a reduced dim.
template <class Op, class A>
void fold_rows(const ReducePlan& plan, const Source<A>& x, const A* center, Total<A>* totals) {
  const int64_t n = plan.lanes, rows = plan.reduced.count(), outputs = plan.kept.count();
  // A block is a part of a long row (`pieces` parts per row), or several short rows.
  const int64_t pieces = (n + run_block - 1) / run_block,
                rows_per_block = pieces > 1 ? 1 : std::max<int64_t>(1, run_block / n);
  const int64_t blocks = pieces > 1 ? rows * pieces : (rows + rows_per_block - 1) / rows_per_block;
  const auto fold_block = [&](int64_t start, A c, int64_t block) {
    alignas(64) A buffer[column_block];
    Lanes<A> sum[4];
    for (auto& v : sum) v = splat<A>(Op::template identity<A>);
    const Lanes<A> c_lanes = splat<A>(c);
    const A fill = Op::neutral(c);
    const auto add_run = [&](int64_t at, int64_t length) {
      for (int64_t first = 0; first < length; first += column_block) {
        const int64_t part = std::min(column_block, length - first);
        const A* run = x.read(at + first * plan.x_stride, plan.x_stride, part, buffer);
        each_vector<A>(part, [&](int64_t i, auto count, auto k) {
          sum[k] = Op::step(sum[k], take(run + i, count, fill), c_lanes);
        });
      }
    };
    if (pieces > 1) {
      const int64_t begin = block % pieces * run_block;
      add_run(start + Walk(plan.reduced, block / pieces).x + begin * plan.x_stride, std::min(run_block, n - begin));
    } else {
      Walk row(plan.reduced, block * rows_per_block);
      const int64_t last = std::min(rows, (block + 1) * rows_per_block);
      for (int64_t r = block * rows_per_block; r < last; ++r, row.next()) add_run(start + row.x, n);
    }
    return Total<A>(join_lanes<Op, A>(sum));
  };
  const int64_t block_length = std::min(run_block, n * rows);
  if (blocks == 1) {
    return parallel_for(outputs, light_grain / block_length, [&](int64_t begin, int64_t end) {
      Walk at(plan.kept, begin);
      for (int64_t o = begin; o < end; ++o, at.next())
        totals[at.out] = fold_block(at.x, center ? center[at.out] : A(0), 0);
    });
  }
  const auto partial = std::make_unique_for_overwrite<Total<A>[]>(size_t(outputs * blocks));
  parallel_for(outputs * blocks, light_grain / block_length, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Walk at(plan.kept, i / blocks);
      partial[i] = fold_block(at.x, center ? center[at.out] : A(0), i % blocks);
    }
  });
  parallel_for(outputs, light_grain / blocks, [&](int64_t begin, int64_t end) {
    Walk at(plan.kept, begin);
    for (int64_t o = begin; o < end; ++o, at.next()) {
      Total<A> total = partial[o * blocks];
      for (int64_t b = 1; b < blocks; ++b) total = Op::join(total, partial[o * blocks + b]);
      totals[at.out] = total;
    }
  });
}

// The reduction for a plan in which the lanes of a vector hold neighbours along a kept dim.
template <class Op, class A>
void fold_columns(const ReducePlan& plan, const Source<A>& x, const A* center, Total<A>* totals) {
  const int64_t columns = plan.lanes, rows = plan.reduced.count(), outer = plan.kept.count();
  const int64_t strips = (columns + column_block - 1) / column_block, blocks = (rows + row_block - 1) / row_block;
  // Divides the rows into chunks of whole blocks, up to about 128 chunks in all, whatever the number of threads.
  const int64_t wanted = std::max<int64_t>(1, 128 / (outer * strips));
  const int64_t chunk_rows = (blocks + wanted - 1) / wanted * row_block, chunks = (rows + chunk_rows - 1) / chunk_rows;

  // Reduces `width` columns over rows [begin, end) into total.
  const auto fold_strip = [&](int64_t start, const A* c, int64_t width, int64_t begin, int64_t end, Total<A>* total) {
    alignas(64) A sum[column_block], c_buffer[column_block] = {}, buffer[4][column_block];
    if (c)
      for (int64_t i = 0; i < width; ++i) c_buffer[i] = c[i * plan.out_stride];
    std::fill_n(total, width, Total<A>(Op::template identity<A>));
    Walk row(plan.reduced, begin);
    for (int64_t first = begin; first < end; first += row_block) {
      const int64_t last = std::min(end, first + row_block);
      std::fill_n(sum, column_block, Op::template identity<A>);
      for (int64_t r = first; r < last; r += 4) {  // four rows at a time, so that sums are loaded and stored less often
        const int height = int(std::min<int64_t>(4, last - r));
        const A* from[4];
        for (int j = 0; j < height; ++j, row.next()) from[j] = x.read(start + row.x, plan.x_stride, width, buffer[j]);
        const auto add = [&](int64_t i, auto count) {
          Lanes<A> v, center_lanes;
          copy_in(sum + i, v);
          copy_in(c_buffer + i, center_lanes);
          for (int j = 0; j < height; ++j) v = Op::step(v, take(from[j] + i, count), center_lanes);
          copy_out(v, sum + i);
        };
        int64_t i = 0;
        for (; i + lane_count<A> <= width; i += lane_count<A>) add(i, Full<A>());
        if (i < width) add(i, int(width - i));  // lanes past the end are not used
      }
      for (int64_t i = 0; i < width; ++i) total[i] = Op::join(total[i], Total<A>(sum[i]));
    }
  };
  std::unique_ptr<Total<A>[]> partial;
  if (chunks > 1) partial = std::make_unique_for_overwrite<Total<A>[]>(size_t(chunks * outer * columns));
  const int64_t work = std::min(columns, column_block) * std::min(rows, chunk_rows);
  parallel_for(outer * strips * chunks, light_grain / work, [&](int64_t begin, int64_t end) {
    alignas(64) Total<A> total[column_block];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t chunk = item % chunks, first = item / chunks % strips * column_block, o = item / chunks / strips;
      const int64_t width = std::min(column_block, columns - first);
      const Walk at(plan.kept, o);
      Total<A>* to = chunks > 1 ? &partial[(chunk * outer + o) * columns + first] : total;
      const int64_t place = at.out + first * plan.out_stride;
      fold_strip(at.x + first * plan.x_stride, center ? center + place : nullptr, width, chunk * chunk_rows,
                 std::min(rows, (chunk + 1) * chunk_rows), to);
      if (chunks == 1)
        for (int64_t i = 0; i < width; ++i) totals[place + i * plan.out_stride] = total[i];
    }
  });
  if (chunks == 1) return;
  parallel_for(outer * columns, light_grain / chunks, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Total<A> total = partial[i];
      for (int64_t chunk = 1; chunk < chunks; ++chunk) total = Op::join(total, partial[chunk * outer * columns + i]);
      totals[Walk(plan.kept, i / columns).out + i % columns * plan.out_stride] = total;
    }
  });
}

// Reduces x over the dims whose bits are set in `dims`; returns the totals in the order of out. center: null, or for
// each output a number that Op first subtracts from the elements of x that are reduced to this output.
template <class Op, class T, class A = typename Op::template Lane<T>>
std::unique_ptr<Total<A>[]> fold(const Tensor& x, uint32_t dims, const Tensor& out, const A* center = nullptr) {
  auto totals = std::make_unique_for_overwrite<Total<A>[]>(size_t(out.numel()));
  if (x.numel() == 0) {
    std::fill_n(totals.get(), out.numel(), Total<A>(Op::template identity<A>));
    return totals;
  }
  const ReducePlan plan = make_reduce_plan(x, dims, out);
  using Raw = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;  // a bool is a byte of 0 or 1
  const Source<A> source{static_cast<const std::byte*>(x.raw_data()), sizeof(T), widen_run<Raw, A>};
  if (plan.lanes_reduced) fold_rows<Op>(plan, source, center, totals.get());
  else fold_columns<Op>(plan, source, center, totals.get());
  return totals;
}

// out[i] = fn(i, totals[i]), converted to the dtype of out.
template <class V, class Fn>
void finish(Tensor& out, const std::unique_ptr<V[]>& totals, Fn&& fn) {
  dispatch_all(out.dtype(), "reduce", [&]<class T> {
    T* to = out.data<T>();
    parallel_for(out.numel(), light_grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = convert<T>(fn(i, totals[i]));
    });
  });
}

template <class V> void finish(Tensor& out, const std::unique_ptr<V[]>& totals) {
  finish(out, totals, [](int64_t, V total) { return total; });
}

template <class T> void variance(const Tensor& x, uint32_t dims, double count, double correction, Tensor& out) {
  auto mean = fold<SumWide, T>(x, dims, out);
  for (int64_t i = 0; i < out.numel(); ++i) mean[i] /= count;
  const double divisor = std::max(0.0, count - correction);
  finish(out, fold<SumCentered, T>(x, dims, out, mean.get()), [=](int64_t, double total) { return total / divisor; });
}

template <class T> void log_sum_exp(const Tensor& x, uint32_t dims, Tensor& out) {
  const auto maxima = fold<Max, T>(x, dims, out);
  const auto center = std::make_unique_for_overwrite<Acc<T>[]>(size_t(out.numel()));
  for (int64_t i = 0; i < out.numel(); ++i) center[i] = std::isfinite(maxima[i]) ? Acc<T>(maxima[i]) : 0;
  // If the maximum is infinite or NaN, so is the result.
  finish(out, fold<SumExp, T>(x, dims, out, center.get()),
         [&](int64_t i, double total) { return std::isfinite(maxima[i]) ? std::log(total) + maxima[i] : maxima[i]; });
}

}  // namespace

void reduce(ReduceOp op, const Tensor& x, uint32_t dims, double parameter, Tensor& out) {
  if (out.numel() == 0) return;
  double count = 1;  // elements reduced to each output
  for (int i = 0; i < x.dim(); ++i) count *= dims >> i & 1 ? double(x.shape()[i]) : 1;
  const auto over_all = [&]<class Op>(Op) {
    dispatch_all(x.dtype(), "reduce", [&]<class T> { finish(out, fold<Op, T>(x, dims, out)); });
  };
  const auto over_floats = [&](auto&& fn) { dispatch<float, double, Half, BFloat16>(x.dtype(), "reduce", fn); };
  switch (op) {
    case ReduceOp::sum: return over_all(Sum());
    case ReduceOp::prod: return over_all(Prod());
    case ReduceOp::max: return over_all(Max());
    case ReduceOp::min: return over_all(Min());
    case ReduceOp::any: return over_all(Any());
    case ReduceOp::all: return over_all(All());
    case ReduceOp::mean:
      return over_floats([&]<class T> {
        finish(out, fold<Sum, T>(x, dims, out), [=](int64_t, double total) { return total / count; });
      });
    case ReduceOp::sum_squares: return over_floats([&]<class T> { finish(out, fold<SumSquares, T>(x, dims, out)); });
    case ReduceOp::var: return over_floats([&]<class T> { variance<T>(x, dims, count, parameter, out); });
    case ReduceOp::logsumexp: return over_floats([&]<class T> { log_sum_exp<T>(x, dims, out); });
  }
}

void column_sums(const Tensor& x, Tensor& out) {
  Tensor as_row = out.view({1, out.size(0)});
  reduce(ReduceOp::sum, x, 1, 0, as_row);
}

bool all_finite(const Tensor& x) {
  if (!is_floating(x.dtype())) return true;
  // A number is not finite when all bits of its exponent are set.
  const Tensor values = x.contiguous();
  std::atomic<bool> good{true};
  const auto check = [&]<class Bits>(Bits exponent) {
    const Bits* p = static_cast<const Bits*>(values.raw_data());
    parallel_for(values.numel(), light_grain, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end && good.load(std::memory_order_relaxed); first += run_block) {
        const int64_t last = std::min(end, first + run_block);
        Bits bad = 0;
        for (int64_t i = first; i < last; ++i) bad |= Bits((p[i] & exponent) == exponent);
        if (bad) good.store(false, std::memory_order_relaxed);
      }
    });
  };
  switch (x.dtype()) {
    case f32: check(uint32_t(0x7f800000)); break;
    case f64: check(uint64_t(0x7ff0000000000000)); break;
    case f16: check(uint16_t(0x7c00)); break;
    default: check(uint16_t(0x7f80)); break;
  }
  return good;
}

void find_nonfinite(const std::vector<Tensor>& all, int32_t* found) {
  for (size_t i = 0; i < all.size(); ++i)
    if (!all_finite(all[i])) found[i] = 1;
}

bool unscale(const std::vector<Tensor>& tensors, double factor) {
  bool finite = true;
  for (const Tensor& x : tensors) {
    finite &= all_finite(x);
    Tensor out = x;
    const Tensor* in[] = {&x};
    pointwise(PointwiseOp::mul_scalar, PointwisePart::value, {.p = factor}, in, 1, out);
  }
  return finite;
}

}  // namespace lockstep::on_cpu
