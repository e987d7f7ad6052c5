// Properties of the rules that few programs need. Golden cases (golden/) check their values.
#include <doctest/doctest.h>

#include "extensions/optimizers/optimizers.h"
#include "optim/optim.h"
#include "tests/messages.h"
#include "tests/optim/every_rule.h"

using namespace testing;

namespace {

const std::vector<Row> rare = {
    {"Adagrad", [](auto p) { return std::make_unique<Adagrad>(p, AdagradOptions{.lr = 0.5}); }},
    {"RMSprop",
     [](auto p) {
       return std::make_unique<RMSprop>(p, RMSpropOptions{.lr = 0.02, .momentum = 0.5, .centered = true});
     }},
    {"Lion", [](auto p) { return std::make_unique<Lion>(p, LionOptions{.lr = 0.02}); }},
    {"LAMB", [](auto p) { return std::make_unique<LAMB>(p, LAMBOptions{.lr = 0.05}); }},
    {"NAdam", [](auto p) { return std::make_unique<NAdam>(p, NAdamOptions{.lr = 0.02}); }},
    {"RAdam", [](auto p) { return std::make_unique<RAdam>(p, RAdamOptions{.lr = 0.05}); }},
    {"Adamax", [](auto p) { return std::make_unique<Adamax>(p, AdamaxOptions{.lr = 0.05}); }},
    {"Adadelta", [](auto p) { return std::make_unique<Adadelta>(p, AdadeltaOptions{.lr = 20}); }},
    {"ASGD", [](auto p) { return std::make_unique<ASGD>(p, ASGDOptions{.lr = 0.5, .t0 = 3}); }},
    {"Rprop", [](auto p) { return std::make_unique<Rprop>(p, RpropOptions{}); }},
    {"Sophia", [](auto p) { return std::make_unique<Sophia>(p, SophiaOptions{.lr = 0.02, .batch = 48}); }},
    {"AdamWScheduleFree",
     [](auto p) { return std::make_unique<AdamWScheduleFree>(p, AdamWScheduleFreeOptions{.lr = 0.05}); }},
    {"Muon", [](auto p) { return std::make_unique<Muon>(p, MuonOptions{.lr = 0.05}); }},
};

std::vector<float> values(const Tensor& tensor) { return tensor.to(cpu).to(f32).to_vector<float>(); }

}  // namespace

TEST_CASE("rare rules go downhill, resume with the same bits, and scale gradients") { check_rules(rare); }

TEST_CASE("LAMB's step is as long as trust allows") {
  Variable v(full({4}, 3), true);
  v.grad() = full({4}, 0.5);
  LAMB({v}, {.lr = 0.1}).step();  // |v| / |direction| = 3, so the step is 0.1 * 3
  CHECK(v.tensor().to_vector<float>()[0] == doctest::Approx(2.7).epsilon(1e-4));
}

TEST_CASE("Muon's step is nearly orthogonal") {
  manual_seed(4);
  CHECK((MuonOptions().lr == 1e-3 && MuonOptions().weight_decay == 0.1));  // PyTorch's defaults
  Variable w(zeros({16, 8}), true);
  w.grad() = randn({16, 8});
  Muon({w}, {.lr = 1, .momentum = 0}).step();
  const Tensor gram = matmul(w.tensor().t(), w.tensor());  // all singular values near sqrt(16 / 8)
  const Tensor off = sub(gram, mul_scalar(eye(8), 2));
  CHECK(amax(abs(off)).item() < 1.2);
}

TEST_CASE("Muon: adjust_lr_fn scales the step by the matrix's shape, as PyTorch's") {
  const auto step = [](const Shape& shape, const std::string& adjust_lr_fn) {
    manual_seed(4);
    Variable w(zeros(shape), true);
    w.grad() = randn(shape);
    Muon({w}, {.lr = 1, .adjust_lr_fn = adjust_lr_fn}).step();
    return w.tensor();
  };
  struct Row {
    Shape shape;
    double original, match;
  };
  for (const Row& row : {Row{{16, 4}, 2, 0.2 * 4}, Row{{4, 16}, 1, 0.2 * 4}, Row{{9, 9}, 1, 0.2 * 3}}) {
    CAPTURE(row.shape);
    const Tensor original = step(row.shape, "original"), match = step(row.shape, "match_rms_adamw");
    CHECK(allclose(match, original * (row.match / row.original), 1e-5, 1e-7));
  }
  Variable w(zeros({2, 2}), true);
  CHECK_ERROR(Muon({w}, {.adjust_lr_fn = "rms"}), "[Muon] expected adjust_lr_fn 'original' or 'match_rms_adamw', got");
}

TEST_CASE("Sophia takes the Hessian's diagonal from gradients of drawn targets") {
  Variable p(ones({2}), true), q(ones({2}), true);
  Sophia by_hand({p}, {.lr = 0.5, .weight_decay = 0, .hessian_interval = 0}),
      by_itself({q}, {.lr = 0.5, .weight_decay = 0});
  for (Variable* v : {&p, &q}) v->grad() = full({2}, 0.01);
  by_hand.update_hessian();
  by_hand.step(), by_itself.step();
  CHECK(equal(p.tensor(), q.tensor()));
  CHECK(by_hand.state_of(p).tensors.at("hessian").to_vector<float>()[0] == doctest::Approx(1e-6));
}

TEST_CASE("an average of its own stands in for the state's, and matrices have factors") {
  manual_seed(3);
  Variable p(randn({4, 3}), true), v(randn({3}), true);
  const Tensor target = randn({4, 3});
  AdamWScheduleFree free({p}, {.lr = 0.05});
  for (int i = 0; i < 200; ++i) step_towards(p, target, free);
  CHECK(mse_loss(Variable(free.state_of(p).tensors.at("ema")), target).item() < 0.02);
  Adafactor factors({p, v}, {});
  p.grad() = ones({4, 3}), v.grad() = ones({3});
  factors.step();
  CHECK(factors.state_of(p).tensors.at("row_var").shape() == Shape{4, 1});
  CHECK(factors.state_of(p).tensors.at("col_var").shape() == Shape{1, 3});
  CHECK(factors.state_of(p).tensors.size() == 2);
  CHECK(factors.state_of(v).tensors.at("variance").shape() == Shape{3});
}

TEST_CASE("what rules keep begins at the parameters if a loaded state lacks it") {
  Variable z(full({1}, 10), true), length(full({1}, 10), true);
  AdamWScheduleFree free({z}, {.lr = 0.5});
  Rprop rprop({length}, {.lr = 0.5});
  for (Optimizer* one : {static_cast<Optimizer*>(&free), static_cast<Optimizer*>(&rprop)}) {
    OptimizerState other;
    other.numbers["state.0.step"] = 7;
    one->load_state(other);
    one->zero_grad();
    sum(one->parameters()[0]).backward();
    one->step();
  }
  CHECK(values(free.state_of(z).tensors.at("z"))[0] > 5);
  CHECK(values(length.tensor())[0] == 9.5F);
}

TEST_CASE("rare rules reject invalid options") {
  Variable w(ones({1}), true);
  CHECK_ERROR(LAMB({w}, {.min_trust = 2, .max_trust = 1}), "max_trust >= min_trust");
  CHECK_ERROR(Sophia({w}, {}).update_hessian(), "expected hessian_interval 0, got 10");
  CHECK_ERROR(Rprop({w}, {.eta_plus = 1}), "expected eta_plus in [1");
  CHECK_ERROR(Adafactor({w}, {.d = 0.5}), "expected d >= 1");
  CHECK_ERROR(AdamWScheduleFree({w}, {.beta1 = 0}), "expected beta1 in [");
  CHECK_ERROR(AdamWScheduleFree({w}, {}).keep_average(0.9), "keeps an average of its own");
  sum(w).backward();
  CHECK_ERROR(Muon({w}, {}).step(), "expected matrices");
}
