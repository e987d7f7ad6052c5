#include "parallel/scatter.h"

#include <algorithm>
#include <cstdio>

#include "autograd/ops.h"

namespace lockstep::parallel {

std::vector<int64_t> chunk_sizes(int64_t n, int64_t k) {
  LOCKSTEP_CHECK(n >= 1 && k >= 1, "[chunk_sizes] expected at least one sample and one device, got ", n, " and ", k);
  const int64_t size = (n + k - 1) / k;
  std::vector<int64_t> sizes(size_t(n / size), size);
  if (n % size != 0) sizes.push_back(n % size);
  return sizes;
}

namespace detail {

void expect_alike(bool alike, const char* what) {
  LOCKSTEP_CHECK(alike, "[DataParallel] expected ", what, " from every replica, got others from some");
}

void Cut::measure(const Tensor& x) {
  LOCKSTEP_CHECK(x.dim() > 0, "[DataParallel] expected inputs with a batch in dim ", dim,
                 ", got a scalar tensor (give every replica the whole of it with shared(x))");
  LOCKSTEP_CHECK(dim >= -x.dim() && dim < x.dim(), "[DataParallel] expected inputs with a batch in dim ", dim,
                 ", got shape ", x.shape());
  const int64_t n = x.size(dim);
  LOCKSTEP_CHECK(n > 0, "[DataParallel] expected at least one sample, got an empty batch: shape ", x.shape(), ", dim ",
                 dim);
  LOCKSTEP_CHECK(batch < 0 || n == batch, "[DataParallel] expected all inputs to have the same size in dim ", dim,
                 ", got ", batch, " and ", n,
                 " (an input that is no batch goes whole to every replica with shared(x))");
  batch = n;
}

void Cut::finish() {
  LOCKSTEP_CHECK(batch > 0, "[DataParallel] expected at least one input with a batch, got none");
  sizes = chunk_sizes(batch, int64_t(devices.size()));
}

std::vector<Variable> Cut::pieces(const Variable& x) const {
  if (!x.defined()) return std::vector<Variable>(count());
  std::vector<Variable> parts = count() == 1 ? std::vector<Variable>{x} : x.split(sizes, dim);
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = on(i, parts[i]);
  return parts;
}

Variable Cut::on(size_t replica, const Variable& x) const {
  return x.defined() ? Traffic::move(traffic, x, devices[replica], Load::batch) : x;
}

Variable Cut::join(const std::vector<Variable>& parts, Device target) const {
  const auto all = [&](auto test) {
    const auto passed = std::count_if(parts.begin(), parts.end(), test);
    expect_alike(passed == 0 || passed == int64_t(parts.size()), "tensors of one rank");
    return passed != 0;
  };
  if (all([](const Variable& part) { return !part.defined(); })) return {};
  const bool scalars = all([](const Variable& part) { return part.dim() == 0; });
  if (scalars) {
    static const bool warned = (std::fputs("[DataParallel] warning: replicas gave scalars, which are joined to a "
                                           "vector of one value per device; take "
                                           "weighted_mean() of it, or mean() when all pieces are of one size\n",
                                           stderr),
                                true);
    (void)warned;
  }
  std::vector<Variable> moved;
  for (const Variable& part : parts)
    moved.push_back(Traffic::move(traffic, scalars ? part.unsqueeze(0) : part, target, Load::batch));
  return cat(moved, scalars ? 0 : dim);
}

}  // namespace detail
}  // namespace lockstep::parallel
