// Gamma and Poisson variates by rejection. Every element has its own random counters, so each may take as many tries as
// it needs. Logarithms come from random_math.h, so all devices give the same bits.
#include <cmath>

#include "extensions/distributions/samplers.h"
#include "tensor/cpu/parallel.h"
#include "tensor/math_gamma.h"
#include "tensor/random_math.h"

namespace lockstep::on_cpu {

using namespace random_math;

namespace {

/// Random words for one element, four per call. Call t for element i uses the Philox counter i + t * 2^44.
class Tries {
 public:
  Tries(PhiloxKey key, int64_t element) : key_(key), next_(uint64_t(element)) {}
  std::array<uint32_t, 4> words() {
    const auto words = philox(key_, next_);
    next_ += uint64_t(1) << 44;
    return words;
  }

 private:
  const PhiloxKey key_;
  uint64_t next_;
};

double above_zero(uint32_t low, uint32_t high) { return 1 - unit(low, high); }  // (0, 1]

/// Draws the logarithm of a variate of Gamma(shape, 1) (Marsaglia and Tsang, 2000). If shape < 1, it draws a variate of
/// Gamma(shape + 1, 1) and multiplies that by u^(1 / shape), with u uniform.
double draw_log_gamma(double shape, Tries tries) {
  if (!(shape > 0)) return std::numeric_limits<double>::quiet_NaN();
  if (std::isinf(shape)) return shape;
  double log_scale = 0;
  if (shape < 1) {
    const auto w = tries.words();
    log_scale = log_unit(above_zero(w[0], w[1])) / shape;
    shape += 1;
  }
  const double d = shape - 1. / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const auto w = tries.words(), w2 = tries.words();
    const double x = normals_of(w[0], w[1], w[2], w[3], 0.0, 1.0).first, root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root, log_v = log_unit(v);
    if (log_unit(above_zero(w2[0], w2[1])) < 0.5 * x * x + d * (1 - v + log_v)) return log_unit(d) + log_v + log_scale;
  }
}

/// log(k!) by Stirling's series. For k < 9 it takes the series for 9! and subtracts the logarithms of k + 1 to 9.
double log_factorial(double k) {
  double y = 0, x = k + 1;
  for (; x < 10; ++x) y -= log_unit(x);
  const double s = 1 / (x * x);
  return y + ((x - 0.5) * log_unit(x) - x + 0.9189385332046727 +
              (1. / 12 - s * (1. / 360 - s * (1. / 1260 - s / 1680))) / x);
}

double draw_poisson(double rate, Tries tries) {
  if (!(rate >= 0) || std::isinf(rate)) return std::numeric_limits<double>::quiet_NaN();
  if (rate < 10) {  // adds waiting times until their sum exceeds 1
    double left = rate;
    for (double k = 0;; k += 2) {
      const auto w = tries.words();
      left += log_unit(above_zero(w[0], w[1]));
      if (left < 0) return k;
      left += log_unit(above_zero(w[2], w[3]));
      if (left < 0) return k + 1;
    }
  }
  // PTRS, transformed rejection with a squeeze (Hörmann, 1993).
  const double log_rate = log_unit(rate), b = 0.931 + 2.53 * std::sqrt(rate), a = -0.059 + 0.02483 * b;
  const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), quick = 0.9277 - 3.6224 / (b - 2);
  for (;;) {
    const auto w = tries.words();
    const double u = unit(w[0], w[1]) - 0.5, v = above_zero(w[2], w[3]), us = 0.5 - std::fabs(u);
    const double k = std::floor((2 * a / us + b) * u + rate + 0.43);
    if (us >= 0.07 && v <= quick) return k;
    if (!(k >= 0) || (us < 0.013 && v > us)) continue;
    const double log_v = log_unit(v) + log_unit(inverse_alpha) - log_unit(a / (us * us) + b);
    if (log_v <= k * log_rate - rate - log_factorial(k)) return k;
  }
}

/// A number and its derivative with respect to the shape parameter of the gamma distribution.
struct Dual {
  double v, d = 0;
  friend Dual operator+(Dual a, Dual b) { return {a.v + b.v, a.d + b.d}; }
  friend Dual operator*(Dual a, Dual b) { return {a.v * b.v, a.d * b.v + a.v * b.d}; }
  friend Dual operator/(Dual a, Dual b) { return {a.v / b.v, (a.d - a.v / b.v * b.d) / b.v}; }
};

/// The derivative dx / da of the quantile x of Gamma(a, 1) at a constant cumulative probability, for large a: the
/// derivative of the Cornish-Fisher expansion of x.
double slope_of_large(double a, double x) {
  const double root = std::sqrt(a);
  double z = (x - a) / root;
  for (int i = 0; i < 4; ++i) {  // Newton
    const double z2 = z * z, value = a + z * root + (z2 - 1) / 3 + z * (z2 - 7) / (36 * root) -
                                     (3 * z2 * z2 + 7 * z2 - 16) / (810 * a);
    z -= (value - x) / (root + 2 * z / 3 + (3 * z2 - 7) / (36 * root));
  }
  const double z2 = z * z;
  return 1 + z / (2 * root) - z * (z2 - 7) / (72 * a * root) + (3 * z2 * z2 + 7 * z2 - 16) / (810 * a * a);
}

/// The derivative d log x / d a at constant P, where P(a, x) is the regularised incomplete gamma function. It equals
/// -(dP / da) / F with F = dP / d log x = x^a e^-x / Gamma(a). P or 1 - P is F times a series or continued fraction, so
/// F cancels.
double log_gamma_slope(double a, double log_x) {
  if (!(a > 0) || std::isnan(log_x)) return std::numeric_limits<double>::quiet_NaN();
  const double x = std::exp(log_x);
  if (a > 1e4) return slope_of_large(a, x) / x;
  const double eps = 1e-17;
  if (x <= a + 1) {  // a S = 1 + x / (a + 1) + x^2 / (a + 1)(a + 2) + ...
    double term = 1, logs = 0;
    Dual sum{1};
    for (double n = 1; n < 1e5; ++n) {
      term *= x / (a + n);
      logs += 1 / (a + n);
      sum = sum + Dual{term, -term * logs};
      if (term * (1 + logs) < eps * sum.v) break;
    }
    return (sum.v * (math::digamma(a + 1) - log_x) - sum.d) / a;
  }
  // The continued fraction 1 / (x + 1 - a - (1 - a) / (x + 3 - a - 2 (2 - a) / ...)), by Lentz's method.
  Dual b{x + 1 - a, -1}, c{1e300}, d = Dual{1} / b, h = d;
  for (double n = 1; n < 1e5; ++n) {
    const Dual factor{-n * (n - a), n};
    b.v += 2;
    d = Dual{1} / (factor * d + b);
    c = b + factor / c;
    const Dual change = d * c;
    h = h * change;
    if (std::fabs(change.v - 1) < 1e-16 && std::fabs(change.d * h.v) < 1e-16 * std::fabs(h.d)) break;
  }
  return h.v * (log_x - math::digamma(a)) + h.d;
}

template <class Fn> void each_element(const Tensor& like, const char* op, Fn fn) {
  dispatch<float, double>(like.dtype(), op, [&]<class T> {
    const T* const in = like.numel() > 0 ? like.data<T>() : nullptr;
    parallel_for(like.numel(), 256, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) fn.template operator()<T>(i, double(in[i]));
    });
  });
}

}  // namespace

void log_gamma_sample(const Tensor& shape, PhiloxKey key, Tensor& out) {
  each_element(shape, "log_gamma_sample",
               [&]<class T>(int64_t i, double a) { out.data<double>()[i] = draw_log_gamma(a, Tries(key, i)); });
}

void log_gamma_sample_grad(const Tensor& shape, const Tensor& sample, Tensor& out) {
  each_element(shape, "log_gamma_sample_grad", [&]<class T>(int64_t i, double a) {
    out.data<double>()[i] = log_gamma_slope(a, sample.data<double>()[i]);
  });
}

void poisson(const Tensor& rate, PhiloxKey key, Tensor& out) {
  each_element(rate, "poisson",
               [&]<class T>(int64_t i, double r) { out.data<T>()[i] = T(draw_poisson(r, Tries(key, i))); });
}

}  // namespace lockstep::on_cpu
