#pragma once
// Shared by the tests of tensor parallelism: reproducible values, comparisons on ranks, ranks in threads.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "dist/process_group.h"
#include "nn/nn.h"
#include "tensor/random.h"
#include "tests/messages.h"

namespace testing {

using namespace lockstep;

/// The numbers of ranks that are tested.
inline const std::vector<int> worlds{1, 2, 3, 4, 8};

/// Runs fn on n ranks, which are threads, with a group of all of them.
inline void on_ranks(int n, const std::function<void(dist::ProcessGroup& group)>& fn) {
  dist::spawn(n, [&](int) { fn(dist::world()); }, {.timeout = dist::Seconds(60)});
}

/// Random values that depend on `number` only, so all ranks get the same.
inline Tensor values(uint64_t number, const Shape& shape, DType dtype = f64) {
  const RandomState before = random_state();
  set_random_state({.seed = 7, .step = number});
  const Tensor x = randn(shape, {.dtype = f64}).to(dtype);
  set_random_state(before);
  return x;
}
/// Random integers from 0 to end - 1 that depend on `number` only.
inline Tensor ids(uint64_t number, const Shape& shape, int64_t end) {
  const RandomState before = random_state();
  set_random_state({.seed = 8, .step = number});
  const Tensor x = randint(0, end, shape);
  set_random_state(before);
  return x;
}
/// A model of these options, whose initial values are always the same. empty: built without memory.
template <class M> M seeded(const auto& options, DType dtype = f64, bool empty = false) {
  manual_seed(11);
  std::optional<nn::BuildEmpty> scope;
  if (empty) scope.emplace();
  M model(options);
  model.to(dtype);
  return model;
}
/// A leaf with a copy of x, which requires grad.
inline Variable leaf(const Tensor& x) { return Variable(x.clone(), true); }

/// Throws, which ends the test, unless a equals b within `tolerance` (absolute).
inline void expect_near(const Tensor& a, const Tensor& b, const std::string& what, double tolerance = 1e-11) {
  LOCKSTEP_CHECK(a.defined() && b.defined(), what, ": expected tensors, got none");
  LOCKSTEP_CHECK(a.shape() == b.shape(), what, ": expected shape ", b.shape(), ", got ", a.shape());
  if (a.numel() == 0) return;
  const double distance = max(abs(sub(a.to(f64), b.to(f64)))).item();
  LOCKSTEP_CHECK(distance <= tolerance, what, ": off by ", distance);
}
/// Part `rank` of n equal parts of x along a dimension.
inline Tensor part(const Tensor& x, int64_t dim, int n, int rank) {
  const int64_t each = x.size(dim) / n;
  return x.narrow(dim, rank * each, each);
}

}  // namespace testing
