#pragma once
// Fourier transforms of several sequences, one in each lane of a vector register, so that all arithmetic is vector code
// whatever the length. Used by fft.cpp.
#include <cmath>
#include <complex>
#include <memory>
#include <numbers>
#include <utility>
#include <vector>

#include "tensor/cpu/registers.h"

namespace lockstep::on_cpu::fourier {

/// a b, without the checks for NaN of operator*.
template <class T> std::complex<T> times(std::complex<T> a, std::complex<T> b) {
  return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
}

/// exp(-2 pi i k / n), k >= 0. Exact if k / n is a multiple of 1/4.
inline std::complex<double> root_of_unity(int64_t k, int64_t n) {
  k %= n;
  const int64_t eighth = 8 * k / n, rest = 8 * k - eighth * n;
  const double angle = std::numbers::pi / 4 * double(eighth % 2 ? n - rest : rest) / double(n);
  const double c = std::cos(angle), s = std::sin(angle);
  const double along[] = {c, s, -s, -c, -c, -s, s, c}, across[] = {s, c, c, s, -s, -c, -c, -s};
  return {along[eighth], -across[eighth]};
}

/// Powers of the n-th root of unity. Each is the product of two entries of tables with about sqrt(n) entries.
class Roots {
 public:
  /// Computes the tables.
  explicit Roots(int64_t n) {
    while (int64_t(1) << 2 * shift_ < n) ++shift_;
    for (int64_t k = 0; k < int64_t(1) << shift_; ++k) low_.push_back(root_of_unity(k, n));
    for (int64_t k = 0; k <= n >> shift_; ++k) high_.push_back(root_of_unity(k << shift_, n));
  }
  /// exp(-2 pi i k / n), 0 <= k <= n.
  std::complex<double> operator()(int64_t k) const {
    return times(high_[size_t(k >> shift_)], low_[size_t(k & ((int64_t(1) << shift_) - 1))]);
  }

 private:
  int shift_ = 0;
  std::vector<std::complex<double>> low_, high_;
};

/// One complex number of each of several sequences: lane l belongs to sequence l.
template <class T> struct Lanes {
  Vector<T> re, im;
  friend Lanes operator+(const Lanes& a, const Lanes& b) { return {a.re + b.re, a.im + b.im}; }
  friend Lanes operator-(const Lanes& a, const Lanes& b) { return {a.re - b.re, a.im - b.im}; }
  friend Lanes operator*(const Lanes& a, const Lanes& b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
  friend Lanes operator*(const Lanes& a, std::complex<T> b) {
    return {a.re * b.real() - a.im * b.imag(), a.re * b.imag() + a.im * b.real()};
  }
};
/// Swaps the real and imaginary parts.
template <class T> Lanes<T> swapped(const Lanes<T>& a) { return {a.im, a.re}; }
/// -i a.
template <class T> Lanes<T> by_minus_i(const Lanes<T>& a) { return {a.im, -a.re}; }

/// Fourier transform of r numbers, in place. `table` holds the cosines and then the sines of 2 pi k / r.
template <int r, class T> [[gnu::always_inline]] inline void butterfly(Lanes<T>* a, const T* table) {
  if constexpr (r == 2) {
    const Lanes<T> b = a[0] - a[1];
    a[0] = a[0] + a[1], a[1] = b;
  } else if constexpr (r == 4) {
    const Lanes<T> b = a[0] + a[2], c = a[0] - a[2], d = a[1] + a[3], e = by_minus_i(a[1] - a[3]);
    a[0] = b + d, a[1] = c + e, a[2] = b - d, a[3] = c - e;
  } else {  // odd r: a[j] and a[r - j] have conjugate roots, so their sum and difference suffice
    constexpr int half = r / 2;
    Lanes<T> sums[half + 1], differences[half + 1], all = a[0];
#pragma GCC unroll 8
    for (int j = 1; j <= half; ++j) {
      sums[j] = a[j] + a[r - j], differences[j] = by_minus_i(a[j] - a[r - j]);
      all = all + sums[j];
    }
#pragma GCC unroll 8
    for (int k = 1; k <= half; ++k) {
      Lanes<T> even = a[0], odd{};
#pragma GCC unroll 8
      for (int j = 1; j <= half; ++j) {
        const T c = table[j * k % r], s = table[r + j * k % r];
        even.re += sums[j].re * c, even.im += sums[j].im * c;
        odd.re += differences[j].re * s, odd.im += differences[j].im * s;
      }
      a[k] = even + odd, a[r - k] = even - odd;  // overwrites pairs that are not read again
    }
    a[0] = all;
  }
}

/// One pass of Stockham's algorithm with radix r. The input is r * m groups of `stride` adjacent numbers. Combines
/// the groups p, p + m, p + 2m, ... and stores the results side by side, as group p of m groups of stride * r numbers.
template <class T> struct Pass {
  int radix;
  int64_t m, stride;
  std::vector<std::complex<T>> twiddles;  // twiddle factors: for each p, r - 1 of them (k from 1 to r - 1)
  std::vector<T> table;

  /// The pass with radix r. The last pass has no twiddle factors.
  template <int r, bool last> void run(const Lanes<T>* x, Lanes<T>* y) const {
    for (int64_t p = 0; p < m; ++p) {
      const std::complex<T>* const w = &twiddles[size_t(p * (r - 1))];
      for (int64_t q = 0; q < stride; ++q) {
        Lanes<T> a[r];
#pragma GCC unroll 16
        for (int j = 0; j < r; ++j) a[j] = x[q + stride * (p + m * j)];
        butterfly<r>(a, table.data());
        Lanes<T>* const to = y + q + stride * r * p;
        to[0] = a[0];
#pragma GCC unroll 16
        for (int k = 1; k < r; ++k) to[stride * k] = last ? a[k] : a[k] * w[k - 1];
      }
    }
  }

  /// Runs the pass; calls the version for the last pass if m is 1.
  template <int r> void run(const Lanes<T>* x, Lanes<T>* y) const { m == 1 ? run<r, true>(x, y) : run<r, false>(x, y); }

  /// Runs the pass on x and writes the result to y.
  void operator()(const Lanes<T>* x, Lanes<T>* y) const {
    switch (radix) {
      case 2: return run<2>(x, y);
      case 3: return run<3>(x, y);
      case 4: return run<4>(x, y);
      case 5: return run<5>(x, y);
      case 7: return run<7>(x, y);
      case 11: return run<11>(x, y);
      default: return run<13>(x, y);
    }
  }
};

/// The radices of the passes, in the order in which the passes run.
inline constexpr int radices[] = {4, 2, 3, 5, 7, 11, 13};

/// n without its prime factors up to `largest`.
inline int64_t without_small(int64_t n, int largest = 13) {
  for (int r : radices)
    while (r <= largest && n % r == 0) n /= r;
  return n;
}

/// The smallest length >= n with no prime factor above 5, for convolutions.
inline int64_t smooth_at_least(int64_t n) {
  while (without_small(n, 5) != 1) ++n;
  return n;
}

/// exp(-pi i k^2 / n), the factors of Bluestein's method.
inline std::complex<double> chirp(int64_t k, int64_t n) {
  return root_of_unity(int64_t((unsigned __int128)(k)*uint64_t(k) % uint64_t(2 * n)), 2 * n);
}

/// Computes transforms of length n. Each lane of the vector registers holds a different sequence.
template <class T> class Columns {
 public:
  /// Computes the tables for n.
  explicit Columns(int64_t n) : n_(n), m_(without_small(n) == 1 ? n : smooth_at_least(2 * n - 1)) {
    int64_t rest = m_, stride = 1;
    for (int r : radices) {
      for (; rest % r == 0 && rest > 1; rest /= r, stride *= r) {
        Pass<T>& pass = passes_.emplace_back(Pass<T>{r, rest / r, stride, {}, {}});
        for (int64_t p = 0; p < pass.m; ++p)
          for (int k = 1; k < r; ++k) pass.twiddles.emplace_back(root_of_unity(p * k, rest));
        for (int k = 0; k < r; ++k) pass.table.push_back(T(root_of_unity(k, r).real()));
        for (int k = 0; k < r; ++k) pass.table.push_back(T(-root_of_unity(k, r).imag()));
      }
    }
    if (m_ == n_) return;
    // Bluestein's method multiplies by the transform of the conjugate chirp, which is computed in f64 for every T.
    const Columns<double> inner(m_);
    const std::unique_ptr<Lanes<double>[]> x(new Lanes<double>[size_t(m_)]()), y(new Lanes<double>[size_t(m_)]);
    for (int64_t k = 0; k < n_; ++k) {
      const std::complex<double> w = chirp(k, n_);
      chirp_.emplace_back(w);
      for (const int64_t at : {k, (m_ - k) % m_}) x[size_t(at)].re[0] = w.real(), x[size_t(at)].im[0] = -w.imag();
    }
    const Lanes<double>* const spectrum = inner.run(x.get(), y.get());
    for (int64_t k = 0; k < m_; ++k)
      spectrum_.emplace_back(T(spectrum[k].re[0] / double(m_)), T(spectrum[k].im[0] / double(m_)));
  }

  /// The number of elements that each of the two buffers of run() must hold.
  int64_t room() const { return m_; }

  /// Transforms x, with y as scratch. Returns the buffer that holds the result.
  Lanes<T>* run(Lanes<T>* x, Lanes<T>* y) const {
    if (m_ == n_) return run_passes(x, y);
    for (int64_t k = 0; k < n_; ++k) x[k] = x[k] * chirp_[size_t(k)];
    for (int64_t k = n_; k < m_; ++k) x[k] = Lanes<T>();
    Lanes<T>* at = run_passes(x, y);
    // The inverse transform is the forward one with real and imaginary parts swapped before and after.
    for (int64_t k = 0; k < m_; ++k) at[k] = swapped(at[k] * spectrum_[size_t(k)]);
    at = run_passes(at, at == x ? y : x);
    for (int64_t k = 0; k < n_; ++k) at[k] = swapped(at[k]) * chirp_[size_t(k)];
    return at;
  }

 private:
  Lanes<T>* run_passes(Lanes<T>* x, Lanes<T>* y) const {
    for (const Pass<T>& pass : passes_) pass(x, y), std::swap(x, y);
    return x;
  }

  int64_t n_, m_;
  std::vector<Pass<T>> passes_;
  std::vector<std::complex<T>> chirp_, spectrum_;
};

}  // namespace lockstep::on_cpu::fourier
