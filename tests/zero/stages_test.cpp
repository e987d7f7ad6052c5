// Stages 0 to 3: the bits of one process, whatever the cut.
#include <doctest/doctest.h>

#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::ZeroOptions;

namespace {

struct Cut { int ranks, accumulation; };
const std::vector<Cut> cuts{{1, 8}, {2, 4}, {4, 2}, {8, 1}};
constexpr int stages[] = {0, 1, 2, 3};

}  // namespace

TEST_CASE("zero: every stage, ranks x accumulation, size of units, overlap or not: the bits of one process, with dropout and clipping") {
  for (const double max_norm : {0., 0.05}) {
    const Tensors one = train({.max_norm = max_norm});
    CHECK(one.size() == (max_norm > 0 ? 9 : 8));
    for (const int stage : stages) {
      for (const auto& [ranks, accumulation] : cuts) {
        for (const int64_t size : {int64_t(1), int64_t(1000), int64_t(1) << 40}) {
          const bool overlap = size != 1000;
          CAPTURE(stage); CAPTURE(ranks); CAPTURE(size); CAPTURE(max_norm);
          CHECK(differing(one, train({.ranks = ranks, .accumulation = accumulation, .options = ZeroOptions{.stage = stage, .overlap_comm = overlap, .reduce_bucket_size = size},
                                      .max_norm = max_norm})) == "");
        }
      }
    }
  }
}

TEST_CASE("zero: bf16 and f16 parameters with f32 master weights: the same bits in every stage") {
  for (const DType dtype : {bf16, f16}) {
    for (const double max_norm : {0., 0.05}) {
      const Tensors one = train({.options = ZeroOptions{.stage = 0}, .dtype = dtype, .max_norm = max_norm});
      if (dtype == bf16 && max_norm == 0) CHECK(differing(one, train({.dtype = dtype})) == "");  // the optimizer's own master weights
      for (const int stage : stages) {
        for (const auto& [ranks, accumulation] : cuts) {
          CAPTURE(stage); CAPTURE(ranks); CAPTURE(max_norm); CAPTURE(dtype);
          CHECK(differing(one, train({.ranks = ranks, .accumulation = accumulation, .options = ZeroOptions{.stage = stage, .reduce_bucket_size = 1000}, .dtype = dtype,
                                      .max_norm = max_norm})) == "");
        }
      }
    }
  }
}
