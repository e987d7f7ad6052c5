#pragma once
// Shared by the tests of sequence parallelism: ranks, and attention distributed over them.
#include <vector>

#include "parallel/sequence/attention.h"
#include "parallel/sequence/context_parallel.h"
#include "tensor/random.h"
#include "tests/messages.h"
#include "tests/ranks.h"

namespace testing {

using namespace lockstep;
using namespace lockstep::sequence;

/// A new group of all ranks.
inline std::shared_ptr<dist::ProcessGroup> everyone(const std::string& name = "context") {
  std::vector<int> ranks;
  for (int r = 0; r < dist::world().size(); ++r) ranks.push_back(r);
  return dist::world().new_group(ranks, name);
}

/// The largest absolute difference; 1e9 if shapes differ.
inline double apart(const Tensor& a, const Tensor& b) {
  return a.shape() != b.shape() ? 1e9 : a.numel() == 0 ? 0 : max(abs(sub(a.to(f64), b.to(f64)))).item();
}

}  // namespace testing
