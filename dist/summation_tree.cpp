// summation_tree.cpp: sums tensors in tree order. See summation_tree.h.
#include "dist/summation_tree.h"

#include "tensor/ops.h"

namespace lockstep::dist {

void TreeSum::add(Tensor leaf) {
  size_t level = 0;
  for (; level < levels_.size() && levels_[level].defined(); ++level) {
    add_(levels_[level], leaf);
    leaf = std::move(levels_[level]);
    levels_[level] = Tensor();
  }
  if (level == levels_.size()) levels_.emplace_back();
  levels_[level] = std::move(leaf);
  ++count_;
}

Tensor TreeSum::take() {
  Tensor sum;
  for (Tensor& level : levels_) {
    if (!level.defined()) continue;
    sum = sum.defined() ? add_(level, sum) : level;
    level = Tensor();
  }
  levels_.clear();
  count_ = 0;
  return sum;
}

}  // namespace lockstep::dist
