// Moving elements by index: embedding, gather, scatter, index_select, index_add, and triangles. Indices have been
// checked. Threads split the output, never the indices, so the order of a sum follows from the indices alone.
#include <cstring>
#include <numeric>
#include <vector>

#include "tensor/convert.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"
#include "tensor/kernel_args.h"
#include "tensor/kernels.h"

namespace lockstep::on_cpu {
namespace {

// Calls fn.operator()<T>() with an unsigned integer as wide as the dtype: only the width matters for moving elements.
template <class Fn> void dispatch_width(DType dtype, Fn&& fn) {
  switch (size_of(dtype)) {
    case 1: return fn.template operator()<uint8_t>();
    case 2: return fn.template operator()<uint16_t>();
    case 4: return fn.template operator()<uint32_t>();
    case 8: return fn.template operator()<uint64_t>();
    default: return fn.template operator()<unsigned __int128>();  // c128
  }
}

struct Split {
  int64_t outer = 1, n = 1, inner = 1;  // sizes before the dim, of it, after it
};

Split split_at(const Tensor& x, int dim) {
  Split split;
  if (x.dim() == 0) return split;
  split.n = x.shape()[dim];
  for (int i = 0; i < x.dim(); ++i) (i < dim ? split.outer : split.inner) *= i == dim ? 1 : x.shape()[i];
  return split;
}

// --- rows ---

// out[o, i, :] = x[o, index[i], :], rows of `inner` elements.
template <class T> void select_rows(const T* x, const Split& split, const int64_t* index, int64_t count, T* out) {
  const int64_t inner = split.inner;
  parallel_for(split.outer * count, std::max<int64_t>(1, grain / inner), [&](int64_t begin, int64_t end) {
    int64_t o = begin / count, i = begin % count;
    for (int64_t row = begin; row < end; ++row) {
      const T* from = x + (o * split.n + index[i]) * inner;
      if (inner == 1) out[row] = *from;
      else std::memcpy(out + row * inner, from, size_t(inner) * sizeof(T));
      if (++i == count) i = 0, ++o;
    }
  });
}

// out[o, index[i], :] += x[o, i, :], except where index[i] is `skip`. The rows of x that go to the same row of out are
// summed in groups of rows_of_part rows, as on CUDA. Threads divide the values of o among themselves or, if o has only
// one value, the columns. f16 and bf16 are summed in f32 and rounded once.
template <class T>
void add_rows(const T* x, const Split& split, const int64_t* index, int64_t count, int64_t skip, T* out) {
  using Sum = std::conditional_t<is_half<T>, float, T>;
  const int64_t inner = split.inner;
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return index[a] < index[b]; });
  const auto add = [&](int64_t o, int64_t first, int64_t last) {
    const T* from = x + o * count * inner;
    T* to = out + o * split.n * inner;
    constexpr int64_t strip = 512;
    Sum sum[strip], part[strip];
    for (int64_t c = first; c < last; c += strip) {
      const int64_t width = std::min(strip, last - c);
      // Adds the rows order[begin] to order[end - 1] of x to `all`.
      const auto add_to = [&](Sum* all, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const T* q = from + order[i] * inner + c;
          for (int64_t j = 0; j < width; ++j) all[j] = Sum(all[j] + Sum(q[j]));
        }
      };
      for (int64_t begin = 0, end = 0; begin < count; begin = end) {
        const int64_t row = index[order[begin]];
        while (end < count && index[order[end]] == row) ++end;
        if (row == skip) continue;
        T* p = to + row * inner + c;
        for (int64_t j = 0; j < width; ++j) sum[j] = Sum(p[j]);
        add_to(sum, begin, std::min(begin + rows_of_part, end));
        for (int64_t i = begin + rows_of_part; i < end; i += rows_of_part) {
          std::fill_n(part, width, Sum(0));
          add_to(part, i, std::min(i + rows_of_part, end));
          for (int64_t j = 0; j < width; ++j) sum[j] = Sum(sum[j] + part[j]);
        }
        for (int64_t j = 0; j < width; ++j) p[j] = T(sum[j]);
      }
    }
  };
  const int64_t work = std::max<int64_t>(1, count);
  if (split.outer > 1) {
    parallel_for(split.outer, std::max<int64_t>(1, grain / (work * inner)), [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) add(o, 0, inner);
    });
  } else {
    parallel_for(inner, std::max<int64_t>(64, grain / work), [&](int64_t begin, int64_t end) { add(0, begin, end); });
  }
}

void add_rows_of(const char* op, const Tensor& source, int dim, const Tensor& index, int64_t skip, Tensor& out) {
  if (source.numel() == 0) return;
  const Tensor rows = source.contiguous(), places = index.contiguous();
  dispatch<float, double, Half, BFloat16, int64_t, int32_t, int8_t, uint8_t>(out.dtype(), op, [&]<class T> {
    add_rows(rows.data<T>(), split_at(out, dim), places.data<int64_t>(), places.numel(), skip, out.data<T>());
  });
}

// --- elements ---

// Calls fn(value, offset_a, offset_b) for every element of `index`, with its offsets in two tensors of strides a and b.
// offset_a does not count dim `dim`, because `value` is the index along it. Threads divide the work along another
// dim, so one thread makes all calls that have the same offset_a.
template <class Fn> void each_index(const Tensor& index, int dim, const Strides& a, const Strides& b, Fn&& fn) {
  const int rank = index.dim();
  const int64_t* values = index.data<int64_t>();
  const Shape& shape = index.shape();
  if (rank == 0) return fn(values[0], 0, 0);
  int cut = -1;
  for (int i = 0; i < rank; ++i) {
    if (i != dim && (cut < 0 || shape[i] > shape[cut])) cut = i;
  }
  const int last = rank - 1;
  const int64_t a_step = dim == last ? 0 : a[last], b_step = b[last];
  const auto visit = [&](int64_t begin, int64_t end) {  // a range of the split dim
    int64_t low[Dims::max_rank] = {}, high[Dims::max_rank], at[Dims::max_rank];
    for (int i = 0; i < rank; ++i) high[i] = shape[i];
    if (cut >= 0) low[cut] = begin, high[cut] = end;
    std::copy(low, low + rank, at);
    while (true) {
      int64_t place = 0, in_a = 0, in_b = 0;
      for (int i = 0; i < last; ++i) {
        place += at[i] * index.strides()[i];
        in_b += at[i] * b[i];
        if (i != dim) in_a += at[i] * a[i];
      }
      for (int64_t j = low[last]; j < high[last]; ++j) fn(values[place + j], in_a + j * a_step, in_b + j * b_step);
      int d = last - 1;
      for (; d >= 0; --d) {
        if (++at[d] < high[d]) break;
        at[d] = low[d];
      }
      if (d < 0) return;
    }
  };
  if (cut < 0) return visit(0, 0);
  parallel_for(shape[cut], std::max<int64_t>(1, grain / (index.numel() / shape[cut])), visit);
}

Strides strides_or_scalar(const Tensor& x) { return x.dim() == 0 ? Strides{1} : x.strides(); }

}  // namespace

void embedding(const Tensor& weight, const Tensor& index, Tensor& out) { index_select(weight, 0, index, out); }

void embedding_grad(const Tensor& grad, const Tensor& index, int64_t padding_index, Tensor& grad_weight) {
  add_rows_of("embedding_grad", grad, 0, index, padding_index, grad_weight);
}

void index_select(const Tensor& x, int dim, const Tensor& index, Tensor& out) {
  if (out.numel() == 0) return;
  const Tensor rows = x.contiguous(), places = index.contiguous();
  const Split split = split_at(x, dim);
  dispatch_width(x.dtype(), [&]<class T> {
    select_rows(static_cast<const T*>(rows.raw_data()), split, places.data<int64_t>(), places.numel(),
                static_cast<T*>(out.raw_data()));
  });
}

void index_add(const Tensor& source, int dim, const Tensor& index, Tensor& out) {
  add_rows_of("index_add", source, dim, index, -1, out);
}

void gather(const Tensor& x, int dim, const Tensor& index, Tensor& out) {
  if (out.numel() == 0) return;
  const Tensor places = index.contiguous();
  const int64_t stride = strides_or_scalar(x)[dim];
  dispatch_width(x.dtype(), [&]<class T> {
    const T* from = static_cast<const T*>(x.raw_data());
    T* to = static_cast<T*>(out.raw_data());
    each_index(places, dim, strides_or_scalar(x), strides_or_scalar(out),
               [=](int64_t i, int64_t in_x, int64_t in_out) { to[in_out] = from[in_x + i * stride]; });
  });
}

void scatter(bool add, const Tensor& source, int dim, const Tensor& index, Tensor& out) {
  if (index.numel() == 0) return;
  if (add && is_floating(out.dtype()) && size_of(out.dtype()) == 2) {  // sums in f32, rounded once
    Tensor wide = out.to(f32);
    scatter(add, source.to(f32), dim, index, wide);
    return copy(wide, out);
  }
  const Tensor places = index.contiguous();
  const Strides from_strides = strides_or_scalar(source), to_strides = strides_or_scalar(out);
  const int64_t stride = to_strides[dim];
  if (add) {
    dispatch<float, double, int64_t, int32_t, int8_t, uint8_t>(out.dtype(), "scatter_add", [&]<class T> {
      const T* from = source.data<T>();
      T* to = out.data<T>();
      each_index(places, dim, to_strides, from_strides,
                 [=](int64_t i, int64_t in_out, int64_t in_source) { to[in_out + i * stride] += from[in_source]; });
    });
  } else {
    dispatch_width(out.dtype(), [&]<class T> {
      const T* from = static_cast<const T*>(source.raw_data());
      T* to = static_cast<T*>(out.raw_data());
      each_index(places, dim, to_strides, from_strides,
                 [=](int64_t i, int64_t in_out, int64_t in_source) { to[in_out + i * stride] = from[in_source]; });
    });
  }
}

void triangle(const Tensor& x, int64_t diagonal, bool upper, Tensor& out) {
  if (x.numel() == 0) return;
  const Tensor rows = x.contiguous();
  const int64_t n = x.shape()[x.dim() - 2], m = x.shape()[x.dim() - 1];
  dispatch_width(x.dtype(), [&]<class T> {
    const T* from = static_cast<const T*>(rows.raw_data());
    T* to = static_cast<T*>(out.raw_data());
    parallel_for(x.numel() / m, std::max<int64_t>(1, grain / m), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        // Column j is kept when j - i >= diagonal (upper) or <= diagonal (lower).
        const int64_t i = row % n, edge = std::clamp(i + diagonal + (upper ? 0 : 1), int64_t(0), m);
        const T* p = from + row * m;
        T* q = to + row * m;
        const int64_t first = upper ? edge : 0, last = upper ? m : edge;
        std::fill(q, q + first, T(0));
        std::copy(p + first, p + last, q + first);
        std::fill(q + last, q + m, T(0));
      }
    });
  });
}

}  // namespace lockstep::on_cpu
