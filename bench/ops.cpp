// Single operations: forward only, without recording, and ("_fb") forward and backward with fresh gradients. Names and
// sizes are those of the peer script ops.py, so that bench/compare can match them.
#include "autograd/ops.h"
#include "autograd/split_backward.h"

#include <functional>
#include <memory>
#include <vector>

#include "bench/cases.h"
#include "optim/optim.h"
#include "tensor/random.h"

using namespace lockstep;

namespace {

using Inputs = std::vector<Variable>;
using Op = std::function<Variable(const Inputs&)>;

Variable draw(const Shape& shape) { return randn(shape); }

/// Adds a case: forward without recording.
void forward(const std::string& name, bench::Cost cost, std::function<Inputs()> inputs, Op op) {
  bench::add_case(name, cost, [=] {
    return [op, in = inputs()] {
      const NoGrad no_grad;
      bench::keep(op(in));
    };
  });
}

/// Adds a case: forward and backward, with gradients for all inputs.
void both(const std::string& name, bench::Cost cost, std::function<Inputs()> inputs, Op op) {
  bench::add_case(name, cost, [=] {
    Inputs in = inputs();
    for (Variable& x : in) x.requires_grad_();
    const Tensor ones = ones_like(op(in).tensor());
    return [op, in, ones] { bench::keep(gradients(op(in), in, ones)); };
  });
}

/// Adds two cases under ops.py's names: forward as `name`, and forward and backward as `name_fb`.
void each(const std::string& name, const std::string& name_fb, bench::Cost cost, std::function<Inputs()> inputs,
          Op op) {
  forward(name, cost, inputs, op);
  both(name_fb, {3 * cost.flops, 0}, inputs, op);
}

void matrix_products() {
  const Op product = [](const Inputs& in) { return matmul(in[0], in[1]); };
  for (const int64_t n : {128, 256, 512, 1024, 2048}) {
    forward(
        str("matmul_", n), {2. * n * n * n},
        [=] {
          return Inputs{draw({n, n}), draw({n, n})};
        },
        product);
  }
  const double cube = 2. * 1024 * 1024 * 1024;
  forward(
      "matmul_nt_1024", {cube},
      [] {
        return Inputs{draw({1024, 1024}), draw({1024, 1024})};
      },
      [](const Inputs& in) { return matmul(in[0], in[1].t()); });
  forward(
      "matmul_bf16_1024", {cube},
      [] {
        return Inputs{draw({1024, 1024}).to(bf16), draw({1024, 1024}).to(bf16)};
      },
      product);
  forward(
      "bmm_48x256x64x256", {2. * 48 * 256 * 64 * 256},
      [] {
        return Inputs{draw({48, 256, 64}), draw({48, 64, 256})};
      },
      product);
  each(
      "linear_1024x768x3072", "linear_fb", {2. * 1024 * 768 * 3072},
      [] {
        return Inputs{draw({1024, 768}), draw({3072, 768}), draw({3072})};
      },
      [](const Inputs& in) { return linear(in[0], in[1], in[2]); });
}

void rows() {
  const int64_t r = 2048, c = 1024;
  each(
      "softmax_2048x1024", "softmax_fb", {0, 8. * r * c},
      [=] {
        return Inputs{draw({r, c})};
      },
      [](const Inputs& in) { return softmax(in[0], -1); });
  each(
      "layernorm_2048x1024", "layernorm_fb", {0, 8. * r * c},
      [=] {
        return Inputs{draw({r, c}), draw({c}), draw({c})};
      },
      [=](const Inputs& in) { return layer_norm(in[0], {c}, in[1], in[2]); });
  bench::add_case("cross_entropy_512x50257", {0, 4. * 512 * 50257}, [] {
    return [x = draw({512, 50257}), target = randint(0, 50257, {512})] {
      const NoGrad no_grad;
      bench::keep(cross_entropy(x, target));
    };
  });
  bench::add_case("cross_entropy_fb", {}, [] {
    return [x = Variable(randn({512, 50257}), true), target = randint(0, 50257, {512})] {
      bench::keep(gradients(cross_entropy(x, target), {x}, ones({})));
    };
  });
}

void pointwise() {
  const double e = 1 << 22;  // 2048 x 2048 elements
  const auto one = [] { return Inputs{draw({2048, 2048})}; };
  const auto two = [] { return Inputs{draw({2048, 2048}), draw({2048, 2048})}; };
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
  each(
      "conv2d_3x3", "conv2d_3x3_fb", {2. * n * k * c * 9 * h * w},
      [=] {
        return Inputs{draw({n, c, h, w}), draw({k, c, 3, 3}), draw({k})};
      },
      [](const Inputs& in) {
        return conv2d(in[0], in[1], in[2], {.padding = {1, 1}});
      });
  forward(
      "maxpool2x2", {0, 5 * elements},
      [=] {
        return Inputs{draw({n, c, h, w})};
      },
      [](const Inputs& in) { return max_pool2d(in[0], {}); });
  forward(
      "batchnorm_train", {0, 8 * elements},
      [=] {
        return Inputs{draw({n, c, h, w})};
      },
      [](const Inputs& in) { return batch_norm(in[0], {}, {}, {}, {}, true); });
}

void sequences() {
  const int64_t b = 4, heads = 12, t = 256, d = 64;
  each(
      "sdpa_causal", "sdpa_causal_fb", {4. * b * heads * t * t * d},
      [=] {
        return Inputs{draw({b, heads, t, d}), draw({b, heads, t, d}), draw({b, heads, t, d})};
      },
      [](const Inputs& in) { return attention(in[0], in[1], in[2], {}, {.scale = 0, .causal = true}); });
  bench::add_case("embedding_2048x768", {0, 8. * 2048 * 768}, [] {
    return [w = draw({50257, 768}), index = randint(0, 50257, {2048})] {
      const NoGrad no_grad;
      bench::keep(embedding(w, index));
    };
  });
  bench::add_case("embedding_fb", {}, [] {
    return [w = Variable(randn({50257, 768}), true), index = randint(0, 50257, {2048}), ones = ones({2048, 768})] {
      bench::keep(gradients(embedding(w, index), {w}, ones));
    };
  });
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
