// Implicit QR (Golub and Kahan) makes a bidiagonal matrix diagonal. If a shift would make small singular values
// inaccurate, a sweep uses no shift (Demmel and Kahan, 1990). The matrix is f64 for every dtype. The rotations are
// applied to a few rows of u and v at a time: two successive rotations share a column, which then stays in registers.
// We do not use Eigen's BDCSVD, because it takes 1.6 to 3.3 times as long in f64.
#include "extensions/linear_algebra/cpu/bidiagonal.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"

namespace lockstep::on_cpu {
namespace {

struct Rotation {
  double c = 1, s = 0, r = 0;
};
/// The rotation with c f + s g = r and c g = s f. The matrix has a norm of about 1, so numbers below 1e-150 count as 0.
Rotation rotation_of(double f, double g) {
  if (std::fabs(g) < 1e-150) return {1, 0, f};
  if (std::fabs(f) < 1e-150) return {0, 1, g};
  const double r = std::copysign(std::sqrt(f * f + g * g), f), scale = 1 / r;
  return {f * scale, g * scale, r};
}

/// The rotations of a sweep, in order. left[i] rotates columns first + i and first + i + 1 of u, right[i] those of v.
struct Sweep {
  size_t first = 0;
  std::vector<Rotation> left, right;  // rotations for u and for v
};

/// Applies rotations to the columns of a block. Each column of the block is `lanes` vector registers, one number per
/// row. Rotation number i changes columns i and i + 1, so column i + 1 stays in registers (`kept`) for the next one.
template <class T, int lanes> void rotate_rows(Lanes<T>* at, const std::vector<Rotation>& rotations) {
  Lanes<T> kept[lanes];
#pragma GCC unroll 4
  for (int k = 0; k < lanes; ++k) kept[k] = at[k];
  for (const Rotation& rotation : rotations) {
    const Lanes<T> c = splat(T(rotation.c)), s = splat(T(rotation.s));
#pragma GCC unroll 4
    for (int k = 0; k < lanes; ++k) {
      const Lanes<T> next = at[lanes + k];
      at[k] = c * kept[k] + s * next;
      kept[k] = c * next - s * kept[k];
    }
    at += lanes;
  }
#pragma GCC unroll 4
  for (int k = 0; k < lanes; ++k) at[k] = kept[k];
}

/// Copies of u and v, as blocks of a few rows and all columns. A block stays in the cache while the rotations of
/// several sweeps are applied to it. Different threads take different blocks.
template <class T> class Turned {
 public:
  Turned(Columns<T> u, Columns<T> v, size_t columns) : u_(u), v_(v), columns_(columns) {
    lanes_ = std::max(u.rows, v.rows) > lane_count<T> ? max_lanes : 1;
    const int64_t width = lanes_ * lane_count<T>;
    of_u_ = u.data ? ceil_div(u.rows, width) : 0;
    blocks_.resize(size_t(of_u_ + (v.data ? ceil_div(v.rows, width) : 0)));
    each_block([&](int64_t b) {
      blocks_[size_t(b)].assign(columns_ * size_t(lanes_), Lanes<T>{});
      each_column(b, [](T* theirs, T* ours, size_t bytes) { std::memcpy(ours, theirs, bytes); });
    });
  }

  void rotate(std::vector<Sweep>& sweeps) {
    each_block([&](int64_t b) {
      for (const Sweep& sweep : sweeps) {
        Lanes<T>* const first = blocks_[size_t(b)].data() + sweep.first * size_t(lanes_);
        const auto& rotations = b < of_u_ ? sweep.left : sweep.right;
        lanes_ == 1 ? rotate_rows<T, 1>(first, rotations) : rotate_rows<T, max_lanes>(first, rotations);
      }
    });
    sweeps.clear();
  }

  void finish() {
    each_block(
        [&](int64_t b) { each_column(b, [](T* theirs, T* ours, size_t bytes) { std::memcpy(theirs, ours, bytes); }); });
  }

  bool empty() const { return blocks_.empty(); }

 private:
  static constexpr int max_lanes = 4;

  template <class Fn> void each_block(Fn fn) {
    parallel_for(int64_t(blocks_.size()), columns_ > 64 ? 1 : 1 << 20, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) fn(b);
    });
  }
  template <class Fn> void each_column(int64_t b, Fn fn) {
    const Columns<T>& x = b < of_u_ ? u_ : v_;
    const int64_t width = lanes_ * lane_count<T>, row = (b < of_u_ ? b : b - of_u_) * width;
    const size_t bytes = size_t(std::min(width, x.rows - row)) * sizeof(T);
    for (size_t c = 0; c < columns_; ++c)
      fn(x.data + int64_t(c) * x.rows + row, reinterpret_cast<T*>(blocks_[size_t(b)].data() + c * size_t(lanes_)),
         bytes);
  }

  const Columns<T> u_, v_;
  const size_t columns_;
  int lanes_;
  int64_t of_u_;
  std::vector<std::vector<Lanes<T>>> blocks_;
};

/// The smaller singular value of the matrix [[f, g], [0, h]].
double smaller_value(double f, double g, double h) {
  const double large = 0.5 * (std::hypot(f + h, g) + std::hypot(f - h, g));
  return large > 0 ? std::fabs(f) * (std::fabs(h) / large) : 0;
}

/// The numbers on the diagonal of a bidiagonal matrix, and those above it.
using Numbers = std::vector<double>;

void sweep_with_shift(Numbers& d, Numbers& e, size_t l, size_t h, double shift, Sweep& done) {
  double f = (std::fabs(d[l]) - shift) * (std::copysign(1.0, d[l]) + shift / d[l]), g = e[l];
  for (size_t i = l; i < h; ++i) {
    const Rotation a = rotation_of(f, g);
    if (i > l) e[i - 1] = a.r;
    f = a.c * d[i] + a.s * e[i];
    e[i] = a.c * e[i] - a.s * d[i];
    g = a.s * d[i + 1];
    d[i + 1] *= a.c;
    const Rotation b = rotation_of(f, g);
    d[i] = b.r;
    f = b.c * e[i] + b.s * d[i + 1];
    d[i + 1] = b.c * d[i + 1] - b.s * e[i];
    if (i + 1 < h) {
      g = b.s * e[i + 1];
      e[i + 1] *= b.c;
    }
    done.right.push_back(a), done.left.push_back(b);
  }
  e[h - 1] = f;
}

void sweep_without_shift(Numbers& d, Numbers& e, size_t l, size_t h, Sweep& done) {
  Rotation a, b;
  for (size_t i = l; i < h; ++i) {
    a = rotation_of(d[i] * a.c, e[i]);
    if (i > l) e[i - 1] = b.s * a.r;
    b = rotation_of(b.c * a.r, d[i + 1] * a.s);
    d[i] = b.r;
    done.right.push_back(a), done.left.push_back(b);
  }
  const double last = d[h] * a.c;
  d[h] = last * b.c;
  e[h - 1] = last * b.s;
}

/// One QR sweep over rows and columns l to h, where no number above the diagonal is 0.
Sweep sweep_of(Numbers& d, Numbers& e, size_t l, size_t h, double negligible) {
  Sweep done{l, {}, {}};
  double least = std::fabs(d[l]);
  for (size_t i = l + 1; i <= h; ++i) least = std::min(least, std::fabs(d[i]));
  // If a number on the diagonal is 0, a sweep without shift makes the last number above the diagonal 0 too.
  const double ratio = least > negligible ? smaller_value(d[h - 1], e[h - 1], d[h]) / std::fabs(d[l]) : 0;
  if (ratio < 0x1p-26) sweep_without_shift(d, e, l, h, done);
  else sweep_with_shift(d, e, l, h, ratio * std::fabs(d[l]), done);
  return done;
}

/// Sorts the values d in descending order and reorders the columns of u and v in the same way.
template <class T> void sort_values(std::vector<double>& d, Columns<T> u, Columns<T> v) {
  const auto swap_columns = [](Columns<T> x, size_t i, size_t j) {
    if (x.data)
      std::swap_ranges(x.data + int64_t(i) * x.rows, x.data + int64_t(i + 1) * x.rows, x.data + int64_t(j) * x.rows);
  };
  for (size_t i = 0; i < d.size(); ++i) {
    const size_t first = size_t(std::max_element(d.begin() + int64_t(i), d.end()) - d.begin());
    if (first == i) continue;
    std::swap(d[i], d[first]);
    swap_columns(u, i, first), swap_columns(v, i, first);
  }
}

/// Numbers above the diagonal count as 0 up to this bound. For f32 results it is below their rounding error. For f64 it
/// is several rounding errors, because the iteration may bring a number between two equal diagonal values no closer to
/// 0. NaN if an entry is not finite.
template <class T> double negligible_of(const std::vector<double>& d, const std::vector<double>& e) {
  double norm = 0;
  for (const auto& list : {d, e})
    for (const double x : list) norm = std::isfinite(x) ? std::max(norm, std::fabs(x)) : x - x;
  return norm * (sizeof(T) == 4 ? 0x1p-28 : 0x1p-50);
}

}  // namespace

template <class T> bool bidiagonal_svd(std::vector<double>& d, std::vector<double>& e, Columns<T> u, Columns<T> v) {
  const double negligible = negligible_of<T>(d, e);
  if (std::isnan(negligible)) return false;
  Turned<T> vectors(u, v, d.size());
  std::vector<Sweep> sweeps;
  size_t left = 60 * d.size();
  for (size_t high = d.size() - 1; high > 0;) {  // sweep the last block of rows and columns that is not yet diagonal
    size_t low = high;
    while (low > 0 && std::fabs(e[low - 1]) > negligible) --low;
    if (low == high) {
      --high;
      continue;
    }
    if (left-- == 0) return false;
    Sweep done = sweep_of(d, e, low, high, negligible);
    if (vectors.empty()) continue;
    sweeps.push_back(std::move(done));
    if (sweeps.size() == 16) vectors.rotate(sweeps);
  }
  vectors.rotate(sweeps);
  vectors.finish();
  for (size_t i = 0; i < d.size(); ++i) {
    if (!std::signbit(d[i])) continue;
    d[i] = -d[i];
    for (int64_t k = 0; v.data && k < v.rows; ++k) v.data[int64_t(i) * v.rows + k] = -v.data[int64_t(i) * v.rows + k];
  }
  sort_values<T>(d, u, v);
  return true;
}

template bool bidiagonal_svd(std::vector<double>&, std::vector<double>&, Columns<float>, Columns<float>);
template bool bidiagonal_svd(std::vector<double>&, std::vector<double>&, Columns<double>, Columns<double>);

}  // namespace lockstep::on_cpu
