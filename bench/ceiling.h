#pragma once
// The machine's matrix-product ceiling: the speed of oneDNN's sgemm. It is measured between training steps, and their
// speed is compared with it.
#include <cstdint>
#include <map>
#include <vector>

namespace bench {

/// A product of (m x k) and (k x n).
struct GemmShape {
  int64_t m, n, k;
  /// Floating-point operations of the product.
  double flops() const { return 2. * m * n * k; }
  auto operator<=>(const GemmShape&) const = default;
};

/// Measures products of several shapes in turn, so that slow phases of the machine affect all of them.
class GemmCeiling {
 public:
  /// Chooses the shapes: square products of sizes 1024, 1536 and 2048, and `shapes`, those of a model.
  explicit GemmCeiling(const std::vector<GemmShape>& shapes);
  /// Measures each shape once. Error in a build without oneDNN.
  void measure();
  /// The highest GFLOP/s of any shape, where the speed of a shape is its median over all rounds.
  double median() const;
  /// The highest GFLOP/s of any shape in any round.
  double best() const;

 private:
  std::map<GemmShape, std::vector<double>> seconds_;
  std::vector<float> a_, b_, c_;
};

}  // namespace bench
