#pragma once
// A vector longer than the processor's registers, as several registers. g++ has such vectors too, but stores sums
// of them in memory, and compares, selects and shuffles one number at a time: five to ten times slower.
#include <cstring>
#include <type_traits>

#include "tensor/cpu/registers.h"
#include "tensor/host_device.h"

namespace lockstep::on_cpu {

/// A vector of n numbers.
template <class E, int n> struct SplitVector {
  static constexpr int each = lanes<E>, parts = n / each;
  Vector<E> part[parts];

  E operator[](int l) const { return part[l / each][l % each]; }  ///< number l
};

/// Calls fn(first.part[i], others.part[i]...) for every register i and returns the vector of its results.
template <class R, class Fn, class First, class... Others>
[[gnu::always_inline]] inline R by_parts(Fn fn, const First& first, const Others&... others) {
  R result;
#pragma GCC unroll 8
  for (int i = 0; i < First::parts; ++i) result.part[i] = fn(first.part[i], others.part[i]...);
  return result;
}

// The element type of a comparison's result: all bits of a lane are set, or none.
template <class E> using MaskOf = std::conditional_t<sizeof(E) == 8, int64_t, int32_t>;

// The element type in which sums and products are computed: unsigned for integers, which wrap around.
template <class E, bool = std::is_integral_v<E>> struct WrappingOf { using type = E; };
template <class E> struct WrappingOf<E, true> { using type = std::make_unsigned_t<E>; };  ///< unsigned
template <class E> using Wrapping = typename WrappingOf<E>::type;                         ///< that type

/// Defines an operator of two vectors, or of a vector and a number. Computes with elements of type C; the result has
/// elements of type R.
#define LOCKSTEP_SPLIT(op, R, C)                                                                                       \
  template <class E, int n>                                                                                            \
  [[gnu::always_inline]] inline SplitVector<R, n> operator op(const SplitVector<E, n>& a,                              \
                                                              const SplitVector<E, n>& b) {                            \
    return by_parts<SplitVector<R, n>>([](auto x, auto y) { return (Vector<R>)((Vector<C>)x op(Vector<C>) y); }, a,    \
                                       b);                                                                             \
  }                                                                                                                    \
  template <class E, int n>                                                                                            \
  [[gnu::always_inline]] inline SplitVector<R, n> operator op(const SplitVector<E, n>& a, std::type_identity_t<E> b) { \
    return by_parts<SplitVector<R, n>>([b](auto x) { return (Vector<R>)((Vector<C>)x op C(b)); }, a);                  \
  }                                                                                                                    \
  template <class E, int n>                                                                                            \
  [[gnu::always_inline]] inline SplitVector<R, n> operator op(std::type_identity_t<E> a, const SplitVector<E, n>& b) { \
    return by_parts<SplitVector<R, n>>([a](auto y) { return (Vector<R>)(C(a) op(Vector<C>) y); }, b);                  \
  }
LOCKSTEP_SPLIT(+, E, Wrapping<E>)
LOCKSTEP_SPLIT(-, E, Wrapping<E>)
LOCKSTEP_SPLIT(*, E, Wrapping<E>)
LOCKSTEP_SPLIT(/, E, E)
LOCKSTEP_SPLIT(&, E, E)
LOCKSTEP_SPLIT(|, E, E)
LOCKSTEP_SPLIT(^, E, E)
LOCKSTEP_SPLIT(<<, E, E)
LOCKSTEP_SPLIT(>>, E, E)
LOCKSTEP_SPLIT(<, MaskOf<E>, E)
LOCKSTEP_SPLIT(>, MaskOf<E>, E)
LOCKSTEP_SPLIT(>=, MaskOf<E>, E)
LOCKSTEP_SPLIT(==, MaskOf<E>, E)
LOCKSTEP_SPLIT(!=, MaskOf<E>, E)
#undef LOCKSTEP_SPLIT

/// -a.
template <class E, int n> [[gnu::always_inline]] inline SplitVector<E, n> operator-(const SplitVector<E, n>& a) {
  return by_parts<SplitVector<E, n>>([](auto x) { return (Vector<E>)(-(Vector<Wrapping<E>>)x); }, a);
}
/// a = a + b.
template <class E, int n, class B>
[[gnu::always_inline]] inline SplitVector<E, n>& operator+=(SplitVector<E, n>& a, const B& b) {
  return a = a + b;
}
/// a = a - b.
template <class E, int n, class B>
[[gnu::always_inline]] inline SplitVector<E, n>& operator-=(SplitVector<E, n>& a, const B& b) {
  return a = a - b;
}
/// a = a * b.
template <class E, int n, class B>
[[gnu::always_inline]] inline SplitVector<E, n>& operator*=(SplitVector<E, n>& a, const B& b) {
  return a = a * b;
}

using lockstep::choose;
/// For each lane, condition ? a : b.
template <class M, class E, int n>
[[gnu::always_inline]] inline SplitVector<E, n> choose(const SplitVector<M, n>& condition, const SplitVector<E, n>& a,
                                                       const SplitVector<E, n>& b) {
  return by_parts<SplitVector<E, n>>([](auto c, auto x, auto y) { return c ? x : y; }, condition, a, b);
}

// Functions for the compiler's own vectors (V) and for SplitVector.

/// The bits of v as a vector of another type of the same size.
template <class To, class V> [[gnu::always_inline]] inline To as(const V& v) { return (To)v; }
template <class To, class E, int n> [[gnu::always_inline]] inline To as(const SplitVector<E, n>& v) {
  return by_parts<To>([](auto x) { return (decltype(To{}.part[0] + 0)) x; }, v);
}

/// Reads v from memory.
template <class V> [[gnu::always_inline]] inline void copy_in(const void* from, V& v) {
  std::memcpy(&v, from, sizeof v);
}
/// Reads v from memory, register by register.
template <class E, int n> [[gnu::always_inline]] inline void copy_in(const void* from, SplitVector<E, n>& v) {
#pragma GCC unroll 8
  for (int i = 0; i < v.parts; ++i)
    std::memcpy(&v.part[i], static_cast<const char*>(from) + i * vector_bytes, vector_bytes);
}
/// Writes v to memory.
template <class V> [[gnu::always_inline]] inline void copy_out(const V& v, void* to) { std::memcpy(to, &v, sizeof v); }
/// Writes v to memory, register by register.
template <class E, int n> [[gnu::always_inline]] inline void copy_out(const SplitVector<E, n>& v, void* to) {
#pragma GCC unroll 8
  for (int i = 0; i < v.parts; ++i) std::memcpy(static_cast<char*>(to) + i * vector_bytes, &v.part[i], vector_bytes);
}

/// Converts each number.
template <class To, class V> [[gnu::always_inline]] inline To convert_lanes(const V& v) {
  return __builtin_convertvector(v, To);
}
/// Converts from a built-in vector with narrower elements.
template <class To, class V>
requires(requires { To::parts; }) [[gnu::always_inline]] inline To convert_lanes(const V& v) {
  using E = std::remove_cvref_t<decltype(v[0])>;
  typedef E Piece __attribute__((vector_size(sizeof(E) * To::each)));
  To result;
#pragma GCC unroll 8
  for (int i = 0; i < To::parts; ++i) {
    Piece piece;
    std::memcpy(&piece, reinterpret_cast<const char*>(&v) + i * int(sizeof piece), sizeof piece);
    result.part[i] = __builtin_convertvector(piece, std::remove_cvref_t<decltype(result.part[0])>);
  }
  return result;
}
/// Converts to a built-in vector with narrower elements.
template <class To, class E, int n> [[gnu::always_inline]] inline To convert_lanes(const SplitVector<E, n>& v) {
  using S = std::remove_cvref_t<decltype(To{}[0])>;
  typedef S Piece __attribute__((vector_size(sizeof(S) * SplitVector<E, n>::each)));
  To result{};
#pragma GCC unroll 8
  for (int i = 0; i < v.parts; ++i) {
    const Piece piece = __builtin_convertvector(v.part[i], Piece);
    std::memcpy(reinterpret_cast<char*>(&result) + i * int(sizeof piece), &piece, sizeof piece);
  }
  return result;
}

}  // namespace lockstep::on_cpu
