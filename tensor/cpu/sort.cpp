// Operations along a dim in which the order of elements matters: arg max, sort, top k. Keys: tensor/sort_key.h.
#include <vector>

#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"
#include "tensor/kernels.h"
#include "tensor/lines.h"
#include "tensor/sort_key.h"

namespace lockstep::on_cpu {
namespace {

template <class Fn> void dispatch_order(DType dtype, const char* op, Fn&& fn) {  // bools are ordered as bytes
  dispatch<float, double, Half, BFloat16, int64_t, int32_t, int8_t, uint8_t>(dtype == boolean ? u8 : dtype, op, fn);
}

// --- arg max ---

// The type in which values are compared.
template <class T> using Compared = std::conditional_t<std::is_integral_v<T>, T, Acc<T>>;

// True if a comes before b: a is larger (or smaller if not `largest`), or only a is NaN.
template <bool largest, class C> bool better(C a, C b) { return (largest ? a > b : a < b) | ((a != a) & (b == b)); }

// The index of the first best value of p[0 .. n). Finds the best value of each block with vector code, then searches
// the best block for its position.
template <bool largest, class T> int64_t best_of_run(const T* p, int64_t n) {
  using C = Compared<T>;
  constexpr int64_t block = 512;
  constexpr int width = 64;
  C best = C(p[0]);
  int64_t best_block = 0;
  for (int64_t first = 0; first < n; first += block) {
    const int64_t length = std::min(block, n - first);
    C lanes[width];
    for (int l = 0; l < width; ++l) lanes[l] = C(p[first]);
    int64_t i = 0;
    for (; i + width <= length; i += width) {
      for (int l = 0; l < width; ++l) {
        const C v = C(p[first + i + l]);
        lanes[l] = better<largest>(v, lanes[l]) ? v : lanes[l];
      }
    }
    for (; i < length; ++i) {
      const C v = C(p[first + i]);
      lanes[0] = better<largest>(v, lanes[0]) ? v : lanes[0];
    }
    for (int half = width / 2; half > 0; half /= 2)
      for (int l = 0; l < half; ++l) lanes[l] = better<largest>(lanes[l + half], lanes[l]) ? lanes[l + half] : lanes[l];
    if (better<largest>(lanes[0], best)) best = lanes[0], best_block = first;
  }
  int64_t i = best_block;
  while (!(C(p[i]) == best) && C(p[i]) == C(p[i])) ++i;  // equal, or the first NaN if `best` is NaN
  return i;
}

// The best value and its index for each of `width` lines of n values. Line j has the values p[i * inner + j].
template <bool largest, class T>
void best_of_columns(const T* p, int64_t n, int64_t inner, int64_t width, T* values, int64_t* indices) {
  using C = Compared<T>;
  constexpr int64_t strip = 256;
  for (int64_t first = 0; first < width; first += strip) {
    const int64_t count = std::min(strip, width - first);
    C best[strip];
    int64_t at[strip] = {};
    for (int64_t j = 0; j < count; ++j) best[j] = C(p[first + j]);
    for (int64_t i = 1; i < n; ++i) {
      const T* row = p + i * inner + first;
      for (int64_t j = 0; j < count; ++j) {
        const C v = C(row[j]);
        const bool take = better<largest>(v, best[j]);
        best[j] = take ? v : best[j];
        at[j] = take ? i : at[j];
      }
    }
    for (int64_t j = 0; j < count; ++j) values[first + j] = T(best[j]), indices[first + j] = at[j];
  }
}

template <bool largest, class T> void arg_reduce_lines(const T* p, const Lines& lines, T* values, int64_t* indices) {
  if (lines.inner == 1 && lines.outer == 1) {  // one long line: the best of pieces of fixed length, in order
    constexpr int64_t piece = 1 << 16;
    const int64_t pieces = (lines.n + piece - 1) / piece;
    std::vector<int64_t> found(pieces);
    parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        found[i] = i * piece + best_of_run<largest>(p + i * piece, std::min(piece, lines.n - i * piece));
      }
    });
    int64_t best = found[0];
    for (int64_t at : found) {
      if (better<largest>(Compared<T>(p[at]), Compared<T>(p[best]))) best = at;
    }
    values[0] = p[best], indices[0] = best;
  } else if (lines.inner == 1) {
    parallel_for(lines.outer, grain / lines.n, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        indices[line] = best_of_run<largest>(p + line * lines.n, lines.n);
        values[line] = p[line * lines.n + indices[line]];
      }
    });
  } else {
    parallel_for(lines.count(), std::max<int64_t>(16, grain / lines.n), [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end;) {
        const int64_t width = std::min(end - line, lines.inner - line % lines.inner);
        best_of_columns<largest>(p + lines.start(line), lines.n, lines.inner, width, values + line, indices + line);
        line += width;
      }
    });
  }
}

// --- sorting ---

template <class K> struct Entry {
  K key;
  uint32_t at;
  friend bool operator<(const Entry& a, const Entry& b) { return a.key != b.key ? a.key < b.key : a.at < b.at; }
};

// Sorts entries by key. The caller passes them in the order of their positions (`at`), and entries with equal keys keep
// this order. For 512 entries or more it is a radix sort, which skips a digit if it is equal in all keys.
template <class K> void sort_entries(Entry<K>* entries, Entry<K>* spare, int64_t n) {
  if (n < 512) return std::sort(entries, entries + n);
  constexpr int digit_bits = 8, digits = sizeof(K) * 8 / digit_bits, buckets = 1 << digit_bits;
  std::vector<uint32_t> counts(digits * buckets);
  for (int64_t i = 0; i < n; ++i) {
    for (int d = 0; d < digits; ++d) ++counts[d * buckets + (entries[i].key >> (d * digit_bits) & (buckets - 1))];
  }
  Entry<K>*from = entries, *to = spare;
  for (int d = 0; d < digits; ++d) {
    uint32_t* count = &counts[d * buckets];
    if (count[from[0].key >> (d * digit_bits) & (buckets - 1)] == uint32_t(n)) continue;
    uint32_t sum = 0;
    for (int b = 0; b < buckets; ++b) sum += std::exchange(count[b], sum);
    for (int64_t i = 0; i < n; ++i) to[count[from[i].key >> (d * digit_bits) & (buckets - 1)]++] = from[i];
    std::swap(from, to);
  }
  if (from != entries) std::copy(from, from + n, entries);
}

// Writes the k smallest entries of a line, sorted, to entries[0 .. k). If all bits of `flip` are set, these are the k
// largest instead. A block is skipped if none of its keys is below the k-th smallest key so far.
template <class T>
void select_entries(const T* p, int64_t stride, int64_t n, int64_t k, SortKey<T> flip,
                    std::vector<Entry<SortKey<T>>>& entries) {
  using K = SortKey<T>;
  constexpr int64_t block = 64;
  const size_t capacity = size_t(std::max<int64_t>(2 * k, k + 512));
  entries.clear();
  K limit = ~K(0);
  bool full = false;  // true: `limit` is the k-th lowest key so far, so higher keys can be skipped
  const auto cut = [&] {
    std::nth_element(entries.begin(), entries.begin() + (k - 1), entries.end());
    limit = entries[k - 1].key;
    entries.resize(k);
    full = true;
  };
  for (int64_t first = 0; first < n; first += block) {
    const int64_t length = std::min(block, n - first);
    K keys[block];
    for (int64_t i = 0; i < length; ++i) keys[i] = sort_key(p[(first + i) * stride]) ^ flip;
    if (full) {
      int64_t below = 0;
      for (int64_t i = 0; i < length; ++i) below += keys[i] < limit;
      if (below == 0) continue;
    }
    for (int64_t i = 0; i < length; ++i) {
      // A key equal to the limit is left out: of equal keys, the first ones are selected.
      if (!full || keys[i] < limit) entries.push_back({keys[i], uint32_t(first + i)});
    }
    if (entries.size() >= capacity) cut();
  }
  if (int64_t(entries.size()) > k) cut();
  std::sort(entries.begin(), entries.end());
}

}  // namespace

void arg_reduce(bool largest, const Tensor& x, int dim, Tensor& values, Tensor& indices) {
  if (values.numel() == 0) return;
  const Tensor rows = x.contiguous();
  const Lines lines(x, dim);
  dispatch_order(x.dtype(), "arg_reduce", [&]<class T> {
    const T* p = static_cast<const T*>(rows.raw_data());
    T* to = static_cast<T*>(values.raw_data());
    if (largest) arg_reduce_lines<true>(p, lines, to, indices.data<int64_t>());
    else arg_reduce_lines<false>(p, lines, to, indices.data<int64_t>());
  });
}

void sort(const Tensor& x, int dim, bool descending, Tensor& values, Tensor& indices) {
  if (x.numel() == 0) return;
  const Tensor source = x.contiguous();
  const Lines lines(x, dim);
  dispatch_order(x.dtype(), "sort", [&]<class T> {
    using K = SortKey<T>;
    const T* p = static_cast<const T*>(source.raw_data());
    T* to = static_cast<T*>(values.raw_data());
    int64_t* places = indices.data<int64_t>();
    const K flip = descending ? ~K(0) : K(0);
    parallel_for(lines.count(), std::max<int64_t>(1, grain / 8 / lines.n), [&](int64_t begin, int64_t end) {
      std::vector<Entry<K>> entries(size_t(lines.n)), spare(size_t(lines.n));
      for (int64_t line = begin; line < end; ++line) {
        const int64_t start = lines.start(line);
        for (int64_t i = 0; i < lines.n; ++i)
          entries[i] = {K(sort_key(p[start + i * lines.inner]) ^ flip), uint32_t(i)};
        sort_entries(entries.data(), spare.data(), lines.n);
        for (int64_t i = 0; i < lines.n; ++i) {
          const int64_t at = start + i * lines.inner;
          places[at] = entries[i].at;
          to[at] = p[start + places[at] * lines.inner];
        }
      }
    });
  });
}

void topk(const Tensor& x, int dim, int64_t k, bool largest, Tensor& values, Tensor& indices) {
  if (values.numel() == 0) return;
  const Tensor source = x.contiguous();
  const Lines lines(x, dim), picked(values, dim);
  dispatch_order(x.dtype(), "topk", [&]<class T> {
    using K = SortKey<T>;
    const T* p = static_cast<const T*>(source.raw_data());
    T* to = static_cast<T*>(values.raw_data());
    int64_t* places = indices.data<int64_t>();
    parallel_for(lines.count(), std::max<int64_t>(1, grain / lines.n), [&](int64_t begin, int64_t end) {
      std::vector<Entry<K>> entries;
      for (int64_t line = begin; line < end; ++line) {
        const int64_t start = lines.start(line), out = picked.start(line);
        select_entries(p + start, lines.inner, lines.n, k, largest ? ~K(0) : K(0), entries);
        for (int64_t i = 0; i < k; ++i) {
          const int64_t at = out + i * lines.inner;
          places[at] = entries[i].at;
          to[at] = p[start + places[at] * lines.inner];
        }
      }
    });
  });
}

}  // namespace lockstep::on_cpu
