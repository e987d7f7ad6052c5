#pragma once
// Shared by the tests of sequence parallelism: ranks, and attention distributed over them.
#include <vector>

#include "parallel/sequence/attention.h"
#include "parallel/sequence/context_parallel.h"
#include "tensor/random.h"
#include "tests/apart.h"
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

}  // namespace testing
