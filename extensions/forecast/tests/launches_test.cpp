// Dry runs of a GPT's step have the kernels that the emulator counts, and the bytes that the step needs.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "extensions/forecast/roofline.h"
#include "tests/cuda/launches.h"

using namespace lockstep;
using namespace testing;

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
  // The least traffic of a block, in activations of (batch, context, width). "2 + 2": 2 for attention, 2 for the MLP.
  //   each half, forward: reads its residual sum and writes its norm: 2 + 2; with dropout it reads both summands and
  //     writes the sum, too: 4 + 4
  //   each half, backward: reads the sum and the gradients of sum and norm, writes one gradient: 4 + 4; with dropout it
  //     also writes the gradient of the dropped summand: 5 + 5
  //   gradients of biases: reads the gradients of queries, keys and values, and of the MLP's inner layer: 3 + 4
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

TEST_CASE("cuda head: GPT-2's step reads and writes its scores once, in one chunk") {
  const nn::GPT::Options gpt2{.vocab = 50257, .context = 1024, .layers = 1, .width = 768, .heads = 12};
  constexpr int64_t samples = 16;
  const report::DryStep step = report::dry_step(gpt2, samples, bf16, false);
  const auto named = [&](const char* name) {
    std::vector<DryKernel> all;
    for (const DryKernel& k : step.kernels)
      if (k.name == name) all.push_back(k);
    return all;
  };
  CHECK(named("cross_entropy_grad").empty());
  const std::vector<DryKernel> losses = named("cross_entropy");
  REQUIRE(losses.size() == 1);
  CHECK(double(losses[0].bytes()) == doctest::Approx(2. * samples * 1024 * 50257 * 2).epsilon(0.01));
  int64_t products = 0;
  for (const DryKernel& k : named("matmul"))
    products += std::any_of(k.operands.begin(), k.operands.end(), [](const DryKernel::Operand& o) {
      return std::find(o.shape.begin(), o.shape.end(), 50257) != o.shape.end();
    });
  CHECK(products == 3);
}
