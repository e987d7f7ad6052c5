// Ulysses: tokens against heads.
#include "autograd/tape.h"
#include "parallel/sequence/check.h"

namespace lockstep::sequence {
namespace {

/// (B, heads, T/P, D) of this rank's tokens <-> (B, heads/P, T, D) of its heads, several tensors in one all-to-all.
std::vector<Tensor> turn(const std::vector<Tensor>& parts, bool to_heads, dist::ProcessGroup& group) {
  const int64_t ranks = group.size();
  int64_t chunk = 0;  // elements for each rank
  for (const Tensor& x : parts) chunk += x.numel() / ranks;
  const Tensor sent = empty({ranks, chunk}, {.dtype = parts[0].dtype(), .device = parts[0].device()}),
               received = empty_like(sent);
  // Tensor i's part of a buffer, (P, B, heads/P, T/P, D), and the tensor in that order.
  const auto part_of = [&](const Tensor& buffer, int64_t at, const Tensor& x) {
    const int64_t heads = to_heads ? x.size(1) / ranks : x.size(1), tokens = to_heads ? x.size(2) : x.size(2) / ranks;
    return buffer.narrow(1, at, x.numel() / ranks).view({ranks, x.size(0), heads, tokens, x.size(3)});
  };
  int64_t at = 0;
  for (const Tensor& x : parts) {
    const Tensor part = part_of(sent, at, x);
    part.copy_(to_heads
                   ? x.reshape({x.size(0), ranks, part.size(2), part.size(3), x.size(3)}).permute({1, 0, 2, 3, 4})
                   : x.reshape({x.size(0), part.size(2), ranks, part.size(3), x.size(3)}).permute({2, 0, 1, 3, 4}));
    at += x.numel() / ranks;
  }
  group.all_to_all(received, sent, {.tag = to_heads ? "tokens to heads" : "heads to tokens"}).wait();
  std::vector<Tensor> results;
  at = 0;
  for (const Tensor& x : parts) {
    const Tensor part = part_of(received, at, x);
    results.push_back(
        to_heads ? part.permute({1, 2, 0, 3, 4}).reshape({x.size(0), part.size(2), ranks * part.size(3), x.size(3)})
                 : part.permute({1, 0, 2, 3, 4}).reshape({x.size(0), ranks * part.size(2), part.size(3), x.size(3)}));
    at += x.numel() / ranks;
  }
  return results;
}

std::vector<Variable> turn(const std::vector<Variable>& parts, bool to_heads,
                           const std::shared_ptr<dist::ProcessGroup>& group) {
  std::vector<Tensor> tensors;
  for (const Variable& part : parts) tensors.push_back(part.tensor());
  std::vector<Tensor> results = turn(tensors, to_heads, *group);
  if (!needs_grad(parts)) return {results.begin(), results.end()};
  std::vector<Shape> shapes;
  for (const Tensor& result : results) shapes.push_back(result.shape());
  return record(
      "ulysses", parts, std::move(results),
      [shapes, to_heads, group, options = TensorOptions{tensors[0].dtype(), tensors[0].device()}](Backward& back) {
        std::vector<Tensor> grads;
        for (size_t i = 0; i < shapes.size(); ++i)
          grads.push_back(back.grad(int(i)).defined() ? back.grad(int(i)) : zeros(shapes[i], options));
        grads = turn(grads, !to_heads, *group);
        for (size_t i = 0; i < grads.size(); ++i) back.give(int(i), std::move(grads[i]));
      });
}

/// Heads of k such that each rank's share is what its queries read: as they are, or each repeated, once for every rank
/// or query head.
Variable spread(const Variable& x, int64_t heads, int64_t ranks) {
  const int64_t groups = x.size(1), wanted = groups % ranks == 0 ? groups : ranks % groups == 0 ? ranks : heads;
  if (wanted == groups) return x;
  std::vector<int64_t> index;
  for (int64_t i = 0; i < wanted; ++i) index.push_back(i * groups / wanted);
  return index_select(x, 1, Tensor::from(index, {wanted}).to(x.device()));
}

}  // namespace

Variable ulysses_attention(const Variable& query, const Variable& key, const Variable& value, AttentionArgs args,
                           const std::shared_ptr<dist::ProcessGroup>& group) {
  const Variable q = Autocast::low(query), k = Autocast::low(key), v = Autocast::low(value);
  check_parts("ulysses_attention", q, k, v, group);
  const int64_t ranks = group->size(), heads = q.size(1);
  if (ranks == 1) return attention(q, k, v, {}, args);
  LOCKSTEP_CHECK(heads % ranks == 0, "[ulysses_attention] expected heads that divide by the ", ranks, " ranks, got ",
                 heads, "; ring_attention takes any number");
  const std::vector<Variable> whole = turn({q, spread(k, heads, ranks), spread(v, heads, ranks)}, true, group);
  if (args.dropout > 0) {  // attention() draws its key: the ranks' heads want different ones
    const RandomState before = random_state();
    set_random_state({key_of({before.seed, 0}, group->rank()).seed, before.step, before.micro_batch, before.call});
    const Variable out = attention(whole[0], whole[1], whole[2], {}, args);
    const uint64_t calls = random_state().call;
    set_random_state({before.seed, before.step, before.micro_batch, calls});
    return turn({out}, false, group)[0];
  }
  return turn({attention(whole[0], whole[1], whole[2], {}, args)}, false, group)[0];
}

}  // namespace lockstep::sequence
