#pragma once
// The sum of exponentials of a row, for softmax and cross entropy. A row is read from memory once.
#include "tensor/cuda/rows.h"

namespace lockstep::on_cuda {

/// The number that is subtracted before exponentials of a row are taken: the row's maximum `highest`, or 0 if all
/// elements are -inf, which avoids NaN.
template <class A> __device__ inline A base_of(A highest) { return highest == -infinity<A> ? A(0) : highest; }

/// Reads the row and computes its largest value and the sum of exp(value - largest).
template <class Row> __device__ void sum_of_exp(Row& row, typename Row::A& largest, typename Row::A& sum) {
  using T = typename Row::T;
  using A = typename Row::A;
  constexpr int V = Row::V;
  A highest = -infinity<A>, part = 0;  // of this thread
  const auto add = [&](const RowExp<T>& e, const Vector<T, V>& x) {
    A v[V];
    widen(x, v);
#pragma unroll
    for (int j = 0; j < V; ++j) part += e(v[j]);
  };
  const auto raise = [&](const Vector<T, V>& x) {
    A v[V], top = highest;
    widen(x, v);
#pragma unroll
    for (int j = 0; j < V; ++j) top = larger_of(v[j], top);
    return top;
  };
  if constexpr (Row::in_registers) {  // first the maximum, then the sum
    row.read([&](int64_t, int, typename Row::In in, typename Row::Kept kept) { highest = raise(kept[0] = in[0]); });
    largest = row.max(highest);
    const RowExp<T> e(base_of(largest));
    row.each([&](int64_t, int, typename Row::Kept kept) { add(e, kept[0]); });
    sum = row.sum(part) * e.correction();
  } else {  // both in one pass (Milakov and Gimelshein, 2018); the maximum seldom grows after the first vectors
    RowExp<T> e(A(0));
    row.read([&](int64_t, int, typename Row::In in, typename Row::Kept kept) {
      const A top = raise(kept[0] = in[0]);
      if (!(top == highest)) {  // also NaN
        const RowExp<T> higher(base_of(top));
        if (part != 0) part *= higher.from(base_of(highest)) * e.correction() / higher.correction();
        highest = top, e = higher;
      }
      add(e, kept[0]);
    });
    largest = row.max(highest);
    const RowExp<T> all(base_of(largest));
    sum = row.sum(part * e.correction() * all.from(highest));
  }
}

}  // namespace lockstep::on_cuda
