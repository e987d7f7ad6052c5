#pragma once
// The machine's own ceiling: what oneDNN's sgemm reaches, measured beside the steps that are compared with it.
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace bench {

/// (m x k) times (k x n)
struct GemmShape {
  int64_t m, n, k;
  double flops() const { return 2. * m * n * k; }
  auto operator<=>(const GemmShape&) const = default;
};

/// Times products of several shapes in turns, so that slow moments of the machine hit all alike.
class GemmCeiling {
 public:
  /// The squares 1024, 1536 and 2048, and these shapes of a model.
  explicit GemmCeiling(const std::vector<GemmShape>& shapes);
  /// One round over all shapes. Error when built without oneDNN.
  void measure();
  /// GFLOP/s of the best shape, by the median and by the best of its rounds.
  double median() const;
  double best() const;

 private:
  std::map<GemmShape, std::vector<double>> seconds_;
  std::vector<float> a_, b_, c_;
};

}  // namespace bench
