// Exchanges the top k logits instead of all. See candidates.h.
#include "extensions/inference/candidates.h"

#include <algorithm>
#include <cmath>

#include "dist/shard.h"
#include "tensor/ops.h"

namespace lockstep::inference {

namespace {

/// True if generation needs only the k highest logits of the model: greedy or top-k sampling without penalties, bias,
/// beams or log probabilities.
bool only_the_likeliest(const nn::Generation& g) {
  return g.num_beams == 1 && !g.logprobs && g.logit_bias.empty() && g.repetition_penalty == 1 &&
         g.presence_penalty == 0 && g.frequency_penalty == 0 && g.no_repeat_ngram_size == 0 && g.min_new_tokens == 0 &&
         g.suppress_tokens.empty() && (g.greedy() || g.top_k > 0);
}

/// Returns (score, id) of this rank's `count` highest scores of each row, f64 (rows, count, 2); without as many scores,
/// the last pairs are (-infinity, -1). The scores are NaN in a row with a score that is not finite.
Tensor best_here(const Tensor& scores, int64_t rows, int64_t first, int64_t count) {
  const Tensor pairs = full({rows, count, 2}, -1, {.dtype = f64, .device = cpu});
  const Tensor values = pairs.select(2, 0), ids = pairs.select(2, 1);
  values.fill_(-INFINITY);
  const int64_t here = rows == 0 ? 0 : scores.numel() / rows, k = std::min(count, here);
  if (k == 0) return pairs;
  const Tensor matrix = scores.view({rows, here});
  const auto best = topk(matrix, k);
  values.narrow(1, 0, k).copy_(best.values.to(f32).to(cpu));
  ids.narrow(1, 0, k).copy_(add_scalar(best.indices.to(cpu).to(f64), double(first)));
  const Tensor sums = sum(matrix.to(f32), {1}).to(cpu);  // not finite if a score is not: then all logits are used
  for (int64_t row = 0; row < rows; ++row)
    if (!std::isfinite(sums.select(0, row).item())) values.select(0, row).fill_(NAN);
  return pairs;
}

}  // namespace

CandidateScope::CandidateScope(nn::Head& head, int64_t vocab, const nn::Generation& g, dist::ProcessGroup& group)
    : head_(head), full_(head.gather) {
  // Each rank sends k + 1 candidates for sampling: the last one shows if a further score equals the k-th. Greedy search
  // needs one, since it takes the lowest id among equal scores.
  const int64_t k = g.greedy() ? 1 : g.top_k, count = g.greedy() ? 1 : k + 1;
  if (!only_the_likeliest(g) || count * group.size() * 4 > vocab) return;  // would not send fewer bytes
  head.gather = [entire = full_, vocab, k, count, greedy = g.greedy(), &group](const Variable& scores) -> Variable {
    const int64_t rows = numel_of(Shape(scores.shape().begin(), scores.shape().end() - 1));
    const int64_t first = dist::shard_range(vocab, group.size(), group.rank()).begin;
    const Tensor mine = best_here(scores.tensor().contiguous(), rows, first, count),
                 all = empty({group.size(), rows, count, 2}, {.dtype = f64, .device = cpu});
    group.all_gather(all, mine, {.tag = "likeliest tokens"});
    const auto pair = [p = all.data<double>(), rows, count](int64_t rank, int64_t row, int64_t i) {
      return p + ((rank * rows + row) * count + i) * 2;
    };
    Shape shape = scores.shape();
    shape[shape.rank() - 1] = vocab;
    const Tensor out = full(shape, -INFINITY, {.dtype = f32, .device = cpu});
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<double> values;
      for (int rank = 0; rank < group.size(); ++rank)
        for (int64_t i = 0; i < count; ++i) values.push_back(*pair(rank, row, i));
      if (std::any_of(values.begin(), values.end(), [](double x) { return x != x; })) return entire(scores);
      std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<>());
      const double border = values[size_t(k - 1)];
      for (int rank = 0; rank < group.size(); ++rank) {
        if (!greedy && *pair(rank, row, count - 1) >= border) return entire(scores);
        for (int64_t i = 0; i < count; ++i)
          if (const double* const at = pair(rank, row, i); at[1] >= 0)
            out.data<float>()[row * vocab + int64_t(at[1])] = float(at[0]);
      }
    }
    return out;
  };
}

CandidateScope::~CandidateScope() { head_.gather = full_; }

}  // namespace lockstep::inference
