// Layers under DDP and every stage of ZeRO, also checkpointed: an LSTM, whose forward gives several values and whose
// gradients come by its output or by its last states alone; and layers that read parameters in ways of their own.
#include <doctest/doctest.h>

#include "autograd/variable.h"
#include "nn/activation.h"
#include "nn/container.h"
#include "nn/conv.h"
#include "nn/norm.h"
#include "nn/recurrent.h"
#include "nn/similarity.h"
#include "nn/transformer.h"
#include "parallel/activation_checkpoints.h"
#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::ZeroOptions;

namespace {

struct Tagger : nn::Layer<Tagger> {
  nn::ModuleList<nn::LSTM> lstms;
  nn::Linear head = linear(10, 3);
  bool by_states = false;
  explicit Tagger(bool states) : by_states(states) {
    lstms.emplace_back(nn::LSTM::Options{.input = 6, .hidden = 9, .bidirectional = true});
    lstms.emplace_back(nn::LSTM::Options{.input = 18, .hidden = 12, .layers = 2, .proj_size = 10});
  }
  Variable forward(const Variable& x) {
    const nn::LstmOutput first = lstms[0](x), second = lstms[1](first.output);
    return head(by_states ? second.h.select(0, 1) + sum(first.c) * 0.01 : second.output.select(0, -1));
  }
  void fields(nn::Fields& f) override { f("lstms", lstms)("head", head); }
};

struct Mixture : nn::Layer<Mixture> {
  nn::Parametrized<nn::Linear, nn::WeightNorm> first = nn::weight_norm(linear(6, 8));
  nn::PReLU slopes{{.channels = 4}};
  nn::InstanceNorm1d norm{{.channels = 8, .affine = true}};
  nn::Bilinear pair{{.in1 = 8, .in2 = 6, .out = 10}};
  nn::Linear head = linear(5, 3);
  Variable forward(const Variable& x) {
    const Variable h = mean(norm(slopes(first(x)).permute({1, 2, 0})), {2});
    return head(nn::GLU()(pair(h, x.select(0, 0))));
  }
  void fields(nn::Fields& f) override { f("first", first)("slopes", slopes)("norm", norm)("pair", pair)("head", head); }
};

/// A decoder's layer, which reads a part of in_proj's weight for queries and another for keys and values.
struct Translator : nn::Layer<Translator> {
  nn::Linear in = linear(6, 12);
  nn::TransformerEncoder encoder{{.layer = {.width = 12, .heads = 3, .inner = 10, .dropout = 0.2}, .layers = 2}};
  nn::TransformerDecoderLayer decoder{{.width = 12, .heads = 3, .inner = 10, .dropout = 0.2}};
  nn::Linear head = linear(12, 3);
  Variable forward(const Variable& x) {
    const Variable h = in(x);
    return head(mean(decoder(h, encoder(h), {.target = {.causal = true}}), {0}));
  }
  void fields(nn::Fields& f) override { f("in", in)("encoder", encoder)("decoder", decoder)("head", head); }
};

struct Volumes : nn::Layer<Volumes> {
  nn::Conv3d first{{.in = 1, .out = 5, .kernel = {3, 1, 2}, .padding = {1, 0, 0}}};
  nn::ConvTranspose3d second{{.in = 5, .out = 4, .kernel = {2, 1, 2}, .groups = 1}};
  nn::Linear head = linear(4, 3);
  Variable forward(const Variable& x) {  // (5, 4, 6) as four volumes (1, 5, 2, 3)
    const Variable volumes = x.transpose(0, 1).reshape({4, 1, 5, 2, 3});
    return head(mean(second(relu(first(volumes))), {2, 3, 4}));
  }
  void fields(nn::Fields& f) override { f("first", first)("second", second)("head", head); }
};

/// A head tied to the table of words, whose loss is made in chunks of rows; or the same as a whole.
struct Words : nn::Layer<Words> {
  nn::Embedding table{{.num = 11, .dim = 6}};
  nn::Linear inner = linear(6, 6);
  nn::Head head{table};
  explicit Words(int64_t rows_at_once) { head.rows_at_once = rows_at_once; }
  Variable forward(const Variable& x) {
    const Tensor words = Tensor::from<int64_t>({3, 0, 10, 7, 7}, {5, 1}).expand({5, 4});
    const Variable loss = head(inner(x + table(words.contiguous())), words.contiguous());
    return stack(std::vector<Variable>{loss, loss * 2.0, loss * -0.5}).expand({4, 3});
  }
  void fields(nn::Fields& f) override { f("table", table)("inner", inner)("head", head); }
  std::vector<Variable> reads() override { return {table.weight}; }
};

using MakeModel = std::function<std::unique_ptr<nn::Module>()>;

struct LayersPlan {
  MakeModel make;
  int ranks = 1;
  std::optional<ZeroOptions> options = {};
  bool ddp = false, wrap = false;
  bool penalty = false;  ///< of the slope of the sum of outputs in x, as a WGAN's critic has it
};

/// The loss of one micro-batch; `call` is the model or what wraps it.
template <class Call> Variable loss_of_layers(Call call, bool penalty) {
  const Variable x(randn({5, 4, 6}), penalty);
  const Tensor y = randint(0, 3, {4});
  const Variable scores = call(x), loss = cross_entropy(scores, y);
  if (!penalty) return loss;
  const Variable slope = grad(sum(tanh(scores)), {x}, {.create_graph = true})[0];
  return loss + mean(square(norm(slope.reshape({20, 6}), {1}) - 1.0));
}

Tensors train_layers(const LayersPlan& plan) {
  const int accumulation = 4 / plan.ranks;
  const auto all = on_ranks<Tensors>(plan.ranks, [&](int rank) {
    manual_seed(1);
    const std::unique_ptr<nn::Module> model = plan.make();
    nn::Module& net = *model;
    if (plan.wrap) parallel::ActivationCheckpoints().wrap_blocks(net);
    const auto optimizer = adamw(net.parameters());
    std::optional<Zero> zero;
    std::optional<parallel::DistributedDataParallel> ddp;
    std::optional<parallel::GradientAccumulator> sum;
    if (plan.options) zero.emplace(net, *optimizer, *plan.options);
    else if (plan.ddp) ddp.emplace(net);
    else sum.emplace(net.parameters());
    for (int step = 0; step < 3; ++step) {
      const auto backward = [&](int64_t micro) {
        manual_seed(99);
        set_random_step(1000 + uint64_t(step), uint64_t(micro));
        loss_of_layers([&](const Variable& x) { return ddp ? (*ddp)(x) : net.call(x); }, plan.penalty).backward();
      };
      if (zero) {
        backwards(*zero, accumulation, backward);
        zero->step({.grad_scale = 1. / accumulation});
        continue;
      }
      for (int i = 0; i < accumulation; ++i) {
        std::optional<parallel::DistributedDataParallel::NoSync> local;
        if (ddp && i + 1 < accumulation) local.emplace(*ddp);
        backward(rank * accumulation + i);
        if (sum) sum->add();
      }
      if (sum) sum->finish();
      for (const Variable& p : net.parameters()) mul_scalar_(p.grad(), 1. / accumulation);
      optimizer->step();
      optimizer->zero_grad();
    }
    std::optional<Zero::Gathered> whole;
    if (zero) whole.emplace(*zero, net.parameters());
    return copy_parameters(net);
  });
  for (const Tensors& other : all) CHECK(differing(all[0], other) == "");
  return all[0];
}

}  // namespace

TEST_CASE("zero: a penalty of a gradient has the same bits under DDP and stages 1 and 2; stage 3 refuses it") {
  const MakeModel make = [] { return std::make_unique<Mixture>(); };
  const Tensors one = train_layers({.make = make, .penalty = true});
  CHECK(differing(one, train_layers({.make = make})) != "");
  CHECK(differing(one, train_layers({.make = make, .ranks = 2, .ddp = true, .penalty = true})) == "");
  for (const int stage : {1, 2})
    CHECK(differing(
              one, train_layers({.make = make, .ranks = 2, .options = ZeroOptions{.stage = stage}, .penalty = true})) ==
          "");
  const ZeroOptions third{.stage = 3, .param_persistence_threshold = 0};
  CHECK_THROWS_WITH_AS(train_layers({.make = make, .ranks = 1, .options = third, .penalty = true}),
                       doctest::Contains("train what differentiates gradients with stage 2"), Error);
}

TEST_CASE("zero: layers have the same bits under DDP, every stage and checkpoints") {
  struct {
    const char* name;
    MakeModel make;
    bool blocks = true;  ///< that can be checkpointed
  } rows[] = {
      {"LSTM by its output", [] { return std::make_unique<Tagger>(false); }},
      {"LSTM by its states", [] { return std::make_unique<Tagger>(true); }},
      {"a mixture", [] { return std::make_unique<Mixture>(); }, false},
      {"a transformer", [] { return std::make_unique<Translator>(); }},
      {"volumes", [] { return std::make_unique<Volumes>(); }, false},
      {"a head in chunks", [] { return std::make_unique<Words>(7); }, false},
  };
  for (const auto& [name, make, blocks] : rows) {
    CAPTURE(std::string(name));
    const Tensors one = train_layers({.make = make});
    if (blocks) CHECK(differing(one, train_layers({.make = make, .wrap = true})) == "");
    CHECK(differing(one, train_layers({.make = make, .ranks = 2, .ddp = true})) == "");
    for (const int stage : {1, 2, 3}) {
      CAPTURE(stage);
      const ZeroOptions options{.stage = stage, .param_persistence_threshold = 0};
      CHECK(differing(one, train_layers({.make = make, .ranks = 2, .options = options})) == "");
    }
    const ZeroOptions small{.stage = 3, .param_persistence_threshold = 0, .max_live_parameters = 1};
    CHECK(differing(one, train_layers({.make = make, .ranks = 2, .options = small, .wrap = blocks})) == "");
  }
}

TEST_CASE("zero: a tied head in chunks trains as one in a piece") {
  const auto train = [](int64_t rows_at_once) {
    return train_layers({.make = [=] { return std::make_unique<Words>(rows_at_once); },
                         .ranks = 2,
                         .options = ZeroOptions{.stage = 3, .param_persistence_threshold = 0}});
  };
  const Tensors chunks = train(7), whole = train(1000);
  REQUIRE(chunks.size() == whole.size());
  for (const auto& [name, value] : whole) {
    CAPTURE(name);
    CHECK(allclose(chunks.at(name), value, 1e-4, 1e-5));
  }
}
