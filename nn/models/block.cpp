// TransformerBlock: construction, forward with caches, layers for pipelines. See gpt.h.
#include "nn/models/gpt.h"

namespace lockstep::nn {

TransformerBlock::TransformerBlock(const Options& o)
    : norm1({.kind = o.norm, .size = o.width, .eps = o.norm_eps, .bias = o.bias}),
      attention({.embed = o.width,
                 .heads = o.heads,
                 .kv_heads = o.kv_heads,
                 .causal = o.causal,
                 .bias = o.bias && o.attention_bias,
                 .dropout = o.dropout,
                 .rope = o.rope,
                 .max_context = o.max_context,
                 .head_size = o.head_size,
                 .out_bias = o.bias && o.attention_out_bias,
                 .window = o.window}),
      norm2({.kind = o.norm, .size = o.width, .eps = o.norm_eps, .bias = o.bias}),
      mlp({.width = o.width,
           .inner = o.inner == 0 ? 4 * o.width : o.inner,
           .gelu = o.gelu,
           .bias = o.bias && o.mlp_bias,
           .kind = o.feed_forward}),
      dropout({.p = o.dropout}) {}

Variable TransformerBlock::forward(const Variable& x, const std::vector<KvRows>& rows) {
  const Variable y = adds(attention) ? attention(norm1(x), rows, x) : add(x, attention(norm1(x), rows));
  return adds(mlp) && !feed_forward ? mlp(norm2(y), y) : add(y, fed_forward(norm2(y)));
}

LayerList TransformerBlock::layers() {
  LayerList list;
  list.add("TransformerBlock.attention", {norm1, attention, dropout},
           [this](const Variable& x) { return first_half(x); });
  list.add("TransformerBlock.mlp", {norm2, feed_forward ? *feed_forward : mlp, dropout},
           [this](const Variable& x) { return second_half(x); });
  return std::move(list).repeated();
}

}  // namespace lockstep::nn
