// 8-bit floats: PyTorch's codes, Transformer Engine's delayed scaling, linear layers in fp8; and under the engine the
// same bits for every number of ranks and stage of ZeRO, also through checkpoints, and losses close to those of bf16.
#include <numeric>

#include "data/safetensors.h"
#include "engine/check_plan.h"
#include "extensions/fp8/fp8.h"
#include "nn/linear.h"
#include "nn/models/gpt.h"
#include "tests/engine/training.h"
#include "tests/golden_folder.h"

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

/// A sequence that counts up from a random token, with three of ten tokens replaced at random.
pipeline::Sample sentence(int64_t step, int64_t micro) {
  manual_seed(9);
  set_random_step(uint64_t(step), uint64_t(micro));
  const Tensor start = randint(0, 40, {2, 1}), tokens = add(start, arange(17).view({1, 17}).expand({2, 17}));
  const Tensor counted = where(lt(tokens, full_like(tokens, 40)), tokens, sub(tokens, full_like(tokens, 40)));
  const Tensor all = where(bernoulli({2, 17}, 0.3).to(boolean), randint(0, 40, {2, 17}), counted);
  return {{all.narrow(1, 0, 16).contiguous()}, {all.narrow(1, 1, 16).contiguous()}};
}

const engine::Fp8Config short_history{.enabled = true, .amax_history_len = 3};

/// The losses of each step of a GPT, which must be equal on all ranks.
std::vector<double> losses(Training t, const engine::Fp8Config& fp8 = short_history, double dropout = 0.1) {
  const Subject gpt{
      .name = "GPT",
      .make =
          [dropout](const parallel::Mesh&) {
            manual_seed(4);
            return engine::PipelineModule{
                .model = std::make_shared<nn::GPT>(nn::GPT::Options{
                    .vocab = 40, .context = 16, .layers = 2, .width = 32, .heads = 2, .dropout = dropout})};
          },
      .sample = sentence};
  t.clip = 1;
  t.change = [&](Config& c) { c.section<engine::Fp8Config>() = fp8; };
  const std::vector<double> report = ::testing::train(gpt, t).at("report").to_vector<double>();
  std::vector<double> found;
  for (size_t i = 0; i < report.size(); i += numbers_of_step) found.push_back(report[i]);
  return found;
}

void check_near(const std::vector<double>& a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(0.02));
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
  const std::vector<double> without = losses({.dtype = bf16, .steps = 6}, {});
  for (const DType parameters : {f32, bf16}) {
    CAPTURE(parameters);
    const std::vector<double> one = losses({.dtype = parameters, .steps = 6});
    CHECK(one != without);
    CHECK(one == losses({.dtype = parameters, .steps = 6, .recompute = true}));
    for (const char* plan :
         {"dp2", "dp4", "dp2+zero1", "dp4+zero1", "dp2+zero2", "dp4+zero2", "dp2+zero3", "dp4+zero3"}) {
      if (parameters == bf16 && (plan == std::string("dp2") || plan[2] == '4')) continue;
      CAPTURE(plan);
      CHECK(one == losses({.plan = plan, .dtype = parameters, .steps = 6}));
    }
  }
}

TEST_CASE("fp8: pipelines are bit-identical to one process; slices of layers are near") {
  const std::vector<double> one = losses({.steps = 6});
  for (const char* plan : {"pp2", "dp2+pp2+zero1"}) CHECK(one == losses({.plan = plan, .steps = 6}));
  for (const char* plan : {"tp2", "pp2+tp2"}) {
    CAPTURE(plan);
    const std::vector<double> sharded = losses({.plan = plan, .steps = 6});
    CHECK(sharded != one);
    check_near(sharded, one);
  }
}

TEST_CASE("fp8: ranks that share sequences are near one process, with the same bits for stages and ZeRO's stages") {
  const std::vector<double> one = losses({.steps = 6}, short_history, 0);
  for (const auto kind : {sequence::ContextKind::ring, sequence::ContextKind::ulysses}) {
    CAPTURE(sequence::name_of(kind));
    const auto run = [&](const char* plan, Training t = {.steps = 6}, const engine::Fp8Config& fp8 = short_history) {
      t.plan = plan, t.context.kind = kind;
      return losses(t, fp8, 0);
    };
    const std::vector<double> shared = run("cp2");
    check_near(shared, one);
    CHECK(shared != run("cp2", {.dtype = bf16, .steps = 6}, {}));
    const std::vector<double> replicas = run("dp2+cp2");
    check_near(replicas, shared);  // gradients of replicas are summed in another order
    CHECK(replicas == run("dp2+cp2+zero3", {.steps = 6, .recompute = true}));
    CHECK(shared == run("pp2+cp2"));
    const TempDir d;
    run("cp2", {.steps = 3, .save = d.str()});
    CHECK(std::vector(shared.begin() + 3, shared.end()) == run("cp2", {.steps = 6, .load = d.str()}));
  }
}

TEST_CASE("fp8: a run goes on with the same bits, on other ranks, too") {
  const TempDir d;
  const std::vector<double> full = losses({.steps = 8});
  const std::vector<double> end(full.begin() + 4, full.end());
  losses({.steps = 4, .save = d / "one"});
  for (const char* plan : {"dp1", "dp2+zero3", "pp2"})
    CHECK(end == losses({.plan = plan, .steps = 8, .load = d / "one"}));
  losses({.plan = "dp2+pp2+zero1", .steps = 4, .save = d / "two"});
  CHECK(end == losses({.steps = 8, .load = d / "two"}));
  // Losses differ without the saved scales. Loading them without fp8 ignores them.
  CHECK(losses({.steps = 8, .load = d / "one"}, {}) != end);
  CHECK_ERROR(losses({.steps = 8, .load = d / "one"}, {.enabled = true, .amax_history_len = 5}),
              "set fp8.amax_history_len to 3");
}

TEST_CASE("fp8: a small GPT learns as in bf16") {
  const std::vector<double> eight = losses({.steps = 150}, {.enabled = true, .amax_history_len = 16}, 0),
                            sixteen = losses({.dtype = bf16, .steps = 150}, {}, 0);
  const auto last = [](const std::vector<double>& all) { return std::accumulate(all.end() - 10, all.end(), 0.) / 10; };
  MESSAGE("loss after 150 steps: fp8 " << last(eight) << ", bf16 " << last(sixteen));
  CHECK(last(sixteen) < 0.85 * sixteen[0]);
  CHECK(last(eight) == doctest::Approx(last(sixteen)).epsilon(0.02));
}

TEST_CASE("fp8: invalid arguments are rejected") {
  const struct {
    const char *keys, *said;
  } rows[] = {{R"("fp8": {"enabled": true}, "fp16": {"enabled": true})", "fp8 needs bf16"},
              {R"("fp8": {"format": "E5M2"})", "fp8.format"},
              {R"("fp8": {"amax_compute_algo": "mean"})", "fp8.amax_compute_algo"},
              {R"("fp8": {"interval": 2})", "fp8.interval"},
              {R"("fp8": {"enabled": true, "format": "HYBRID", "margin": 1})", "(no error)"}};
  for (const auto& row : rows)
    CHECK_ERROR(engine::resolve(engine::config_from_json(str(R"({"train_batch_size": 2, )", row.keys, "}")), 1),
                row.said);
  Config c;
  c.section<engine::Fp8Config>().enabled = true;
  const auto reasons = engine::reasons_against(c, parallel::parse_plan("dp2+ep2"), {.ranks = 2, .experts = 4}, "");
  CHECK(std::any_of(reasons.begin(), reasons.end(),
                    [](const std::string& reason) { return contains(reason, "fp8.enabled with ep2"); }));
}
