// The picture of docs/moe.md: how tokens are routed to experts.
#include <doctest/doctest.h>

#include <vector>

#include "extensions/figures/svg.h"
#include "parallel/moe/routing.h"
#include "tests/golden_folder.h"

using namespace lockstep;
using namespace lockstep::moe;

namespace {

/// Draws the picture in docs/images: the tokens of each rank, the experts and their ranks, and what is sent, kept and
/// dropped. choices[rank] as in route(); each rank has experts / ranks experts.
std::string draw_svg(const std::vector<std::vector<int64_t>>& choices, int64_t top_k, int64_t experts,
                     int64_t capacity) {
  const int64_t ranks = int64_t(choices.size());
  int64_t tokens = 0;
  for (const auto& c : choices) tokens += int64_t(c.size()) / top_k;
  constexpr int64_t row = 22, top = 56, left = 90, right = 400, slot = 20;
  // Tokens on the left, with a gap between ranks; experts on the right, spread over the same height.
  const int64_t height = tokens * row + (ranks - 1) * row,
                width = right + 220 + ranks * std::max<int64_t>(capacity < 0 ? 6 : capacity, 1) * slot;
  std::string out = svg::begin(double(width), double(top + height + 20)), boxes;
  const auto color = [&](int64_t rank, int light) {
    return str("hsl(", rank * 360 / ranks + 212, ",55%,", light, "%)");
  };
  const auto expert_y = [&](int64_t e) { return top + (2 * e + 1) * height / (2 * experts) - row / 2; };
  const auto box = [&](int64_t x, int64_t y, int64_t wide, int64_t rank, const std::string& words) {
    boxes +=
        svg::rect(double(x), double(y + 1), double(wide), row - 2, str(" rx=\"4\" fill=\"", color(rank, 82), "\""));
    boxes += svg::text(double(x + wide / 2), double(y + 15), words, 10, svg::ink, "middle");
  };
  std::vector<int64_t> filled(size_t(experts), 0);
  int64_t y = top, dropped = 0, sent = 0, number = 0;
  for (int64_t r = 0; r < ranks; ++r, y += row) {
    const Routing routing = route(choices[size_t(r)], top_k, experts, capacity);
    std::vector<bool> kept(choices[size_t(r)].size(), false);
    for (const int64_t choice : routing.choice) kept[size_t(choice)] = true;
    const int64_t begin = y, first = number;
    for (size_t i = 0; i < choices[size_t(r)].size(); ++i) {
      const int64_t t = int64_t(i) / top_k, e = choices[size_t(r)][i], token_y = begin + t * row + row / 2;
      const bool away = e / (experts / ranks) != r;
      if (kept[i]) sent += away;
      else ++dropped;
      out += str("<line x1=\"", left + 12, "\" y1=\"", token_y, "\" x2=\"", kept[i] ? right : right - 60, "\" y2=\"",
                 kept[i] ? expert_y(e) + row / 2
                         : token_y + (expert_y(e) + row / 2 - token_y) * (right - 60 - left) / (right - left),
                 "\" stroke=\"", kept[i] ? color(r, 55) : std::string("#b0b7bf"), "\" stroke-width=\"", away ? 2 : 1,
                 "\"", kept[i] ? "" : " stroke-dasharray=\"3,4\"", "/>\n");
    }
    for (int64_t t = 0; t < int64_t(choices[size_t(r)].size()) / top_k; ++t, y += row)
      box(left - 10, y, 22, r, std::to_string(number++));
    out += svg::text(10, double(begin + 15), str("rank ", r), 12, svg::soft);
    for (size_t i = 0; i < routing.token.size(); ++i) {  // the rows of each expert
      const int64_t e = choices[size_t(r)][size_t(routing.choice[i])];
      box(right + 86 + filled[size_t(e)]++ * slot, expert_y(e), slot - 2, r, std::to_string(first + routing.token[i]));
    }
  }
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t home = e / (experts / ranks);
    boxes += svg::rect(right, double(expert_y(e)), 80, row,
                       str(" rx=\"4\" fill=\"", color(home, 92), "\" stroke=\"", color(home, 55), "\""));
    boxes += svg::text(right + 40, double(expert_y(e) + 15), str("expert ", e), 12, svg::ink, "middle");
  }
  out += svg::text(8, 20,
                   str("top-", top_k, ", ", experts, " experts on ", ranks, ranks == 1 ? " rank" : " ranks",
                       capacity < 0 ? std::string(", nothing dropped")
                                    : str(", capacity ", capacity, " of each rank: ", dropped, " dropped"),
                       "; ", sent, " rows go to another rank"),
                   14, svg::ink);
  return out + boxes + svg::end;
}

}  // namespace

TEST_CASE("the picture in docs/moe.md is the one that is drawn") {
  const std::vector<std::vector<int64_t>> choices{{0, 2, 0, 3, 0, 1}, {1, 2, 2, 3, 1, 2}};
  const bool same = docs_image("experts.svg") == draw_svg(choices, 1, 4, 2);
  CHECK_MESSAGE(same, "docs/images/experts.svg is not what is drawn now");
}
