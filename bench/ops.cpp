// Single operations: forward only, without recording, and ("_fb") forward and backward with fresh gradients. Names and
// sizes are those of the peer script ops.py, so that bench/compare can match them.
#include "autograd/ops.h"
#include "autograd/split_backward.h"

#include "bench/cases.h"
#include "optim/optim.h"
#include "tensor/random.h"

using namespace lockstep;

namespace {

using Inputs = std::vector<Variable>;
using Shapes = std::vector<Shape>;
using Op = std::function<Variable(const Inputs&)>;

Inputs random_inputs(const Shapes& shapes, DType dtype = f32) {
  Inputs in;
  for (const Shape& shape : shapes) in.push_back(Variable(randn(shape).to(dtype)));
  return in;
}

/// Adds a case: forward without recording.
void forward(const std::string& name, bench::Cost cost, const Shapes& shapes, const Op& op, DType dtype = f32) {
  bench::add_case(name, cost, [=] {
    return [op, in = random_inputs(shapes, dtype)] {
      const NoGrad no_grad;
      bench::keep(op(in));
    };
  });
}

/// Adds two cases under ops.py's names: forward as `name`; as `name_fb` forward and backward, with gradients for all
/// inputs.
void each(const std::string& name, const std::string& name_fb, bench::Cost cost, const Shapes& shapes, const Op& op) {
  forward(name, cost, shapes, op);
  bench::add_case(name_fb, {3 * cost.flops, 0}, [=] {
    Inputs in = random_inputs(shapes);
    for (Variable& x : in) x.requires_grad_();
    const Tensor ones = ones_like(op(in).tensor());
    return [op, in, ones] { bench::keep(gradients(op(in), in, ones)); };
  });
}

void matrix_products() {
  const Op product = [](const Inputs& in) { return matmul(in[0], in[1]); };
  for (const int64_t n : {128, 256, 512, 1024, 2048})
    forward(str("matmul_", n), {2. * n * n * n}, {{n, n}, {n, n}}, product);
  const double cube = 2. * 1024 * 1024 * 1024;
  const Shapes squares{{1024, 1024}, {1024, 1024}};
  forward("matmul_nt_1024", {cube}, squares, [](const Inputs& in) { return matmul(in[0], in[1].t()); });
  forward("matmul_bf16_1024", {cube}, squares, product, bf16);
  forward("bmm_48x256x64x256", {2. * 48 * 256 * 64 * 256}, {{48, 256, 64}, {48, 64, 256}}, product);
  each("linear_1024x768x3072", "linear_fb", {2. * 1024 * 768 * 3072}, {{1024, 768}, {3072, 768}, {3072}},
       [](const Inputs& in) { return linear(in[0], in[1], in[2]); });
}

void rows() {
  const int64_t r = 2048, c = 1024, vocab = 50257;
  each("softmax_2048x1024", "softmax_fb", {0, 8. * r * c}, {{r, c}},
       [](const Inputs& in) { return softmax(in[0], -1); });
  each("layernorm_2048x1024", "layernorm_fb", {0, 8. * r * c}, {{r, c}, {c}, {c}},
       [=](const Inputs& in) { return layer_norm(in[0], {c}, in[1], in[2]); });
  each("cross_entropy_512x50257", "cross_entropy_fb", {0, 4. * 512 * vocab}, {{512, vocab}},
       [target = randint(0, vocab, {512})](const Inputs& in) { return cross_entropy(in[0], target); });
}

void pointwise() {
  const double e = 1 << 22;  // 2048 x 2048 elements
  const Shapes one{{2048, 2048}}, two{{2048, 2048}, {2048, 2048}};
  each("gelu_tanh_4M", "gelu_tanh_fb", {0, 8 * e}, one, [](const Inputs& in) { return gelu(in[0], Gelu::tanh); });
  forward("gelu_erf_4M", {0, 8 * e}, one, [](const Inputs& in) { return gelu(in[0]); });
  forward("exp_4M", {0, 8 * e}, one, [](const Inputs& in) { return exp(in[0]); });
  forward("relu_4M", {0, 8 * e}, one, [](const Inputs& in) { return relu(in[0]); });
  forward("add_4M", {0, 12 * e}, two, [](const Inputs& in) { return in[0] + in[1]; });
  forward("add_inplace_4M", {0, 12 * e}, two,
          [](const Inputs& in) { return add_(in[0].tensor(), in[1].tensor(), 1e-9); });
  forward("add_bias_rows_4M", {0, 8 * e}, two, [](const Inputs& in) { return in[0] + in[1][0]; });
  forward("mul_add_chain_4M", {}, two, [](const Inputs& in) { return relu(in[0] * in[1] + in[0]); });
  forward("sum_all_4M", {0, 4 * e}, one, [](const Inputs& in) { return sum(in[0]); });
  forward("sum_dim0_4M", {0, 4 * e}, one, [](const Inputs& in) { return sum(in[0], {0}); });
  forward("sum_dim1_4M", {0, 4 * e}, one, [](const Inputs& in) { return sum(in[0], {1}); });
  forward("transpose_copy_4M", {0, 8 * e}, one, [](const Inputs& in) { return in[0].t().contiguous(); });
  forward("copy_4M", {0, 8 * e}, one, [](const Inputs& in) { return in[0].clone(); });
  forward("cast_bf16_4M", {0, 6 * e}, one, [](const Inputs& in) { return in[0].to(bf16); });
}

void images() {
  const int64_t n = 16, c = 32, k = 64, h = 28, w = 28;
  const double elements = double(n * c * h * w);
  const Shape images{n, c, h, w};
  const Op conv = [](const Inputs& in) { return conv2d(in[0], in[1], in[2], {.padding = {1, 1}}); };
  each("conv2d_3x3", "conv2d_3x3_fb", {2. * n * k * c * 9 * h * w}, {images, {k, c, 3, 3}, {k}}, conv);
  forward("maxpool2x2", {0, 5 * elements}, {images}, [](const Inputs& in) { return max_pool2d(in[0], {}); });
  forward("batchnorm_train", {0, 8 * elements}, {images},
          [](const Inputs& in) { return batch_norm(in[0], {}, {}, {}, {}, true); });
}

void sequences() {
  const int64_t b = 4, heads = 12, t = 256, d = 64, vocab = 50257;
  const Shape heads_shape{b, heads, t, d};
  each("sdpa_causal", "sdpa_causal_fb", {4. * b * heads * t * t * d}, {heads_shape, heads_shape, heads_shape},
       [](const Inputs& in) { return attention(in[0], in[1], in[2], {}, {.scale = 0, .causal = true}); });
  each("embedding_2048x768", "embedding_fb", {0, 8. * 2048 * 768}, {{vocab, 768}},
       [index = randint(0, vocab, {2048})](const Inputs& in) { return embedding(in[0], index); });
}

/// One step over a tensor of 50 M parameters: reads 4 and writes 3 floats per parameter.
void optimizers() {
  constexpr int64_t count = 50'000'000;
  bench::add_case("adamw_50M", {0, 28. * count}, [] {
    Variable parameter(randn({count}), true);
    parameter.grad() = randn({count});
    auto optimizer =
        std::make_shared<optim::AdamW>(std::vector{parameter}, optim::AdamWOptions{.lr = 1e-3, .weight_decay = 0.01});
    return [optimizer] { optimizer->step(); };
  });
}

}  // namespace

int main(int argc, char** argv) {
  manual_seed(0);
  matrix_products();
  rows();
  pointwise();
  images();
  sequences();
  optimizers();
  return bench::run_cases(argc, argv, "ops", "op");
}
