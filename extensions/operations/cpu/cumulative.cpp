// Running sums and products along a dim.
#include "extensions/operations/kernels.h"

#include <algorithm>
#include <type_traits>

#include "tensor/convert.h"
#include "tensor/cpu/parallel.h"
#include "tensor/lines.h"

namespace lockstep::on_cpu {

void cumulative(bool product, const Tensor& x, int dim, bool reverse, Tensor& out) {
  if (x.numel() == 0) return;
  const Tensor source = x.to(out.dtype()).contiguous();
  const Lines lines(x, dim);
  dispatch<float, double, Half, BFloat16, int64_t>(out.dtype(), "cumulative", [&]<class T> {
    using A = std::conditional_t<std::is_integral_v<T>, T, double>;  // running sums are long: f64 keeps them precise
    const T* p = source.data<T>();
    T* to = out.data<T>();
    const int64_t step = reverse ? -lines.inner : lines.inner;
    parallel_for(lines.count(), std::max<int64_t>(1, grain / lines.n), [&](int64_t begin, int64_t end) {
      if (lines.inner == 1) {
        for (int64_t line = begin; line < end; ++line) {
          int64_t at = line * lines.n + (reverse ? lines.n - 1 : 0);
          A sum = A(product);
          for (int64_t i = 0; i < lines.n; ++i, at += step) {
            sum = product ? sum * convert<A>(p[at]) : sum + convert<A>(p[at]);
            to[at] = convert<T>(sum);
          }
        }
        return;
      }
      constexpr int64_t strip = 256;
      for (int64_t line = begin; line < end;) {
        const int64_t width = std::min({strip, end - line, lines.inner - line % lines.inner});
        int64_t at = lines.start(line) + (reverse ? (lines.n - 1) * lines.inner : 0);
        A sum[strip];
        std::fill_n(sum, width, A(product));
        for (int64_t i = 0; i < lines.n; ++i, at += step) {
          for (int64_t j = 0; j < width; ++j) {
            const A v = convert<A>(p[at + j]);
            sum[j] = product ? sum[j] * v : sum[j] + v;
            to[at + j] = convert<T>(sum[j]);
          }
        }
        line += width;
      }
    });
  });
}

}  // namespace lockstep::on_cpu
