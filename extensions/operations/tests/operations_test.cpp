// Every operation: its gradients, f16 and bf16, autocast; and it stays on its device, with the same bits as on cpu:0.
#include <doctest/doctest.h>

#include "autograd/autocast.h"
#include "extensions/operations/operations.h"
#include "tests/autograd/device_rows.h"
#include "tests/autograd/op_rows.h"
#include "tests/autograd/sixteen_bits.h"

using namespace testing;

namespace {

const std::vector<Row> rows = {
    OP(flip(x[0], {0, 1})),
    OP(roll(x[0], {2}, {1})),
    OP(repeat(x[0], {2, 1})),
    OP(prod(x[0], {1})),
    OP(cumsum(x[0], 1)),
    OP(cumprod(x[0], 1)),
    OP(einsum("ij,kj->ik", Inputs{x[0], x[1]})),
    OP(einsum("ij,kl->i", Inputs{x[0], x[1]})),
    OP(einsum("...i,ji->...j", Inputs{x[3], x[0]})),
};

}  // namespace

TEST_CASE("rare operations stay on their device and keep their bits") { check_devices(rows); }

TEST_CASE("rare operations have the gradient of differences") {
  manual_seed(3);
  const std::vector<OpRow> rows = {
      {"einsum batch", {{2, 3, 4, 5}, {2, 3, 6, 5}}, [](const Inputs& x) { return einsum("bhqd,bhkd->bhqk", x); }},
      {"einsum summed", {{3, 4}, {5, 4}}, [](const Inputs& x) { return einsum("ij,kj->i", x); }},
      {"einsum implicit", {{3, 4}, {4, 2}}, [](const Inputs& x) { return einsum("ij, jk", x); }},
      {"einsum three", {{3, 4}, {4, 2}, {2, 3}}, [](const Inputs& x) { return einsum("ab,bc,ca->ac", x); }},
      {"einsum trace", {{4, 4}}, [](const Inputs& x) { return einsum("ii->", x); }},
      {"einsum diagonal", {{3, 4, 3}, {4}}, [](const Inputs& x) { return einsum("iji,j->i", x); }},
      {"einsum alone", {{3, 4}, {5}}, [](const Inputs& x) { return einsum("ij,k->i", x); }},
      {"einsum ...", {{2, 1, 3}, {4, 3, 2}}, [](const Inputs& x) { return einsum("...i,...ij->j...", x); }},
      {"einsum ... summed", {{2, 3}, {3}}, [](const Inputs& x) { return einsum("...i,i->i", x); }},
      {"einsum ... diagonal", {{2, 3, 3}}, [](const Inputs& x) { return einsum("...ii", x); }},
      {"flip",
       {{2, 3, 4}},
       [](const Inputs& x) {
         return flip(x[0], {0, 2});
       }},
      {"roll",
       {{2, 3, 4}},
       [](const Inputs& x) {
         return roll(x[0], {1, -2}, {0, 2});
       }},
      {"repeat",
       {{2, 1, 3}},
       [](const Inputs& x) {
         return repeat(x[0], {2, 3, 1, 2});
       }},
      {"prod",
       {{3, 4, 5}},
       [](const Inputs& x) {
         return prod(x[0], {0, 2});
       }},
      {"prod all", {{2, 1, 3}}, [](const Inputs& x) { return prod(x[0]); }},
      {"prod scalar", {{}}, [](const Inputs& x) { return prod(x[0]); }},
      {"cumsum", {{3, 5, 2}}, [](const Inputs& x) { return cumsum(x[0], 1); }},
      {"cumprod", {{3, 5, 2}}, [](const Inputs& x) { return cumprod(x[0], 1); }},
  };
  for (const OpRow& row : rows) check_row(row);
}

TEST_CASE("rare operations in f16 and bf16 are computed wide and rounded once") {
  check_sixteen_bits({
      {"prod", [](const Inputs& x) { return prod(x[0].narrow(1, 0, 3), {1}); }},
      {"cumsum", [](const Inputs& x) { return cumsum(x[0], 1); }},
      {"cumprod", [](const Inputs& x) { return cumprod(x[0].narrow(1, 0, 3), 1); }},
  });
}

TEST_CASE("autocast: einsum is low, running sums and products are f32") {
  const Variable x(randn({4, 8})), w(randn({6, 8}), true), half(ones({2, 3}, {.dtype = bf16}));
  for (const DType dtype : {bf16, f16}) {
    const Autocast scope(dtype);
    CHECK(einsum("ij,kj->ik", std::vector<Variable>{x, w}).dtype() == dtype);
    CHECK(cumsum(half, 0).dtype() == f32);
    CHECK(prod(half).dtype() == f32);
  }
}
