#pragma once
// The processor's own vector registers, for the innermost loops of matrix products. In these loops the 64-byte vectors
// of lanes.h would be slow on processors with smaller registers, because the compiler would keep them in memory.
#include <cstdint>
#include <utility>

namespace lockstep::on_cpu {

// The size of a vector register of the target processor, and the number of registers.
#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64, vector_registers = 32;  ///< AVX-512
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32, vector_registers = 16;  ///< AVX
#elif defined(__aarch64__)
inline constexpr int vector_bytes = 16, vector_registers = 32;  ///< NEON
#else
inline constexpr int vector_bytes = 16, vector_registers = 16;  ///< SSE2, and unknown processors
#endif

/// The factor by which the innermost loop of a product is unrolled. With only 16 registers, the loop's number of
/// instructions limits the speed, above all if another thread shares the core. Unrolling saves instructions for the
/// loop counter. To save more, the unrolled loop has no prefetch instructions: the processor prefetches by itself.
inline constexpr int unrolled_depth = vector_registers < 32 ? 8 : 1;

/// The type of a vector register.
template <class T> struct VectorOf { typedef T type __attribute__((vector_size(vector_bytes))); };
template <class T> using Vector = typename VectorOf<T>::type;                   ///< a vector register
template <class T> inline constexpr int lanes = vector_bytes / int(sizeof(T));  ///< number of elements of a Vector<T>

/// Keeps v in a register. Otherwise GCC reads v from memory for every multiplication that uses it, and two loads per
/// cycle halve the speed.
template <class V> [[gnu::always_inline]] inline void keep_in_register(V& v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#else
  (void)v;
#endif
}

/// For every lane l with (l & s) != 0, exchanges lane l of a and lane l - s of b. s is a power of two.
template <class T, int s, int... l>
[[gnu::always_inline]] inline void swap_lanes(Vector<T>& a, Vector<T>& b, std::integer_sequence<int, l...>) {
  constexpr int w = lanes<T>;
  const Vector<T> low = __builtin_shufflevector(a, b, (l & s ? w + l - s : l)...);
  b = __builtin_shufflevector(a, b, (l & s ? w + l : l + s)...);
  a = low;
}

/// Transposes a square of lanes<T> rows in registers: swaps halves, then quarters, and so on.
template <class T, int s = lanes<T> / 2> [[gnu::always_inline]] inline void transpose(Vector<T>* rows) {
  constexpr int w = lanes<T>;
#pragma GCC unroll 16
  for (int i = 0; i < w; ++i)
    if (!(i & s)) swap_lanes<T, s>(rows[i], rows[i + s], std::make_integer_sequence<int, w>());
  if constexpr (s > 1) transpose<T, s / 2>(rows);
}

}  // namespace lockstep::on_cpu
