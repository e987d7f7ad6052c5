// Every operation stays on its device, forward and backward, with the same bits as on cpu:0.
#include <doctest/doctest.h>

#include "tests/autograd/device_rows.h"
#include "tests/messages.h"

using namespace testing;

namespace {

const std::vector<Row> rows = {
    OP(x[0] + x[2]),
    OP(x[0] * x[1] / x[2]),
    OP(2.0 - x[0]),
    OP(1.0 / x[0]),
    OP(exp(x[0]) + log(x[1]) + sqrt(x[1])),
    OP(relu(x[0]) + gelu(x[1]) + silu(x[0]) + tanh(x[1])),
    OP(where(on(gt(x[0], x[1])), x[0], x[1])),
    OP(addcmul(x[0], x[1], x[2], 0.5)),
    OP(lerp(x[0], x[1], 0.3)),
    OP(maximum(x[0], x[1]) - minimum(x[0], x[1])),
    OP(sum(x[0], {0})),
    OP(mean(x[0])),
    OP(amax(x[0], {0}) + amin(x[0], {0})),
    OP(var(x[0], {1})),
    OP(stddev(x[0])),
    OP(norm(x[0])),
    OP(logsumexp(x[0], {1})),
    OP(max(x[0], 1).values),
    OP(min(x[0])),
    OP(sort(x[0], 1).values),
    OP(topk(x[0], 2, 1).values),
    OP(matmul(x[0], x[1].t())),
    OP(addmm(x[2], x[0].t(), x[1])),
    OP(outer(x[2], x[2])),
    OP(linear(x[0], x[1], {}, Activation::gelu_tanh)),
    OP(linear(x[3], x[1])),
    OP(conv1d(x[3][0].narrow(1, 0, 3), x[4][0])),
    OP(conv2d(x[3], x[4], x[2].narrow(0, 0, 4), {.padding = {1, 1}})),
    OP(max_pool2d(x[3], {.kernel = {2, 2}, .stride = {2, 2}})),
    OP(softmax(x[0], 1)),
    OP(log_softmax(x[0], 0)),
    OP(layer_norm(x[0], {6}, x[2], x[2])),
    OP(rms_norm(x[0], x[2])),
    OP(batch_norm(x[3], x[2].narrow(0, 0, 4), {}, on(zeros({4})), on(ones({4})), true)),
    OP(dropout(x[0], 0.4)),
    OP(attention(x[3], x[3], x[3])),
    OP(attention(x[3], x[3], x[3], on(tril(ones({6, 6}, {.dtype = boolean}))),
                 {.scale = 0, .dropout = 0.2, .key = next_random_key()})),
    OP(attention_packed(x[3][0], 2)),
    OP(attention_packed(x[3][0], 4, {.scale = 0}, 1)),
    OP(rotary(x[3], on(ones({6, 3})), on(zeros({6, 3})))),
    OP(rotary_packed(x[3][0], 2, 3, on(ones({6, 1})), on(zeros({6, 1})))),
    OP(embedding(x[0], on(tokens))),
    OP(cross_entropy(x[0], on(places))),
    OP(cross_entropy(x[0], on(places), {.weight = on(ones({6})), .label_smoothing = 0.1})),
    OP(cross_entropy(x[0], x[1].detach())),
    OP(linear_cross_entropy(x[0], x[1], on(places), {}, 3)),
    OP(linear_cross_entropy(x[0], x[1], on(places), {.weight = on(ones({4})), .reduction = Reduction::none}, 3)),
    OP(mse_loss(x[0], x[1])),
    OP(gather(x[0], 1, on(places.view({4, 1})))),
    OP(scatter(x[0], 1, on(places.view({4, 1})), x[1].narrow(1, 0, 1))),
    OP(scatter_add(x[0], 1, on(places.view({4, 1})), x[1].narrow(1, 0, 1))),
    OP(index_select(x[0], 0, on(places))),
    OP(masked_fill(x[0], on(gt(x[1], x[0])), 2)),
    OP(cat(Inputs{x[0], x[1]}, 1)),
    OP(stack(Inputs{x[0], x[1]})),
    OP(pad(x[0], {1, -1})),
    OP(tril(x[0]) + triu(x[1])),
    OP(x[0].slice(1, 0, 5, 2)),
    OP(x[0].select(0, 1) + x[0].diagonal()[0]),
    OP(x[0].split(4, 1)[1]),
    OP(x[0].chunk(3, 0)[0].expand({2, 2, 6})),
    OP(x[0].t().contiguous()),
    OP(x[0].to(f64)),
    OP(x[0].clone().view({2, 12}).transpose(0, 1).unsqueeze(0).squeeze()),
};

}  // namespace

TEST_CASE("operations stay on their device and keep their bits") { check_devices(rows); }

TEST_CASE("moving a variable is an operation: its gradient moves back") {
  const OnCpu on_cpu;
  const Devices two;
  const Variable w(Tensor::from({1.f, 2.f, 3.f}), true), v(Tensor::from({4.f, 5.f, 6.f}).to(second), true);
  const Variable there = w.to(second);
  CHECK(there.device() == second);
  CHECK(w.to(cpu).impl() == w.impl());
  sum((there * v).to(cpu) * w).backward();  // the sum of w * v * w
  CHECK(w.grad().device() == cpu);
  CHECK(w.grad().to_vector<float>() == std::vector<float>{8, 20, 36});
  CHECK(v.grad().device() == second);
  CHECK(v.grad().to_vector<float>() == std::vector<float>{1, 4, 9});
  CHECK_ERROR_IS(w * v, "[mul] expected one device, got (3) on cpu:0 and (3) on cpu:1 (move with .to(device))");
  CHECK_ERROR(mse_loss(v * 1.0, w), "got (3) on cpu:1 and (3) on cpu:0");
  CHECK_ERROR_IS((v * 2.0).backward(ones({3})),
                 "[backward] expected a gradient on cpu:1, got one on cpu:0 (move with .to(device))");
}
