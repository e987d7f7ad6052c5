// Derivatives of attention and rotary embedding.
#include <algorithm>
#include <cmath>

#include "autograd/autocast.h"
#include "autograd/ops.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"

namespace lockstep {
namespace {

/// Casts a floating-point mask to the dtype that autocast gave to q, since attention needs both in one dtype.
Tensor cast_mask(const Tensor& mask, DType dtype) {
  return mask.defined() && Autocast::enabled() && is_floating(mask.dtype()) ? mask.to(dtype) : mask;
}

/// Attention composed of other operations, for second derivatives. Holds all scores (B, H, T, S) in memory.
Variable composed_attention(const Variable& query, const Variable& key, const Variable& value, const Tensor& mask,
                            const AttentionArgs& args) {
  LOCKSTEP_CHECK(!args.layout && args.all_heads == 0,
                 "[attention] sparse attention, and attention split over ranks, have no second derivative "
                 "(create_graph); use dense attention on one rank");
  const Wide wide(query);
  const int64_t heads = query.size(1), groups = key.size(1), rows = query.size(2), keys = key.size(2);
  const auto for_heads = [&](const Variable& x) {
    const Shape shape{x.size(0), groups, heads / groups, x.size(2), x.size(3)};
    return wide(x).unsqueeze(2).expand(shape).reshape({x.size(0), heads, x.size(2), x.size(3)});
  };
  const double scale = args.scale == 0 ? 1 / std::sqrt(double(std::max<int64_t>(query.size(3), 1))) : args.scale;
  Variable scores = mul_scalar(matmul(wide(query), for_heads(key).transpose(-2, -1)), scale);
  Tensor visible = args.causal ? causal_mask(rows, keys, args.window, query.device())
                               : ones({rows, keys}, {.dtype = boolean, .device = query.device()});
  if (mask.defined() && mask.dtype() == boolean) visible = logical_and(visible, mask);
  if (mask.defined() && mask.dtype() != boolean) scores = add(scores, mask.to(scores.dtype()));
  const Tensor hidden = logical_not(visible);
  Variable weights = masked_fill(softmax(masked_fill(scores, hidden, -1e30), -1), hidden, 0);
  if (args.dropout > 0) weights = dropout(weights, args.dropout, args.key);
  return wide.round(matmul(weights, for_heads(value)));
}

struct AttentionBackward {
  Saved q, k, v, mask, out;
  Tensor lse;
  AttentionArgs args;
  static constexpr const char* name = "attention";

  void operator()(Backward& back) const {
    AttentionGrad grads =
        attention_grad(back.grad(), q.get(name), k.get(name), v.get(name), mask.get(name), {out.get(name), lse}, args);
    back.give(0, std::move(grads.q));
    back.give(1, std::move(grads.k));
    back.give(2, std::move(grads.v));
  }
  void operator()(RecordedBackward& back) const {
    back.through({&q, &k, &v}, [&](const std::vector<Variable>& x) {
      return composed_attention(x[0], x[1], x[2], mask.get(name), args);
    });
  }
};

/// The derivative of attention_packed(). part(packed, i): the view of q, k or v (i = 0, 1, 2) in a packed tensor.
template <class Part> struct PackedAttentionBackward {
  Saved packed, out;
  Tensor lse;
  AttentionArgs args;
  Part part;
  static constexpr const char* name = "attention_packed";

  void operator()(Backward& back) const {
    const Shape shape = out.get(name).shape();  // (B, H, T, D)
    const Tensor& x = packed.get(name);
    const Tensor grad = back.grad().reshape({shape[0], shape[2], shape[1], shape[3]}).transpose(1, 2);
    const Tensor full = empty_like(x);
    Tensor grad_q = part(full, 0), grad_k = part(full, 1), grad_v = part(full, 2);
    attention_grad_into(grad, part(x, 0), part(x, 1), part(x, 2), {}, {out.get(name), lse}, args, grad_q, grad_k,
                        grad_v);
    back.give(0, full);
  }
  void operator()(RecordedBackward& back) const {
    const Shape shape = out.get(name).shape();
    back.through({&packed}, [&](const std::vector<Variable>& x) {
      const Variable y = composed_attention(part(x[0], 0), part(x[0], 1), part(x[0], 2), {}, args);
      return y.transpose(1, 2).reshape({shape[0], shape[2], shape[1] * shape[3]});
    });
  }
};

}  // namespace

Variable attention(const Variable& query, const Variable& key, const Variable& value, const Tensor& mask_,
                   AttentionArgs args) {
  const Variable q = Autocast::low(query), k = Autocast::low(key), v = Autocast::low(value);
  const Tensor mask = cast_mask(mask_, q.dtype());
  if (args.dropout > 0) args.key = next_random_key(q.device());
  AttentionResult result = attention(q.tensor(), k.tensor(), v.tensor(), mask, args);
  if (!needs_grad({&q, &k, &v})) return std::move(result.out);
  AttentionBackward derivative{q, k, v, mask, result.out, std::move(result.lse), args};
  return record(derivative.name, {&q, &k, &v}, std::move(result.out), std::move(derivative));
}

Variable attention_packed(const Variable& projections, int64_t heads, AttentionArgs args, int64_t kv_heads) {
  const Variable qkv = Autocast::low(projections);
  const int64_t groups = kv_heads == 0 ? heads : kv_heads, all = heads + 2 * groups;
  LOCKSTEP_CHECK(qkv.dim() == 3 && heads >= 1 && groups >= 1 && qkv.size(2) % all == 0,
                 "[attention_packed] expected head counts >= 1 and qkv (B, T, C) with C a multiple of ", all,
                 " heads (query, key and value), got ", qkv.shape(), "; change the head counts, or the last size");
  if (args.dropout > 0) args.key = next_random_key(qkv.device());
  const int64_t batch = qkv.size(0), tokens = qkv.size(1), width = qkv.size(2) / all;
  // part(packed, i) is a view of q, k or v for i = 0, 1, 2, with shape (batch, heads or kv_heads, tokens, width).
  const auto part = [=](const auto& packed, int i) {
    const int64_t first = i == 0 ? 0 : heads + (i - 1) * groups;
    return packed.view({batch, tokens, all, width}).narrow(2, first, i == 0 ? heads : groups).transpose(1, 2);
  };
  const Tensor packed = qkv.tensor().contiguous();
  AttentionResult result = attention(part(packed, 0), part(packed, 1), part(packed, 2), {}, args);
  Tensor out = result.out.transpose(1, 2).view({batch, tokens, heads * width});
  if (!needs_grad({&qkv})) return out;
  PackedAttentionBackward<decltype(part)> derivative{packed, result.out, std::move(result.lse), args, part};
  return record(derivative.name, {&qkv}, std::move(out), std::move(derivative));
}

Variable rotary(const Variable& x, const Tensor& cosine, const Tensor& sine, bool inverse) {
  return on_tape("rotary", {&x}, rotary(x.tensor(), cosine, sine, inverse),
                 [cosine = Saved(cosine), sine = Saved(sine), inverse](auto& back) {
                   back.give(0, rotary(back.grad(), cosine.get("rotary"), sine.get("rotary"), !inverse));
                 });
}

Variable rotary_packed(Variable x, int64_t turned, int64_t heads, const Tensor& cosine, const Tensor& sine,
                       bool inverse) {
  const bool gives = x.defined() && !x.impl()->is_shared() && !(x.is_leaf() && x.requires_grad());
  // Tensor(...) makes both branches of ?: non-const. With a const branch, clang would copy the tensor into the
  // parameter instead of moving it. The copy would share the storage, and the kernel could not overwrite the tensor.
  Tensor out =
      rotary_packed(gives ? std::move(x.impl()->tensor) : Tensor(x.tensor()), turned, heads, cosine, sine, inverse);
  if (!needs_grad({&x})) return out;
  return record(
      "rotary_packed", {&x}, std::move(out),
      [turned, heads, cosine = Saved(cosine), sine = Saved(sine), inverse](auto& back) {
        const char* const name = "rotary_packed";
        back.give(0, rotary_packed(std::move(back.grad()), turned, heads, cosine.get(name), sine.get(name), !inverse));
      });
}

}  // namespace lockstep
