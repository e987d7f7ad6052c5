// Ulysses attention: an all-to-all exchanges tokens for heads. See attention.h.
#include "autograd/tape.h"
#include "parallel/sequence/check.h"

namespace lockstep::sequence {
namespace {

/// With to_heads, exchanges (B, heads, T/P, D), all heads of this rank's tokens, for (B, heads/P, T, D), all tokens of
/// this rank's heads. Without to_heads, does the reverse. Exchanges several tensors in one all-to-all among P ranks.
std::vector<Tensor> exchange(const std::vector<Tensor>& parts, bool to_heads, dist::ProcessGroup& group) {
  const int64_t ranks = group.size();
  const int cut = to_heads ? 1 : 2, joined = to_heads ? 2 : 1;  // the dim that is cut, and the dim that is joined
  const TensorOptions options{parts[0].dtype(), parts[0].device()};
  int64_t chunk = 0;  // elements sent to each rank
  std::vector<Tensor> results;
  for (const Tensor& x : parts) {
    chunk += x.numel() / ranks;
    Shape shape = x.shape();
    shape[cut] /= ranks;
    shape[joined] *= ranks;
    results.push_back(empty(shape, options));
  }
  const Tensor sent = empty({ranks, chunk}, options), received = empty_like(sent);
  /// Calls fn(i, rank, part) for the part of tensor i that goes to, or comes from, each rank.
  const auto each = [&](const Tensor& buffer, const auto& fn) {
    int64_t at = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      Shape shape = parts[i].shape();
      shape[cut] /= ranks;
      for (int64_t r = 0; r < ranks; ++r) fn(i, r, buffer[r].narrow(0, at, numel_of(shape)).view(shape));
      at += numel_of(shape);
    }
  };
  each(sent, [&](size_t i, int64_t r, const Tensor& part) {
    part.copy_(parts[i].narrow(cut, r * part.size(cut), part.size(cut)));
  });
  group.all_to_all(received, sent, {.tag = to_heads ? "tokens to heads" : "heads to tokens"}).wait();
  each(received, [&](size_t i, int64_t r, const Tensor& part) {
    results[i].narrow(joined, r * part.size(joined), part.size(joined)).copy_(part);
  });
  return results;
}

std::vector<Variable> exchange(const std::vector<Variable>& parts, bool to_heads,
                               const std::shared_ptr<dist::ProcessGroup>& group) {
  std::vector<Tensor> tensors;
  for (const Variable& part : parts) tensors.push_back(part.tensor());
  std::vector<Tensor> results = exchange(tensors, to_heads, *group);
  if (!needs_grad(parts)) return {results.begin(), results.end()};
  std::vector<Shape> shapes;
  for (const Tensor& result : results) shapes.push_back(result.shape());
  return record(
      "ulysses", parts, std::move(results),
      [shapes, to_heads, group, options = TensorOptions{tensors[0].dtype(), tensors[0].device()}](Backward& back) {
        std::vector<Tensor> grads;
        for (size_t i = 0; i < shapes.size(); ++i)
          grads.push_back(back.grad(int(i)).defined() ? back.grad(int(i)) : zeros(shapes[i], options));
        grads = exchange(grads, !to_heads, *group);
        for (size_t i = 0; i < grads.size(); ++i) back.give(int(i), std::move(grads[i]));
      });
}

/// Repeats the key heads of x so that each rank's share contains the heads that its queries read. Repeats none if
/// `ranks` divides the number of key heads. If the number of key heads divides `ranks`, makes one copy of a key head
/// for each rank that reads it. Otherwise makes one copy for each query head.
Variable repeat_heads(const Variable& x, int64_t heads, int64_t ranks) {
  const int64_t groups = x.size(1), wanted = groups % ranks == 0 ? groups : ranks % groups == 0 ? ranks : heads;
  if (wanted == groups) return x;
  const Shape& s = x.shape();
  return x.unsqueeze(2).expand({s[0], groups, wanted / groups, s[2], s[3]}).reshape({s[0], wanted, s[2], s[3]});
}

}  // namespace

Variable ulysses_attention(const Variable& query, const Variable& key, const Variable& value, AttentionArgs args,
                           const std::shared_ptr<dist::ProcessGroup>& group) {
  const Variable q = Autocast::low(query), k = Autocast::low(key), v = Autocast::low(value);
  check_parts("ulysses_attention", q, k, v, group);
  const int64_t ranks = group->size(), heads = q.size(1);
  if (ranks == 1) return attention(q, k, v, {}, args);
  LOCKSTEP_CHECK(heads % ranks == 0, "[ulysses_attention] expected a number of heads divisible by the ", ranks,
                 " ranks, got ", heads, "; ring_attention takes any number");
  const std::vector<Variable> full =
      exchange({q, repeat_heads(k, heads, ranks), repeat_heads(v, heads, ranks)}, true, group);
  if (args.dropout > 0) {  // use this rank's share of the whole mask
    args.all_heads = std::max(args.all_heads, heads);
    args.first_head += group->rank() * (heads / ranks);
  }
  return exchange({attention(full[0], full[1], full[2], {}, args)}, false, group)[0];
}

}  // namespace lockstep::sequence
