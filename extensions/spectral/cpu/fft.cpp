// Fourier transforms of any length. Each lane of a vector register holds a number of a different sequence, so all
// arithmetic is vector code whatever the length.
//
//   Columns      lengths made of small primes: Stockham's form of Cooley and Tukey's algorithm ("An algorithm for the
//                machine calculation of complex Fourier series", 1965), which needs no reordering; other lengths as a
//                convolution (Bluestein, "A linear filtering approach to the computation of the DFT", 1970)
//   Rows         long rows as a matrix n1 x n2: transforms of its columns, twiddle factors, transforms of its rows
//                (Bailey, "FFTs in external or hierarchical memory", 1990); short rows directly, `lanes` rows at a time
//
// How a row is split depends on its length alone, so results are the same for any number of threads. Roots of unity
// are computed in f64 and rounded once.
#include <algorithm>
#include <memory>
#include <vector>

#include "extensions/spectral/cpu/fft_columns.h"
#include "extensions/spectral/kernels.h"
#include "tensor/cpu/parallel.h"
#include "tensor/ops.h"

namespace lockstep::on_cpu {
namespace fourier {
namespace {

// --- loads and stores of complex numbers; an inverse transform swaps re and im (`swap`) in each load and store ---

template <class T, int... l>
[[gnu::always_inline]] inline Lanes<T> load(const std::complex<T>* x, bool swap, std::integer_sequence<int, l...>) {
  Vector<T> a, b;
  __builtin_memcpy(&a, x, sizeof a);
  __builtin_memcpy(&b, x + lanes<T> / 2, sizeof b);
  const Lanes<T> out{__builtin_shufflevector(a, b, (2 * l)...), __builtin_shufflevector(a, b, (2 * l + 1)...)};
  return swap ? swapped(out) : out;
}

template <class T, int... l>
[[gnu::always_inline]] inline void store(const Lanes<T>& a, std::complex<T>* to, bool swap, T scale,
                                         std::integer_sequence<int, l...>) {
  constexpr int w = lanes<T>;
  const Vector<T> re = (swap ? a.im : a.re) * scale, im = (swap ? a.re : a.im) * scale;
  const Vector<T> low = __builtin_shufflevector(re, im, (l / 2 + l % 2 * w)...);
  const Vector<T> high = __builtin_shufflevector(re, im, (w / 2 + l / 2 + l % 2 * w)...);
  __builtin_memcpy(static_cast<void*>(to), &low, sizeof low);
  __builtin_memcpy(static_cast<void*>(to + w / 2), &high, sizeof high);
}

/// Loads `count` adjacent numbers into the first lanes.
template <class T> Lanes<T> load(const std::complex<T>* x, int64_t count, bool swap) {
  if (count == lanes<T>) return load(x, swap, std::make_integer_sequence<int, lanes<T>>());
  std::complex<T> padded[lanes<T>] = {};
  std::copy_n(x, count, padded);
  return load(padded, swap, std::make_integer_sequence<int, lanes<T>>());
}

template <class T> void store(const Lanes<T>& a, std::complex<T>* to, int64_t count, bool swap, T scale) {
  if (count == lanes<T>) return store(a, to, swap, scale, std::make_integer_sequence<int, lanes<T>>());
  std::complex<T> padded[lanes<T>];
  store(a, padded, swap, scale, std::make_integer_sequence<int, lanes<T>>());
  std::copy_n(padded, count, to);
}

/// Transposes `lanes` vectors of `lanes` numbers: exchanges lane j of square[i] and lane i of square[j].
template <class T> void transpose_square(Lanes<T>* square) {
  Vector<T> re[lanes<T>], im[lanes<T>];
  for (int i = 0; i < lanes<T>; ++i) re[i] = square[i].re, im[i] = square[i].im;
  transpose<T>(re), transpose<T>(im);
  for (int i = 0; i < lanes<T>; ++i) square[i] = {re[i], im[i]};
}

template <class T> struct Buffer {
  explicit Buffer(int64_t numbers)
      : memory(empty({numbers * int64_t(sizeof(Lanes<T>))}, {.dtype = u8, .device = cpu})) {}
  Lanes<T>* data() const { return memory.numel() > 0 ? static_cast<Lanes<T>*>(memory.raw_data()) : nullptr; }
  Tensor memory;
};

/// Computes the transforms of rows of n contiguous numbers.
template <class T> class Rows {
  static constexpr int w = lanes<T>;
  using Number = std::complex<T>;

 public:
  explicit Rows(int64_t n) : n_(n) {
    int64_t n1 = int64_t(std::sqrt(double(n)));
    while (n % n1 != 0) --n1;
    if (n >= shortest_split && n1 >= w / 2) n1_ = n1, n2_ = n / n1;
    if (n1_ == 0 && n > longest_column && without_small(n) != 1) {
      inner_ = std::make_unique<Rows>(smooth_at_least(2 * n - 1));
    } else if (n1_ == 0) {
      first_ = std::make_unique<Columns<T>>(n);
    } else {
      first_ = std::make_unique<Columns<T>>(n1_);
      if (n1_ != n2_) second_ = std::make_unique<Columns<T>>(n2_);
      roots_ = std::make_unique<Roots>(n);
      for (int64_t j = 0; j < (has_all_twists() ? n2_ : 1); j += w) {
        for (int64_t k = 0; k < n1_; ++k) {
          Lanes<T>& twist = twists_.emplace_back();
          for (int l = 0; l < w; ++l) {
            const std::complex<double> root = (*roots_)(k * (j + l) % n);
            twist.re[l] = T(root.real()), twist.im[l] = T(root.imag());
          }
        }
      }
    }
  }

  void run(const Number* x, Number* y, int64_t rows, bool inverse, T scale) const {
    if (inner_) return convolve(x, y, rows, inverse, scale);
    if (n1_ == 0) return run_short(x, y, rows, inverse, scale);
    const int64_t blocks = ceil_div(n1_, w);
    parallel_for(rows, std::max<int64_t>(1, grain / n_), [&](int64_t begin, int64_t end) {
      const Buffer<T> between(blocks * n2_), own(end - begin > 1 ? buffer_size() : 0);
      for (int64_t row = begin; row < end; ++row)
        run_long(x + row * n_, y + row * n_, between.data(), end - begin > 1 ? own.data() : nullptr, inverse, scale);
    });
  }

 private:
  static constexpr int64_t shortest_split = 256, longest_column = 1 << 13, longest_twists = 1 << 12;

  /// True if the twiddle factors of all blocks of columns are stored. For long rows only those of the first block are
  /// stored, and the factors of another block are computed from them.
  bool has_all_twists() const { return n_ <= longest_twists; }
  int64_t buffer_size() const { return 2 * std::max(first_->room(), second_ ? second_->room() : 0); }

  void run_short(const Number* x, Number* y, int64_t rows, bool inverse, T scale) const {
    const int64_t n = n_;
    parallel_for(ceil_div(rows, w), std::max<int64_t>(1, grain / (n * w)), [&](int64_t begin, int64_t end) {
      const Buffer<T> buffer(2 * first_->room());
      for (int64_t group = begin; group < end; ++group) {
        Lanes<T>* const a = buffer.data();
        const Number* const from = x + group * w * n;
        Number* const to = y + group * w * n;
        const int64_t count = std::min<int64_t>(w, rows - group * w);
        // The last block overlaps the block before it: this keeps it a whole vector, which is faster to load.
        const int64_t length = std::min<int64_t>(w, n);
        for (int64_t block = 0; block < n; block += w) {
          const int64_t k = std::min(block, n - length);
          Lanes<T> square[w] = {};
          for (int64_t l = 0; l < count; ++l) square[l] = load(from + l * n + k, length, inverse);
          transpose_square(square);
          std::copy_n(square, length, a + k);
        }
        const Lanes<T>* const out = first_->run(a, a + first_->room());
        for (int64_t block = 0; block < n; block += w) {
          const int64_t k = std::min(block, n - length);
          Lanes<T> square[w] = {};
          std::copy_n(out + k, length, square);
          transpose_square(square);
          for (int64_t l = 0; l < count; ++l) store(square[l], to + l * n + k, length, inverse, scale);
        }
      }
    });
  }

  /// Transforms one row as a matrix n1 x n2. Input number j1 n2 + j2 is element (j1, j2), and output number k1 + n1 k2
  /// is element (k1, k2). After the transforms of columns, between[b n2 + j2] holds w elements of column j2, from
  /// (b w, j2) on. With many rows, the caller passes scratch in `own`, and a single thread computes each row.
  void run_long(const Number* x, Number* y, Lanes<T>* between, Lanes<T>* own, bool inverse, T scale) const {
    const int64_t n1 = n1_, n2 = n2_, own_grain = own ? n1 + n2 : std::max<int64_t>(1, grain / (w * std::max(n1, n2)));
    parallel_for(ceil_div(n2, w), own_grain, [&](int64_t begin, int64_t end) {
      const Buffer<T> buffer(own ? 0 : buffer_size());
      Lanes<T>* const a = own ? own : buffer.data();
      for (int64_t group = begin; group < end; ++group) {
        const int64_t j = group * w, count = std::min<int64_t>(w, n2 - j);
        const Lanes<T>* const twists = &twists_[has_all_twists() ? size_t(group * n1) : 0];
        for (int64_t i = 0; i < n1; ++i) a[i] = load(x + i * n2 + j, count, inverse);
        const Lanes<T>* const out = first_->run(a, a + first_->room());
        for (int64_t k = 0; k < n1; k += w) {
          Lanes<T> square[w] = {};
          for (int64_t i = 0; i < std::min<int64_t>(w, n1 - k); ++i)
            square[i] = has_all_twists() ? out[k + i] * twists[k + i]
                                         : out[k + i] * (twists[k + i] * Number((*roots_)((k + i) * j)));
          transpose_square(square);
          std::copy_n(square, count, between + k / w * n2 + j);
        }
      }
    });
    const Columns<T>& second = second_ ? *second_ : *first_;
    parallel_for(ceil_div(n1, w), own_grain, [&](int64_t begin, int64_t end) {
      const Buffer<T> buffer(own ? 0 : buffer_size());
      Lanes<T>* const a = own ? own : buffer.data();
      for (int64_t group = begin; group < end; ++group) {
        Lanes<T>* x2 = between + group * n2;
        if (second.room() > n2) x2 = std::copy_n(x2, n2, a) - n2;
        const Lanes<T>* const out = second.run(x2, a + second.room());
        const int64_t k = group * w, count = std::min<int64_t>(w, n1 - k);
        for (int64_t i = 0; i < n2; ++i) store(out[i], y + i * n1 + k, count, inverse, scale);
      }
    });
  }

  /// Transforms long rows whose length has large prime factors, by Bluestein's convolution of length inner_->n_.
  void convolve(const Number* x, Number* y, int64_t rows, bool inverse, T scale) const {
    const int64_t m = inner_->n_, n = n_;
    std::vector<Number> w_of(static_cast<size_t>(n)), a(static_cast<size_t>(m)), b(a), spectrum(a);
    for (int64_t k = 0; k < n; ++k) {
      w_of[size_t(k)] = Number(chirp(k, n));
      a[size_t(k)] = a[size_t((m - k) % m)] = std::conj(w_of[size_t(k)]);
    }
    inner_->run(a.data(), spectrum.data(), 1, false, T(1) / T(m));
    for (int64_t row = 0; row < rows; ++row, x += n, y += n) {
      std::fill(a.begin(), a.end(), Number());
      for (int64_t k = 0; k < n; ++k) a[size_t(k)] = times(inverse ? turned(x[k]) : x[k], w_of[size_t(k)]);
      inner_->run(a.data(), b.data(), 1, false, 1);
      for (int64_t k = 0; k < m; ++k) b[size_t(k)] = times(b[size_t(k)], spectrum[size_t(k)]);
      inner_->run(b.data(), a.data(), 1, true, 1);
      for (int64_t k = 0; k < n; ++k) {
        const Number out = times(a[size_t(k)], w_of[size_t(k)]);
        y[k] = (inverse ? turned(out) : out) * scale;
      }
    }
  }

  static Number turned(Number a) { return {a.imag(), a.real()}; }

  int64_t n_, n1_ = 0, n2_ = 0;
  std::unique_ptr<Columns<T>> first_, second_;
  std::unique_ptr<Rows> inner_;
  std::unique_ptr<Roots> roots_;
  std::vector<Lanes<T>> twists_;
};

/// A real sequence x of 2 h numbers is transformed as h complex numbers z[j] = x[2 j] + i x[2 j + 1]. This calls fn for
/// each pair of bins (k, h - k). fn converts the transform of z to the first half of the transform of x, or back.
template <class T, class Fn> void for_halves(int64_t rows, int64_t h, Fn&& fn) {
  const Roots roots(2 * h);
  const int64_t pairs = h / 2 + 1;
  parallel_for(rows * pairs, grain, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t k = at % pairs;
      fn(at / pairs, k, h - k, std::complex<T>(roots(k)));
    }
  });
}

template <class T> void real_rows(const T* x, std::complex<T>* out, int64_t rows, int64_t n, T scale) {
  using Number = std::complex<T>;
  const int64_t h = n / 2;
  const bool even = n % 2 == 0;
  const Tensor memory = empty({2, rows, even ? h : n}, {.dtype = dtype_of<Number>, .device = cpu});
  Number *const z = memory.data<Number>(), *const numbers = z + memory.numel() / 2;
  if (!even) {
    parallel_for(rows * n, grain, [&](int64_t begin, int64_t end) { std::copy(x + begin, x + end, numbers + begin); });
    Rows<T>(n).run(numbers, z, rows, false, scale);
    for (int64_t row = 0; row < rows; ++row) std::copy_n(z + row * n, h + 1, out + row * (h + 1));
    return;
  }
  Rows<T>(h).run(reinterpret_cast<const Number*>(x), z, rows, false, scale);
  for_halves<T>(rows, h, [&](int64_t row, int64_t k, int64_t other, Number w) {
    const Number a = z[row * h + k], b = std::conj(z[row * h + (k == 0 ? 0 : other)]);
    const Number sum = (a + b) * T(0.5), difference = (a - b) * T(0.5);
    const Number odd = times(Number(difference.imag(), -difference.real()), w);
    out[row * (h + 1) + k] = sum + odd;
    out[row * (h + 1) + other] = std::conj(sum - odd);
  });
}

template <class T> void rows_to_real(const std::complex<T>* x, T* out, int64_t rows, int64_t n, T scale) {
  using Number = std::complex<T>;
  const int64_t h = n / 2, given = h + 1;
  const bool even = n % 2 == 0;
  const Tensor memory = empty({2, rows, even ? h : n}, {.dtype = dtype_of<Number>, .device = cpu});
  Number *const z = memory.data<Number>(), *const numbers = z + memory.numel() / 2;
  if (!even) {
    for (int64_t row = 0; row < rows; ++row) {
      const Number* const from = x + row * given;
      z[row * n] = from[0].real();
      for (int64_t k = 1; k <= h; ++k) z[row * n + k] = from[k], z[row * n + n - k] = std::conj(from[k]);
    }
    Rows<T>(n).run(z, numbers, rows, true, scale);
    parallel_for(rows * n, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = numbers[i].real();
    });
    return;
  }
  for_halves<T>(rows, h, [&](int64_t row, int64_t k, int64_t other, Number w) {
    const Number* const from = x + row * given;
    const Number a = k == 0 ? Number(from[0].real()) : from[k];
    const Number b = k == 0 ? Number(from[h].real()) : std::conj(from[other]);
    const Number sum = a + b, odd = times(a - b, std::conj(w));
    const Number turned(-odd.imag(), odd.real());
    z[row * h + k] = sum + turned;
    if (k != 0) z[row * h + other] = std::conj(sum - turned);
  });
  Rows<T>(h).run(z, reinterpret_cast<Number*>(out), rows, true, scale);
}

}  // namespace
}  // namespace fourier

void fft(const Tensor& x, bool inverse, double scale, Tensor& out) {
  if (x.numel() == 0) return;
  const int64_t n = x.shape().back();
  dispatch<std::complex<float>, std::complex<double>>(x.dtype(), "fft", [&]<class Number> {
    using T = typename Number::value_type;
    fourier::Rows<T>(n).run(x.data<Number>(), out.data<Number>(), x.numel() / n, inverse, T(scale));
  });
}

void fft_real(const Tensor& x, double scale, Tensor& out) {
  if (x.numel() == 0) return;
  const int64_t n = x.shape().back();
  dispatch<float, double>(x.dtype(), "fft_real", [&]<class T> {
    fourier::real_rows(x.data<T>(), out.data<std::complex<T>>(), x.numel() / n, n, T(scale));
  });
}

void fft_to_real(const Tensor& x, double scale, Tensor& out) {
  if (out.numel() == 0) return;
  const int64_t n = out.shape().back();
  dispatch<float, double>(out.dtype(), "fft_to_real", [&]<class T> {
    fourier::rows_to_real(x.data<std::complex<T>>(), out.data<T>(), out.numel() / n, n, T(scale));
  });
}

}  // namespace lockstep::on_cpu
