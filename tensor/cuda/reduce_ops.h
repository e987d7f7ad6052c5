#pragma once
// The operations of reductions: the accumulator type (Lane), its identity, step() for one more element, and join() for
// two partial results. `center` is subtracted from each element in SumCentered and SumExp. neutral(center) is an
// element that leaves a result unchanged. Finish stores the totals.
#include <cmath>
#include <limits>

#include "tensor/cuda/element.h"
#include "tensor/math.h"

namespace lockstep::on_cuda {

/// Accumulators: Same keeps the precision of T, Wide uses int64_t or double.
template <class T>
using Same =
    std::conditional_t<std::is_integral_v<T>, std::conditional_t<sizeof(T) == 8, int64_t, int32_t>, Compute<T>>;
template <class T> using Wide = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
/// The type in which partial results of many elements are joined.
template <class A> using Total = std::conditional_t<std::is_integral_v<A>, int64_t, double>;

/// Converts an element to the accumulator type.
template <class A, class T> __device__ inline A widen(T x) { return A(Same<T>(x)); }

/// Positive infinity.
template <class A> inline constexpr A infinite = std::numeric_limits<A>::infinity();

/// Stores a result in `out`, converted to `dtype`. As `ending` says, it is the total, total / divisor, or (for
/// logsumexp) log(total) plus the largest of the elements that are reduced to this output.
struct Finish {
  enum class Ending : uint8_t { plain, divide, add_log } ending = Ending::plain;
  double divisor = 1;
  const double* maxima = nullptr;  // add_log: log(total) + the maximum; `maxima` itself if it is not finite
  void* out;
  DType dtype;

  template <class Total> __device__ void operator()(int64_t at, Total total) const {
    switch (ending) {
      case Ending::plain: return put(at, total);
      case Ending::divide: return put(at, double(total) / divisor);
      case Ending::add_log: {
        const double m = maxima[at];
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

/// The sum; integers are summed in int64_t, floating types in f32 or f64.
struct Sum {
  template <class T> using Lane = std::conditional_t<std::is_integral_v<T>, int64_t, Compute<T>>;
  template <class A> static constexpr A identity = 0;
  template <class A> __device__ static A neutral(A) { return 0; }  // an element that changes nothing
  template <class A> __device__ static A step(A a, A x, A) { return a + x; }
  template <class A> __device__ static A join(A a, A b) { return a + b; }
};
/// The sum in f64 (integers: int64_t).
struct SumWide : Sum {
  template <class T> using Lane = Wide<T>;
};
/// The sum of squares.
struct SumSquares : SumWide {
  template <class A> __device__ static A step(A a, A x, A) { return a + x * x; }
};
/// The sum of (x - center)^2.
struct SumCentered : SumWide {
  template <class A> __device__ static A neutral(A center) { return center; }
  template <class A> __device__ static A step(A a, A x, A center) { return a + (x - center) * (x - center); }
};
/// The sum of exp(x - center).
struct SumExp : Sum {
  template <class A> __device__ static A neutral(A) { return -infinite<A>; }
  template <class A> __device__ static A step(A a, A x, A center) { return a + math::exp(x - center); }
};
/// The product, in f64 (integers: int64_t).
struct Prod {
  template <class T> using Lane = Wide<T>;
  template <class A> static constexpr A identity = 1;
  template <class A> __device__ static A neutral(A) { return 1; }
  template <class A> __device__ static A step(A a, A x, A) { return a * x; }
  template <class A> __device__ static A join(A a, A b) { return a * b; }
};
/// The maximum or minimum; NaN if any element is NaN.
struct Max {
  template <class T> using Lane = Same<T>;
  template <class A>
  static constexpr A identity = std::is_integral_v<A> ? std::numeric_limits<A>::lowest() : -infinite<A>;
  template <class A> __device__ static A neutral(A) { return identity<A>; }
  template <class A> __device__ static A join(A a, A b) { return (b > a) | (b != b) ? b : a; }
  template <class A> __device__ static A step(A a, A x, A) { return join(a, x); }
};
struct Min {
  template <class T> using Lane = Same<T>;
  template <class A> static constexpr A identity = std::is_integral_v<A> ? std::numeric_limits<A>::max() : infinite<A>;
  template <class A> __device__ static A neutral(A) { return identity<A>; }
  template <class A> __device__ static A join(A a, A b) { return (b < a) | (b != b) ? b : a; }
  template <class A> __device__ static A step(A a, A x, A) { return join(a, x); }
};
/// 1 if any element is not 0.
struct Any {
  template <class T> using Lane = Same<T>;
  template <class A> static constexpr A identity = 0;
  template <class A> __device__ static A neutral(A) { return 0; }
  template <class A> __device__ static A join(A a, A b) { return b != 0 ? A(1) : a; }
  template <class A> __device__ static A step(A a, A x, A) { return join(a, x); }
};
/// 1 if no element is 0.
struct All {
  template <class T> using Lane = Same<T>;
  template <class A> static constexpr A identity = 1;
  template <class A> __device__ static A neutral(A) { return 1; }
  template <class A> __device__ static A join(A a, A b) { return b == 0 ? A(0) : a; }
  template <class A> __device__ static A step(A a, A x, A) { return join(a, x); }
};

}  // namespace lockstep::on_cuda
