// Rotary position embedding (Su et al., RoFormer): rotates each pair (x[i], x[i + D/2]) of a token by an angle that
// depends on i and on the token's position. Uses SIMD vectors.
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"
#include "tensor/kernels.h"

namespace lockstep::on_cpu {
namespace {

/// The offset of row n, where the rows of all leading dims are counted in row-major order.
int64_t row_offset(const Tensor& x, int64_t n) {
  int64_t offset = 0;
  for (int d = x.dim() - 2; d >= 0; n /= x.shape()[d--]) offset += n % x.shape()[d] * x.strides()[d];
  return offset;
}

template <class T, class Table>
void rotate(const T* x, const Table* cosine, const Table* sine, Acc<T> sign, int64_t half, T* out) {
  each_vector<Acc<T>>(half, [&](int64_t i, auto count, auto) {
    const auto a = load(x + i, count), b = load(x + half + i, count);
    const auto c = load(cosine + i, count), s = load(sine + i, count) * sign;
    store(out + i, a * c - b * s, count);
    store(out + half + i, b * c + a * s, count);
  });
}

}  // namespace

void rotary(const Tensor& x, const Tensor& cosine, const Tensor& sine, bool inverse, Tensor& out) {
  const int64_t tokens = x.shape()[x.dim() - 2], width = x.shape().back(), half = width / 2;
  if (x.numel() == 0) return;
  const auto run = [&]<class T, class Table> {
    const T* const from = x.data<T>();
    T* const to = out.data<T>();
    const Table *const c = cosine.data<Table>(), *const s = sine.data<Table>();
    parallel_for(x.numel() / width, std::max<int64_t>(1, (1 << 14) / width), [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end;) {
        // Rotates `count` tokens that have the same indices in the dims before the token dim.
        const int64_t t = n % tokens, count = std::min(end - n, tokens - t);
        const T* in = from + row_offset(x, n);
        T* result = to + row_offset(out, n);
        for (int64_t i = 0; i < count; ++i, in += x.strides()[x.dim() - 2], result += out.strides()[x.dim() - 2])
          rotate(in, c + (t + i) * half, s + (t + i) * half, inverse ? Acc<T>(-1) : Acc<T>(1), half, result);
        n += count;
      }
    });
  };
  dispatch<float, double, Half, BFloat16>(x.dtype(), "rotary", [&]<class T> {
    if (cosine.dtype() == x.dtype()) return run.template operator()<T, T>();
    if constexpr (sizeof(T) == 2) run.template operator()<T, float>();  // 16-bit values, tables in f32
  });
}

}  // namespace lockstep::on_cpu
