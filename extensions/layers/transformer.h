#pragma once
// The transformers of torch.nn: encoder and decoder layers, stacks of layers, the whole model (Vaswani et al., 2017).
// Parameter names, defaults and masks are PyTorch's. For decoder-only models use nn/models/gpt.h. Each layer has a
// second operator(), with which a caller can write masks in braces.
//
//   nn::Transformer model({.width = 64, .heads = 4, .encoder_layers = 2, .decoder_layers = 2});
//   const Variable y = model(source, target, {.target = {.causal = true}});  // (S, B, 64), (T, B, 64): (T, B, 64)
#include "extensions/layers/masked_attention.h"
#include "nn/activation.h"
#include "nn/container.h"
#include "nn/linear.h"
#include "nn/norm.h"

namespace lockstep::nn {

/// Options of an encoder or decoder layer.
struct TransformerOptions {
  int64_t width, heads, inner = 2048;
  double dropout = 0.1;  ///< on attention weights, on inner activations, and on each sublayer's output
  Activation activation = Activation::relu;
  double norm_eps = 1e-5;
  bool batch_first = false;  ///< true: x is (B, T, width); false: (T, B, width)
  bool norm_first = false;   ///< true: pre-norm, x + f(norm(x)); false: post-norm, norm(x + f(x))
  bool bias = true;
};

/// Self-attention, then a feed-forward layer. x (T, B, width), (B, T, width) with batch_first, or (T, width) for one
/// sequence.
struct TransformerEncoderLayer : Layer<TransformerEncoderLayer> {
  using Options = TransformerOptions;
  explicit TransformerEncoderLayer(const Options& options);
  Variable forward(const Variable& x, const AttentionMasks& masks = {});
  using Layer::operator();
  /// Calls forward(). It lets a caller write masks in braces: layer(x, {.causal = true}).
  Variable operator()(const Variable& x, const AttentionMasks& masks) { return Layer::operator()(x, masks); }
  void fields(Fields& f) override {
    f("self_attn", self_attn)("linear1", linear1, cut::columns)("dropout", dropout, cut::features)(
        "linear2", linear2, cut::rows)("norm1", norm1, cut::tokens)("norm2", norm2, cut::tokens)(
        "dropout1", dropout1, cut::tokens)("dropout2", dropout2, cut::tokens);
  }
  std::string options() const override;

  Options o;
  MaskedAttention self_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2;
  Dropout dropout, dropout1, dropout2;
};

/// Masks of a decoder: on its own input (target), and on the encoder's output (memory).
struct DecoderMasks {
  AttentionMasks target = {}, memory = {};
  /// True if there is any mask.
  bool any() const { return target.any() || memory.any(); }
};

/// Self-attention, attention to `memory` (the encoder's output), then a feed-forward layer. x as in the encoder layer;
/// memory (S, B, width), (B, S, width) or (S, width).
struct TransformerDecoderLayer : Layer<TransformerDecoderLayer> {
  using Options = TransformerOptions;
  explicit TransformerDecoderLayer(const Options& options);
  Variable forward(const Variable& x, const Variable& memory, const DecoderMasks& masks = {});
  using Layer::operator();
  /// Calls forward(). It lets a caller write masks in braces: decoder(x, memory, {.target = {.causal = true}}).
  Variable operator()(const Variable& x, const Variable& memory, const DecoderMasks& masks) {
    return Layer::operator()(x, memory, masks);
  }
  void fields(Fields& f) override {
    f("self_attn", self_attn)("multihead_attn", multihead_attn)("linear1", linear1, cut::columns)(
        "dropout", dropout, cut::features)("linear2", linear2, cut::rows)("norm1", norm1, cut::tokens)(
        "norm2", norm2, cut::tokens)("norm3", norm3, cut::tokens)("dropout1", dropout1, cut::tokens)(
        "dropout2", dropout2, cut::tokens)("dropout3", dropout3, cut::tokens);
  }
  std::string options() const override;

  Options o;
  MaskedAttention self_attn, multihead_attn;
  Linear linear1, linear2;
  LayerNorm norm1, norm2, norm3;
  Dropout dropout, dropout1, dropout2, dropout3;
};

/// Options of a stack: the options of its layers, and a norm after the last one.
struct TransformerStackOptions {
  TransformerOptions layer;
  int64_t layers;
  bool norm = false;
};
/// Layers in sequence, optionally followed by a norm. Each layer is initialised separately. In PyTorch, layers start as
/// copies of one layer.
template <class Derived, class L> struct TransformerStack : Layer<Derived> {
  using Options = TransformerStackOptions;
  explicit TransformerStack(const Options& o) {
    for (int64_t i = 0; i < o.layers; ++i) stack.emplace_back(o.layer);
    if (o.norm)
      norm.emplace(LayerNorm::Options{.shape = {o.layer.width}, .eps = o.layer.norm_eps, .bias = o.layer.bias});
  }
  void fields(Fields& f) override {
    f("layers", stack);
    if (norm) f("norm", *norm, cut::tokens);
  }

  ModuleList<L> stack;
  std::optional<LayerNorm> norm;
};

/// A stack of encoder layers.
struct TransformerEncoder : TransformerStack<TransformerEncoder, TransformerEncoderLayer> {
  using TransformerStack::TransformerStack;
  Variable forward(Variable x, const AttentionMasks& masks = {});
  using Layer::operator();
  /// Calls forward(). It lets a caller write masks in braces: encoder(x, {.causal = true}).
  Variable operator()(const Variable& x, const AttentionMasks& masks) { return Layer::operator()(x, masks); }
  LayerList layers() override;
};

/// A stack of decoder layers.
struct TransformerDecoder : TransformerStack<TransformerDecoder, TransformerDecoderLayer> {
  using TransformerStack::TransformerStack;
  Variable forward(Variable x, const Variable& memory, const DecoderMasks& masks = {});
  using Layer::operator();
  /// Calls forward(). It lets a caller write masks in braces: decoder(x, memory, {.target = {.causal = true}}).
  Variable operator()(const Variable& x, const Variable& memory, const DecoderMasks& masks) {
    return Layer::operator()(x, memory, masks);
  }
};

/// Masks of a Transformer.
struct TransformerMasks {
  AttentionMasks source = {}, target = {}, memory = {};  ///< memory: target tokens attending to source tokens
};

/// Encoder and decoder, each followed by a norm. Matrices start as init::xavier_uniform.
struct Transformer : Layer<Transformer> {
  struct Options {
    int64_t width = 512, heads = 8, encoder_layers = 6, decoder_layers = 6, inner = 2048;
    double dropout = 0.1;
    Activation activation = Activation::relu;
    double norm_eps = 1e-5;
    bool batch_first = false, norm_first = false, bias = true;
  };
  /// Masks of a call.
  using Masks = TransformerMasks;
  explicit Transformer(const Options& o);
  Variable forward(const Variable& source, const Variable& target, const Masks& masks = {});
  using Layer::operator();
  /// Calls forward(). It lets a caller write masks in braces: model(source, target, {.target = {.causal = true}}).
  Variable operator()(const Variable& source, const Variable& target, const Masks& masks) {
    return Layer::operator()(source, target, masks);
  }
  void fields(Fields& f) override { f("encoder", encoder)("decoder", decoder); }
  /// PyTorch's generate_square_subsequent_mask: 0 on and below the diagonal, -infinity above.
  static Tensor causal_mask(int64_t tokens);

  TransformerEncoder encoder;
  TransformerDecoder decoder;
};

}  // namespace lockstep::nn
