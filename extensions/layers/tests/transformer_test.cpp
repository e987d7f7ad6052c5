// Transformers: shapes, options, training, rejected calls. Their values are golden cases
// (golden/transformers.safetensors).
#include <doctest/doctest.h>

#include "autograd/gradcheck.h"
#include "extensions/layers/tests/names_of.h"
#include "extensions/layers/transformer.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/messages.h"
#include "tests/nn/properties.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

TransformerOptions small_layer() { return {.width = 8, .heads = 2, .inner = 12, .dropout = 0}; }

/// True on the CPU. Simulated devices are slow: on them it is enough that the loss falls.
bool runs_on_cpu() { return default_device().is_cpu(); }

}  // namespace

TEST_CASE("transformer: a source copied backwards is learnt") {
  const Threads one(1);
  manual_seed(41);
  constexpr int64_t width = 24, words = 6, tokens = 5, batch = 32;
  Transformer model({.width = width, .heads = 2, .encoder_layers = 1, .decoder_layers = 1, .inner = 48, .dropout = 0});
  Embedding source_table({.num = words, .dim = width}), target_table({.num = words + 1, .dim = width});
  const Variable places(randn({tokens, 1, width}) * 0.5, true);
  Linear head({.in = width, .out = words});
  std::vector<Variable> parameters{places};
  for (Module* m : std::initializer_list<Module*>{&model, &source_table, &target_table, &head})
    for (const Variable& p : m->parameters()) parameters.push_back(p);
  optim::Adam optimizer(parameters, {.lr = 5e-3});
  const auto [first, last] = testing::first_and_last(optimizer, runs_on_cpu() ? 150 : 5, [&] {
    const Tensor source = randint(0, words, {tokens, batch}),
                 target = index_select(source, 0, arange(tokens - 1, -1, -1));
    const Tensor before = cat({full({1, batch}, double(words), {.dtype = i64}), target.narrow(0, 0, tokens - 1)}, 0);
    const Variable y =
        model(source_table(source) + places, target_table(before) + places, {.target = {.causal = true}});
    return cross_entropy(head(y).reshape({tokens * batch, words}), target.reshape({-1}));
  });
  CHECK(first > 1.5);
  CHECK(last < (runs_on_cpu() ? 0.2 : first));
}

TEST_CASE("transformer: layouts, masks and modes agree") {
  manual_seed(42);
  TransformerOptions o = small_layer();
  TransformerEncoderLayer layer(o);
  o.batch_first = true;
  TransformerEncoderLayer turned(o);
  turned.load_state(layer.state());
  const Tensor x = randn({5, 3, 8});
  const Tensor y = layer(x).tensor();
  CHECK(allclose(turned(x.transpose(0, 1)).tensor().transpose(0, 1), y, 1e-5, 1e-6));
  CHECK(allclose(layer(x.select(1, 2)).tensor(), y.select(1, 2), 1e-5, 1e-6));  // an input without a batch dimension
  // causal, a bool mask and an additive mask are equivalent; later tokens change nothing.
  const Tensor causal = layer(x, {.causal = true}).tensor();
  const Tensor above = logical_not(tril(ones({5, 5}, {.dtype = boolean})));
  CHECK(allclose(layer(x, {.mask = above}).tensor(), causal, 1e-5, 1e-6));
  CHECK(allclose(layer(x, {.mask = Transformer::causal_mask(5)}).tensor(), causal, 1e-5, 1e-6));
  Tensor other = x.clone();
  other.select(0, 4).fill_(7);
  CHECK(equal(layer(other, {.causal = true}).tensor().narrow(0, 0, 4), causal.narrow(0, 0, 4)));
  // Masking keys equals removing them.
  Tensor padding = zeros({3, 5}, {.dtype = boolean});
  padding.narrow(1, 3, 2).fill_(1);
  CHECK(
      allclose(layer(x, {.padding = padding}).tensor().narrow(0, 0, 3), layer(x.narrow(0, 0, 3)).tensor(), 1e-5, 1e-6));
  // The list of layers computes the same as forward().
  TransformerEncoder stack({.layer = small_layer(), .layers = 3, .norm = true});
  const LayerList list = stack.layers();
  CHECK(list.items.size() == 4);
  Values values{x};
  for (const auto& item : list.items) values = item.forward(values);
  CHECK(equal(values[0].tensor(), stack(x).tensor()));
  CHECK(names_of(stack)[0] == "layers.0.self_attn.in_proj.weight");
  CHECK(names_of(stack).back() == "norm.bias");
  Transformer entire({.width = 8, .heads = 2, .encoder_layers = 1, .decoder_layers = 2, .inner = 12, .dropout = 0.3});
  CHECK(names_of(entire).size() == 12 + 2 + 2 * 18 + 2);
  CHECK(entire(x, x.narrow(0, 0, 2)).shape() == Shape{2, 3, 8});
  CHECK(!equal(entire(x, x).tensor(), entire(x, x).tensor()));  // dropout draws new masks
  entire.eval();
  CHECK(equal(entire(x, x).tensor(), entire(x, x).tensor()));
  CHECK(entire(zeros({4, 0, 8}), zeros({2, 0, 8})).shape() == Shape{2, 0, 8});
  // Results in 16 bits are close to those in f32.
  const Tensor wide = entire(x, x).tensor();
  entire.to(bf16);
  CHECK(allclose(entire(x.to(bf16), x.to(bf16)).tensor().to(f32), wide, 0.1, 0.1));
  // The returned weights are means over heads and add up to 1.
  MaskedAttention attention({.embed = 8, .heads = 4, .dropout = 0.5});
  attention.eval();
  const Variable q(randn({2, 3, 8})), k(randn({2, 5, 8}));
  const auto [output, weights] = attention(q, k, k, {}, AttentionWeights::mean);
  CHECK(allclose(sum(weights.tensor(), {2}), ones({2, 3})));
  CHECK(allclose(output.tensor(), attention(q, k, k).output.tensor(), 1e-5, 1e-6));
  MaskedAttention self({.embed = 8, .heads = 4, .cross = false}), same({.embed = 8, .heads = 4});
  MultiHeadAttention plain({.embed = 8, .heads = 4, .causal = false});
  plain.load_state(self.state());
  same.load_state(self.state());
  // the same tensor three times is self-attention, although each argument becomes its own Variable
  const Tensor t = randn({2, 3, 8});
  CHECK(allclose(self(t, t, t).output.tensor(), plain(t).tensor(), 1e-5, 1e-6));
  CHECK(allclose(same(t, t, t).output.tensor(), plain(t).tensor(), 1e-5, 1e-6));
  MaskedAttention windowed({.embed = 8, .heads = 4, .causal = true, .cross = false, .window = 2});
  MultiHeadAttention plain_windowed({.embed = 8, .heads = 4, .window = 2});
  plain_windowed.load_state(windowed.state());
  const AttentionOutput out = windowed(t, t, t, {}, AttentionWeights::mean);
  CHECK(allclose(out.weights.tensor(), plain_windowed.weights(t), 1e-5, 1e-6));
  CHECK(allclose(out.output.tensor(), plain_windowed(t).tensor(), 1e-5, 1e-6));
  Tensor blind = zeros({3, 5}, {.dtype = boolean});  // a fully masked query gives zeros, and its gradient is defined
  blind.select(0, 1).fill_(1);
  for (const AttentionWeights wanted : {AttentionWeights::none, AttentionWeights::mean}) {
    const Variable v(randn({2, 5, 8}), true);
    const Variable y = attention(q, v, v, {.mask = blind}, wanted).output;
    CHECK(equal(y.tensor().select(1, 1), zeros({2, 8})));
    sum(y).backward();
    CHECK(all_finite(v.grad()));
  }
  CHECK(attention(q, k, k, {}, AttentionWeights::of_heads).weights.shape() == Shape{2, 4, 3, 5});
}

TEST_CASE("transformer: gradients through masks, in f64") {
  manual_seed(43);
  for (const bool norm_first : {false, true}) {
    TransformerOptions o = small_layer();
    o.activation = Activation::gelu_erf;
    o.norm_first = norm_first;
    TransformerDecoderLayer layer(o);
    layer.to(f64);
    const Variable x(randn({2, 2, 8}, {.dtype = f64}), true), memory(randn({3, 2, 8}, {.dtype = f64}), true);
    const DecoderMasks masks{.target = {.causal = true}, .memory = {.mask = randn({2, 3}, {.dtype = f64})}};
    const auto run = [&](const std::vector<Variable>&) { return layer(x, memory, masks); };
    CHECK(gradcheck(run, {x, memory, layer.multihead_attn.in_proj.weight, layer.self_attn.out_proj.weight}) == "");
  }
}

TEST_CASE("transformer: invalid arguments are rejected") {
  TransformerEncoderLayer layer(small_layer());
  TransformerDecoderLayer decoder(small_layer());
  MaskedAttention attention({.embed = 8, .heads = 2, .cross = false});
  const Variable x(zeros({5, 3, 8})), other(zeros({5, 3, 8}));
  CHECK_REJECTED(TransformerEncoderLayer, ({.width = 8, .heads = 3}), "heads to divide width 8, got 3");
  CHECK_ERROR(TransformerDecoderLayer({.width = 0, .heads = 1}), "expected width and inner > 0, got 0");
  CHECK_ERROR(layer(zeros({5, 3, 7})), "[TransformerEncoderLayer] expected input (T, B, 8) or (T, 8), got (5, 3, 7)");
  CHECK_ERROR(layer(x, {.mask = zeros({4, 4})}), "[MaskedAttention] expected a mask (5, 5) or (6, 5, 5), got (4, 4)");
  CHECK_ERROR(layer(x, {.mask = zeros({5, 5}, {.dtype = i64})}), "expected a mask of bools or floating numbers");
  CHECK_ERROR(layer(x, {.padding = zeros({5, 3})}), "expected a padding mask (3, 5), got (5, 3)");
  CHECK_ERROR(decoder(x, zeros({4, 2, 8})), "[TransformerDecoderLayer] expected memory like the input (5, 3, 8)");
  CHECK_ERROR(attention(x, other, other), "set Options::cross for other sequences");
  CHECK_ERROR(attention(x, x, Variable(zeros({5, 4, 8}))), "expected query (B, T, 8) and key and value (B, S, 8)");
  CHECK_REJECTED(MaskedAttention, ({.embed = 8, .heads = 3}), "heads to divide embed 8");
  CHECK_ERROR(MaskedAttention({.embed = 8, .heads = 2, .causal = true, .window = 3}),
              "expected window 0 for attention to other sequences, got 3");
  CHECK_ERROR(attention.share_sequence(std::make_shared<SequencePart>()), "does not support context parallelism");
}
