// Operations stay on their device, with the same bits as on cpu:0.
#include <doctest/doctest.h>

#include "extensions/operations/operations.h"
#include "tests/autograd/device_rows.h"

using namespace testing;

namespace {

const std::vector<Row> rows = {
    OP(prod(x[0], {1})),
    OP(cumsum(x[0], 1)),
    OP(cumprod(x[0], 1)),
    OP(einsum("ij,kj->ik", Inputs{x[0], x[1]})),
    OP(einsum("ij,kl->i", Inputs{x[0], x[1]})),
    OP(einsum("...i,ji->...j", Inputs{x[3], x[0]})),
};

}  // namespace

TEST_CASE("rare operations stay on their device and keep their bits") { check_devices(rows); }
