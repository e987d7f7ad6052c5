// Counts a tensor's values in TensorBoard's bins. See histogram.h.
#include "extensions/summary/histogram.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace lockstep {
namespace {

/// The limits of all bins, ascending. Each is the previous one times 1.1, as PyTorch computes them.
std::vector<double> bin_limits() {
  std::vector<double> positive, all;
  for (double v = 1e-12; v < 1e20; v *= 1.1) positive.push_back(v);
  for (auto v = positive.rbegin(); v != positive.rend(); ++v) all.push_back(-*v);
  all.push_back(0);
  all.insert(all.end(), positive.begin(), positive.end());
  return all;
}

}  // namespace

Histogram histogram_of(const Tensor& values) {
  static const std::vector<double> limits = bin_limits();
  LOCKSTEP_CHECK(!is_complex(values.dtype()), "[add_histogram] expected real numbers, got ", values.dtype(),
                 "; give abs(x), or real and imaginary parts");
  Histogram h;
  std::vector<double> counts(limits.size() - 1);
  for (const double x : values.to_vector<double>()) {
    if (!(x >= limits.front() && x <= limits.back())) continue;  // also NaN
    const auto above = std::upper_bound(limits.begin(), limits.end(), x);
    ++counts[std::min(size_t(above - limits.begin()), counts.size()) - 1];  // the last bin has its right limit, too
    h.min = h.count == 0 ? x : std::min(h.min, x);
    h.max = h.count == 0 ? x : std::max(h.max, x);
    ++h.count, h.sum += x, h.sum_squares += x * x;
  }
  LOCKSTEP_CHECK(h.count > 0, "[add_histogram] expected at least one value between -1e20 and 1e20, got ",
                 values.numel(), " values of which none is; leave this histogram out");
  const auto is_used = [](double count) { return count > 0; };
  const size_t first = size_t(std::find_if(counts.begin(), counts.end(), is_used) - counts.begin()),
               last =
                   counts.size() - 1 - size_t(std::find_if(counts.rbegin(), counts.rend(), is_used) - counts.rbegin());
  // TensorBoard knows right limits only, so an empty bin gives the left limit of the first one that is used.
  h.limits.push_back(limits[first]);
  h.counts.push_back(0);
  for (size_t i = first; i <= last; ++i) h.limits.push_back(limits[i + 1]), h.counts.push_back(counts[i]);
  return h;
}

}  // namespace lockstep
