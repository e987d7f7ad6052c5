// Modules: names, state, moving, hooks, and rejected calls. Their values are golden cases.
#include <doctest/doctest.h>

#include <cmath>
#include <optional>

#include "autograd/autocast.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/block_pattern.h"
#include "tests/messages.h"
#include "tests/nn/properties.h"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

struct Net : Layer<Net> {
  Linear hidden{{.in = 4, .out = 8}}, head{{.in = 8, .out = 2, .bias = false}};
  Tensor scale = ones({1});
  Variable forward(const Variable& x) { return head(relu(hidden(x))); }
  void fields(Fields& f) override { f("hidden", hidden)("head", head)("scale", scale); }
};

struct Tied : Layer<Tied> {
  Linear a{{.in = 3, .out = 3, .bias = false}}, b{{.in = 3, .out = 3, .bias = false}};
  Tied() { b.weight = a.weight; }
  Variable forward(const Variable& x) { return b(a(x)); }
  void fields(Fields& f) override { f("a", a)("b", b); }
};

}  // namespace

TEST_CASE("fields give parameters, buffers and modules by dotted name, each parameter once") {
  Net net;
  std::vector<std::string> names;
  for (auto& p : net.named_parameters()) names.push_back(p.name);
  CHECK(names == std::vector<std::string>{"hidden.weight", "hidden.bias", "head.weight"});
  CHECK(net.named_buffers().size() == 1);
  CHECK(net.parameter_count() == 4 * 8 + 8 + 16);
  CHECK(net.named_modules().size() == 3);
  Tied tied;
  CHECK(tied.parameters().size() == 1);
  CHECK(tied.state().size() == 1);
}

TEST_CASE("state round trip, and an error that lists everything before anything changes") {
  manual_seed(1);
  Net a, b;
  b.load_state(a.state());
  const Tensor x = randn({3, 4});
  CHECK(equal(a(x).tensor(), b(x).tensor()));

  State bad = a.state();
  bad[0].first = "hidden.wieght";
  bad[2].second = zeros({5, 5});
  const Tensor before = b.hidden.bias.tensor().clone();
  bad[1].second = full({8}, 7);
  const std::string text = message([&] { b.load_state(bad); });
  for (const char* part :
       {"missing", "hidden.weight", "unexpected", "hidden.wieght", "head.weight: expected shape (2, 8), got (5, 5)"})
    CHECK(contains(text, part));
  CHECK(equal(b.hidden.bias.tensor(), before));
  const State partial{a.state().front()};
  const LoadReport report = b.load_state(partial, false);
  CHECK(report.missing == std::vector<std::string>{"head.weight", "hidden.bias", "scale"});
  Tied tied, other;
  other.load_state(tied.state());
  CHECK(equal(tied.a.weight.tensor(), other.b.weight.tensor()));
}

TEST_CASE("to() keeps the identity of parameters, so an optimizer made before stays valid") {
  Net net;
  optim::SGD optimizer(net.parameters(), {.lr = 1});
  net.to(f64);
  CHECK(net.hidden.weight.dtype() == f64);
  CHECK(net.scale.dtype() == f64);
  sum(net(ones({1, 4}, {.dtype = f64}))).backward();
  const Tensor before = net.head.weight.tensor().clone();
  optimizer.step();
  CHECK(!equal(before, net.head.weight.tensor()));
  CHECK_ERROR(net.to(i64), "expected a floating dtype");
}

TEST_CASE("to() leaves running statistics in f32 where parameters get 16 bits") {
  for (const DType dtype : {bf16, f16, f32, f64}) {
    BatchNorm1d norm({.channels = 2});
    norm.to(dtype);
    const DType expected = size_of(dtype) == 2 ? f32 : dtype;
    CHECK(norm.weight.dtype() == dtype);
    CHECK(norm.running_mean.dtype() == expected);
    CHECK(norm.running_var.dtype() == expected);
    CHECK(norm.num_batches_tracked.dtype() == i64);
    // A momentum of 1/1000 moves a mean by less than bf16 can show.
    norm.o.momentum = 1e-3;
    norm.running_mean.fill_(1);
    norm(full({4, 2}, 2, {.dtype = dtype}));
    CHECK(norm.running_mean.to(f64).to_vector<double>()[0] == doctest::Approx(1.001).epsilon(1e-6));
  }
}

TEST_CASE("under Autocast a norm keeps 16 bits if its weight has them") {
  const Autocast scope(bf16);
  for (const DType dtype : {f32, bf16}) {
    LayerNorm layer({.shape = {4}}), bare({.shape = {4}, .affine = false});
    RMSNorm rms({.size = 4});
    Norm norm({.size = 4});
    BatchNorm1d batch({.channels = 4});
    Dropout none({.p = 0});
    for (Module* m : std::initializer_list<Module*>{&layer, &rms, &norm, &batch}) m->to(dtype);
    const Variable x = randn({3, 4}, {.dtype = bf16});
    for (const Variable& y : {layer(x), rms(x), norm(x), batch(x), norm.of_sum(x, x, none).norm})
      CHECK(y.dtype() == dtype);
    CHECK(norm.of_sum(x, x, none).sum.dtype() == bf16);
    CHECK(bare(x).dtype() == f32);
    // An input in f32 is not rounded.
    for (const Variable& y : {layer(x.to(f32)), rms(x.to(f32)), batch(x.to(f32))}) CHECK(y.dtype() == f32);
  }
}

TEST_CASE("train, eval, freeze and zero_grad reach every module") {
  Sequential net(Linear({.in = 2, .out = 2}), Dropout({.p = 0.5}), BatchNorm1d({.channels = 2}));
  net.eval();
  CHECK(!net[1].is_training());
  net.train();
  CHECK(net[2].is_training());
  net.requires_grad_(false);
  for (auto& p : net.parameters()) CHECK(!p.requires_grad());
  net.requires_grad_();
  sum(net(randn({4, 2}))).backward();
  CHECK(net.parameters()[0].grad().defined());
  net.zero_grad();
  CHECK(!net.parameters()[0].grad().defined());
}

TEST_CASE("hooks run around a call") {
  Linear layer({.in = 2, .out = 3});
  std::vector<std::string> events;
  layer.before_forward(
      [&](Module& m, const std::vector<Variable>& in) { events.push_back(m.kind() + " in " + str(in[0].shape())); });
  const int id = layer.after_forward(
      [&](Module&, const std::vector<Variable>&, const Variable& out) { events.push_back("out " + str(out.shape())); });
  layer(randn({5, 2}));
  layer.remove_hook(id);
  layer.call(randn({5, 2}));
  CHECK(events == std::vector<std::string>{"Linear in (5, 2)", "out (5, 3)", "Linear in (5, 2)"});
}

TEST_CASE("layers reject invalid options and inputs") {
  CHECK_ERROR(Linear({.in = 3, .out = 2})(zeros({4, 5})), "5");
  CHECK_ERROR(Conv2d({.in = 3, .out = 4, .groups = 2}), "expected groups to divide");
  CHECK_ERROR(MultiHeadAttention({.embed = 12, .heads = 4, .kv_heads = 3}), "kv_heads");
  CHECK_ERROR(BatchNorm2d({.channels = 3})(zeros({2, 3})), "BatchNorm2d");
  CHECK_ERROR(BatchNorm1d({.channels = 3})(zeros({2, 4})), "3 channels");
  CHECK_ERROR(Embedding({.num = 4, .dim = 2})(Tensor::from<int64_t>({1, 4})), "4");
  GPT model({.vocab = 10, .context = 4, .layers = 1, .width = 8, .heads = 2});
  CHECK_ERROR(model(zeros({1, 5}, {.dtype = i64})), "at most 4 tokens");
}

TEST_CASE("initialisation: bounds match PyTorch") {
  manual_seed(3);
  Linear layer({.in = 100, .out = 200});
  CHECK(amax(abs(layer.weight.tensor())).item() <= 0.1);
  CHECK(amax(abs(layer.weight.tensor())).item() > 0.098);
  CHECK(stddev(layer.weight.tensor()).item() == doctest::Approx(0.1 / std::sqrt(3.0)).epsilon(0.02));
  Conv2d conv({.in = 4, .out = 8, .kernel = 5});
  CHECK(amax(abs(conv.weight.tensor())).item() <= 0.1);
}

TEST_CASE(
    "a model built empty has no memory, and is filled with the bits of plain construction, in any order and dtype") {
  testing::check_built_empty([] { return Embedding({.num = 5, .dim = 3, .padding_index = 2}); });
  testing::check_built_empty([] { return MultiHeadAttention({.embed = 8, .heads = 2}); });
  testing::check_built_empty([] {
    return Sequential(Conv2d({.in = 2, .out = 3, .kernel = 3}), LayerNorm({.shape = {4, 4}}));
  });
  testing::check_built_empty(
      [] { return GPT({.vocab = 11, .context = 4, .layers = 2, .width = 8, .heads = 2, .tied = false}); });
  const BuildEmpty scope;
  CHECK(GPT({.vocab = 100'000, .context = 8192, .layers = 128, .width = 25'600, .heads = 160}).parameter_count() >
        1'000'000'000'000);
  Linear from({.in = 2, .out = 2});
  from.load_state({{"weight", ones({2, 2})}, {"bias", ones({2})}});  // loading a state also allocates the parameters
  CHECK(equal(from.weight.tensor(), ones({2, 2})));
}

TEST_CASE("a parameter starts with values that come from elsewhere, when somebody fills it") {
  const Tensor values = randn({6, 4});
  int asked = 0;
  const auto make = [&] { return ++asked, values; };
  std::optional<BuildEmpty> scope(std::in_place);
  Linear entire({.in = 4, .out = 6}), part({.in = 4, .out = 6}), rounded({.in = 4, .out = 6});
  scope.reset();
  for (Linear* one : {&entire, &part, &rounded}) start_with(one->weight, "values", make);
  CHECK((asked == 0 && is_built_empty(entire.weight)));
  CHECK(origin_of(entire.weight) == ", starts with values, changed 0 times");
  const Tensor start = start_of(entire.weight);
  CHECK((equal(start, values) && start.storage() != values.storage()));
  change_start(part.weight, {2, 4}, {}, [](const Tensor& w) { return w.narrow(0, 3, 2); });
  CHECK(start_of(part.weight).storage() != values.storage());
  rounded.to(bf16);
  for (Linear* one : {&entire, &part, &rounded}) fill(*one);
  CHECK(equal(entire.weight.tensor(), values));
  CHECK(equal(part.weight.tensor(), values.narrow(0, 3, 2)));
  CHECK(equal(rounded.weight.tensor(), values.to(bf16)));
  // it already has values, so it changes at once
  start_with(rounded.weight, "values", [&] { return mul_scalar(values, 2); });
  CHECK(equal(rounded.weight.tensor(), mul_scalar(values, 2).to(bf16)));
}

TEST_CASE("attention: a cache of keys and grouped, rotary heads give the results of one pass") {
  manual_seed(5);
  for (const auto& o : {MultiHeadAttention::Options{.embed = 24, .heads = 4},
                        {.embed = 24, .heads = 6, .kv_heads = 2, .rope = std::make_shared<RopeTable>(Rope{}, 4, 2048)},
                        {.embed = 24, .heads = 4, .kv_heads = 2, .window = 3}}) {
    MultiHeadAttention attention(o);
    const Tensor x = randn({2, 7, 24});
    const Tensor entire = attention(x).tensor();
    KvCache cache;
    const NoGrad no_grad;
    const Tensor head = attention.forward(x.narrow(1, 0, 4), cache).tensor();
    const Tensor tail = attention.forward(x.narrow(1, 4, 3), cache).tensor();
    CHECK(allclose(cat({head, tail}, 1), entire, 1e-4, 1e-5));
    CHECK(allclose(sum(attention.weights(x), {2}), ones({2, 7}), 1e-5, 1e-5));
  }
}

TEST_CASE("attention: a window is a mask that costs less") {
  const auto make = [](int64_t window) {
    manual_seed(5);
    return MultiHeadAttention({.embed = 24, .heads = 4, .window = window});
  };
  MultiHeadAttention windowed = make(3), entire = make(0);
  const Tensor x = randn({2, 7, 24}), visible = causal_mask(7, 7, 3, x.device());
  CHECK(allclose(windowed(x).tensor(), entire(x, visible).tensor(), 1e-5, 1e-6));
  const Tensor weights = windowed.weights(x);
  CHECK(equal(gt(weights, zeros_like(weights)), visible.expand(weights.shape())));
  CHECK(contains(windowed.options(), ", causal, window 3"));
  CHECK(windowed.flops_beside(7) == doctest::Approx(4. * 24 * (1 + 2 + 5 * 3) / 7));
  CHECK(make(7).flops_beside(7) == doctest::Approx(entire.flops_beside(7)));

  const char* const refused = "expected window 0, or a window >= 1 with causal, dense self-attention";
  CHECK_ERROR(make(-1), refused);
  CHECK_ERROR(MultiHeadAttention({.embed = 24, .heads = 4, .causal = false, .window = 3}), refused);
  CHECK_ERROR(windowed.set_sparsity(std::make_shared<testing::Strided>(16)),
              "sparse attention does not support a window (3)");
  CHECK_ERROR(GPT({.window = -2}), "[GPT] expected window >= 0 and window_from >= 0, got -2");
}

TEST_CASE("GPT learns a pattern, generates it, and checkpointing its blocks changes no bit") {
  std::vector<int64_t> text;
  for (int i = 0; i < 15; ++i) text.push_back(i % 7);
  const Tensor x = Tensor::from(text, {1, 15});
  const Tensor inputs = x.narrow(1, 0, 14).contiguous(), targets = x.narrow(1, 1, 14).contiguous();
  const auto train = [&](bool checkpoint_blocks) {
    manual_seed(7);
    GPT::Options o{.vocab = 7, .context = 14, .layers = 2, .width = 32, .heads = 2, .dropout = 0.1};
    o.checkpoint_blocks = checkpoint_blocks;
    auto model = std::make_unique<GPT>(o);
    optim::AdamW optimizer(model->parameters(), {.lr = 1e-2});
    double loss = 0;
    for (int step = 0; step < 60; ++step) {
      set_random_step(uint64_t(step));
      const Variable l = model->loss(inputs, targets);
      optimizer.zero_grad();
      l.backward();
      optimizer.step();
      loss = l.item();
    }
    return std::pair(std::move(model), loss);
  };
  auto [model, loss] = train(false);
  CHECK(loss < 0.3);
  auto [same, same_loss] = train(true);
  CHECK(same_loss == loss);
  for (size_t i = 0; i < model->parameters().size(); ++i)
    CHECK(equal(model->parameters()[i].tensor(), same->parameters()[i].tensor()));
  model->eval();  // without dropout, two evaluations agree
  CHECK(equal(model->loss(inputs, targets).tensor(), model->loss(inputs, targets).tensor()));
  const NoGrad no_grad;
  std::vector<int64_t> said{0, 1, 2};
  int right = 0;
  for (int64_t i = 0; i < 30; ++i) {
    if (said.size() == 14) said.erase(said.begin(), said.begin() + 7);  // the context is full
    std::vector<KvCache> cache(model->blocks.size());
    said.push_back(argmax(model->next_scores({said}, {&cache}).tensor()[0], -1).item<int64_t>());
    right += said.back() == (i + 3) % 7;
  }
  CHECK(right >= 25);
}

TEST_CASE("summary is a table") {
  Net net;
  net.head.requires_grad_(false);
  const std::string text = summary(net);
  for (const char* part : {"hidden", "Linear", "in 4, out 8", "40", "frozen", "total 56 parameters (40 trained)"})
    CHECK_MESSAGE(contains(text, part), text);
}

TEST_CASE("Head: a GPT's loss in chunks of rows has the loss and the gradients of the whole") {
  const Tensor tokens = Tensor::from<int64_t>({3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8}, {2, 6});
  for (const bool tied : {true, false})
    for (const bool checkpoints : {false, true})
      for (const bool casts : {false, true}) {
        CAPTURE(str(tied, checkpoints, casts));
        manual_seed(5);
        GPT::Options o{.vocab = 11, .context = 6, .layers = 1, .width = 8, .heads = 2, .tied = tied};
        o.checkpoint_blocks = checkpoints;
        GPT model(o);
        const auto train = [&](int64_t rows_at_once) {
          model.zero_grad();
          model.head.rows_at_once = rows_at_once;
          std::vector<Tensor> all;
          {
            const Autocast autocast(bf16, casts);
            const Variable loss = model.loss(tokens, tokens);
            loss.backward();
            all.push_back(loss.tensor());
            const NoGrad no_grad;
            CHECK(equal(model.loss(tokens, tokens).tensor(), all[0]));
          }
          for (const Variable& p : model.parameters()) all.push_back(p.grad().clone());
          return all;
        };
        const auto entire = train(0), chunks = train(5);
        REQUIRE(entire.size() == chunks.size());
        bool differs = false;
        for (size_t i = 0; i < entire.size(); ++i) {
          differs |= !equal(chunks[i], entire[i]);
          CHECK(allclose(chunks[i], entire[i], casts ? 3e-2 : 1e-5, casts ? 2e-3 : 1e-6));
        }
        if (default_device().is_cpu()) CHECK(differs);  // chunks take another code path
      }
}
