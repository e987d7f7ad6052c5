// The functions of composed.h, losses.h and norm.h stay on their device, with the same bits as on cpu:0.
#include <doctest/doctest.h>

#include "extensions/layers/layers.h"
#include "tests/autograd/device_rows.h"

using namespace testing;

namespace {

const std::vector<Row> rows = {
    OP(bce_loss(sigmoid(x[0]), sigmoid(x[1]), on(ones({6})))),
    OP(poisson_nll_loss(x[0], x[1] * 3.0, {.full = true})),
    OP(gaussian_nll_loss(x[0], x[1], x[1], {.eps = 0.5})),
    OP(sigmoid_focal_loss(x[0], x[1].detach())),
    OP(soft_margin_loss(x[0], on(signs))),
    OP(hinge_embedding_loss(x[0], on(signs))),
    OP(margin_ranking_loss(x[0], x[1], on(signs))),
    OP(cosine_embedding_loss(x[0], x[1], on(signs.select(1, 0)))),
    OP(multi_margin_loss(x[0], on(places), {.weight = on(ones({6}))})),
    OP(multilabel_margin_loss(x[0], on(signs))),
    OP(multilabel_soft_margin_loss(x[0], x[1], on(ones({6})))),
    OP(triplet_margin_loss(x[0], x[1], x[0].t().reshape({4, 6}), {.p = 3, .swap = true})),
    OP(group_norm(x[3], 2, x[2].narrow(0, 0, 4))),
    OP(cdist(x[0], x[1])),
    OP(take_along_dim(x[0], on(places.view({4, 1})), 1)),
    OP(logcumsumexp(x[0], 1)),
    OP(quantile(x[0], 0.3, 1)),
    OP(median(x[0], 1).values + median(x[1])),
    OP(meshgrid({x[0][0], x[2]})[0] * x[2]),
};

}  // namespace

TEST_CASE("rare functions and losses stay on their device and keep their bits") { check_devices(rows); }
