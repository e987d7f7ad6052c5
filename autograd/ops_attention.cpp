// Derivatives of attention and rotary embedding.
#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/tape.h"

namespace lockstep {
namespace {

/// A floating mask must have q's dtype: under autocast that is not the one its maker chose.
Tensor cast_mask(const Tensor& mask, DType dtype) {
  return mask.defined() && Autocast::enabled() && is_floating(mask.dtype()) ? mask.to(dtype) : mask;
}

}  // namespace

Variable attention(const Variable& query, const Variable& key, const Variable& value, const Tensor& mask_,
                   AttentionArgs args) {
  const Variable q = Autocast::low(query), k = Autocast::low(key), v = Autocast::low(value);
  const Tensor mask = cast_mask(mask_, q.dtype());
  if (args.dropout > 0) args.key = next_random_key();
  AttentionResult result = attention(q.tensor(), k.tensor(), v.tensor(), mask, args);
  if (!needs_grad({&q, &k, &v})) return std::move(result.out);
  const Saved out = result.out;
  return record("attention", {&q, &k, &v}, std::move(result.out),
                [q = Saved(q), k = Saved(k), v = Saved(v), mask = Saved(mask), out, lse = std::move(result.lse),
                 args](Backward& back) {
                  const char* const name = "attention";
                  AttentionGrad grads = attention_grad(back.grad(), q.get(name), k.get(name), v.get(name),
                                                       mask.get(name), {out.get(name), lse}, args);
                  back.give(0, std::move(grads.q));
                  back.give(1, std::move(grads.k));
                  back.give(2, std::move(grads.v));
                });
}

Variable attention_packed(const Variable& projections, int64_t heads, AttentionArgs args) {
  const Variable qkv = Autocast::low(projections);
  LOCKSTEP_CHECK(qkv.dim() == 3 && heads >= 1 && qkv.size(2) % (3 * heads) == 0,
                 "[attention_packed] expected qkv (B, T, 3 C) with C a multiple of ", heads, " heads, got ",
                 qkv.shape());
  if (args.dropout > 0) args.key = next_random_key();
  const int64_t batch = qkv.size(0), tokens = qkv.size(1), channels = qkv.size(2) / 3;
  const Shape split{batch, tokens, 3, heads, channels / heads};
  // (B, T, 3, H, D): each of q, k, v is a view (B, H, T, D).
  const auto part = [split](const Tensor& packed, int64_t i) {
    return packed.view(split).select(2, i).transpose(1, 2);
  };
  const Tensor packed = qkv.tensor().contiguous();
  AttentionResult result = attention(part(packed, 0), part(packed, 1), part(packed, 2), {}, args);
  Tensor out = result.out.transpose(1, 2).view({batch, tokens, channels});
  if (!needs_grad({&qkv})) return out;
  const Saved kept = result.out;
  return record("attention_packed", {&qkv}, std::move(out),
                [packed = Saved(packed), out = kept, lse = std::move(result.lse), args, part, split](Backward& back) {
                  const char* const name = "attention_packed";
                  const Tensor& x = packed.get(name);
                  const Tensor grad = back.grad().reshape({split[0], split[1], split[3], split[4]}).transpose(1, 2);
                  const Tensor whole = empty_like(x);
                  Tensor grad_q = part(whole, 0), grad_k = part(whole, 1), grad_v = part(whole, 2);
                  attention_grad_into(grad, part(x, 0), part(x, 1), part(x, 2), {}, {out.get(name), lse}, args, grad_q,
                                      grad_k, grad_v);
                  back.give(0, whole);
                });
}

Variable rotary(const Variable& x, const Tensor& cosine, const Tensor& sine) {
  Tensor out = rotary(x.tensor(), cosine, sine);
  if (!needs_grad({&x})) return out;
  return record("rotary", {&x}, std::move(out), [cosine = Saved(cosine), sine = Saved(sine)](Backward& back) {
    back.give(0, rotary(back.grad(), cosine.get("rotary"), sine.get("rotary"), true));
  });
}

}  // namespace lockstep
