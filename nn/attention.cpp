// MultiHeadAttention: self-attention, with and without a cache. See attention.h.
#include "nn/attention.h"

#include <cmath>

#include "nn/init.h"
#include "tensor/block_layout.h"
#include "tensor/flops.h"
#include "tensor/paged_attention.h"

namespace lockstep::nn {

namespace {

AttentionOptions checked(const char* kind, AttentionOptions o) {
  LOCKSTEP_CHECK(o.heads > 0 && o.head_size >= 0 && (o.head_size > 0 || o.embed % o.heads == 0), "[", kind,
                 "] expected heads to divide embed ", o.embed, ", or a head_size > 0, got heads ", o.heads,
                 " and head_size ", o.head_size);
  const int64_t groups = o.kv_heads == 0 ? o.heads : o.kv_heads;
  LOCKSTEP_CHECK(groups > 0 && o.heads % groups == 0, "[", kind, "] expected kv_heads to divide ", o.heads,
                 " heads, got ", groups);
  LOCKSTEP_CHECK(o.window >= 0 && (o.window == 0 || (o.causal && !o.sparse)), "[", kind,
                 "] expected window 0, or a window >= 1 with causal, dense self-attention, got ", o.window,
                 o.causal ? "" : " without causal");
  o.kv_heads = groups;
  if (o.head_size == 0) o.head_size = o.embed / o.heads;
  return o;
}

}  // namespace

AttentionHeads::AttentionHeads(const char* kind, const AttentionOptions& options)
    : o(checked(kind, options)),
      in_proj({.in = o.embed, .out = o.head_size * (o.heads + 2 * o.kv_heads), .bias = o.bias}),
      out_proj({.in = o.heads * o.head_size, .out = o.embed, .bias = o.bias && o.out_bias}) {
  init::xavier_uniform(in_proj.weight);
  for (const Variable& bias : {in_proj.bias, out_proj.bias})
    if (bias.defined()) init::zeros(bias);
}

std::string AttentionHeads::text() const {
  return str("embed ", o.embed, ", heads ", o.heads, o.kv_heads != o.heads ? str(", kv heads ", o.kv_heads) : "",
             o.head_size * o.heads != o.embed ? str(", head size ", o.head_size) : "", o.causal ? ", causal" : "",
             o.window > 0 ? str(", window ", o.window) : "", o.rope ? ", rotary" : "",
             o.sparse ? str(", sparse ", o.sparse->name()) : "");
}

void AttentionHeads::take_part(const PartOf& of) {
  if (of.dim != -1) return;
  o.all_heads = o.heads;
  o.heads /= of.count;
  o.kv_heads /= of.count;
  o.first_head = of.index * o.heads;
}

double AttentionHeads::flops_of_scores(int64_t tokens) const {
  const double pairs =
      o.sparse ? attended_pairs(o.sparse->layout(std::max(o.heads, o.all_heads), tokens), tokens, tokens, o.causal)
               : double(attended_pairs(tokens, tokens, o.causal, o.window));
  return 4 * pairs / double(std::max<int64_t>(tokens, 1)) * double(o.heads * o.head_size);
}

AttentionArgs AttentionHeads::args(bool training, Device device) const {
  AttentionArgs args{
      .scale = 0, .causal = o.causal, .window = o.window, .first_head = o.first_head, .all_heads = o.all_heads};
  if (training && o.dropout > 0) {
    args.dropout = o.dropout;
    args.key = next_random_key(device);
  }
  return args;
}

AttentionHeads::Heads AttentionHeads::split(const Variable& all) const {
  const int64_t d = o.head_size;
  const auto parts = all.split({o.heads * d, o.kv_heads * d, o.kv_heads * d}, 2);
  return {by_head(parts[0], o.heads), by_head(parts[1], o.kv_heads), by_head(parts[2], o.kv_heads)};
}

Variable AttentionHeads::by_head(const Variable& all, int64_t heads) const {
  return all.reshape({all.size(0), all.size(1), heads, o.head_size}).transpose(1, 2);
}

Variable AttentionHeads::joined(const Variable& heads) const {
  return heads.transpose(1, 2).reshape({heads.size(0), heads.size(2), o.heads * o.head_size});
}

MultiHeadAttention::MultiHeadAttention(const Options& options) : AttentionHeads("MultiHeadAttention", options) {
  if (o.sparse) set_sparsity(o.sparse);
}

int64_t MultiHeadAttention::share_sequence(const std::shared_ptr<SequencePart>& of) {
  LOCKSTEP_CHECK(!of || !o.sparse,
                 "[MultiHeadAttention] sparse attention does not support context parallelism; leave one of them out");
  part = of;
  return o.heads;
}

void MultiHeadAttention::set_sparsity(std::shared_ptr<const BlockPattern> pattern) {
  LOCKSTEP_CHECK(!part,
                 "[MultiHeadAttention] sparse attention does not support context parallelism; leave one of them out");
  LOCKSTEP_CHECK(o.window == 0, "[MultiHeadAttention] sparse attention does not support a window (", o.window,
                 "); use the sparse modes local, bigbird or bslongformer");
  LOCKSTEP_CHECK(!o.causal || pattern->is_causal(),
                 "[MultiHeadAttention] expected unidirectional sparse attention in a causal model, got bidirectional; "
                 "leave it out");
  o.causal = pattern->is_causal();  // masks single tokens too: a block on the diagonal also covers later tokens
  o.sparse = std::move(pattern);
  layout_ = nullptr;
}

std::shared_ptr<const BlockLayout> MultiHeadAttention::layout(int64_t tokens, Device device) {
  if (!o.sparse) return nullptr;
  const int64_t blocks = (tokens + o.sparse->block() - 1) / o.sparse->block();
  if (!layout_ || layout_->blocks != blocks || layout_->row_start.device() != device)
    layout_ = std::make_shared<BlockLayout>(o.sparse->layout(std::max(o.heads, o.all_heads), tokens).to(device));
  return layout_;
}

AttentionArgs MultiHeadAttention::args(int64_t tokens, Device device) {
  AttentionArgs args = AttentionHeads::args(is_training(), device);
  args.layout = layout(tokens, device);
  return args;
}

/// Rotates the queries and keys in `all` by their positions, which start at `position`. Without rope, returns `all`.
Variable MultiHeadAttention::placed(Variable all, int64_t position) {
  if (!o.rope) return all;
  const int64_t tokens = all.size(1), end = part ? tokens * part->ranks : position + tokens;
  LOCKSTEP_CHECK(end <= o.max_context, "[MultiHeadAttention] expected at most ", o.max_context,
                 " tokens (max_context), got ", end, "; shorten the text, or raise max_context");
  const RopeTable::Angles angles = part ? o.rope->at(part->positions(tokens), end, all.dtype(), all.device())
                                        : o.rope->at(position, tokens, all.dtype(), all.device());
  return turned(std::move(all), angles);
}

Variable MultiHeadAttention::turned(Variable all, const RopeTable::Angles& angles) const {
  return rotary_packed(std::move(all), o.heads + o.kv_heads, o.heads + 2 * o.kv_heads, angles.cosine, angles.sine);
}

Variable MultiHeadAttention::attended(const Variable& x, const Tensor& mask) {
  LOCKSTEP_CHECK(x.dim() == 3 && x.size(2) == o.embed, "[MultiHeadAttention] expected input (B, T, ", o.embed,
                 "), got ", x.shape(), "; reshape the input, or change embed");
  if (part) {
    LOCKSTEP_CHECK(!mask.defined(),
                   "[MultiHeadAttention] context parallelism does not support a mask, got one of shape ", mask.shape(),
                   "; leave one of them out");
    const Heads h = split(placed(in_proj(x), 0));
    return joined(part->attend(h.q, h.k, h.v, args(x.size(1), x.device())));
  }
  const Variable all = placed(in_proj(x), 0);
  if (!mask.defined()) return attention_packed(all, o.heads, args(x.size(1), x.device()), o.kv_heads);
  const Heads h = split(all);
  return joined(attention(h.q, h.k, h.v, mask, args(x.size(1), x.device())));
}

Variable MultiHeadAttention::forward(const Variable& x, KvCache& cache) {
  LOCKSTEP_CHECK(x.dim() == 3 && x.size(2) == o.embed, "[MultiHeadAttention] expected input (B, T, ", o.embed,
                 "), got ", x.shape(), "; reshape the input, or change embed");
  const NoGrad no_grad;
  return out_proj(with_cache(in_proj(x), cache));
}

Variable MultiHeadAttention::attended(const Variable& x, const std::vector<KvRows>& rows) {
  int64_t sum = 0;
  for (const KvRows& r : rows) sum += r.tokens;
  LOCKSTEP_CHECK(!rows.empty() && x.shape() == (Shape{1, sum, o.embed}), "[MultiHeadAttention] expected input (1, ",
                 sum, ", ", o.embed, "), the rows of ", rows.size(), " sequences, got ", x.shape());
  Variable projected = in_proj(x);
  if (rows[0].cache->table && !o.sparse) return in_blocks(std::move(projected), rows);
  std::vector<Variable> parts;
  int64_t first = 0;
  for (const KvRows& r : rows) {
    parts.push_back(with_cache(projected.narrow(1, first, r.tokens), *r.cache));
    first += r.tokens;
  }
  return parts.size() == 1 ? parts[0] : cat(parts, 1);
}

/// Checks that a cache may grow to `end` tokens.
void MultiHeadAttention::check_cached(int64_t end) const {
  LOCKSTEP_CHECK(!part, "[MultiHeadAttention] a KV cache needs whole sequences; disable context parallelism first");
  LOCKSTEP_CHECK(o.causal, "[MultiHeadAttention] a KV cache needs causal attention; set Options::causal");
  LOCKSTEP_CHECK(end <= o.max_context, "[MultiHeadAttention] expected at most ", o.max_context,
                 " tokens (max_context), got ", end, "; raise max_context");
}

/// Does the same as with_cache() for several sequences with paged caches, in one kernel.
Variable MultiHeadAttention::in_blocks(Variable projected, const std::vector<KvRows>& rows) {
  std::vector<int64_t> positions;
  int64_t longest = 0;
  for (const KvRows& r : rows) {
    LOCKSTEP_CHECK(r.cache->table && r.cache->keys.raw_data() == rows[0].cache->keys.raw_data(),
                   "[MultiHeadAttention] expected paged caches with the same tensors keys and values; set table, keys "
                   "and values in each cache");
    for (int64_t t = 0; t < r.tokens; ++t) positions.push_back(r.cache->length + t);
    longest = std::max(longest, r.cache->length + r.tokens);
  }
  check_cached(longest);
  if (o.rope) {
    const Tensor index = Tensor::from(positions, {int64_t(positions.size())});
    const RopeTable::Angles angles = o.rope->at(index, longest, projected.dtype(), projected.device());
    projected = turned(std::move(projected), angles);
  }
  const Heads h = split(projected);
  std::vector<PagedRows> paged;
  int64_t first = 0;
  for (const KvRows& r : rows) {
    r.cache->append(h.k.tensor().narrow(2, first, r.tokens), h.v.tensor().narrow(2, first, r.tokens), o.max_context);
    paged.push_back({r.tokens, r.cache->length, *r.cache->table});
    first += r.tokens;
  }
  return joined(paged_attention(h.q.tensor(), rows[0].cache->keys, rows[0].cache->values, paged, o.window));
}

/// Appends new keys and values to the cache, and attends to the cached tokens. `projected`: output of in_proj. Returns
/// the input of out_proj, (B, T, heads * head size).
Variable MultiHeadAttention::with_cache(Variable projected, KvCache& cache) {
  check_cached(cache.length + projected.size(1));
  const int64_t first = before_window(cache.length, o.window);  // tokens before the window of the first new token
  const Heads h = split(placed(std::move(projected), cache.length));
  cache.append(h.k.tensor(), h.v.tensor(), o.max_context);
  const DType dtype = h.q.dtype();
  return joined(attention(h.q, cache.filled(cache.keys, dtype, first), cache.filled(cache.values, dtype, first), {},
                          AttentionArgs{.scale = 0,
                                        .causal = true,
                                        .window = o.window,
                                        .first_head = o.first_head,
                                        .all_heads = o.all_heads,
                                        .layout = layout(cache.length, h.q.device())}));
}

void KvCache::append(const Tensor& k, const Tensor& v, int64_t max_length) {
  LOCKSTEP_CHECK(!dtype || is_floating(*dtype), "[KvCache] expected a floating dtype, got ", *dtype);
  const int64_t tokens = k.size(2), needed = length + tokens;
  if (table) {
    scatter_blocks(k, keys, *table, length);
    scatter_blocks(v, values, *table, length);
    length = needed;
    return;
  }
  if (!keys.defined() || needed > keys.size(2)) {
    int64_t room = 256;
    while (room < needed) room *= 2;
    room = std::max(needed, std::min(room, max_length));
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

Tensor KvCache::filled(const Tensor& of, DType as, int64_t first) const {
  if (!table) return of.narrow(2, first, length - first).to(as);
  return gather_blocks(of, std::span(*table).subspan(size_t(first / of.size(2))), length - first).to(as);
}

Tensor mask_of(const BlockLayout& layout, int64_t tokens) {
  const BlockLayout here = layout.to(cpu);
  const int32_t *const starts = here.row_start.data<int32_t>(), *const columns = here.columns.data<int32_t>();
  const Tensor mask = zeros({layout.heads, tokens, tokens}, {.dtype = boolean, .device = cpu});
  bool* const to = mask.data<bool>();
  for (int64_t h = 0; h < layout.heads; ++h)
    for (int64_t i = 0; i < tokens; ++i) {
      const int32_t* const ends = starts + h * (layout.blocks + 1) + i / layout.block;
      for (int32_t at = ends[0]; at < ends[1]; ++at) {
        const int64_t begin = columns[at] * layout.block, end = std::min(tokens, begin + layout.block);
        std::fill(to + (h * tokens + i) * tokens + begin, to + (h * tokens + i) * tokens + end, true);
      }
    }
  return mask.to(layout.row_start.device());
}

Tensor MultiHeadAttention::weights(const Variable& x) {
  LOCKSTEP_CHECK(o.all_heads == 0, "[MultiHeadAttention] averaged attention weights need all heads on this rank, got ",
                 o.heads, " of ", o.all_heads, "; ask for them without tensor parallelism");
  const NoGrad no_grad;
  const Heads h = split(placed(in_proj(x), 0));
  const int64_t batch = x.size(0), tokens = x.size(1), d = o.head_size, share = o.heads / o.kv_heads;
  const Tensor keys =
      h.k.tensor().unsqueeze(2).expand({batch, o.kv_heads, share, tokens, d}).reshape({batch, o.heads, tokens, d});
  Tensor scores = mul_scalar(matmul(h.q.tensor(), keys.transpose(2, 3)), 1 / std::sqrt(double(d)));
  if (o.causal)
    scores = masked_fill(scores, logical_not(causal_mask(tokens, tokens, o.window, scores.device())), -INFINITY);
  if (!o.sparse) return mean(softmax(scores, -1), {1});
  const Tensor hidden = logical_not(mask_of(*layout(tokens, x.device()), tokens));
  return mean(masked_fill(softmax(masked_fill(scores, hidden, -INFINITY), -1), hidden, 0), {1});
}

}  // namespace lockstep::nn
