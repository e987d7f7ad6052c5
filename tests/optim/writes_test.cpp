// Writes to a parameter by the user: the master copy adopts them, and nothing else changes.
#include <doctest/doctest.h>

#include "autograd/ops.h"
#include "nn/nn.h"
#include "optim/loss_scaler.h"
#include "optim/optim.h"

using namespace lockstep;
using namespace lockstep::optim;

namespace {

std::vector<float> values(const Tensor& tensor) { return tensor.to(cpu).to(f32).to_vector<float>(); }

/// One step with gradients of 1.
void step_by_ones(Variable& w, Optimizer& optimizer) {
  optimizer.zero_grad();
  sum(w).backward();
  optimizer.step();
}

}  // namespace

TEST_CASE("a write to a parameter counts at the next step, whoever makes it") {
  const struct {
    const char* name;
    std::function<void(nn::Linear& net, const nn::State& first)> edit;
    float after[2];
  } rows[] = {
      {"clamp_", [](auto& net, auto&) { clamp_(net.weight.tensor(), -0.125, 0.125); }, {0.125, 0.125}},
      {"fill_", [](auto& net, auto&) { net.weight.tensor().fill_(8); }, {8, 8}},
      {"one element", [](auto& net, auto&) { net.weight.tensor()[0][1].fill_(3); }, {0.5, 3}},
      {"pruning", [](auto& net, auto&) { mul_(net.weight.tensor(), arange(2).to(net.weight.dtype())); }, {0, 0.5}},
      {"load_state()", [](auto& net, auto& first) { net.load_state(first); }, {1, 1}},
      {"another tensor", [](auto& net, auto&) { net.weight.set_tensor(full_like(net.weight.tensor(), 4)); }, {4, 4}},
      {"there and back",
       [](auto& net, auto& first) {
         const DType dtype = net.weight.dtype();
         net.to(f64).to(dtype);
         net.load_state(first);
       },
       {1, 1}},
  };
  for (const DType dtype : {f32, bf16, f16}) {
    for (const auto& row : rows) {
      INFO("name ", row.name, ", dtype ", dtype);
      nn::Linear net({.in = 2, .out = 1, .bias = false});
      net.weight.tensor().fill_(1);
      net.to(dtype);
      nn::State first;
      for (auto& [name, tensor] : net.state()) first.emplace_back(name, tensor.clone());
      SGD sgd(net.parameters(), {.lr = 0.25});
      for (int i = 0; i < 2; ++i) step_by_ones(net.weight, sgd);
      const NoGrad no_grad;
      row.edit(net, first);
      CHECK(values(net.weight.tensor()) == std::vector<float>{row.after[0], row.after[1]});
      const EnableGrad again;
      step_by_ones(net.weight, sgd);
      CHECK(values(net.weight.tensor()) == std::vector<float>{row.after[0] - 0.25F, row.after[1] - 0.25F});
    }
  }
}

TEST_CASE("a master copy keeps its f32 bits unless somebody wrote to the 16-bit parameter") {
  Variable w(ones({3}, {.dtype = bf16}), true);
  SGD sgd({w}, {.lr = 1e-4});
  for (int i = 0; i < 10; ++i) step_by_ones(w, sgd);
  const float master = values(sgd.state_of(w).tensors.at("master"))[0];
  CHECK((master < 0.9995F && values(w.tensor())[0] == 1));
  w.tensor()[1].fill_(4);
  step_by_ones(w, sgd);
  const std::vector<float> now = values(sgd.state_of(w).tensors.at("master"));
  CHECK(now[0] == doctest::Approx(master - 1e-4F).epsilon(1e-7));
  CHECK(now[1] == doctest::Approx(4 - 1e-4F).epsilon(1e-7));
  CHECK(now[2] == now[0]);
}

TEST_CASE("a model and its optimizer's state load in either order, with the same bits") {
  for (const bool model_first : {true, false}) {
    manual_seed(3);
    Variable a(randn({8}).to(bf16), true), b(randn({8}).to(bf16), true);
    AdamW first({a}, {.lr = 1e-3}), second({b}, {.lr = 1e-3});
    step_by_ones(b, second);  // it has a master copy already
    for (int i = 0; i < 3; ++i) step_by_ones(a, first);
    if (model_first) b.tensor().copy_(a.tensor());
    second.load_state(first.state());
    if (!model_first) b.tensor().copy_(a.tensor());
    for (int i = 0; i < 3; ++i) step_by_ones(a, first), step_by_ones(b, second);
    CHECK(equal(first.state_of(a).tensors.at("master"), second.state_of(b).tensors.at("master")));
  }
}

TEST_CASE("an average that is switched on later begins at the parameters") {
  Variable w(full({1}, 10), true);
  SGD sgd({w}, {.lr = 0.5});
  for (int i = 0; i < 2; ++i) step_by_ones(w, sgd);
  sgd.keep_average(0.75);
  step_by_ones(w, sgd);
  CHECK(values(sgd.state_of(w).tensors.at("ema"))[0] == 8.5F);
  step_by_ones(w, sgd);
  CHECK(values(sgd.state_of(w).tensors.at("ema"))[0] == 8.375F);
}

TEST_CASE("a scaler skips the optimizers whose gradients are not finite, and no other") {
  for (const bool first : {true, false}) {
    Variable g(ones({1}), true), d(ones({1}), true);
    SGD of_g({g}, {.lr = 0.125}), of_d({d}, {.lr = 0.125});
    GradScaler scaler({.init_scale = 4});
    scaler.scale(sum(g * (first ? INFINITY : 1.0))).backward();
    scaler.scale(sum(d * (first ? 1.0 : INFINITY))).backward();
    CHECK(scaler.step(of_g) == !first);
    CHECK(scaler.step(of_d) == first);
    CHECK(scaler.found_overflow());
    CHECK(values(g.tensor())[0] == (first ? 1 : 0.875F));
    CHECK(values(d.tensor())[0] == (first ? 0.875F : 1));
    scaler.update();
    CHECK((scaler.scale_value() == 2 && !scaler.found_overflow()));
  }
}
