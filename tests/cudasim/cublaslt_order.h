#pragma once
// The order in which the fake cuBLASLt adds. As on a GPU it depends on the algorithm, and the choice of an algorithm on
// the number of rows, so the same row has other bits beside other rows.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fake {

/// The order of an algorithm's sums over k.
struct Order {
  int32_t step;   ///< so many products are summed exactly, then added to a sum in f32; 0: all of them
  int32_t parts;  ///< k is cut into so many parts, whose sums are added in f32 ("split-K"); 0 is 1
};
/// The order of candidate `number` of the heuristic's answer for m x n sums of k products. `reductions`: the schemes
/// that the caller allows.
Order order_of(int number, int64_t m, int64_t n, int64_t k, uint32_t reductions);
/// True if algorithms compute n columns of the library's D, which are rows of ours.
bool takes_rows(int64_t n);
/// Notes a question to the heuristic.
void note_question();

/// A column of sums that are added in such an order.
class Sums {
 public:
  /// `exact`: sums of f64, which no order changes here.
  Sums(Order order, int64_t count, int64_t k, bool exact);
  /// Adds left[i] * right to sum i; called once for each of the k places.
  void add(const double* left, double right);
  /// Sum i, after all places.
  double operator[](int64_t i) const { return full_[std::size_t(i)]; }

 private:
  void end(std::vector<double>& of, std::vector<double>& to) const;
  int64_t step_, part_, k_, place_ = 0;
  bool exact_;
  std::vector<double> in_step_, in_part_, full_;
};

}  // namespace fake
