// Reductions on raw bytes: plain loops, in which memcpy loads elements from any address and which the compiler
// vectorizes. f16 and bf16 are processed sixteen at a time in f32.
#include "dist/reduce.h"

#include <cstring>
#include <type_traits>

#include "tensor/convert.h"
#include "tensor/cpu/lanes.h"

namespace lockstep::dist {
namespace {

template <class T> T load(const std::byte* p, int64_t i) {
  T value;
  std::memcpy(&value, p + i * int64_t(sizeof(T)), sizeof(T));
  return value;
}
template <class T> void store(std::byte* p, int64_t i, T value) {
  std::memcpy(p + i * int64_t(sizeof(T)), &value, sizeof(T));
}

// Operations on a number or a vector. Min and max propagate NaN: if a is NaN, a != a selects a; if only b is NaN, both
// comparisons are false, which selects b.
struct Sum {
  template <class V> static V apply(V a, V b) { return a + b; }
};
struct Product {
  template <class V> static V apply(V a, V b) { return a * b; }
};
struct Min {
  template <class V> static V apply(V a, V b) { return choose((a < b) | (a != a), a, b); }
};
struct Max {
  template <class V> static V apply(V a, V b) { return choose((a > b) | (a != a), a, b); }
};

// Integers wrap around: the arithmetic is unsigned, and at least 32 bits wide to avoid promotion to int.
template <class Op, class T> T apply(T a, T b) {
  if constexpr (std::is_integral_v<T> && (std::is_same_v<Op, Sum> || std::is_same_v<Op, Product>)) {
    using U = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    return T(Op::apply(U(a), U(b)));
  } else {
    return Op::apply(a, b);
  }
}

/// target[i] = fn(target[i], source[i]) in f32, sixteen elements of f16 or bf16 at a time. The rest, fewer than
/// sixteen elements, is computed in the same way.
template <class T, class Fn>
void each_half(std::byte* __restrict target, const std::byte* __restrict source, int64_t count, Fn&& fn) {
  using on_cpu::ShortWords;
  constexpr int64_t lanes = sizeof(ShortWords) / sizeof(T);
  for (int64_t i = 0; i < count; i += lanes) {
    const size_t bytes = sizeof(T) * size_t(std::min(lanes, count - i));
    ShortWords a = {}, b = {};
    if (bytes == sizeof a) [[likely]] {  // a constant size, so that memcpy becomes one instruction
      std::memcpy(&a, target + i * 2, sizeof a);
      if (source) std::memcpy(&b, source + i * 2, sizeof b);
      a = on_cpu::encode(fn(on_cpu::decode(a, T()), on_cpu::decode(b, T())), T());
      std::memcpy(target + i * 2, &a, sizeof a);
    } else {
      std::memcpy(&a, target + i * 2, bytes);
      if (source) std::memcpy(&b, source + i * 2, bytes);
      a = on_cpu::encode(fn(on_cpu::decode(a, T()), on_cpu::decode(b, T())), T());
      std::memcpy(target + i * 2, &a, bytes);
    }
  }
}

template <class Op, class T>
void reduce(std::byte* __restrict target, const std::byte* __restrict source, int64_t count) {
  if constexpr (is_half<T>) {
    each_half<T>(target, source, count, [](on_cpu::Lanes<float> a, on_cpu::Lanes<float> b) { return Op::apply(a, b); });
  } else if constexpr (std::is_same_v<T, bool>) {  // sum, max: or; product, min: and. Any non-zero byte is true
    constexpr bool either = std::is_same_v<Op, Sum> || std::is_same_v<Op, Max>;
    for (int64_t i = 0; i < count; ++i) {
      const uint8_t a = load<uint8_t>(target, i) != 0, b = load<uint8_t>(source, i) != 0;
      store<uint8_t>(target, i, either ? a | b : a & b);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) store(target, i, apply<Op>(load<T>(target, i), load<T>(source, i)));
  }
}

template <class T> void divide_by(std::byte* target, int64_t count, int64_t divisor) {
  const bool power_of_two = (divisor & (divisor - 1)) == 0;
  if constexpr (is_half<T>) {
    const float by = float(divisor), inverse = 1 / by;
    if (power_of_two)
      each_half<T>(target, nullptr, count, [inverse](on_cpu::Lanes<float> a, auto) { return a * inverse; });
    else each_half<T>(target, nullptr, count, [by](on_cpu::Lanes<float> a, auto) { return a / by; });
  } else if constexpr (std::is_floating_point_v<T>) {
    const T by = T(divisor), inverse = 1 / by;
    if (power_of_two)
      for (int64_t i = 0; i < count; ++i) store(target, i, load<T>(target, i) * inverse);
    else
      for (int64_t i = 0; i < count; ++i) store(target, i, load<T>(target, i) / by);
  } else {
    for (int64_t i = 0; i < count; ++i) store(target, i, T(int64_t(load<T>(target, i)) / divisor));
  }
}

}  // namespace

const char* name_of(ReduceOp op) {
  constexpr const char* names[] = {"sum", "mean", "product", "min", "max"};
  return op <= ReduceOp::max ? names[int(op)] : "?";
}

void reduce_into(DType dtype, ReduceOp op, std::byte* target, const std::byte* source, int64_t count) {
  LOCKSTEP_CHECK(op != ReduceOp::mean || dtype != boolean,
                 "[reduce_into] expected a number type for mean, got bool; use min or max");
  dispatch_all(dtype, "reduce_into", [&]<class T> {
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::mean: return reduce<Sum, T>(target, source, count);
      case ReduceOp::product: return reduce<Product, T>(target, source, count);
      case ReduceOp::min: return reduce<Min, T>(target, source, count);
      case ReduceOp::max: return reduce<Max, T>(target, source, count);
    }
    fail(str("[reduce_into] expected a ReduceOp (sum, mean, product, min or max), got number ", int(op)));
  });
}

void divide(DType dtype, std::byte* target, int64_t count, int64_t divisor) {
  LOCKSTEP_CHECK(divisor >= 1, "[divide] expected a divisor of at least 1, got ", divisor);
  LOCKSTEP_CHECK(dtype != boolean, "[divide] expected a number type, got bool, which has no mean; use min or max");
  dispatch_all(dtype, "divide", [&]<class T> {
    if constexpr (!std::is_same_v<T, bool>) divide_by<T>(target, count, divisor);
  });
}

}  // namespace lockstep::dist
