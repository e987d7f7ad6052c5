#pragma once
// Sort keys: unsigned integers in the order of the values, with NaN largest and -0 equal to 0. Internal.
#include <bit>
#include <type_traits>

#include "tensor/convert.h"

namespace lockstep {

/// Type of the key of a T.
template <class T> using SortKey = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

/// The key of a value.
template <class T> LOCKSTEP_HD inline SortKey<T> sort_key(T value) {
  using K = SortKey<T>;
  constexpr K top = K(1) << (sizeof(K) * 8 - 1);
  if constexpr (std::is_integral_v<T>) {
    return K(std::conditional_t<sizeof(K) == 8, int64_t, int32_t>(value)) ^ top;
  } else {
    using V = std::conditional_t<is_half<T>, float, T>;
    const V v = V(value) + V(0);  // -0 + 0 is 0
    const K bits = std::bit_cast<K>(v);
    const K key = bits ^ (bits & top ? ~K(0) : top);
    return v == v ? key : ~K(0);
  }
}

}  // namespace lockstep
