// Layers under DDP and every stage of ZeRO, also with checkpointing: an LSTM, which has several outputs and whose
// gradients come from its output or only its last states; layers that read parameters in unusual ways; and a row for
// every layer with parameters.
#include <doctest/doctest.h>

#include "autograd/variable.h"
#include "nn/nn.h"
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

/// A decoder layer uses one slice of in_proj's weight for queries and another for keys and values.
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
  Variable forward(const Variable& x) {  // treats (5, 4, 6) as four volumes (1, 5, 2, 3)
    const Variable volumes = x.transpose(0, 1).reshape({4, 1, 5, 2, 3});
    return head(mean(second(relu(first(volumes))), {2, 3, 4}));
  }
  void fields(nn::Fields& f) override { f("first", first)("second", second)("head", head); }
};

/// A head tied to the embedding table, whose loss is computed in chunks of `rows_at_once` rows.
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

/// Recurrent cells, each called once per time step.
struct Cells : nn::Layer<Cells> {
  nn::LSTMCell lstm{{.input = 6, .hidden = 7}};
  nn::GRUCell gru{{.input = 7, .hidden = 5}};
  nn::RNNCell rnn{{.input = 5, .hidden = 6}};
  Variable forward(const Variable& x) {
    nn::LSTMCell::State state;
    Variable h, last;
    for (int64_t t = 0; t < x.size(0); ++t) {
      state = lstm(x[t], state.h, state.c);
      h = gru(state.h, h);
      last = rnn(h, last);
    }
    return last;
  }
  void fields(nn::Fields& f) override { f("lstm", lstm)("gru", gru)("rnn", rnn); }
};

using MakeModel = std::function<std::unique_ptr<nn::Module>()>;

/// A layer between two others: the head gets run(layer, x), of shape (4, width), where x is (5, 4, 6).
template <class L> struct Between : nn::Layer<Between<L>> {
  using Run = std::function<Variable(L& layer, const Variable& x)>;
  nn::Linear in = linear(6, 6);
  L layer;
  nn::Linear head;
  Run run;
  Between(L made, int64_t width, Run how) : layer(std::move(made)), head(linear(width, 3)), run(std::move(how)) {}
  Variable forward(const Variable& x) { return head(run(layer, in(x))); }
  void fields(nn::Fields& f) override { f("in", in)("layer", layer)("head", head); }
};
/// A Between whose layer is make().
template <class Make, class Run> MakeModel between(Make make, int64_t width, Run run) {
  using L = decltype(make());
  return [=] { return std::make_unique<Between<L>>(make(), width, run); };
}
/// A layer of sequences (5, 4, 6), whose results are averaged over time.
template <class L> MakeModel of_steps(const typename L::Options& o, int64_t width) {
  return between([=] { return L(o); }, width, [](L& layer, const Variable& x) { return mean(layer(x), {0}); });
}
template <class Make> MakeModel of_channels_made(Make make, const Shape& shape, int64_t width) {
  return between(make, width, [=](auto& layer, const Variable& x) {
    const Variable y = layer(x.permute({1, 2, 0}).reshape(shape));
    return mean(y.reshape({4, y.size(1), y.numel() / 4 / y.size(1)}), {2});
  });
}
template <class L> MakeModel of_channels(const typename L::Options& o, const Shape& shape, int64_t width) {
  return of_channels_made([=] { return L(o); }, shape, width);
}

struct LayersPlan {
  MakeModel make;
  int ranks = 1;
  std::optional<ZeroOptions> options = {};
  bool ddp = false, wrap = false;
  bool penalty = false;  ///< true: gradient penalty on the sum of outputs, as for a WGAN's critic
};

/// The loss of one micro-batch; `call` is the model or its wrapper.
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

/// Checks that two ranks give the bits of one: under DDP, in every stage, and when parameters are released immediately.
/// blocks: also with its blocks checkpointed.
void check_same_bits(const MakeModel& make, bool blocks = false) {
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

}  // namespace

TEST_CASE("zero: a penalty of a gradient has the same bits under DDP and stages 1 and 2; stage 3 refuses it") {
  const MakeModel makes[] = {[] { return std::make_unique<Mixture>(); },
                             [] { return std::make_unique<Tagger>(false); }};
  for (const MakeModel& make : makes) {
    const Tensors one = train_layers({.make = make, .penalty = true});
    CHECK(differing(one, train_layers({.make = make})) != "");
    CHECK(differing(one, train_layers({.make = make, .ranks = 2, .ddp = true, .penalty = true})) == "");
    for (const int stage : {1, 2}) {
      const ZeroOptions options{.stage = stage};
      CHECK(differing(one, train_layers({.make = make, .ranks = 2, .options = options, .penalty = true})) == "");
    }
    const ZeroOptions third{.stage = 3, .param_persistence_threshold = 0};
    CHECK_THROWS_WITH_AS(train_layers({.make = make, .ranks = 1, .options = third, .penalty = true}),
                         doctest::Contains("use stage 2 or below for losses that contain gradients"), Error);
  }
}

TEST_CASE("zero: layers have the same bits under DDP, every stage and checkpoints") {
  struct {
    const char* name;
    MakeModel make;
    bool blocks = true;  ///< true: the model's blocks can be checkpointed
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
    check_same_bits(make, blocks);
  }
}

TEST_CASE("zero: every layer with parameters has the same bits under DDP and every stage") {
  const auto pack = [](const Variable& x) { return nn::pack_padded_sequence(x, {5, 3, 3, 1}); };
  struct {
    const char* name;
    MakeModel make;
  } rows[] = {
      {"RNN",
       between([] { return nn::RNN({.input = 6, .hidden = 7, .layers = 2, .relu = true, .bidirectional = true}); }, 14,
               [](nn::RNN& l, const Variable& x) { return mean(l(x).output, {0}); })},
      {"GRU", between([] { return nn::GRU({.input = 6, .hidden = 7, .layers = 2, .dropout = 0.3}); }, 7,
                      [](nn::GRU& l, const Variable& x) { return l(x).h[1]; })},
      {"GRU, packed", between([] { return nn::GRU({.input = 6, .hidden = 7, .bidirectional = true}); }, 7,
                              [=](nn::GRU& l, const Variable& x) { return sum(l(pack(x)).h, {0}); })},
      {"LSTM, packed", between([] { return nn::LSTM({.input = 6, .hidden = 7, .proj_size = 3}); }, 7,
                               [=](nn::LSTM& l, const Variable& x) { return l(pack(x)).c[0]; })},
      {"cells", between([] { return Cells(); }, 6, [](Cells& l, const Variable& x) { return l(x); })},
      {"Transformer",
       between(
           [] {
             return nn::Transformer(
                 {.width = 6, .heads = 2, .encoder_layers = 2, .decoder_layers = 2, .inner = 10, .dropout = 0.2});
           },
           6, [](nn::Transformer& l, const Variable& x) { return mean(l(x, x * 0.5), {0}); })},
      {"MultiHeadAttention across",
       between([] { return nn::MultiHeadAttention({.embed = 6, .heads = 3, .causal = false, .cross = true}); }, 6,
               [](nn::MultiHeadAttention& l, const Variable& x) {
                 const Variable q = x.transpose(0, 1), k = q * 0.5;
                 return mean(l(q, k, k, {.causal = true}).output, {1});
               })},
      {"TransformerBlock, as Llama's",
       between(
           [] {
             return nn::TransformerBlock({.width = 6,
                                          .heads = 3,
                                          .kv_heads = 1,
                                          .norm = nn::Norm::rms,
                                          .feed_forward = nn::FeedForward::swiglu});
           },
           6, [](nn::TransformerBlock& l, const Variable& x) { return mean(l(x.transpose(0, 1)), {1}); })},
      {"Conv1d", of_channels<nn::Conv1d>({.in = 6, .out = 9, .groups = 3}, {4, 6, 5}, 9)},
      {"Conv2d", of_channels<nn::Conv2d>({.in = 2, .out = 7, .padding = 1}, {4, 2, 3, 5}, 7)},
      {"Conv3d", of_channels<nn::Conv3d>({.in = 1, .out = 7, .kernel = 2}, {4, 1, 2, 3, 5}, 7)},
      {"ConvTranspose1d", of_channels<nn::ConvTranspose1d>({.in = 6, .out = 4, .stride = 2}, {4, 6, 5}, 4)},
      {"ConvTranspose2d", of_channels<nn::ConvTranspose2d>({.in = 6, .out = 4, .kernel = {1, 2}}, {4, 6, 1, 5}, 4)},
      {"ConvTranspose3d",
       of_channels<nn::ConvTranspose3d>({.in = 6, .out = 5, .kernel = {2, 1, 3}}, {4, 6, 1, 1, 5}, 5)},
      {"LayerNorm", of_steps<nn::LayerNorm>({.shape = {6}}, 6)},
      {"RMSNorm", of_steps<nn::RMSNorm>({.size = 6}, 6)},
      {"Norm", of_steps<nn::Norm>({.kind = nn::Norm::layer, .size = 6, .eps = 1e-5}, 6)},
      {"GroupNorm", of_channels<nn::GroupNorm>({.groups = 3, .channels = 6}, {4, 6, 5}, 6)},
      {"BatchNorm1d", of_channels<nn::BatchNorm1d>({.channels = 6}, {4, 6, 5}, 6)},
      {"BatchNorm2d", of_channels<nn::BatchNorm2d>({.channels = 2}, {4, 2, 3, 5}, 2)},
      {"InstanceNorm1d", of_channels<nn::InstanceNorm1d>({.channels = 6, .affine = true}, {4, 6, 5}, 6)},
      {"InstanceNorm2d",
       of_channels<nn::InstanceNorm2d>({.channels = 2, .affine = true, .track = true}, {4, 2, 3, 5}, 2)},
      {"InstanceNorm3d", of_channels<nn::InstanceNorm3d>({.channels = 6, .affine = true}, {4, 6, 1, 1, 5}, 6)},
      {"PReLU", of_channels<nn::PReLU>({.channels = 6}, {4, 6, 5}, 6)},
      {"Mlp", of_steps<nn::Mlp>({.width = 6, .inner = 11, .kind = nn::FeedForward::swiglu}, 6)},
      {"Bilinear", between([] { return nn::Bilinear({.in1 = 6, .in2 = 6, .out = 5}); }, 5,
                           [](nn::Bilinear& l, const Variable& x) { return l(x[0], x[4]); })},
      {"EmbeddingBag, sum",
       between([] { return nn::EmbeddingBag({.num = 9, .dim = 6, .mode = nn::EmbeddingBag::Mode::sum}); }, 6,
               [](nn::EmbeddingBag& l, const Variable& x) {
                 const Tensor index = randint(0, 9, {4, 5});
                 return l(index, Tensor(), x.select(2, 0).transpose(0, 1).contiguous()) + x[0];
               })},
      {"EmbeddingBag, max",
       between([] { return nn::EmbeddingBag({.num = 9, .dim = 6, .mode = nn::EmbeddingBag::Mode::max}); }, 6,
               [](nn::EmbeddingBag& l, const Variable& x) {
                 return l(randint(0, 9, {4, 5})) * x[0];
               })},
      {"Embedding", between([] { return nn::Embedding({.num = 9, .dim = 6, .padding_index = 2}); }, 6,
                            [](nn::Embedding& l, const Variable& x) { return l(randint(0, 9, {4})) * x[0]; })},
      {
          "AdaptiveLogSoftmaxWithLoss",
          between(
              [] {
                return nn::AdaptiveLogSoftmaxWithLoss({.in = 6, .classes = 30, .cutoffs = {4, 26}, .div_value = 2});
              },
              6,
              [](nn::AdaptiveLogSoftmaxWithLoss& l, const Variable& x) {
                // Targets of the second cluster occur on some ranks only.
                return x[0] * l(x[0], randint(0, 30, {4})).output.unsqueeze(1);
              }),
      },
      {"weight_norm", of_channels_made([] { return nn::weight_norm(nn::Conv1d({.in = 6, .out = 4})); }, {4, 6, 5}, 4)},
      {"spectral_norm at rest", of_channels_made(
                                    [] {
                                      auto layer = nn::spectral_norm(nn::Conv1d({.in = 6, .out = 4}));
                                      layer.eval();
                                      return layer;
                                    },
                                    {4, 6, 5}, 4)},
  };
  for (const auto& [name, make] : rows) {
    CAPTURE(std::string(name));
    check_same_bits(make);
  }
}

TEST_CASE("zero: the power method of spectral_norm goes on with every call: the same bits where ranks get the same") {
  const MakeModel make =
      of_channels_made([] { return nn::spectral_norm(nn::Conv1d({.in = 6, .out = 4})); }, {4, 6, 5}, 4);
  const auto with = [&](int stage) {
    return train_layers(
        {.make = make, .ranks = 2, .options = ZeroOptions{.stage = stage, .param_persistence_threshold = 0}});
  };
  // From stage 2 on, ranks get other micro-batches than under DDP.
  CHECK(differing(train_layers({.make = make, .ranks = 2, .ddp = true}), with(1)) == "");
  CHECK(differing(with(2), with(3)) == "");
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
