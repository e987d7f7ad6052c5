// How many kernels a GPT's training step starts: per layer no more than its arithmetic needs, and none for work that
// can be fused into another kernel. The emulator counts them, at sizes where each kernel takes the form that it has at
// large sizes.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "nn/models/gpt.h"
#include "report/roofline.h"
#include "tensor/random.h"
#include "tensor/stream.h"
#include "tests/cudasim/fake.h"

using namespace lockstep;

namespace {

const Device cuda0{Device::Type::cuda, 0};

using Launches = std::map<std::string, int64_t>;

constexpr int64_t batch = 2;

nn::GPT::Options sized(nn::GPT::Options o, int64_t layers) {
  o.vocab = 96, o.context = 16, o.width = 32, o.heads = 2, o.layers = layers;
  return o;
}
nn::GPT::Options llama() {
  return {.kv_heads = 1,
          .norm = nn::Norm::rms,
          .feed_forward = nn::FeedForward::swiglu,
          .rope = nn::Rope{},
          .tied = false,
          .bias = false};
}

Launches launches_of_step(const nn::GPT::Options& o, DType dtype) {
  manual_seed(1);
  nn::GPT model(o);
  model.to(dtype).to(cuda0);
  const Tensor tokens = randint(0, o.vocab, {batch, o.context}, {.dtype = i64, .device = cpu}).to(cuda0),
               targets = randint(0, o.vocab, {batch, o.context}, {.dtype = i64, .device = cpu}).to(cuda0);
  for (int pass = 0; pass < 2; ++pass) {  // the first pass also fills caches such as rotary tables
    model.zero_grad();
    synchronize(cuda0);
    fake::take_launches();
    model.loss(tokens, targets).backward();
    synchronize(cuda0);
  }
  return fake::take_launches();
}

std::string text_of(const Launches& launches) {
  std::string text;
  for (const auto& [name, count] : launches) text += name + " " + std::to_string(count) + ", ";
  return text;
}

int64_t sum_of(const Launches& launches) {
  int64_t sum = 0;
  for (const auto& [name, count] : launches) sum += count;
  return sum;
}

}  // namespace

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
  for (const Row& row : rows) {
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
  for (const double p : {0., 0.3}) {
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
}

TEST_CASE("launches: a dry run counts as many kernels as the emulator") {
  const std::pair<const char*, nn::GPT::Options> models[] = {
      {"GPT-2", {}}, {"GPT-2 with dropout", {.dropout = 0.1}}, {"Llama", llama()}};
  for (const auto& [name, options] : models) {
    for (const DType dtype : {f32, bf16}) {
      const nn::GPT::Options o = sized(options, 2);
      const Launches counted = launches_of_step(o, dtype);
      const report::DryStep dry = report::dry_step(o, batch, dtype, false);
      Launches said;
      for (const DryKernel& k : dry.kernels) said[k.name] += report::launches_of({k});
      INFO(str(name, ", ", dtype, "; the emulator: "), text_of(counted));
      INFO("the dry run: ", text_of(said));
      CHECK(report::launches_of(dry.kernels) == sum_of(counted));
    }
  }
}

TEST_CASE("traffic: bytes that a block reads and writes beside products and attention") {
  // The least traffic of a block, in activations of (batch, context, width):
  //   each half, forward: reads its residual sum and writes its norm: 2 + 2; with dropout it reads both summands and
  //     writes the sum, too: 4 + 4
  //   each half, backward: reads the gradients of both and the sum, writes its own gradient: 4 + 4; with dropout also
  //     that of the dropped summand: 5 + 5
  //   the biases of queries, keys and values and of the layer four times as wide: the layers' gradients are read: 3 + 4
  //   Llama's rotary embedding: queries and half as many keys, forward and backward: 6
  //   Llama's gate, four times as wide: 2 reads and 1 write forward, 3 reads and 2 writes backward: 32
  struct Row {
    nn::GPT::Options options;
    double least;
  };
  for (const Row& row : {Row{{}, 12 + 7}, Row{{.dropout = 0.1}, 18 + 7}, Row{llama(), 50}}) {
    double bytes[2] = {};
    for (const int64_t layers : {2, 4}) {
      nn::GPT::Options o = sized(row.options, layers);
      o.width = 512, o.context = 256;  // large enough that weights do not matter
      for (const DryKernel& k : report::dry_step(o, batch, bf16, false).kernels) {
        const std::string& name = k.name;
        if (name.starts_with("matmul") || name.starts_with("attention")) continue;
        bytes[layers / 2 - 1] += double(k.bytes());
      }
    }
    const double of_layer = (bytes[1] - bytes[0]) / 2 / double(batch * 256 * 512 * 2);
    CAPTURE(of_layer);
    CHECK(of_layer >= row.least);
    CHECK(of_layer <= 1.12 * row.least);
  }
}
