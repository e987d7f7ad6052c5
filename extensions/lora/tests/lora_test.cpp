// LoRA: the adapters' results, which parameters train, and the same bits under every parallel plan.
#include <doctest/doctest.h>

#include <cmath>

#include "autograd/gradcheck.h"
#include "extensions/lora/low_rank.h"
#include "nn/init.h"
#include "tests/apart.h"
#include "tests/messages.h"
#include "tests/models.h"

using namespace lockstep;
using testing::max_difference;

namespace {

nn::GPT::Options sizes_of(bool llama) {
  nn::GPT::Options o{.vocab = 12, .context = 8, .layers = 2, .width = 16, .heads = 4};
  if (llama) o = testing::as_llama(o), o.inner = 12;
  return o;
}

/// Makes B nonzero.
void draw(const nn::Lora& lora) {
  for (const auto& one : lora.adapters())
    for (const nn::Linear& b : one.low_rank->b) b.weight.tensor().copy_(mul_scalar(randn(b.weight.shape()), 0.1));
}

std::string trained(nn::Module& model) {
  std::string names;
  for (const auto& p : model.named_parameters())
    if (p.variable.requires_grad()) names += p.name + " ";
  return names;
}

}  // namespace

TEST_CASE("lora: with B = 0 results are bit-identical to the base, and targets are found by name") {
  struct Row {
    bool llama;
    std::vector<std::string> targets;
    std::string first;  // names of the first adapter's parameters
    size_t adapters;
  };
  const std::string of_in = "blocks.0.attention.in_proj.lora.", a = of_in + "A.weight ";
  const Row rows[] = {
      {false, {}, a + of_in + "B.weight ", 2},
      {true, {}, a + of_in + "B_q_proj.weight " + of_in + "B_v_proj.weight ", 2},
      {true, {"k_proj"}, a + of_in + "B_k_proj.weight ", 2},
      {true, {"gate", "mlp.up", "down", "out_proj"}, "blocks.0.attention.out_proj.lora.A.weight ", 8},
      {false, {"up"}, "blocks.0.mlp.up.lora.A.weight blocks.0.mlp.up.lora.B.weight ", 2},
      {false, {"blocks.1.mlp.down"}, "blocks.1.mlp.down.lora.A.weight blocks.1.mlp.down.lora.B.weight ", 1}};
  for (const Row& row : rows) {
    INFO(row.first);
    manual_seed(1);
    nn::GPT model(sizes_of(row.llama));
    const Tensor tokens = randint(0, 12, {2, 8});
    const Tensor base = model(tokens).tensor();
    const nn::Lora lora = nn::add_lora(model, {.r = 3, .alpha = 6, .targets = row.targets});
    CHECK(lora.adapters().size() == row.adapters);
    CHECK(trained(model).starts_with(row.first));
    const Tensor same = model(tokens).tensor();  // CUDA fuses GELU into the base's product, which rounds differently
    CHECK((default_device().is_cpu() ? equal(same, base) : allclose(same, base, 1e-5, 1e-6)));
    draw(lora);
    CHECK(!equal(model(tokens).tensor(), base));
    model(tokens, tokens).backward();
    for (const auto& p : model.named_parameters())
      CHECK_MESSAGE(p.variable.grad().defined() == (p.name.find(".lora.") != std::string::npos), p.name);
  }
}

TEST_CASE("lora: y = base(x) + (alpha / r) B A x, with activations behind it, and with its gradients") {
  for (const bool rslora : {false, true}) {
    manual_seed(2);
    nn::MultiHeadAttention attention(
        {.embed = 8, .heads = 4, .kv_heads = 2, .rope = std::make_shared<nn::RopeTable>(nn::Rope{}, 2, 16)});
    attention.to(f64);
    const Tensor x = randn({2, 3, 8}, {.dtype = f64});
    const Tensor base = attention.in_proj(x).tensor();
    const nn::Lora lora = nn::add_lora(attention, {.r = 2, .alpha = 3, .rslora = rslora});
    draw(lora);
    const nn::LowRank& low = *lora.adapters()[0].low_rank;
    const double scale = 3 / (rslora ? std::sqrt(2.) : 2.);
    const auto part = [&](int64_t i) {
      const Tensor a = low.a.weight.tensor().narrow(0, 2 * i, 2), b = low.b[size_t(i)].weight.tensor();
      return mul_scalar(matmul(matmul(x, a.t()), b.t()), scale);
    };
    const Tensor wanted = add(base, cat({part(0), zeros({2, 3, 4}, {.dtype = f64}), part(1)}, -1));
    CHECK(max(abs(sub(attention.in_proj(x).tensor(), wanted))).item() < 1e-14);
    CHECK(low.a.weight.shape() == Shape{4, 8});
    CHECK(max(abs(low.a.weight.tensor())).item() <= 1 / std::sqrt(8.));
    std::vector<Variable> inputs{Variable(x, true)};
    for (const Variable& p : attention.parameters())
      if (p.requires_grad()) inputs.push_back(p);
    CHECK(inputs.size() == 4);
    CHECK(gradcheck([&](const std::vector<Variable>& in) { return attention(in[0]); }, inputs) == "");
  }
  for (const Activation activation :
       {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf, Activation::silu}) {
    manual_seed(3);
    nn::Linear linear({.in = 6, .out = 5});
    const Tensor x = randn({4, 6});
    const Tensor base = linear.forward(x, activation).tensor();
    struct Holder : nn::Layer<Holder> {
      nn::Linear& linear;
      explicit Holder(nn::Linear& l) : linear(l) {}
      void fields(nn::Fields& f) override { f("linear", linear); }
    } holder(linear);
    nn::add_lora(holder, {.targets = {"linear"}});
    CHECK(equal(linear.forward(x, activation).tensor(), base));
  }
}

TEST_CASE("lora: dropout is of training, and modules_to_save are trained whole") {
  manual_seed(4);
  nn::GPT model(sizes_of(true));
  const nn::Lora lora = nn::add_lora(model, {.dropout = 0.5, .modules_to_save = {"head", "norm"}});
  draw(lora);
  const std::string names = trained(model);
  CHECK(names.ends_with("lora.B_v_proj.weight norm.weight head.weight "));
  CHECK(names.find("norm1") == std::string::npos);
  const Tensor tokens = randint(0, 12, {2, 8});
  CHECK(!equal(model(tokens).tensor(), model(tokens).tensor()));
  model.eval();
  CHECK(equal(model(tokens).tensor(), model(tokens).tensor()));
}

TEST_CASE("lora: merged it is a plain model, and back again") {
  for (const DType dtype : {f32, f64, bf16}) {
    manual_seed(5);
    nn::GPT model(sizes_of(true)), plain(sizes_of(true));
    model.to(dtype), plain.to(dtype);
    const Tensor tokens = randint(0, 12, {2, 8});
    nn::Lora lora = nn::add_lora(model, {.alpha = 20, .targets = {"q_proj", "k_proj", "down"}});
    draw(lora);
    const nn::State before = model.state();
    std::vector<Tensor> weights;
    for (const auto& [name, tensor] : before) weights.push_back(tensor.clone());
    const Tensor logits = model(tokens).tensor().to(f64);
    lora.merge();
    const double off = dtype == f64 ? 1e-13 : dtype == f32 ? 1e-5 : 0.05;
    CHECK(max_difference(model(tokens).tensor(), logits) < off);
    CHECK_NOTHROW(plain.load_state(model.state()));  // no adapters
    CHECK(equal(plain(tokens).tensor(), model(tokens).tensor()));
    CHECK_ERROR(lora.merge(), "not merged yet");
    lora.unmerge();
    const nn::State after = model.state();
    REQUIRE(after.size() == before.size());
    for (size_t i = 0; i < after.size(); ++i) {
      CHECK(after[i].first == before[i].first);
      CHECK(max_difference(after[i].second, weights[i]) < (dtype == bf16 ? 0.02 : 1e-6));
    }
    CHECK_ERROR(lora.unmerge(), "that are merged");
    lora.merge();
    model.to(f64).eval();
    lora.unmerge();
    CHECK(!lora.adapters()[0].low_rank->is_training());
    CHECK(max_difference(model(tokens).tensor(), logits) < off);
  }
}

TEST_CASE("lora: a model that is built empty gets adapters with the values of one that is not") {
  const auto make = [](bool empty) {
    manual_seed(6);
    std::optional<nn::BuildEmpty> scope;
    if (empty) scope.emplace();
    auto model = std::make_unique<nn::GPT>(sizes_of(true));
    nn::Lora lora = nn::add_lora(*model);
    scope.reset();
    if (empty) CHECK_ERROR(lora.merge(), "expected whole parameters to merge");
    nn::fill(*model);
    return model->state();
  };
  const nn::State one = make(false), other = make(true);
  REQUIRE(one.size() == other.size());
  for (size_t i = 0; i < one.size(); ++i) CHECK_MESSAGE(equal(one[i].second, other[i].second), one[i].first);
}

TEST_CASE("lora: impossible options are rejected, and nothing is changed") {
  nn::GPT model(sizes_of(true));
  const std::string all = trained(model);
  const std::pair<nn::LoraOptions, const char*> rows[] = {
      {{.r = 0}, "expected r in [1, 1048576], got 0"},
      {{.alpha = 0}, "expected a finite alpha > 0, got 0"},
      {{.dropout = 1}, "expected dropout from 0 to below 1, got 1"},
      {{.targets = {"q_proj", "up_proj"}}, "that are Linears of this GPT, got 'up_proj'"},
      {{.targets = {"q_prj"}}, "did you mean q_proj?"},
      {{.targets = {"proj"}}, "got 'proj'"},
      {{.targets = {"q_proj", "in_proj"}}, "expected blocks.0.attention.in_proj or parts of it as targets"},
      {{.modules_to_save = {"lm_head"}}, "expected modules_to_save that are in this GPT, got 'lm_head'"}};
  for (const auto& [options, text] : rows) {
    CHECK_ERROR(nn::add_lora(model, options), text);
    CHECK(trained(model) == all);
  }
  nn::add_lora(model);
  CHECK_ERROR(nn::add_lora(model), "blocks.0.attention.in_proj has an adapter already");
  nn::Mlp mlp({.width = 4, .inner = 8});
  CHECK_ERROR(nn::add_lora(mlp), "name some of its Linears");
}
