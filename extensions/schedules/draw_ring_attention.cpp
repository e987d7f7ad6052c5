// draw_ring_attention.cpp: the steps of ring attention as a picture. See draw_ring_attention.h.
#include "extensions/schedules/draw_ring_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/suggest.h"
#include "extensions/figures/svg.h"
#include "parallel/sequence/plan.h"

namespace lockstep::sequence {

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
