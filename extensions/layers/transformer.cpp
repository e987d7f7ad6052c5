// The transformers of torch.nn: construction and forward. See transformer.h.
#include "extensions/layers/transformer.h"

#include <cmath>

#include "base/check.h"
#include "nn/init.h"

namespace lockstep::nn {

namespace {

const TransformerOptions& checked_transformer(const char* kind, const TransformerOptions& o) {
  LOCKSTEP_CHECK(o.width > 0 && o.inner > 0, "[", kind, "] expected width and inner > 0, got ", o.width, " and ",
                 o.inner);
  LOCKSTEP_CHECK(o.heads > 0 && o.width % o.heads == 0, "[", kind, "] expected heads to divide width ", o.width,
                 ", got ", o.heads);
  return o;
}

MaskedAttention::Options attention_of(const TransformerOptions& o, bool cross) {
  return {.embed = o.width, .heads = o.heads, .bias = o.bias, .dropout = o.dropout, .cross = cross};
}

LayerNorm::Options norm_of(const TransformerOptions& o) {
  return {.shape = {o.width}, .eps = o.norm_eps, .bias = o.bias};
}

std::string text_of(const TransformerOptions& o) {
  return str("width ", o.width, ", heads ", o.heads, ", inner ", o.inner, o.batch_first ? ", batch first" : "",
             o.norm_first ? ", norm first" : "");
}

/// Converts inputs to (B, T, width), and outputs back to the caller's layout.
struct Batched {
  bool single, turned;
  Batched(const char* kind, const TransformerOptions& o, const Variable& x)
      : single(x.dim() == 2), turned(!single && !o.batch_first) {
    LOCKSTEP_CHECK((x.dim() == 2 || x.dim() == 3) && x.size(-1) == o.width, "[", kind, "] expected input ",
                   o.batch_first ? "(B, T, " : "(T, B, ", o.width, ") or (T, ", o.width, "), got ", x.shape(),
                   "; reshape it");
  }
  Variable in(const Variable& x) const { return single ? x.unsqueeze(0) : turned ? x.transpose(0, 1) : x; }
  Variable out(const Variable& x) const { return single ? x.squeeze(0) : turned ? x.transpose(0, 1) : x; }
  /// Gives the padding mask (S) of a single sequence a batch dim: (1, S).
  AttentionMasks in(AttentionMasks masks) const {
    if (single && masks.padding.defined() && masks.padding.dim() == 1) masks.padding = masks.padding.unsqueeze(0);
    return masks;
  }
};

/// Residual connection around a sublayer, with the norm before or after it.
template <class Part> Variable with_part(const Variable& x, bool norm_first, LayerNorm& norm, const Part& part) {
  return norm_first ? add(x, part(norm(x))) : norm(add(x, part(x)));
}

}  // namespace

TransformerEncoderLayer::TransformerEncoderLayer(const Options& options)
    : o(checked_transformer("TransformerEncoderLayer", options)),
      self_attn(attention_of(o, false)),
      linear1({.in = o.width, .out = o.inner, .bias = o.bias}),
      linear2({.in = o.inner, .out = o.width, .bias = o.bias}),
      norm1(norm_of(o)),
      norm2(norm_of(o)),
      dropout({.p = o.dropout}),
      dropout1({.p = o.dropout}),
      dropout2({.p = o.dropout}) {}
std::string TransformerEncoderLayer::options() const { return text_of(o); }

Variable TransformerEncoderLayer::forward(const Variable& x, const AttentionMasks& masks) {
  const Batched batched("TransformerEncoderLayer", o, x);
  const AttentionMasks hidden = batched.in(masks);
  const Variable attended = with_part(batched.in(x), o.norm_first, norm1,
                                      [&](const Variable& y) { return dropout1(self_attn(y, y, y, hidden).output); });
  return batched.out(with_part(attended, o.norm_first, norm2, [&](const Variable& y) {
    return dropout2(linear2(dropout(linear1(y, o.activation))));
  }));
}

TransformerDecoderLayer::TransformerDecoderLayer(const Options& options)
    : o(checked_transformer("TransformerDecoderLayer", options)),
      self_attn(attention_of(o, false)),
      multihead_attn(attention_of(o, true)),
      linear1({.in = o.width, .out = o.inner, .bias = o.bias}),
      linear2({.in = o.inner, .out = o.width, .bias = o.bias}),
      norm1(norm_of(o)),
      norm2(norm_of(o)),
      norm3(norm_of(o)),
      dropout({.p = o.dropout}),
      dropout1({.p = o.dropout}),
      dropout2({.p = o.dropout}),
      dropout3({.p = o.dropout}) {}
std::string TransformerDecoderLayer::options() const { return text_of(o); }

Variable TransformerDecoderLayer::forward(const Variable& x, const Variable& memory, const DecoderMasks& masks) {
  const Batched batched("TransformerDecoderLayer", o, x);
  const int batch = o.batch_first ? 0 : 1;
  LOCKSTEP_CHECK(
      memory.dim() == x.dim() && memory.size(-1) == o.width && (batched.single || memory.size(batch) == x.size(batch)),
      "[TransformerDecoderLayer] expected memory like the input ", x.shape(), ", except for the number of tokens, got ",
      memory.shape(), "; encode a source for each target, with the same width");
  const AttentionMasks target = batched.in(masks.target), source = batched.in(masks.memory);
  const Variable read = batched.in(memory);
  Variable y = with_part(batched.in(x), o.norm_first, norm1,
                         [&](const Variable& v) { return dropout1(self_attn(v, v, v, target).output); });
  y = with_part(y, o.norm_first, norm2,
                [&](const Variable& v) { return dropout2(multihead_attn(v, read, read, source).output); });
  return batched.out(with_part(
      y, o.norm_first, norm3, [&](const Variable& v) { return dropout3(linear2(dropout(linear1(v, o.activation)))); }));
}

Variable TransformerEncoder::forward(Variable x, const AttentionMasks& masks) {
  for (auto& layer : stack.items) x = masks.any() ? (*layer)(x, masks) : (*layer)(x);
  return norm ? (*norm)(x) : x;
}
LayerList TransformerEncoder::layers() {
  LayerList list;
  for (auto& layer : stack.items) {
    LayerList one;
    one.add(*layer);
    list.append(std::move(one).repeated());
  }
  if (norm) list.add(*norm);
  return list;
}

Variable TransformerDecoder::forward(Variable x, const Variable& memory, const DecoderMasks& masks) {
  for (auto& layer : stack.items) x = masks.any() ? (*layer)(x, memory, masks) : (*layer)(x, memory);
  return norm ? (*norm)(x) : x;
}

namespace {

TransformerEncoder::Options stack_of(const Transformer::Options& o, int64_t layers) {
  return {.layer = {.width = o.width,
                    .heads = o.heads,
                    .inner = o.inner,
                    .dropout = o.dropout,
                    .activation = o.activation,
                    .norm_eps = o.norm_eps,
                    .batch_first = o.batch_first,
                    .norm_first = o.norm_first,
                    .bias = o.bias},
          .layers = layers,
          .norm = true};
}

}  // namespace

Transformer::Transformer(const Options& o)
    : encoder(stack_of(o, o.encoder_layers)), decoder(stack_of(o, o.decoder_layers)) {
  for (const Variable& p : parameters())
    if (p.dim() > 1) init::xavier_uniform(p);
}

Variable Transformer::forward(const Variable& source, const Variable& target, const Masks& masks) {
  const Variable memory = masks.source.any() ? encoder(source, masks.source) : encoder(source);
  const DecoderMasks of_decoder{.target = masks.target, .memory = masks.memory};
  return of_decoder.any() ? decoder(target, memory, of_decoder) : decoder(target, memory);
}

Tensor Transformer::causal_mask(int64_t tokens) { return triu(full({tokens, tokens}, -INFINITY), 1); }

}  // namespace lockstep::nn
