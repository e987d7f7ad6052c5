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
using enum ContextKind;
using enum TokenOrder;

}  // namespace testing
