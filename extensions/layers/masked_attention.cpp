// Attention to other sequences, masks, attention weights. See masked_attention.h.
#include "extensions/layers/masked_attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace lockstep::nn {

namespace {

/// Converts a mask to numbers that are added to the scores: a bool mask gives 0 where it is true, else -infinity.
Tensor added_mask(const Tensor& visible, DType dtype) {
  if (visible.dtype() != boolean) return visible.to(dtype);
  return masked_fill(zeros(visible.shape(), {.dtype = dtype, .device = visible.device()}), logical_not(visible),
                     -INFINITY);
}

/// True if a and b are the same variable, or if they hold the same tensor and need no gradient.
bool same_values(const Variable& a, const Variable& b) {
  if (a.impl() == b.impl()) return true;
  const Tensor &s = a.tensor(), &t = b.tensor();
  return !a.requires_grad() && !b.requires_grad() && s.storage() == t.storage() && s.offset() == t.offset() &&
         s.shape() == t.shape() && s.strides() == t.strides() && s.dtype() == t.dtype();
}

}  // namespace

MaskedAttention::MaskedAttention(const Options& options)
    : AttentionHeads("MaskedAttention", {.embed = options.embed,
                                         .heads = options.heads,
                                         .kv_heads = options.kv_heads,
                                         .causal = options.causal,
                                         .bias = options.bias,
                                         .dropout = options.dropout,
                                         .head_size = options.head_size,
                                         .out_bias = options.out_bias,
                                         .window = options.window}),
      cross(options.cross) {
  LOCKSTEP_CHECK(!cross || o.window == 0, "[MaskedAttention] expected window 0 for attention to other sequences, got ",
                 o.window, "; set window to 0 or cross to false");
}

int64_t MaskedAttention::share_sequence(const std::shared_ptr<SequencePart>& of) {
  LOCKSTEP_CHECK(!of, "[MaskedAttention] it does not support context parallelism; use a plan without cp");
  return o.heads;
}

std::vector<Variable> MaskedAttention::reads() {
  if (!cross || in_proj.attached.store) return {};
  return in_proj.bias.defined() ? std::vector<Variable>{in_proj.weight, in_proj.bias}
                                : std::vector<Variable>{in_proj.weight};
}

/// The outputs [first, first + count) of in_proj, without computing the others.
Variable MaskedAttention::projected(const Variable& x, int64_t first, int64_t count) {
  if (in_proj.attached.store || in_proj.attached.addition) return in_proj(x).narrow(2, first, count);
  const Variable weight = in_proj.weight.narrow(0, first, count);
  const Variable bias = in_proj.bias.defined() ? in_proj.bias.narrow(0, first, count) : Variable();
  return in_proj.attached.product(x, weight, bias, Activation::none, is_training() && NoGrad::grad_enabled());
}

/// Combines all masks into one for attention(). Returns an undefined tensor if there are no masks. If the numbers of
/// queries and keys are equal, leaves the causal mask out, because attention() applies it itself.
Tensor MaskedAttention::visible_keys(const AttentionMasks& masks, int64_t batch, int64_t queries, int64_t keys,
                                     const Variable& like) const {
  const char* const op = "[MaskedAttention] ";
  const int64_t all = std::max(o.heads, o.all_heads);
  const auto as_visible = [&](const Tensor& mask, const char* name) {
    LOCKSTEP_CHECK(mask.dtype() == boolean || is_floating(mask.dtype()), op, "expected a ", name,
                   " of bools or floating numbers, got ", mask.dtype(), "; convert it with .to(boolean)");
    return mask.dtype() == boolean ? logical_not(mask) : mask;
  };
  std::vector<Tensor> parts;
  if (masks.mask.defined()) {
    const Shape plain{queries, keys}, each{batch * all, queries, keys};
    LOCKSTEP_CHECK(masks.mask.shape() == plain || masks.mask.shape() == each, op, "expected a mask ", plain, " or ",
                   each, ", got ", masks.mask.shape(), "; reshape it");
    const Tensor visible = as_visible(masks.mask, "mask");
    parts.push_back(visible.dim() == 2 ? visible
                                       : visible.reshape({batch, all, queries, keys}).narrow(1, o.first_head, o.heads));
  }
  if (masks.padding.defined()) {
    LOCKSTEP_CHECK(masks.padding.shape() == (Shape{batch, keys}), op, "expected a padding mask ", Shape({batch, keys}),
                   ", got ", masks.padding.shape(), "; reshape it");
    parts.push_back(as_visible(masks.padding, "padding mask").reshape({batch, 1, 1, keys}));
  }
  if (masks.causal && queries != keys)
    parts.push_back(tril(ones({queries, keys}, {.dtype = boolean, .device = like.device()})));
  Tensor sum;
  for (const Tensor& part : parts) {
    if (!sum.defined()) sum = part;
    else if (sum.dtype() == boolean && part.dtype() == boolean) sum = logical_and(sum, part);
    else sum = add(added_mask(sum, like.dtype()), added_mask(part, like.dtype()));
  }
  return sum.defined() && sum.dtype() != boolean ? sum.to(like.dtype()) : sum;
}

AttentionOutput MaskedAttention::forward(const Variable& query, const Variable& key, const Variable& value,
                                         const AttentionMasks& masks, AttentionWeights wanted) {
  const bool is_self = same_values(key, query) && same_values(value, query);
  for (const Variable* x : {&query, &key, &value})
    LOCKSTEP_CHECK(x->dim() == 3 && x->size(2) == o.embed && x->size(0) == query.size(0) &&
                       x->size(1) == (x == &query ? x : &key)->size(1),
                   "[MaskedAttention] expected query (B, T, ", o.embed, ") and key and value (B, S, ", o.embed,
                   "), got ", query.shape(), ", ", key.shape(), " and ", value.shape(), "; reshape them");
  LOCKSTEP_CHECK(is_self || cross,
                 "[MaskedAttention] expected key and value to be query itself; set Options::cross for other sequences");
  LOCKSTEP_CHECK(wanted == AttentionWeights::none || (o.all_heads == 0 && o.kv_heads == o.heads),
                 "[MaskedAttention] attention weights need all heads on this rank and kv_heads == heads, got ", o.heads,
                 " of ", std::max(o.heads, o.all_heads), " heads and ", o.kv_heads, " kv_heads; ask for no weights");
  const int64_t batch = query.size(0), queries = query.size(1), keys = key.size(1), d = o.head_size;
  AttentionArgs args = this->args(is_training(), query.device());
  const bool causal = o.causal || masks.causal;
  args.causal = causal && queries == keys;
  AttentionMasks combined = masks;
  combined.causal = causal;
  if (is_self && wanted == AttentionWeights::none && !masks.mask.defined() && !masks.padding.defined())
    return {out_proj(attention_packed(in_proj(query), o.heads, args, o.kv_heads)), {}};

  Heads h;
  if (is_self) {
    h = split(in_proj(query));
  } else {
    h.q = by_head(projected(query, 0, o.heads * d), o.heads);
    if (same_values(key, value)) {
      const auto both = projected(key, o.heads * d, 2 * o.kv_heads * d).split(o.kv_heads * d, 2);
      h.k = by_head(both[0], o.kv_heads), h.v = by_head(both[1], o.kv_heads);
    } else {
      h.k = by_head(projected(key, o.heads * d, o.kv_heads * d), o.kv_heads);
      h.v = by_head(projected(value, (o.heads + o.kv_heads) * d, o.kv_heads * d), o.kv_heads);
    }
  }
  const Tensor visible = visible_keys(combined, batch, queries, keys, h.q);
  if (wanted == AttentionWeights::none) return {out_proj(joined(attention(h.q, h.k, h.v, visible, args))), {}};

  Variable scores = matmul(h.q, h.k.transpose(2, 3)) * (1 / std::sqrt(double(d)));
  if (args.causal)
    scores = masked_fill(scores, logical_not(causal_mask(queries, keys, args.window, scores.device())), -INFINITY);
  if (visible.defined())
    scores = visible.dtype() == boolean ? masked_fill(scores, logical_not(visible), -INFINITY) : scores + visible;
  // A query whose keys are all masked gives zeros, as in attention().
  const Tensor highest = amax(scores.tensor(), {-1}, true), blind = eq(highest, full_like(highest, -INFINITY));
  const Variable visible_weights = masked_fill(softmax(masked_fill(scores, blind, 0), -1), blind, 0);
  const Variable weights = dropout(visible_weights, o.dropout, is_training());
  return {out_proj(joined(matmul(weights, h.v))), wanted == AttentionWeights::mean ? mean(weights, {1}) : weights};
}

}  // namespace lockstep::nn
