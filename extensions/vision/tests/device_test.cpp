// Average pooling and conv_transpose2d stay on their device, with the same bits as on cpu:0.
#include <doctest/doctest.h>

#include "extensions/vision/average.h"
#include "extensions/vision/conv.h"
#include "tests/autograd/device_rows.h"

using namespace ::testing;

namespace {

const std::vector<Row> rows = {
    OP(conv_transpose2d(x[3], x[4])),
    OP(avg_pool2d(x[3], {.kernel = {2, 2}, .stride = {2, 2}})),
    OP(adaptive_avg_pool2d(x[3], 2, 3)),
};

}  // namespace

TEST_CASE("average pooling and conv_transpose2d stay on their device and keep their bits") { check_devices(rows); }
