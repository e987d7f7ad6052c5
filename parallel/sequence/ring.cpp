// Ring attention: blocks of keys and values go round the ring, and partial results are merged. See attention.h.
#include <cmath>

#include "autograd/tape.h"
#include "parallel/sequence/check.h"

namespace lockstep::sequence {
namespace {

/// The dtype in which values are accumulated: f32 for 16-bit values, else their own.
DType wide(DType dtype) { return size_of(dtype) == 2 ? f32 : dtype; }

struct Ring {
  std::shared_ptr<dist::ProcessGroup> group;
  TokenOrder order;
  AttentionArgs args;

  int ranks() const { return group->size(); }
  std::optional<ScoreBlock> piece_of(int step, int64_t tokens) const {
    return piece(tokens, ranks(), group->rank(), step, order, args.causal);
  }
  AttentionArgs args_of(const ScoreBlock& piece, int step) const {
    AttentionArgs a = args;
    a.causal = piece.causal;
    a.key = key_of(args.key, int64_t(group->rank()) * ranks() + owner(ranks(), group->rank(), step));
    return a;
  }
  /// Sends a block to the next rank and receives one from the previous rank, in the background.
  dist::Work pass(const Tensor& mine, const Tensor& coming, const char* what, int step) const {
    const int next = (group->rank() + 1) % ranks(), previous = (group->rank() + ranks() - 1) % ranks();
    const std::string tag = str(what, ", step ", step);
    return group->exchange({{.is_send = true, .tensor = mine, .peer = next, .tag = tag},
                            {.is_send = false, .tensor = coming, .peer = previous, .tag = tag}},
                           {.async = true});
  }

  AttentionResult forward(const Tensor& q, const Tensor& k, const Tensor& v) const {
    Tensor held = stack({k, v}), coming = empty_like(held), out, lse;
    for (int step = 0; step < ranks(); ++step) {
      const bool last = step + 1 == ranks();
      dist::Work work = last ? dist::Work() : pass(held, coming, "keys and values", step);
      if (const auto p = piece_of(step, q.size(2))) {
        const AttentionResult part = attention(q.narrow(2, p->query, p->queries), held[0].narrow(2, p->key, p->keys),
                                               held[1].narrow(2, p->key, p->keys), {}, args_of(*p, step));
        if (step == 0) {
          out = part.out.to(wide(q.dtype()));
          lse = part.lse;
        } else {
          merge(out.narrow(2, p->query, p->queries), lse.narrow(2, p->query, p->queries), part);
        }
      }
      work.wait();
      std::swap(held, coming);
    }
    return {out.to(q.dtype()), lse};
  }

  /// Merges `part`, the attention over further keys, into out and lse, in place. exp(lse) and exp(part.lse) are the
  /// softmax denominators of the two sets of keys.
  static void merge(const Tensor& out, const Tensor& lse, const AttentionResult& part) {
    const Tensor gap = sub(part.lse, lse);
    out.copy_(add(out, mul(sigmoid(gap).unsqueeze(-1), sub(part.out.to(out.dtype()), out))));
    lse.copy_(sub(lse, log_sigmoid(neg(gap))));
  }

  AttentionGrad backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                         const AttentionResult& saved) const {
    const TensorOptions sums{wide(q.dtype()), q.device()};
    Tensor held = stack({k, v}), coming = empty_like(held);
    const Tensor grad_q = zeros(q.shape(), sums);
    Tensor collected;  // gradients of the current block from the ranks that held it before
    dist::Work passing;
    for (int step = 0; step < ranks(); ++step) {
      const bool last = step + 1 == ranks();
      dist::Work work = last ? dist::Work() : pass(held, coming, "keys and values again", step);
      const Tensor mine = zeros(held.shape(), sums);
      if (const auto p = piece_of(step, q.size(2))) {
        const auto rows = [&](const Tensor& x) { return x.narrow(2, p->query, p->queries); };
        const AttentionGrad part =
            attention_grad(rows(grad), rows(q), held[0].narrow(2, p->key, p->keys), held[1].narrow(2, p->key, p->keys),
                           {}, {rows(saved.out), rows(saved.lse)}, args_of(*p, step));
        add_(rows(grad_q), part.q.to(sums.dtype), 1);
        mine[0].narrow(2, p->key, p->keys).copy_(part.k);
        mine[1].narrow(2, p->key, p->keys).copy_(part.v);
      }
      passing.wait();
      if (step > 0) add_(mine, collected, 1);
      collected = empty_like(mine);
      passing = pass(mine, collected, "their gradients", step);
      work.wait();
      std::swap(held, coming);
    }
    passing.wait();
    return {grad_q.to(q.dtype()), collected[0].to(q.dtype()), collected[1].to(q.dtype())};
  }
};

}  // namespace

Variable ring_attention(const Variable& query, const Variable& key, const Variable& value, AttentionArgs args,
                        const std::shared_ptr<dist::ProcessGroup>& group, TokenOrder order) {
  const Variable q = Autocast::low(query), k = Autocast::low(key), v = Autocast::low(value);
  check_parts("ring_attention", q, k, v, group);
  if (group->size() == 1) return attention(q, k, v, {}, args);
  LOCKSTEP_CHECK(args.window == 0 || args.window >= q.size(2) * group->size(), "[ring_attention] an attention window (",
                 args.window, ") shorter than the sequence is not supported; use ulysses_attention");
  args.window = 0;
  LOCKSTEP_CHECK(order == TokenOrder::contiguous || q.size(2) % 2 == 0,
                 "[ring_attention] expected an even number of tokens at each rank (zigzag), got ", q.size(2),
                 "; pad the sequence, or use the contiguous order");
  if (args.scale == 0) args.scale = 1 / std::sqrt(double(std::max<int64_t>(q.size(3), 1)));
  if (args.dropout > 0) args.key = next_random_key(q.device());
  const Ring ring{group, order, args};
  AttentionResult result = ring.forward(q.tensor(), k.tensor(), v.tensor());
  if (!needs_grad({&q, &k, &v})) return std::move(result.out);
  const Saved out = result.out;
  return record(
      "ring_attention", {&q, &k, &v}, std::move(result.out),
      [q = Saved(q), k = Saved(k), v = Saved(v), out, lse = std::move(result.lse), ring](Backward& back) {
        const char* const name = "ring_attention";
        AttentionGrad grads = ring.backward(back.grad(), q.get(name), k.get(name), v.get(name), {out.get(name), lse});
        back.give(0, std::move(grads.q));
        back.give(1, std::move(grads.k));
        back.give(2, std::move(grads.v));
      });
}

}  // namespace lockstep::sequence
