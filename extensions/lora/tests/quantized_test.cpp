// Adapters on quantized weights.
#include <doctest/doctest.h>

#include "extensions/lora/adapter.h"
#include "extensions/lora/low_rank.h"
#include "extensions/quantization/tests/models.h"
#include "nn/init.h"
#include "tests/devices.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace testing;

TEST_CASE("quantize: adapters train beside codes, with the gradients of the weights that these stand for") {
  const OnCpu on_cpu;
  for (const QuantFormat format : {QuantFormat::row8, QuantFormat::group8, QuantFormat::group4}) {
    const auto model = seeded(small());
    nn::quantize(*model, {.format = format});
    const auto plain = dequantized(*model, small());
    const nn::LoraOptions options{.r = 4, .targets = {"in_proj", "mlp.up"}};
    std::vector<std::vector<Variable>> trained;
    std::vector<nn::Lora> adapters;
    for (nn::GPT* const m : {model.get(), plain.get()}) {
      manual_seed(9);
      adapters.push_back(nn::add_lora(*m, options));
      for (const auto& one : adapters.back().adapters())
        for (nn::Linear& b : one.low_rank->b) nn::init::normal(b.weight, 0, 0.1);
      m->loss(some_tokens(), some_tokens()).backward();
      auto& list = trained.emplace_back();
      for (const Variable& p : m->parameters())
        if (p.requires_grad()) list.push_back(p);
    }
    REQUIRE(trained[0].size() == 8);
    REQUIRE(trained[1].size() == 8);
    for (size_t i = 0; i < 8; ++i) CHECK(difference_of(trained[0][i].grad(), trained[1][i].grad()) < 1e-5);
    const TempDir at;
    nn::save_adapter(*model, adapters[0], at / "adapter", "base");
    const auto again = seeded(small());
    nn::quantize(*again, {.format = format});
    nn::load_adapter(*again, at / "adapter");
    CHECK(equal((*again)(some_tokens()).tensor(), (*model)(some_tokens()).tensor()));
    CHECK_ERROR(adapters[0].merge(), "expected a floating weight to merge into");
  }
}
