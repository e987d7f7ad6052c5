// See cublaslt_order.h.
#include "tests/cudasim/cublaslt_order.h"

#include <cublasLt.h>

#include <atomic>

#include "tests/cudasim/fake.h"

namespace fake {
namespace {

std::atomic<int64_t> questions{0}, max_rows{INT64_MAX};
std::atomic<bool> sums_have_order{true};

}  // namespace

int64_t take_heuristic_calls() { return questions.exchange(0); }
void limit_rows_of_algorithms(int64_t rows) { max_rows = rows; }
bool takes_rows(int64_t n) { return n <= max_rows; }
void note_question() { ++questions; }
void order_sums(bool ordered) { sums_have_order = ordered; }

Order order_of(int number, int64_t m, int64_t n, int64_t k, uint32_t reductions) {
  if (!sums_have_order) return {};
  const bool splits = (reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) && k >= 256 && m * n <= 4096;
  return {number > 0 ? 8 : n <= 16 ? 16 : n <= 64 ? 32 : 64, number == 0 && splits ? 4 : 1};
}

Sums::Sums(Order order, int64_t count, int64_t k, bool exact)
    : step_(order.step > 0 ? order.step : k),
      part_(order.parts > 1 ? (k + order.parts - 1) / order.parts : k),
      k_(k),
      exact_(exact),
      in_step_(size_t(count)),
      in_part_(size_t(count)),
      full_(size_t(count)) {}

/// Adds one column of sums to another and clears it.
void Sums::end(std::vector<double>& of, std::vector<double>& to) const {
  for (size_t i = 0; i < of.size(); ++i) {
    to[i] = exact_ ? to[i] + of[i] : double(float(to[i] + double(float(of[i]))));
    of[i] = 0;
  }
}

void Sums::add(const double* left, double right) {
  for (size_t i = 0; i < in_step_.size(); ++i) in_step_[i] += left[i] * right;
  ++place_;
  const bool part_ends = place_ % part_ == 0 || place_ == k_;
  if (part_ends || place_ % part_ % step_ == 0) end(in_step_, in_part_);
  if (part_ends) end(in_part_, full_);
}

}  // namespace fake
