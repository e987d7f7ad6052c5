#pragma once
// The innermost loop of copies and dtype conversions.
#include <algorithm>
#include <cstring>

#include "tensor/convert.h"

namespace lockstep::on_cpu {

/// Converts n elements from one dtype to another, along strides. Source and destination must not overlap.
template <class From, class To>
void copy_run(const From* from, int64_t from_stride, To* to, int64_t to_stride, int64_t n) {
  if (from_stride == 1 && to_stride == 1) {
    if constexpr (std::is_same_v<From, To>) {
      std::memcpy(to, from, size_t(n) * sizeof(To));
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < n; ++i) to[i] = convert<To>(from[i]);
    }
  } else if (from_stride == 0 && to_stride == 1) {
    std::fill_n(to, n, convert<To>(*from));
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * to_stride] = convert<To>(from[i * from_stride]);
  }
}

}  // namespace lockstep::on_cpu
