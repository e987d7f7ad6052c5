// Rare operations on the device against the CPU.
#include "extensions/operations/kernels.h"
#include "extensions/operations/operations.h"
#include "tests/cuda/against_cpu.h"
#include "tests/cuda/limit_cases.h"

using namespace lockstep;
using namespace testing;

namespace {

std::vector<LimitCase> limits_of_operations() {
  using T = Tensors;
  return {{.name = "flipped and rolled",
           .inputs = {{{1000}, u8}},
           .run = [](T in) { return T{roll(flip(in[0], {1}), {7}, {1})}; }},
          {.name = "running sums", .inputs = {{{500}, u8}}, .run = [](T in) { return T{cumsum(in[0], 1)}; }},
          {.name = "running products of a middle dim", .inputs = {{{20, 6}, f32}}, .run = [](T in) {
             return T{cumprod(in[0], 1)};
           }}};
}
[[maybe_unused]] const bool added = (more_limit_cases().push_back(limits_of_operations), true);

}  // namespace

TEST_CASE("cuda: running sums and products") {
  for (const DType dtype : {f32, f64, f16, bf16, i64}) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{3, 31}, Shape{33, 5}, Shape{2, 4099}, Shape{999, 2},
                               Shape{4, 50, 3}, Shape{20000}}) {
      const Tensor x =
          dtype == i64 ? random_integers(shape, 9, 1) : add_scalar(random_tensor(shape, f64, 1, 0.01), 1).to(dtype);
      for (int dim = 0; dim < std::max(1, shape.rank()); ++dim) {
        for (const bool product : {false, true}) {
          for (const bool reverse : {false, true})
            check_kernel({str("cumulative ", product, " ", dtype, " ", shape, " ", dim),
                          dtype == i64 ? 0 : tolerance(Near::cumulative, dtype)},
                         kernels::cumulative, product, x, dim, reverse, Out{x});
        }
      }
    }
  }
}
