// Rare layers have the same bits under DDP and every stage of ZeRO.
#include <doctest/doctest.h>

#include "extensions/layers/layers.h"
#include "tests/zero/layers.h"

using namespace lockstep;
using namespace testing;

namespace {

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

}  // namespace

TEST_CASE("zero: rare layers have the same bits under DDP and every stage") {
  check_each_same_bits({
      {"a mixture", [] { return std::make_unique<Mixture>(); }},
      {"Bilinear", between([] { return nn::Bilinear({.in1 = 6, .in2 = 6, .out = 5}); }, 5,
                           [](nn::Bilinear& l, const Variable& x) { return l(x[0], x[4]); })},
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
      {"GroupNorm", of_channels<nn::GroupNorm>({.groups = 3, .channels = 6}, {4, 6, 5}, 6)},
      {"InstanceNorm1d", of_channels<nn::InstanceNorm1d>({.channels = 6, .affine = true}, {4, 6, 5}, 6)},
      {"InstanceNorm2d",
       of_channels<nn::InstanceNorm2d>({.channels = 2, .affine = true, .track = true}, {4, 2, 3, 5}, 2)},
      {"InstanceNorm3d", of_channels<nn::InstanceNorm3d>({.channels = 6, .affine = true}, {4, 6, 1, 1, 5}, 6)},
      {"PReLU", of_channels<nn::PReLU>({.channels = 6}, {4, 6, 5}, 6)},
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
      {"Transformer",
       between(
           [] {
             return nn::Transformer(
                 {.width = 6, .heads = 2, .encoder_layers = 2, .decoder_layers = 2, .inner = 10, .dropout = 0.2});
           },
           6, [](nn::Transformer& l, const Variable& x) { return mean(l(x, x * 0.5), {0}); })},
      {"MaskedAttention across", between([] { return nn::MaskedAttention({.embed = 6, .heads = 3}); }, 6,
                                         [](nn::MaskedAttention& l, const Variable& x) {
                                           const Variable q = x.transpose(0, 1), k = q * 0.5;
                                           return mean(l(q, k, k, {.causal = true}).output, {1});
                                         })},
      {"weight_norm", of_channels_made([] { return nn::weight_norm(nn::Conv1d({.in = 6, .out = 4})); }, {4, 6, 5}, 4)},
      {"spectral_norm at rest", of_channels_made(
                                    [] {
                                      auto layer = nn::spectral_norm(nn::Conv1d({.in = 6, .out = 4}));
                                      layer.eval();
                                      return layer;
                                    },
                                    {4, 6, 5}, 4)},
  });
  check_same_bits([] { return std::make_unique<Translator>(); }, true);
}

TEST_CASE(
    "zero: a penalty of a gradient of a Bilinear has the same bits under DDP and stages 1 and 2; stage 3 refuses it") {
  check_penalty([] { return std::make_unique<Mixture>(); });
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
