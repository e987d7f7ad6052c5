// The kernels of a step from a dry run: operations and bytes match the arithmetic, and times follow from them.
// tests/cuda/launches_test.cpp checks that the launches are those of the CUDA backend.
#include "extensions/forecast/roofline.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tensor/ops.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::report;

namespace {

const Device card{Device::Type::cuda, 0};

nn::GPT::Options gpt() { return {.vocab = 512, .context = 64, .layers = 3, .width = 128, .heads = 4}; }

double flops_of(const DryStep& step, const std::string& kind) {
  double sum = 0;
  for (const DryKernel& k : step.kernels)
    if (const KernelCost cost = cost_of(k); cost.kind.starts_with(kind)) sum += cost.flops;
  return sum;
}

}  // namespace

TEST_CASE("dry run: kernels are noted with the bytes that they read and write, and no memory is allocated") {
  DryRun dry;
  CHECK_ERROR_IS(DryRun(), "[DryRun] only one DryRun may exist at a time; destroy the other one first");
  {
    const Tensor x = empty({1 << 20, 1 << 10}, {.dtype = bf16, .device = card}), y = gelu_tanh(x),
                 row = empty({1 << 10}, {.dtype = bf16, .device = card}), z = add(y, row);
    std::vector<DryKernel> all = dry.take();
    REQUIRE(all.size() == 2);
    CHECK(all[0].name == "pointwise");
    CHECK(all[0].bytes() == int64_t(4) << 30);
    CHECK(all[1].name == "add");
    CHECK(all[1].bytes() == (int64_t(4) << 30) + 2048);  // the broadcast row counts once
    CHECK(all[1].operand(2).is_written);
    CHECK(sum(z).item() == 0);
    all = dry.take();
    REQUIRE(all.size() == 2);
    CHECK(all[0].name == "reduce");
    CHECK(all[1].name == "copy to host");
    CHECK(launches_of(all) == 3);  // two for the sum (chunks, then their results), and the copy
    CHECK(dry.take().empty());
  }
  CHECK_ERROR_IS(card_of("h300"), "expected a card of h200, h100, a100, got \"h300\"");
}

TEST_CASE("roofline: a step has three times its forward's operations, and each parameter's bytes") {
  using Row = std::pair<double, int64_t>;
  for (const auto& [dropout, window] : {Row{0, 0}, Row{0.1, 0}, Row{0, 16}}) {
    nn::GPT::Options o = gpt();
    o.dropout = dropout, o.window = window;
    const DryStep step = dry_step(o, 4, bf16);
    CHECK(step.tokens == 256);
    CHECK(step.parameters == 512 * 128 + 64 * 128 + 3 * (12 * 128 * 128 + 13 * 128) + 2 * 128);
    // Attention's backward recomputes scores, which does not count as the model's operations.
    const double forward = flops_of(step, "attention, forward");
    CHECK(flops_of(step, "attention, backward") == 2.5 * forward);
    CHECK(flops_of(step, "product") + 3 * forward == step.model_flops);
    CHECK(forward == 3 * 4. * 4 * 128 * (window > 0 ? 15 * 16 / 2 + 49 * 16 : 64 * 65 / 2));
    // A step reads the 16-bit gradient (some kernels widen it first), writes the 16-bit copy, and reads and writes the
    // master weight and two states.
    const Roofline found = roofline(step, card_of("h200"));
    double seconds = 0, optimizer = 0;
    for (const RooflineRow& row : found.rows) {
      seconds += row.seconds;
      if (row.cost.kind == "optimizer") optimizer += row.cost.bytes;
    }
    CHECK(optimizer >= 28. * double(step.parameters));
    CHECK(optimizer <= 30. * double(step.parameters));
    CHECK(seconds == doctest::Approx(found.seconds));
    CHECK(found.mfu == doctest::Approx(step.model_flops / found.seconds / 989e12));
    CHECK(found.launches == launches_of(step.kernels));
    CHECK(found.seconds >= 0.999 * double(found.launches) * least_seconds);
  }
}

TEST_CASE("roofline: a faster card is not slower, and a step of GPT-2 is what its operations say") {
  const nn::GPT::Options o{.vocab = 50257, .context = 1024, .layers = 12, .width = 768, .heads = 12};
  const DryStep step = dry_step(o, 16, bf16);
  CHECK(step.parameters == 124'439'808);
  CHECK(step.model_flops ==
        doctest::Approx(6 * 123.65e6 * 16384 + 3 * 4 * 12. * 16 * 768 * (1024. * 1025 / 2)).epsilon(0.001));
  const Roofline found = roofline(step, card_of("h200"));
  const double h200 = found.seconds, h100 = roofline(step, card_of("h100")).seconds,
               a100 = roofline(step, card_of("a100")).seconds;
  CHECK(found.mfu > 0.47);
  CHECK(found.mfu < 0.5);  // the measured step reached 0.42 with slower kernels
  CHECK(h200 < h100);
  CHECK(h100 < a100);
  CHECK(h200 > step.model_flops / 989e12);
  const std::string text = text_of(found, step, card_of("h200"), "GPT-2", "bf16");
  CHECK(contains(text, "measured on one H200, 27 November 2026"));
  CHECK(contains(text, "0.80 [3], 0.33 before"));
}

TEST_CASE("roofline: the kernels that an H200 timed in a step of GPT-2 have the times that it measured") {
  // One whole step on 27 November 2026, commit f7cfeb5: parameters in bf16, 16 x 1,024 tokens, vocabulary 50304.
  struct Row {
    std::vector<std::string> kinds;
    double ms;
  };
  const Row rows[] = {
      {{"product 16384 x 768 x 3072"}, 1.842 + 1.983},  // with gelu, and with its derivative
      {{"product 16384 x 3072 x 768", "product 16384 x 50304 x 768", "product 16384 x 768 x 2304",
        "product 16384 x 2304 x 768", "product 16384 x 768 x 768"},
       4.051 + 1.758 + 1.095},
      {{"product 16384 x 768 x 50304"}, 1.731},
      {{"product 50304 x 16384 x 768"}, 1.515},
      {{"product 3072 x 16384 x 768", "product 768 x 16384 x 3072", "product 2304 x 16384 x 768",
        "product 768 x 16384 x 768"},
       2.459 + 1.046 + 0.380 + 0.443},  // with the kernels that add the parts of split products
      // Measured for all gradients of biases. This kernel computes half of them, which read 0.78 of the bytes; the
      // kernels of norms compute the others.
      {{"column_sums"}, 0.78 * 1.145},
      {{"attention, forward"}, 1.003},
      {{"attention, backward"}, 2.162 + 1.279 + 0.177},
      {{"layer_norm"}, 0.708},
      {{"add_norm_grad"}, 1.390 + 0.130},
      {{"layer_norm_grad"}, 0.055 + 0.005},
      {{"cross_entropy"}, 0.848 + 1.258},  // these were two kernels at that commit
      {{"optimizer"}, 0.991},
      {{"square_sums"}, 0.172},
      {{"embedding_grad"}, 1.203 + 0.027 + 0.016},
  };
  const Card& h200 = card_of("h200");
  const nn::GPT::Options o{.vocab = 50304, .context = 1024, .layers = 12, .width = 768, .heads = 12};
  std::map<std::string, double> ms;
  double sum = 0;
  for (RooflineRow& row : roofline(dry_step(o, 16, bf16), h200).rows) {
    const double before = row.cost.efficiency.before;
    if (before > 0) row.seconds = std::max(row.seconds, row.cost.bytes / (h200.bandwidth * before));
    ms[row.cost.kind] = row.seconds * 1e3, sum += row.seconds * 1e3;
  }
  for (const Row& row : rows) {
    double found = 0;
    for (const std::string& kind : row.kinds) found += ms[kind];
    CHECK_MESSAGE(found == doctest::Approx(row.ms).epsilon(0.1), row.kinds[0], ": ", found, " ms");
  }
  CHECK(sum == doctest::Approx(31.0).epsilon(0.02));
}

TEST_CASE("roofline: a step of a Llama of 1.2 billion parameters is at 60 % of an H200") {
  const DryStep step = dry_step({.vocab = 128256,
                                 .context = 4096,
                                 .layers = 16,
                                 .width = 2048,
                                 .heads = 32,
                                 .inner = 8192,
                                 .kv_heads = 8,
                                 .norm = nn::Norm::rms,
                                 .feed_forward = nn::FeedForward::swiglu,
                                 .rope = nn::Rope{},
                                 .bias = false},
                                4, bf16);
  CHECK(step.parameters == 1'235'814'400);
  const Roofline found = roofline(step, card_of("h200"));
  CHECK(found.mfu > 0.55);
  // Products read the residuals, so adding them needs no kernel of its own.
  for (const RooflineRow& row : found.rows) CHECK((row.cost.kind != "add" && row.cost.kind != "add_norm"));
}
