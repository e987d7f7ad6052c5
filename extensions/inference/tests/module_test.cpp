// init_inference() of modules that are no GPT: dtypes, codes, checkpoints of every kind, slices by injection_policy.
#include <doctest/doctest.h>

#include "checkpoint/checkpoint.h"
#include "data/safetensors.h"
#include "extensions/inference/module_engine.h"
#include "extensions/quantization/quantize.h"
#include "nn/nn.h"
#include "tests/apart.h"
#include "tests/messages.h"
#include "tests/ranks.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace testing;
using data::Json;
using inference::init_inference;

namespace {

const inference::InitArgs silent{.log = [](const std::string&) {}};

struct Block : nn::Layer<Block> {
  nn::Linear up{{.in = 8, .out = 32}}, down{{.in = 32, .out = 8}};
  Variable forward(const Variable& x) { return x + down(relu(up(x))); }
  void fields(nn::Fields& f) override { f("up", up)("down", down); }
};

struct Classifier : nn::Layer<Classifier> {
  nn::Linear in{{.in = 6, .out = 8}};
  nn::BatchNorm1d norm{{.channels = 8}};
  nn::ModuleList<Block> blocks;
  nn::Linear out{{.in = 8, .out = 4}};
  nn::Dropout dropout{{.p = 0.5}};
  Classifier() {
    for (int i = 0; i < 2; ++i) blocks.push_back(Block());
  }
  Variable forward(const Variable& x) {
    Variable h = norm(in(x));
    for (auto& block : blocks.items) h = (*block)(h);
    return out(dropout(h));
  }
  void fields(nn::Fields& f) override { f("in", in)("norm", norm)("blocks", blocks)("out", out)("dropout", dropout); }
};

/// A model with the values of this seed, whose batch norm has seen something.
std::shared_ptr<Classifier> seeded(uint64_t seed) {
  manual_seed(seed);
  auto model = std::make_shared<Classifier>();
  const NoGrad no_grad;
  (*model)(randn({16, 6}));
  return model;
}

Tensor input() {
  manual_seed(9);
  return randn({5, 6});
}

Tensor wanted() {
  const auto model = seeded(1);
  model->eval();
  const NoGrad no_grad;
  return (*model)(input()).tensor();
}

constexpr const char* policy = R"("injection_policy": {"Block": "down"})";

}  // namespace

TEST_CASE("inference of a module: dtypes, modes, gradients, times") {
  for (const auto& [word, dtype] : {std::pair("fp32", f32), std::pair("bf16", bf16), std::pair("fp16", f16)}) {
    const auto model = seeded(1);
    auto engine = init_inference(*model, str("{\"dtype\": \"", word, "\"}"), silent);
    CHECK(!model->is_training());
    const Variable out = engine(input());  // f32 inputs are converted
    CHECK(out.dtype() == dtype);
    CHECK(!out.requires_grad());
    CHECK(max_relative_difference(out.tensor().to(f32), wanted()) < (dtype == f32 ? 1e-7 : 0.1));
    CHECK(equal(engine(Variable(input())).tensor(), out.tensor()));
    CHECK_ERROR(engine.model_times(), "call profile_model_time() before the model runs");
    engine.profile_model_time();
    engine(input());
    CHECK(engine.model_times().size() == 1);
    CHECK(engine.model_times().empty());
    engine.destroy();
    CHECK_ERROR(engine(input()), "operator() after destroy()");
  }
  nn::Sequential layers(nn::Linear({.in = 6, .out = 3}), nn::ReLU());
  auto engine = init_inference(layers);
  CHECK(engine(input()).shape() == Shape{5, 3});
}

TEST_CASE("inference of a module: 8 and 4 bits") {
  for (const int bits : {8, 4}) {
    const auto model = seeded(1);
    auto engine =
        init_inference(*model, str(R"({"dtype": "int8", "quant": {"weight": {"num_bits": )", bits, "}}}"), silent);
    CHECK(nn::is_quantized(*model));
    CHECK(max_relative_difference(engine(input()).tensor(), wanted()) < (bits == 8 ? 0.05 : 0.5));
  }
}

TEST_CASE("inference of a module: checkpoints of every kind, with the statistics of batch norm") {
  const TempDir d;
  const auto model = seeded(1);
  nn::State named;
  checkpoints::Contents contents;
  for (const auto& [name, tensor] : model->state()) {
    named.emplace_back("model." + name, tensor);
    contents.pieces.push_back(checkpoints::full("model." + name, tensor));
  }
  data::save_safetensors(d / "plain.safetensors", model->state());
  data::save_safetensors(d / "prefixed.safetensors", named);
  checkpoints::Saver(d / "runs", nullptr).save("last", contents);
  init_inference(*model, Json(Json::Object{{"save_mp_checkpoint_path", d / "saved"}}), silent);
  const auto codes = seeded(1);
  init_inference(*codes, Json(Json::Object{{"dtype", "int8"}, {"save_mp_checkpoint_path", d / "codes"}}), silent);
  for (const char* from : {"plain.safetensors", "prefixed.safetensors", "runs", "saved", "codes"}) {
    CAPTURE(std::string(from));
    const auto other = seeded(2);
    auto engine = init_inference(*other, Json(Json::Object{{"checkpoint", d / from}}), silent);
    const Tensor made = engine(input()).tensor();
    if (from != std::string("codes")) CHECK(equal(made, wanted()));
    else CHECK(max_relative_difference(made, wanted()) < 0.05);
  }
  nn::Linear wrong({.in = 2, .out = 2});
  CHECK_ERROR(init_inference(wrong, Json(Json::Object{{"checkpoint", d / "plain.safetensors"}}), silent),
              "expected the names of this Linear, such as weight");
  CHECK_ERROR(init_inference(wrong, Json(Json::Object{{"checkpoint", d / "none.safetensors"}}), silent),
              "no such file or folder");
}

TEST_CASE("inference of a module: slices of the Linears that injection_policy names") {
  const TempDir d;
  for (const int ranks : {1, 2, 4}) {
    on_ranks(ranks, [&](int rank) {
      const auto model = seeded(rank == 0 ? 1 : 2);  // rank 0's values count
      auto engine = init_inference(*model,
                                   str(R"({"tensor_parallel": {"tp_size": )", ranks, "}, ", policy,
                                       R"(, "save_mp_checkpoint_path": ")", d / str("tp", ranks), "\"}"),
                                   silent);
      CHECK(model->blocks[0].up.weight.shape() == Shape{32 / ranks, 8});
      CHECK(model->blocks[1].down.weight.shape() == Shape{8, 32 / ranks});
      CHECK(model->out.weight.shape() == Shape{4, 8});
      if (rank == 0) CHECK(max_relative_difference(engine(input()).tensor(), wanted()) < 1e-5);
      else engine(input());
    });
    const auto full = seeded(2);
    auto engine = init_inference(*full, Json(Json::Object{{"checkpoint", d / str("tp", ranks)}}), silent);
    CHECK(equal(engine(input()).tensor(), wanted()));
  }
}

TEST_CASE("inference of a module: what is refused") {
  const std::pair<std::string, const char*> rows[] = {
      {R"({"max_out_tokens": 8})", "max_out_tokens: expected a GPT with this key, got a Classifier"},
      {R"({"moe": {"num_experts": 2}})", "moe: expected a GPT"},
      {R"({"triangular_masking": false})", "triangular_masking: expected a GPT"},
      {R"({"zero": {"stage": 3, "offload_param": {"device": "cpu"}}})", "place it by a device map"},
      {R"({"injection_policy": {"Blok": "down"}})", "no module is a 'Blok'; did you mean Block?"},
      {R"({"injection_policy": {"Block": "dwn"}})", "no Linear of a Block ends with 'dwn'; name one of up, down"},
      {R"({"tp": {"tp_size": 2}})", "start the program with lockstep run -n 2"},
  };
  for (const auto& [config, said] : rows) {
    const auto model = seeded(1);
    CHECK_ERROR(init_inference(*model, config, silent), said);
    CHECK(model->is_training());  // nothing was changed
  }
  const auto texts = on_ranks<std::string>(2, [](int) {
    const auto model = seeded(1);
    return message([&] { init_inference(*model, R"({"tp": {"tp_size": 2}})", silent); });
  });
  for (const std::string& text : texts) CHECK_MESSAGE(contains(text, "fields() say how they can be cut"), text);
}
