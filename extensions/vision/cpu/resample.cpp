// Resampling of images in two passes, down and across; a pass computes weighted sums of neighbouring pixels. Threads
// divide the lines of the result. If the result has fewer lines than x, the pass down runs first, because the pass
// across then has fewer lines to resample. Otherwise the pass across runs first. Its lines are kept, because several
// lines of the result read each of them.
#include <algorithm>
#include <utility>
#include <vector>

#include "extensions/vision/kernels.h"
#include "tensor/cpu/parallel.h"

namespace lockstep::on_cpu {
namespace {

/// An axis with its weights in the dtype of the tensor.
template <class T> struct Axis {
  int64_t in, out, taps;
  const int32_t* first;
  std::vector<T> weight;
  bool same;
};
template <class T> Axis<T> axis_of(const ResampleAxis& a) {
  return {a.in, a.out, a.taps, a.first.data(), std::vector<T>(a.weight.begin(), a.weight.end()), a.is_same()};
}

template <class T, int K, bool more> void add_lines(const T* const* lines, const T* w, int64_t n, T* __restrict out) {
  const T *a = lines[0], *b = lines[K > 1 ? 1 : 0], *c = lines[K > 2 ? 2 : 0], *d = lines[K > 3 ? 3 : 0];
  const T wa = w[0], wb = w[K > 1 ? 1 : 0], wc = w[K > 2 ? 2 : 0], wd = w[K > 3 ? 3 : 0];
  for (int64_t i = 0; i < n; ++i) {
    T sum = wa * a[i];
    if (K > 1) sum += wb * b[i];
    if (K > 2) sum += wc * c[i];
    if (K > 3) sum += wd * d[i];
    out[i] = more ? out[i] + sum : sum;
  }
}

/// Calls fn.operator()<K, more>(first) for groups of K <= 4 of `count` terms; `more` is true for all groups but the
/// first.
template <class Fn> void in_fours(int64_t count, const Fn& fn) {
  const auto call = [&]<int K>(int64_t at) {
    if (at == 0) fn.template operator()<K, false>(at);
    else fn.template operator()<K, true>(at);
  };
  for (int64_t at = 0; at < count; at += 4) {
    const int64_t left = count - at;
    if (left == 1) call.template operator()<1>(at);
    else if (left == 2) call.template operator()<2>(at);
    else if (left == 3) call.template operator()<3>(at);
    else call.template operator()<4>(at);
  }
}

/// The weighted sum of `count` lines of n numbers.
template <class T> void sum_lines(const T* const* lines, const T* w, int64_t count, int64_t n, T* out) {
  if (count == 0) std::fill_n(out, n, T(0));
  in_fours(count, [&]<int K, bool more>(int64_t at) { add_lines<T, K, more>(lines + at, w + at, n, out); });
}

template <class T, int K, bool more>
void add_places(const T* line, const int32_t* first, const T* w, int64_t n, T* __restrict out) {
  for (int64_t i = 0; i < n; ++i) {
    const T* const at = line + first[i];
    T sum = 0;
    for (int k = 0; k < K; ++k) {
      const T weight = w[k * n + i], value = weight == 0 ? T(0) : at[k];
      sum += weight * value;
    }
    out[i] = more ? out[i] + sum : sum;
  }
}

/// Resamples a line of x along an axis. The `inner` adjacent numbers of a position have the same weights.
template <class T> void stretch(const T* line, const Axis<T>& axis, int64_t inner, T* out) {
  if (axis.same) return void(std::copy_n(line, axis.out * inner, out));
  if (inner == 1)
    return in_fours(axis.taps, [&]<int K, bool more>(int64_t k) {
      add_places<T, K, more>(line + k, axis.first, axis.weight.data() + k * axis.out, axis.out, out);
    });
  std::vector<const T*> lines;
  std::vector<T> weights;
  for (int64_t i = 0; i < axis.out; ++i) {
    lines.clear(), weights.clear();
    for (int64_t k = 0; k < axis.taps; ++k)
      if (const T w = axis.weight[size_t(k * axis.out + i)]; w != 0) {
        lines.push_back(line + (axis.first[i] + k) * inner);
        weights.push_back(w);
      }
    sum_lines(lines.data(), weights.data(), int64_t(lines.size()), inner, out + i * inner);
  }
}

template <class T>
void resample_planes(const Tensor& x, const ResampleAxis& down, const ResampleAxis& across, Tensor& out) {
  const Axis<T> rows = axis_of<T>(down), columns = axis_of<T>(across);
  const int64_t inner = x.size(3), from_line = columns.in * inner, to_line = columns.out * inner;
  const T* const from = x.data<T>();
  T* const to = out.data<T>();
  const bool lines_first = rows.out < rows.in || columns.same;
  parallel_for(x.size(0) * rows.out, std::max<int64_t>(1, grain / std::max(from_line, to_line)),
               [&](int64_t begin, int64_t end) {
                 // If lines_first, `held` has a sum of lines of x. Else it has `taps` resampled lines: line y is in
                 // slot y % taps.
                 std::vector<T> held(size_t(lines_first ? from_line : rows.taps * to_line));
                 std::vector<int64_t> holds(size_t(rows.taps), -1);
                 std::vector<const T*> lines;
                 std::vector<T> weights;
                 for (int64_t at = begin; at < end; ++at) {
                   const int64_t unit = at / rows.out, i = at % rows.out;
                   T* const result = to + at * to_line;
                   if (rows.same) {
                     stretch(from + at * from_line, columns, inner, result);
                     continue;
                   }
                   lines.clear(), weights.clear();
                   for (int64_t k = 0; k < rows.taps; ++k) {
                     const T w = rows.weight[size_t(k * rows.out + i)];
                     if (w == 0) continue;
                     const int64_t y = rows.first[i] + k, line = unit * rows.in + y, slot = y % rows.taps;
                     const T* place = from + line * from_line;
                     if (!lines_first) {
                       T* const kept = held.data() + slot * to_line;
                       if (std::exchange(holds[size_t(slot)], line) != line) stretch(place, columns, inner, kept);
                       place = kept;
                     }
                     lines.push_back(place);
                     weights.push_back(w);
                   }
                   const bool last = !lines_first || columns.same;
                   sum_lines(lines.data(), weights.data(), int64_t(lines.size()), last ? to_line : from_line,
                             last ? result : held.data());
                   if (!last) stretch(held.data(), columns, inner, result);
                 }
               });
}

}  // namespace

void resample(const Tensor& x, const ResampleAxis& rows, const ResampleAxis& columns, Tensor& out) {
  if (out.numel() == 0) return;
  dispatch<float, double>(x.dtype(), "resample", [&]<class T> { resample_planes<T>(x, rows, columns, out); });
}

}  // namespace lockstep::on_cpu
