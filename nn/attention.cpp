#include "nn/attention.h"

#include <cmath>

#include "nn/init.h"

namespace lockstep::nn {

namespace {

int64_t projected(const MultiHeadAttention::Options& o) {
  LOCKSTEP_CHECK(o.heads > 0 && o.embed % o.heads == 0, "[MultiHeadAttention] expected heads to divide embed ", o.embed,
                 ", got ", o.heads);
  const int64_t groups = o.kv_heads == 0 ? o.heads : o.kv_heads;
  LOCKSTEP_CHECK(groups > 0 && o.heads % groups == 0, "[MultiHeadAttention] expected kv_heads to divide ", o.heads,
                 " heads, got ", groups);
  LOCKSTEP_CHECK(o.head_size == 0 || o.head_size == o.embed / o.heads,
                 "[MultiHeadAttention] expected head_size 0 or embed / heads = ", o.embed / o.heads, ", got ",
                 o.head_size);
  return o.embed / o.heads * (o.heads + 2 * groups);
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(const Options& options)
    : o(options),
      in_proj({.in = o.embed, .out = projected(o), .bias = o.bias}),
      out_proj({.in = o.embed, .out = o.embed, .bias = o.bias}) {
  if (o.kv_heads == 0) o.kv_heads = o.heads;
  if (o.head_size == 0) o.head_size = o.embed / o.heads;
  LOCKSTEP_CHECK(!o.rotary || (o.embed / o.heads) % 2 == 0,
                 "[MultiHeadAttention] rotary positions need an even head size, got ", o.embed / o.heads);
  init::xavier_uniform(in_proj.weight);
  if (o.bias) {
    init::zeros(in_proj.bias);
    init::zeros(out_proj.bias);
  }
}

std::string MultiHeadAttention::options() const {
  return str("embed ", o.embed, ", heads ", o.heads, o.kv_heads != o.heads ? str(", kv heads ", o.kv_heads) : "",
             o.causal ? ", causal" : "", o.rotary ? ", rotary" : "");
}

void MultiHeadAttention::sliced(const PartOf& of) {
  if (of.dim != -1) return;
  o.all_heads = o.heads;
  o.heads /= of.count;
  o.kv_heads /= of.count;
  o.first_head = of.index * o.heads;
}

AttentionArgs MultiHeadAttention::args() {
  AttentionArgs args{.scale = 0, .causal = o.causal, .first_head = o.first_head, .all_heads = o.all_heads};
  if (is_training() && o.dropout > 0) {
    args.dropout = o.dropout;
    args.key = next_random_key();
  }
  return args;
}

MultiHeadAttention::Heads MultiHeadAttention::split(const Variable& all, int64_t position) {
  const int64_t batch = all.size(0), tokens = all.size(1), d = o.head_size;
  const auto parts = all.split({o.heads * d, o.kv_heads * d, o.kv_heads * d}, 2);
  const auto by_head = [&](const Variable& part, int64_t heads) {
    return part.reshape({batch, tokens, heads, d}).transpose(1, 2);
  };
  Heads h{by_head(parts[0], o.heads), by_head(parts[1], o.kv_heads), by_head(parts[2], o.kv_heads)};
  if (!o.rotary) return h;
  const int64_t end = part ? tokens * part->ranks : position + tokens;
  LOCKSTEP_CHECK(end <= o.max_context, "[MultiHeadAttention] expected at most ", o.max_context,
                 " tokens (max_context), got ", end);
  if (!cosine_.defined() || cosine_.dtype() != all.dtype() || cosine_.device() != all.device()) {
    const Tensor frequency =
        exp(mul_scalar(arange(0, double(d) / 2, 1, {.dtype = f64}), -2 * std::log(o.rotary_base) / double(d)));
    const Tensor angle = outer(arange(0, double(o.max_context), 1, {.dtype = f64}), frequency);
    cosine_ = cos(angle).to(all.dtype()).to(all.device());
    sine_ = sin(angle).to(all.dtype()).to(all.device());
  }
  const auto angles = [&](const Tensor& table) {
    return part ? index_select(table, 0, part->positions(tokens).to(all.device())) : table.narrow(0, position, tokens);
  };
  const Tensor c = angles(cosine_), s = angles(sine_);
  h.q = rotary(h.q, c, s);
  h.k = rotary(h.k, c, s);
  return h;
}

/// (B, H, T, D) as (B, T, H * D).
Variable MultiHeadAttention::joined(const Variable& heads) {
  return heads.transpose(1, 2).reshape({heads.size(0), heads.size(2), o.heads * o.head_size});
}

Variable MultiHeadAttention::merge(const Variable& heads) { return out_proj(joined(heads)); }

Variable MultiHeadAttention::forward(const Variable& x, const Tensor& mask) {
  LOCKSTEP_CHECK(x.dim() == 3 && x.size(2) == o.embed, "[MultiHeadAttention] expected input (B, T, ", o.embed,
                 "), got ", x.shape());
  if (part) {
    LOCKSTEP_CHECK(!mask.defined(),
                   "[MultiHeadAttention] a sequence in parts is attended to without a mask, got one of shape ",
                   mask.shape());
    const Heads h = split(in_proj(x), 0);
    return merge(part->attend(h.q, h.k, h.v, args()));
  }
  if (!mask.defined() && !o.rotary && o.kv_heads == o.heads)
    return out_proj(attention_packed(in_proj(x), o.heads, args()));
  const Heads h = split(in_proj(x), 0);
  return merge(attention(h.q, h.k, h.v, mask, args()));
}

Variable MultiHeadAttention::forward(const Variable& x, KvCache& cache) {
  LOCKSTEP_CHECK(x.dim() == 3 && x.size(2) == o.embed, "[MultiHeadAttention] expected input (B, T, ", o.embed,
                 "), got ", x.shape());
  const NoGrad no_grad;
  return out_proj(with_cache(in_proj(x), cache));
}

Variable MultiHeadAttention::forward(const Variable& x, const std::vector<KvRows>& rows) {
  int64_t sum = 0;
  for (const KvRows& r : rows) sum += r.tokens;
  LOCKSTEP_CHECK(!rows.empty() && x.shape() == (Shape{1, sum, o.embed}), "[MultiHeadAttention] expected input (1, ",
                 sum, ", ", o.embed, "), the rows of ", rows.size(), " sequences, got ", x.shape());
  const NoGrad no_grad;
  const Variable projected = in_proj(x);
  std::vector<Variable> parts;
  int64_t first = 0;
  for (const KvRows& r : rows) {
    parts.push_back(with_cache(projected.narrow(1, first, r.tokens), *r.cache));
    first += r.tokens;
  }
  return out_proj(parts.size() == 1 ? parts[0] : cat(parts, 1));
}

/// Attends from `projected` to the cache and itself; (B, T, heads * head size), before out_proj.
Variable MultiHeadAttention::with_cache(const Variable& projected, KvCache& cache) {
  LOCKSTEP_CHECK(
      !part,
      "[MultiHeadAttention] a cache of keys needs whole sequences; take the model out of context parallelism first");
  LOCKSTEP_CHECK(o.causal, "[MultiHeadAttention] a cache of keys needs causal attention");
  LOCKSTEP_CHECK(cache.length + projected.size(1) <= o.max_context, "[MultiHeadAttention] expected at most ",
                 o.max_context, " tokens (max_context), got ", cache.length + projected.size(1));
  const Heads h = split(projected, cache.length);
  cache.append(h.k.tensor(), h.v.tensor(), o.max_context);
  const DType dtype = h.q.dtype();
  return joined(attention(h.q, cache.filled(cache.keys, dtype), cache.filled(cache.values, dtype), {},
                          AttentionArgs{.scale = 0, .causal = true}));
}

void KvCache::append(const Tensor& k, const Tensor& v, int64_t most) {
  LOCKSTEP_CHECK(!dtype || is_floating(*dtype), "[KvCache] expected a floating dtype, got ", *dtype);
  const int64_t tokens = k.size(2), needed = length + tokens;
  if (!keys.defined() || needed > keys.size(2)) {
    int64_t room = 256;
    while (room < needed) room *= 2;
    room = std::max(needed, std::min(room, most));
    for (Tensor* to : {&keys, &values}) {
      const Tensor more =
          empty({k.size(0), k.size(1), room, k.size(3)}, {.dtype = dtype.value_or(k.dtype()), .device = k.device()});
      if (length > 0) more.narrow(2, 0, length).copy_(to->narrow(2, 0, length));
      *to = more;
    }
  }
  keys.narrow(2, length, tokens).copy_(k);
  values.narrow(2, length, tokens).copy_(v);
  length = needed;
}

Tensor MultiHeadAttention::weights(const Variable& x) {
  LOCKSTEP_CHECK(o.all_heads == 0, "[MultiHeadAttention] expected all heads here to average their weights, got ",
                 o.heads, " of ", o.all_heads);
  const NoGrad no_grad;
  const Heads h = split(in_proj(x), 0);
  const int64_t batch = x.size(0), tokens = x.size(1), d = o.head_size, share = o.heads / o.kv_heads;
  const Tensor keys =
      h.k.tensor().unsqueeze(2).expand({batch, o.kv_heads, share, tokens, d}).reshape({batch, o.heads, tokens, d});
  Tensor scores = mul_scalar(matmul(h.q.tensor(), keys.transpose(2, 3)), 1 / std::sqrt(double(d)));
  if (o.causal)
    scores = masked_fill(
        scores, logical_not(tril(ones({tokens, tokens}, {.dtype = boolean, .device = scores.device()}))), -INFINITY);
  return mean(softmax(scores, -1), {1});
}

}  // namespace lockstep::nn
