#pragma once
// A block-sparse attention pattern for tests of code that takes any pattern.
#include <string>
#include <vector>

#include "nn/attention.h"
#include "tensor/block_layout.h"

namespace testing {

/// Head h attends to every (h % 3 + 2)-th block, counted backwards from the block on the diagonal.
class Strided : public lockstep::nn::BlockPattern {
 public:
  explicit Strided(int64_t block) : block_(block) {}
  std::string name() const override { return "strided"; }
  int64_t block() const override { return block_; }
  bool is_causal() const override { return true; }
  lockstep::BlockLayout layout(int64_t heads, int64_t tokens) const override {
    std::vector<std::vector<int32_t>> rows;
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t row = 0; row < (tokens + block_ - 1) / block_; ++row) {
        const int64_t stride = head % 3 + 2;
        rows.emplace_back();
        for (int64_t c = row % stride; c <= row; c += stride) rows.back().push_back(int32_t(c));
      }
    return lockstep::BlockLayout::of_rows(block_, heads, rows);
  }

 private:
  int64_t block_;
};

}  // namespace testing
