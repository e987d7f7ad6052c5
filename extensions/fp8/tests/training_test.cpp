// 8-bit floats: PyTorch's codes, Transformer Engine's delayed scaling, linear layers in fp8; and under the engine the
// same bits for every number of ranks and stage of ZeRO, also through checkpoints, and losses close to those of bf16.
#include "data/safetensors.h"
#include "engine/check_plan.h"
#include "engine/pipeline_module.h"
#include "extensions/fp8/fp8.h"
#include "nn/linear.h"
#include "nn/models/gpt.h"
#include "parallel/sequence/context_parallel.h"
#include "parallel/tensor_parallel/apply.h"
#include "tests/engine/util.h"
#include "tests/golden_folder.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace ::testing;

namespace {

data::SafeTensors golden() { return data::SafeTensors::open(std::string(golden_folder()) + "/fp8.safetensors"); }

/// A model of one Linear(32, 16).
struct OneLinear : nn::Layer<OneLinear> {
  nn::Linear one{{.in = 32, .out = 16, .bias = false}};
  Variable forward(const Variable& x) { return one(x); }
  void fields(nn::Fields& f) override { f("one", one); }
};

std::shared_ptr<Fp8Scales> scales_of(const OneLinear& model) {
  return std::dynamic_pointer_cast<Fp8Scales>(model.one.attached.arithmetic.lock());
}

double relative(const Tensor& a, const Tensor& b) {
  const double size = norm(b.to(f64)).item();
  return size == 0 ? norm(a.to(f64)).item() : norm(sub(a.to(f64), b.to(f64))).item() / size;
}

struct Fp8Run {
  int64_t accumulation = 2;
  int stage = 0;
  engine::Fp8Config fp8 = {.enabled = true, .amax_history_len = 3};
  DType parameters = f32;
  bool checkpoints = false;
  std::string load = {}, save = {};
  int64_t steps = 6, first = 0;
  sequence::ContextOptions context = {};
  nn::GPT::Options model = {.vocab = 40, .context = 16, .layers = 2, .width = 32, .heads = 2, .dropout = 0.1};
};

/// A sequence that counts up from a random token, with three of ten tokens replaced at random.
pipeline::Sample sentence(int64_t step, int64_t micro) {
  manual_seed(9);
  set_random_step(uint64_t(step), uint64_t(micro));
  const Tensor start = randint(0, 40, {2, 1}), tokens = add(start, arange(17).view({1, 17}).expand({2, 17}));
  const Tensor counted = where(lt(tokens, full_like(tokens, 40)), tokens, sub(tokens, full_like(tokens, 40)));
  const Tensor all = where(bernoulli({2, 17}, 0.3).to(boolean), randint(0, 40, {2, 17}), counted);
  return {{all.narrow(1, 0, 16).contiguous()}, {all.narrow(1, 1, 16).contiguous()}};
}

Config fp8_config(const Fp8Run& run) {
  Config c{.train_micro_batch_size_per_gpu = 2, .gradient_accumulation_steps = run.accumulation};
  c.zero_optimization.stage = run.stage;
  c.zero_optimization.stage3_param_persistence_threshold = 500;
  c.bf16 = {.enabled = run.parameters == bf16, .auto_cast = true};
  c.section<engine::Fp8Config>() = run.fp8;
  c.activation_checkpointing.enabled = run.checkpoints;
  return c;
}

/// The losses of each step, which must be equal on all ranks.
std::vector<double> losses(const Fp8Run& run, const std::string& name) {
  const parallel::Plan plan = parallel::parse_plan(name);
  const auto all = on_ranks<std::vector<double>>(plan.ranks(), [&](int) {
    const parallel::Mesh mesh(plan, dist::world());
    manual_seed(4);
    const auto gpt = std::make_shared<nn::GPT>(run.model);
    engine::InitializeArgs args{.optimizer = make_adamw, .config = fp8_config(run), .mesh = &mesh, .log = quiet};
    if (plan.cp > 1) sequence::share_sequences(*gpt, {std::shared_ptr<void>(), &mesh.cp()}, run.context);
    if (plan.tp > 1) args.sharded = tensor_parallel::apply(*gpt, mesh.tp());
    auto e = engine::initialize({.model = gpt, .partition_method = "uniform"}, std::move(args));
    if (!run.load.empty()) {
      const bool found = e.load_checkpoint(run.load).has_value();
      REQUIRE(found);
    }
    std::vector<double> found;
    while (e.global_steps() < run.steps) {
      e.train_batch([&](int64_t micro) {
        pipeline::Sample sample = sentence(e.global_steps(), micro);
        for (auto* tensors : {&sample.inputs, &sample.targets})
          if (Tensor& x = tensors->at(0); plan.cp > 1)
            x = sequence::slice(x, 1, plan.cp, mesh.at().cp, run.context.order_or_default());
        return std::optional(std::move(sample));
      });
      found.push_back(e.train_loss());
    }
    if (!run.save.empty()) e.save_checkpoint(run.save);
    e.close();
    return found;
  });
  for (const auto& other : all) CHECK(other == all[0]);
  return all[0];
}

}  // namespace

TEST_CASE("fp8: numbers and codes match PyTorch, and numbers that are too large saturate") {
  const auto file = golden();
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    const std::string name(name_of(format));
    CAPTURE(name);
    const Tensor all = arange(256).to(u8);
    const auto ours = read_fp8(all, format).to_vector<float>(),
               theirs = file.tensor("numbers_" + name).to_vector<float>(),
               rounded = read_fp8(all, format, bf16).to_vector<float>();
    for (size_t i = 0; i < 256; ++i) {
      CHECK((ours[i] == theirs[i] || (std::isnan(ours[i]) && std::isnan(theirs[i]))));
      CHECK(std::signbit(ours[i]) == (i >= 128));
      CHECK((rounded[i] == ours[i] || std::isnan(ours[i])));
    }
    const Tensor x = file.tensor("x_" + name);
    const auto codes = cast_fp8(x.view({1, x.numel()}), {.format = format, .scale = ones({1})}).codes;
    const auto made = codes.to_vector<uint8_t>(), wanted = file.tensor("codes_" + name).to_vector<uint8_t>();
    int wrong = 0;
    for (size_t i = 0; i < made.size(); ++i) wrong += made[i] != wanted[i];
    CHECK(wrong == 0);
  }
}

TEST_CASE("fp8: a linear layer with delayed scaling matches the reference") {
  struct Recipe {
    int64_t margin, length;
    bool most_recent, hybrid;
  };
  const Recipe recipes[] = {{0, 3, false, true}, {1, 3, false, false}, {2, 4, true, true}, {0, 1024, false, true}};
  const auto file = golden();
  const Tensor x = file.tensor("x"), g = file.tensor("g"), w = file.tensor("w");
  for (int number = 0; number < 4; ++number) {
    const Recipe& r = recipes[number];
    CAPTURE(number);
    using Amax = nn::Fp8Options::Amax;
    OneLinear model;
    nn::Fp8Scaling fp8(model, {.hybrid = r.hybrid,
                               .margin = r.margin,
                               .amax_history_len = r.length,
                               .amax_compute_algo = r.most_recent ? Amax::most_recent : Amax::max});
    const auto wanted = [&](const char* name) { return file.tensor(str(number, ".", name)); };
    for (int64_t step = 0; step < x.size(0); ++step) {
      CAPTURE(step);
      model.one.weight.tensor().copy_(w[step]);
      for (int64_t micro = 0; micro < 2; ++micro) {
        const Variable input(x[step][micro].clone(), true);
        model.zero_grad();
        scales_of(model)->notes = true;
        const Variable y = linear_fp8(input, model.one.weight, {}, Activation::none, *scales_of(model));
        y.backward(g[step][micro].clone());
        if (micro == 0) continue;
        CHECK(relative(y.tensor(), wanted("y")[step]) < 1e-6);
        CHECK(relative(input.grad(), wanted("dx")[step]) < 1e-6);
        CHECK(relative(model.one.weight.grad(), wanted("dw")[step]) < 1e-6);
      }
      fp8.update();
      CHECK(equal(fp8.state()[0].scale, wanted("scale")[step]));
    }
  }
}

TEST_CASE("fp8: the chosen layers, when they cast, and the recorded amax") {
  const auto is_fp8 = [](const Variable& a, const Variable& b) { return !equal(a.tensor(), b.tensor()); };
  manual_seed(3);
  OneLinear model;
  const Variable x(randn({16, 32}));
  const auto in = [&](DType dtype, const Variable& input) {
    const Autocast scope(dtype);
    return model(input);
  };
  const Variable plain = in(bf16, x);
  {
    nn::Fp8Scaling fp8(model);
    CHECK(contains(message([&] { nn::Fp8Scaling again(model); }), "one is in fp8 already"));
    CHECK(fp8.text() == "fp8: 1 Linear (e4m3, gradients e5m2)");
    for (const Fp8Scales::Of& of : scales_of(model)->of)  // cuBLASLt needs addresses that are multiples of 16
      CHECK(reinterpret_cast<uintptr_t>(of.scale_inv.raw_data()) % 16 == 0);
    CHECK(is_fp8(in(bf16, x), plain));
    CHECK(in(bf16, x).dtype() == bf16);
    CHECK_FALSE(is_fp8(in(bf16, Variable(x.tensor().narrow(0, 0, 15))), Variable(plain.tensor().narrow(0, 0, 15))));
    CHECK(model(x).dtype() == f32);  // outside of autocast, f32 stays f32
    CHECK_FALSE(is_fp8(model(x), linear(x, model.one.weight, {}, Activation::none)));
    const auto noted = [&](int role) { return scales_of(model)->of[size_t(role)].amax.item(); };
    const double largest = amax(abs(x.tensor().to(bf16).to(f32))).item();
    CHECK(noted(0) == largest);
    fp8.update();
    CHECK(noted(0) == 0);
    CHECK(fp8.state()[0].scale.to_vector<float>()[0] == 448.f / float(largest));
    CHECK(fp8.state()[0].scale.to_vector<float>()[2] == 1);
    model.eval();
    in(bf16, x);
    model.train();
    {
      const NoGrad scope;
      in(bf16, x);
    }
    CHECK(noted(0) == 0);
    sum(in(bf16, x).to(f32)).backward();
    CHECK(noted(2) == 1);
    CHECK(model.one.weight.grad().dtype() == f32);
    // An infinite amax leaves the scale as it is, and NaN is ignored.
    Tensor bad = x.tensor().clone();
    bad[0].fill_(INFINITY), bad[1].fill_(NAN);
    const auto scale = fp8.state()[0].scale.to_vector<float>();
    in(bf16, Variable(bad));
    CHECK(std::isinf(noted(0)));
    fp8.update();
    CHECK(fp8.state()[0].scale.to_vector<float>()[0] == scale[0]);
    CHECK(fp8.state()[0].history.to_vector<float>()[0] == 0);
    // Updating the scales between forward and backward is an error.
    const Variable y = sum(in(bf16, x).to(f32));
    fp8.update();
    CHECK_ERROR(y.backward(), "linear_fp8");
    const Variable z = sum(in(bf16, x).to(f32));
    CHECK_ERROR(grad({z}, {model.one.weight}, {.create_graph = true}), "linear_fp8");
  }
  CHECK_FALSE(is_fp8(in(bf16, x), plain));
}

TEST_CASE("fp8: the same bits for every number of ranks and stage of ZeRO, and with checkpoints of activations") {
  for (const DType parameters : {f32, bf16}) {
    CAPTURE(parameters);
    const std::vector<double> one = losses({.accumulation = 4, .parameters = parameters}, "dp1");
    Fp8Run without{.accumulation = 4, .parameters = bf16};
    without.fp8.enabled = false;
    CHECK(one != losses(without, "dp1"));
    CHECK(one == losses({.accumulation = 4, .parameters = parameters, .checkpoints = true}, "dp1"));
    for (const int stage : {0, 1, 2, 3}) {
      for (const int ranks : {2, 4}) {
        if (parameters == bf16 && (stage == 0 || ranks == 4)) continue;
        CAPTURE(stage);
        CAPTURE(ranks);
        CHECK(one == losses({.accumulation = 4 / ranks, .stage = stage, .parameters = parameters}, str("dp", ranks)));
      }
    }
  }
}

TEST_CASE("fp8: pipelines are bit-identical to one process; slices of layers are near") {
  const std::vector<double> one = losses({.accumulation = 4}, "dp1");
  CHECK(one == losses({.accumulation = 4}, "pp2"));
  CHECK(one == losses({.accumulation = 2, .stage = 1}, "dp2+pp2"));
  for (const char* plan : {"tp2", "pp2+tp2"}) {
    CAPTURE(plan);
    const std::vector<double> sharded = losses({.accumulation = 4}, plan);
    CHECK(sharded != one);
    for (size_t i = 0; i < one.size(); ++i) CHECK(sharded[i] == doctest::Approx(one[i]).epsilon(0.02));
  }
}

TEST_CASE("fp8: ranks that share sequences are near one process, with the same bits for stages and ZeRO's stages") {
  Fp8Run run{.accumulation = 4};
  run.model.dropout = 0;
  const std::vector<double> one = losses(run, "dp1");
  for (const auto kind : {sequence::ContextKind::ring, sequence::ContextKind::ulysses}) {
    CAPTURE(sequence::name_of(kind));
    run.context.kind = kind;
    const std::vector<double> shared = losses(run, "cp2");
    const auto is_near = [](const std::vector<double>& a, const std::vector<double>& b) {
      for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(0.02));
    };
    is_near(shared, one);
    Fp8Run without = run, fewer = run, sharded = run, saved = run, resumed = run;
    without.fp8.enabled = false, without.parameters = bf16;
    CHECK(shared != losses(without, "cp2"));
    fewer.accumulation = sharded.accumulation = 2;
    sharded.stage = 3, sharded.checkpoints = true;
    const std::vector<double> replicas = losses(fewer, "dp2+cp2");
    is_near(replicas, shared);  // gradients of replicas are summed in another order
    CHECK(replicas == losses(sharded, "dp2+cp2"));
    CHECK(shared == losses(run, "pp2+cp2"));
    const TempDir d;
    saved.steps = 3, saved.save = resumed.load = d.path.string();
    losses(saved, "cp2");
    CHECK(std::vector(shared.begin() + 3, shared.end()) == losses(resumed, "cp2"));
  }
}

TEST_CASE("fp8: a run goes on with the same bits, on other ranks, too") {
  const TempDir d;
  const std::vector<double> full = losses({.accumulation = 4, .steps = 8}, "dp1");
  const std::vector<double> end(full.begin() + 4, full.end());
  losses({.accumulation = 4, .save = d / "one", .steps = 4}, "dp1");
  CHECK(end == losses({.accumulation = 4, .load = d / "one", .steps = 8}, "dp1"));
  CHECK(end == losses({.accumulation = 2, .stage = 3, .load = d / "one", .steps = 8}, "dp2"));
  CHECK(end == losses({.accumulation = 4, .load = d / "one", .steps = 8}, "pp2"));
  losses({.accumulation = 2, .stage = 1, .save = d / "two", .steps = 4}, "dp2+pp2");
  CHECK(end == losses({.accumulation = 4, .load = d / "two", .steps = 8}, "dp1"));
  // Losses differ without the saved scales. Loading them without fp8 ignores them.
  Fp8Run fresh{.accumulation = 4, .load = d / "one", .steps = 8};
  fresh.fp8.enabled = false;
  CHECK(losses(fresh, "dp1") != end);
  Fp8Run longer{.accumulation = 4, .load = d / "one", .steps = 8};
  longer.fp8.amax_history_len = 5;
  CHECK_ERROR(losses(longer, "dp1"), "set fp8.amax_history_len to 3");
}

TEST_CASE("fp8: a small GPT learns as in bf16") {
  Fp8Run run{.accumulation = 4, .steps = 150};
  run.model.dropout = 0;
  run.fp8.amax_history_len = 16;
  const std::vector<double> eight = losses(run, "dp1");
  run.fp8 = {};
  run.parameters = bf16;
  const std::vector<double> sixteen = losses(run, "dp1");
  const auto last = [](const std::vector<double>& all) {
    double sum = 0;
    for (size_t i = all.size() - 10; i < all.size(); ++i) sum += all[i] / 10;
    return sum;
  };
  MESSAGE("loss after 150 steps: fp8 " << last(eight) << ", bf16 " << last(sixteen));
  CHECK(last(sixteen) < 0.85 * sixteen[0]);
  CHECK(last(eight) == doctest::Approx(last(sixteen)).epsilon(0.02));
}

TEST_CASE("fp8: invalid arguments are rejected") {
  const auto refused = [](const char* json) {
    return message([&] { engine::resolve(engine::config_from_json(json), 1); });
  };
  CHECK(contains(refused(R"({"train_batch_size": 2, "fp8": {"enabled": true}, "fp16": {"enabled": true}})"),
                 "fp8 needs bf16"));
  CHECK(contains(refused(R"({"train_batch_size": 2, "fp8": {"format": "E5M2"}})"), "fp8.format"));
  CHECK(contains(refused(R"({"train_batch_size": 2, "fp8": {"amax_compute_algo": "mean"}})"), "fp8.amax_compute_algo"));
  CHECK(contains(refused(R"({"train_batch_size": 2, "fp8": {"interval": 2}})"), "fp8.interval"));
  CHECK(refused(R"({"train_batch_size": 2, "fp8": {"enabled": true, "format": "HYBRID", "margin": 1}})") ==
        "(no error)");
  Config c;
  c.section<engine::Fp8Config>().enabled = true;
  const auto reasons = engine::reasons_against(c, parallel::parse_plan("dp2+ep2"), {.ranks = 2, .experts = 4}, "");
  bool found = false;
  for (const std::string& reason : reasons) found |= contains(reason, "fp8.enabled with ep2");
  CHECK(found);
}
