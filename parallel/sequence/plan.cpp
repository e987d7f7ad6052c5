// Orders of tokens, steps of ring attention, and their picture. See plan.h.
#include "parallel/sequence/plan.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/suggest.h"
#include "base/svg.h"

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

std::string draw_svg(int ranks) {
  LOCKSTEP_CHECK(ranks >= 1 && ranks <= 16, "[draw] expected 1 to 16 ranks, got ", ranks);
  constexpr int left = 60, top = 52, row = 24, unit = 96;
  constexpr int64_t tokens = 512;  // a block of tokens² scores is `unit` pixels wide
  const auto width_of = [&](double work) { return int(std::lround(work / double(tokens * tokens) * unit)); };
  const int width = left + ranks * unit + 150, panel = row * ranks + 64, height = top + 2 * panel - 40;
  std::string out = svg::begin(width, height);
  int y = top;
  for (const TokenOrder order : {TokenOrder::contiguous, TokenOrder::zigzag}) {
    std::vector<int> begins{left};  // a step takes as long as its longest piece
    double done = 0, lasted = 0;
    for (int step = 0; step < ranks; ++step) {
      double longest = 0;
      for (int r = 0; r < ranks; ++r) {
        const double work = scores(piece(tokens, ranks, r, step, order, true));
        longest = std::max(longest, work);
        done += work;
      }
      lasted += longest;
      begins.push_back(begins.back() + width_of(longest));
    }
    out += svg::text(8, y - 26,
                     str("ring attention, causal, ", name_of(order), ": ", counted(ranks, "rank"), "; busy ",
                         std::lround(100 * done / (lasted * ranks)), " %"),
                     14, svg::ink);
    for (int step = 0; step < ranks; ++step)
      if (begins[size_t(step) + 1] > begins[size_t(step)])
        out += svg::text(begins[size_t(step)], y - 6, str("step ", step), 10, svg::soft);
    out += svg::rect(left, y - 2, begins.back() - left, row * ranks, svg::attribute("fill", "#f1f3f5"));
    for (int r = 0; r < ranks; ++r) {
      out += svg::text(8, y + r * row + 14, str("rank ", r), 12, svg::soft);
      for (int step = 0; step < ranks; ++step) {
        const auto p = piece(tokens, ranks, r, step, order, true);
        if (!p) continue;
        const int x = begins[size_t(step)], w = width_of(scores(p)), from = owner(ranks, r, step);
        out +=
            svg::rect(x, y + r * row, w, 20, str(" fill=\"hsl(", from * 360 / ranks, ",55%,78%)\" stroke=\"white\""));
        out += svg::text(x + w / 2, y + r * row + 14, str("k", from), 10, svg::ink, "middle");
      }
    }
    y += panel;
  }
  return out + svg::end;
}

}  // namespace lockstep::sequence
