// Optimizers with 8-bit state: bitsandbytes' values and codes, and under the engine the same bits for every number of
// ranks and stage of ZeRO, also through checkpoints.
#include "extensions/quantization/eight_bit.h"
#include "data/safetensors.h"
#include "engine/check_plan.h"
#include "extensions/quantization/block_codes.h"
#include "tensor/memory.h"
#include "tests/devices.h"
#include "tests/engine/util.h"
#include "tests/golden_folder.h"

using namespace lockstep;
using namespace testing;
using engine::initialize;

namespace {

Config with(const std::string& type, int stage, int64_t accumulation, DType dtype = f32,
            const char* params = R"({"lr": 0.01, "weight_decay": 0.1})") {
  Config c = with_optimizer(config_of(stage, accumulation, dtype), type, params);
  c.gradient_clipping = 0.5;
  return c;
}

/// The parameters after more steps. b.weight has 12,610 elements, 50 blocks; the others are small.
Tensors trained(NetTrainer& t, int64_t steps) {
  train_steps(t.e, steps);
  return full_parameters(t.e, *t.net);
}
Tensors trained(const Config& config, int ranks) {
  return alike(ranks, [&](int) {
    NetTrainer t(config);
    return trained(t, 6);
  });
}

}  // namespace

TEST_CASE("8 bits: values, scales and codes match bitsandbytes; a second moment above 0 stays above") {
  const OnCpu on_cpu;
  const auto golden = data::SafeTensors::open(std::string(golden_folder()) + "/block_codes.safetensors");
  for (const bool is_signed : {true, false}) {
    const std::string name = is_signed ? "signed" : "unsigned";
    const auto& map = code_map(is_signed);
    CHECK(golden.tensor("map_" + name).to_vector<float>() == std::vector<float>(map.begin(), map.end()));
    const Tensor x = golden.tensor("blockwise_" + name + "_x");
    Tensor codes = zeros(x.shape(), {.dtype = u8}), absmax = zeros({code_blocks(x.numel())});
    encode_blocks(x, {codes, absmax, is_signed});
    CHECK(equal(absmax, golden.tensor("blockwise_" + name + "_absmax")));
    const auto ours = codes.to_vector<uint8_t>(),
               theirs = golden.tensor("blockwise_" + name + "_codes").to_vector<uint8_t>();
    int other = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      if (ours[i] == theirs[i]) continue;
      ++other;
      CHECK((!is_signed && ours[i] == 1 && theirs[i] == 0 && x.to_vector<float>()[i] > 0));
    }
    CHECK(other == (is_signed ? 0 : 1));
    const Tensor back = decode_blocks({codes, absmax, is_signed});
    CHECK(amax(abs(sub(back, x))).item() < 0.02 * amax(abs(x)).item());
  }
  for (const bool is_signed : {true, false}) {  // the nearest code, by exhaustive search
    manual_seed(2);
    Tensor x = mul(randn({64 * 256}), randn({64 * 256})), codes = zeros(x.shape(), {.dtype = u8}), absmax = zeros({64});
    if (!is_signed) x = mul(x, x);
    encode_blocks(x, {codes, absmax, is_signed});
    const auto found = codes.to_vector<uint8_t>();
    const auto values = x.to_vector<float>(), scales = absmax.to_vector<float>();
    const auto& map = code_map(is_signed);
    int wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const float scaled = values[i] / scales[i / 256];
      int nearest = !is_signed && scaled > 0 ? 1 : 0;
      while (nearest < 255 && scaled > (map[size_t(nearest)] + map[size_t(nearest) + 1]) / 2) ++nearest;
      wrong += nearest != found[i];
    }
    CHECK(wrong == 0);
  }
  for (const double value : {0., 1e-30, 1e-45, double(INFINITY), double(NAN)}) {
    Tensor codes = zeros({300}, {.dtype = u8}), absmax = zeros({2});
    encode_blocks(full({300}, value), {codes, absmax, false});
    const auto back = decode_blocks({codes, absmax, false}).to_vector<float>();
    for (const float one : back) CHECK((one == float(value) || (std::isnan(one) && !std::isfinite(value))));
  }
}

TEST_CASE("8 bits: 2.03 bytes an element, as lockstep plan predicts; small parameters and tables keep f32") {
  const OnCpu on_cpu;
  manual_seed(1);
  Variable large(randn({512, 256}), true), table(randn({512, 256}), true), small(randn({64}), true);
  const auto made = engine::make_optimizers(with_optimizer({}, "AdamW8bit"),
                                            {{"large", large}, {"table", table, true}, {"small", small}});
  REQUIRE(made.size() == 1);
  for (const Variable& p : made[0]->parameters()) p.grad() = ones(p.shape());
  const int64_t before = memory_report().category[size_t(Memory::optimizer)].current;
  made[0]->step();
  const int64_t bytes = memory_report().category[size_t(Memory::optimizer)].current - before;
  CHECK(bytes == 2 * 512 * 256 + 2 * 4 * 512 + 8 * 512 * 256 + 8 * 64);
  CHECK(made[0]->state_of(large).tensors.count("exp_avg_codes") == 1);
  for (const Variable& p : {table, small}) CHECK(made[0]->state_of(p).tensors.count("exp_avg") == 1);
}

TEST_CASE("8 bits: the same bits for every number of ranks and stage, and in 16 bits") {
  const OnCpu on_cpu;
  for (const char* type : {"AdamW8bit", "adam8bit", "Lion8bit"}) {
    for (const DType dtype : {f32, bf16}) {
      if (dtype == bf16 && type[0] != 'A') continue;
      const Tensors one = trained(with(type, 0, 4, dtype), 1);
      CHECK(differing(one, trained(with(type == std::string("Lion8bit") ? "Lion" : "AdamW", 0, 4, dtype), 1)) != "");
      for (const int stage : {0, 1, 2, 3}) {
        for (const int ranks : {2, 4}) {
          CAPTURE(type);
          CAPTURE(stage);
          CAPTURE(ranks);
          CHECK(differing(one, trained(with(type, stage, 4 / ranks, dtype), ranks)) == "");
        }
      }
      Config offloaded = with(type, 3, 2, dtype);
      offloaded.zero_optimization.offload_optimizer = {.device = zero::Offload::cpu, .ratio = 0.5};
      CHECK(differing(one, trained(offloaded, 2)) == "");
    }
  }
}

TEST_CASE("8 bits: checkpoints go to other ranks and stages with the same bits, and never to f32 state") {
  const OnCpu on_cpu;
  for (const DType dtype : {f32, bf16}) {
    const Tensors entire = trained(with("AdamW8bit", 0, 4, dtype), 1);
    const struct {
      int from, from_stage, to, to_stage;
    } rows[] = {{1, 0, 4, 2}, {4, 1, 1, 0}, {2, 3, 4, 1}, {4, 0, 2, 3}};
    for (const auto& row : rows) {
      const TempDir folder;
      on_ranks(row.from, [&](int) {
        NetTrainer t(with("AdamW8bit", row.from_stage, 4 / row.from, dtype));
        train_steps(t.e, 3);
        t.e.save_checkpoint(folder.str());
        t.e.wait_for_checkpoint();
      });
      CAPTURE(row.from_stage);
      CAPTURE(row.to_stage);
      const Tensors after = alike(row.to, [&](int) {
        NetTrainer t(with("AdamW8bit", row.to_stage, 4 / row.to, dtype));
        CHECK(t.e.load_checkpoint(folder.str()));
        return trained(t, 3);
      });
      CHECK(differing(entire, after) == "");
      const std::pair<const char*, const char*> others[] = {{"AdamW", "optimizer.exp_avg.b.weight"},
                                                            {"Lion8bit", "optimizer.exp_avg_sq_codes.b.weight"}};
      for (const auto& [type, text] : others)
        CHECK_ERROR(
            on_ranks(1, [&, type = type](int) { NetTrainer(with(type, 0, 4, dtype)).e.load_checkpoint(folder.str()); }),
            text);
    }
  }
}

TEST_CASE("8 bits: the loss after 200 steps is within 1 % of f32's") {
  const OnCpu on_cpu;
  const auto loss = [](const char* type) {
    return on_ranks<double>(1, [&](int) {
      NetTrainer t(with(type, 0, 1, f32, R"({"lr": 0.0003})"));
      double sum = 0;
      for (int step = 0; step < 200; ++step) {
        const Variable out = loss_of_micro_batch(t.e, step, 0);
        t.e.backward(out);
        t.e.step();
        if (step >= 180) sum += out.item() / 20;
      }
      return sum;
    })[0];
  };
  for (const auto& [eight, wide] : {std::pair("AdamW8bit", "AdamW"), std::pair("Lion8bit", "Lion")})
    CHECK(loss(eight) == doctest::Approx(loss(wide)).epsilon(0.01));
}

TEST_CASE("states of other shapes: impossible conversions are rejected with the reason") {
  const OnCpu on_cpu;
  const auto check = [](const std::string& plan, const char* text, const char* said) {
    CHECK_ERROR(engine::check_plan(engine::read_config(text), parallel::parse_plan(plan), {}), said);
  };
  check("tp2", R"({"optimizer": {"type": "AdamW8bit"}})", "leave tp out, or use AdamW");
  check("dp2", R"({"optimizer": {"type": "Lion8bit"}, "zero_optimization": {"stage": 2,
      "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}}})",
        "offload to cpu, or use Lion");
  CHECK_ERROR(engine::read_config(R"({"optimizer": {"type": "AdamW8bit", "params": {"amsgrad": true}}})"),
              "no form in 8 bits");
  CHECK_ERROR(on_ranks(1,
                       [](int) {
                         Net net;
                         optim::AdamW8bit optimizer(net.parameters(), {});
                         zero::Zero(
                             net, optimizer,
                             {.stage = 2, .offload_optimizer = {.device = zero::Offload::nvme, .nvme_path = folder}});
                       }),
              "offload to nvme stores f32");
}
