// Orders of tokens, and steps of ring attention. See plan.h.
#include "parallel/sequence/plan.h"

#include "base/check.h"

namespace lockstep::sequence {

std::string_view name_of(TokenOrder order) { return order == TokenOrder::zigzag ? "zigzag" : "contiguous"; }

Tensor positions(int64_t tokens, int ranks, int rank, TokenOrder order) {
  LOCKSTEP_CHECK(ranks >= 1 && rank >= 0 && rank < ranks,
                 "[positions] expected a rank from 0 to ranks - 1 = ", ranks - 1, ", got ", rank);
  const int64_t parts = order == TokenOrder::zigzag ? 2 * ranks : ranks, size = tokens / parts;
  LOCKSTEP_CHECK(tokens >= 0 && tokens % parts == 0, "[positions] expected a number of tokens >= 0 divisible by ",
                 parts, " (", ranks, " ranks, ", name_of(order), "), got ", tokens, "; the next such number is ",
                 (tokens / parts + 1) * parts);
  const Tensor first = arange(double(rank * size), double((rank + 1) * size));
  return order == TokenOrder::contiguous
             ? first
             : cat({first, arange(double((parts - 1 - rank) * size), double((parts - rank) * size))});
}

Tensor slice(const Tensor& x, int64_t dim, int ranks, int rank, TokenOrder order) {
  return index_select(x, dim, positions(x.size(dim), ranks, rank, order).to(x.device()));
}

Tensor join(const std::vector<Tensor>& parts, int64_t dim, TokenOrder order) {
  const Tensor all = cat(parts, dim);
  std::vector<int64_t> place(size_t(all.size(dim)));  // index in `all` of each token
  int64_t at = 0;
  for (size_t r = 0; r < parts.size(); ++r) {
    for (const int64_t position : positions(all.size(dim), int(parts.size()), int(r), order).to_vector<int64_t>())
      place[size_t(position)] = at++;
  }
  return index_select(all, dim, Tensor::from(place, {all.size(dim)}).to(all.device()));
}

std::optional<ScoreBlock> piece(int64_t tokens, int ranks, int rank, int step, TokenOrder order, bool causal) {
  const int from = owner(ranks, rank, step);
  if (!causal || from == rank) return ScoreBlock{0, tokens, 0, tokens, causal};
  if (order == TokenOrder::contiguous)
    return from < rank ? std::optional(ScoreBlock{0, tokens, 0, tokens, false}) : std::nullopt;
  // Zigzag: half of a rank's tokens are early in the sequence, half late. An earlier rank's early half precedes all our
  // queries, and its late half follows them. A later rank's keys lie between our halves: only our late half sees them.
  const int64_t half = tokens / 2;
  return from < rank ? ScoreBlock{0, tokens, 0, half, false} : ScoreBlock{half, half, 0, tokens, false};
}

double scores(const std::optional<ScoreBlock>& p) {
  if (!p) return 0;
  return p->causal ? double(p->queries) * double(p->queries + 1) / 2 : double(p->queries) * double(p->keys);
}

}  // namespace lockstep::sequence
