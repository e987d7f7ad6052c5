// How many kernels a GPT's training step starts: per layer no more than its arithmetic needs, and none for work that
// can be fused into another kernel. The emulator counts them, at sizes where each kernel takes the form that it has at
// large sizes.
#include <doctest/doctest.h>

#include <algorithm>

#include "tensor/random.h"
#include "tensor/stream.h"
#include "tests/cuda/launches.h"

using namespace lockstep;
using namespace testing;

TEST_CASE("launches of a GPT's step: by layer, and beside the layers") {
  // With clipping and unscaling; step_test.cpp checks this number.
  constexpr int64_t of_optimizer = 6;
  struct Row {
    const char* name;
    nn::GPT::Options options;
    int64_t by_layer;  // launches per layer in f32; 16 bits need one less in attention's backward
  };
  const Row rows[] = {
      {"GPT-2", {}, 22},
      {"GPT-2 with dropout", {.dropout = 0.1}, 23},
      {"GPT-2 without biases", {.bias = false}, 20},
      {"Llama", llama(), 27},
  };
  for (const Row& row : rows)
    for (const DType dtype : {f32, bf16}) {
      Launches at[2];
      for (const int64_t layers : {2, 4}) at[layers / 2 - 1] = launches_of_step(sized(row.options, layers), dtype);
      Launches layer = at[1];
      for (auto& [name, count] : layer) count -= at[0][name];
      const int64_t two = sum_of(at[0]), four = sum_of(at[1]), beside = 2 * two - four;
      INFO(str(row.name, ", ", dtype, "; of two layers: "), text_of(layer));
      INFO("of a step with two layers: ", text_of(at[0]));
      CHECK(four - two == 2 * (row.by_layer - (dtype == bf16)));
      CHECK(beside + of_optimizer <= 40);
      CHECK(four + of_optimizer <= std::max<int64_t>(24, row.by_layer) * 4 + 40);
    }
}

TEST_CASE("launches: a norm sums the gradient of a bias, if its gradient is what the layer gets") {
  const auto launched = [](bool hook, double p, bool after_linear) {
    manual_seed(1);
    const Variable x(randn({40, 16}, {.device = cuda0}), true), w(randn({24, 16}, {.device = cuda0}), true),
        b(randn({24}, {.device = cuda0}), true), residual(randn({40, 24}, {.device = cuda0}), true),
        scale(randn({24}, {.device = cuda0}), true);
    const Variable sum = after_linear ? linear(x, w, b)
                         : p > 0      ? add_dropout(residual, linear(x, w, b), p)
                                      : linear_add(residual, x, w, b);
    if (hook) Variable(sum).on_grad([](const Tensor& grad) { return grad.clone(); });
    const Variable y = layer_norm(sum, {24}, scale);
    synchronize(cuda0);
    fake::take_launches();
    y.backward(ones_like(y.tensor()));
    synchronize(cuda0);
    return fake::take_launches();
  };
  for (const double p : {0., 0.3})
    for (const bool after_linear : {true, false}) {
      const Launches plain = launched(false, p, after_linear), hooked = launched(true, p, after_linear);
      INFO(text_of(plain));
      INFO(text_of(hooked));
      CHECK(!plain.contains("column_sums"));
      CHECK(hooked.at("column_sums") == 1);
      CHECK(!plain.contains("dropout"));
      CHECK(plain.contains("memset") == false);
    }
}
