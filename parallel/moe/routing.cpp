#include "parallel/moe/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tensor/check.h"
#include "tensor/suggest.h"
#include "tensor/svg.h"

namespace lockstep::moe {

int64_t Routing::dropped() const {
  return std::accumulate(chosen.begin(), chosen.end(), int64_t(0)) - int64_t(token.size());
}

int64_t capacity(int64_t tokens, int64_t experts, int64_t top_k, double factor, int64_t min_capacity) {
  return std::max(int64_t(std::ceil(double(tokens) / double(experts) * factor * double(top_k))), min_capacity);
}

Routing route(const std::vector<int64_t>& choices, int64_t top_k, int64_t experts, int64_t capacity,
              const std::vector<double>& priority) {
  LOCKSTEP_CHECK(top_k >= 1 && int64_t(choices.size()) % top_k == 0, "[route] expected ", top_k,
                 " choices for every token, got ", choices.size());
  LOCKSTEP_CHECK(priority.empty() || priority.size() == choices.size(), "[route] expected a priority for each of ",
                 choices.size(), " choices, got ", priority.size());
  const int64_t tokens = int64_t(choices.size()) / top_k;
  std::vector<std::vector<int64_t>> wanted(static_cast<size_t>(experts));  // choices of each expert
  for (int64_t i = 0; i < top_k; ++i) {
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t expert = choices[size_t(t * top_k + i)];
      LOCKSTEP_CHECK(expert >= 0 && expert < experts, "[route] expected an expert from 0 to ", experts - 1, ", got ",
                     expert);
      wanted[size_t(expert)].push_back(t * top_k + i);
    }
  }
  Routing r;
  for (auto& list : wanted) {
    r.chosen.push_back(int64_t(list.size()));
    if (capacity >= 0 && int64_t(list.size()) > capacity) {
      std::vector<size_t> order(list.size());
      std::iota(order.begin(), order.end(), size_t(0));
      if (!priority.empty())
        std::stable_sort(order.begin(), order.end(),
                         [&](size_t a, size_t b) { return priority[size_t(list[a])] > priority[size_t(list[b])]; });
      order.resize(size_t(capacity));
      std::sort(order.begin(), order.end());
      std::vector<int64_t> kept;
      for (const size_t at : order) kept.push_back(list[at]);
      list = std::move(kept);
    }
    r.rows.push_back(int64_t(list.size()));
    for (const int64_t choice : list) {
      r.choice.push_back(choice);
      r.token.push_back(choice / top_k);
    }
  }
  return r;
}

std::string draw_svg(const std::vector<std::vector<int64_t>>& choices, int64_t top_k, int64_t experts,
                     int64_t capacity) {
  const int64_t ranks = int64_t(choices.size());
  int64_t tokens = 0;
  for (const auto& c : choices) tokens += int64_t(c.size()) / top_k;
  LOCKSTEP_CHECK(ranks > 0 && tokens <= 64 && experts <= 32 && experts % ranks == 0,
                 "[draw] expected experts that divide by the ranks, 64 tokens and 32 experts at most, got ", ranks,
                 " ranks, ", tokens, " tokens, ", experts, " experts");
  constexpr int64_t row = 22, top = 56, left = 90, right = 400, slot = 20;
  // Tokens on the left, with a gap between ranks; experts on the right, spread over the same height.
  const int64_t height = tokens * row + (ranks - 1) * row,
                width = right + 220 + ranks * std::max<int64_t>(capacity < 0 ? 6 : capacity, 1) * slot;
  std::string out = svg_opening(double(width), double(top + height + 20));
  const auto text = [&](int64_t x, int64_t y, const std::string& words, int size, const char* color,
                        const char* anchor) { out += svg_text(double(x), double(y), words, size, color, anchor); };
  const auto color = [&](int64_t rank, int light) {
    return str("hsl(", rank * 360 / ranks + 212, ",55%,", light, "%)");
  };
  const auto expert_y = [&](int64_t e) { return top + (2 * e + 1) * height / (2 * experts) - row / 2; };
  std::string boxes;
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
    for (int64_t t = 0; t < int64_t(choices[size_t(r)].size()) / top_k; ++t, y += row, ++number) {
      boxes += str("<rect x=\"", left - 10, "\" y=\"", y + 1, "\" width=\"22\" height=\"", row - 2,
                   "\" rx=\"4\" fill=\"", color(r, 82), "\"/>\n");
      boxes += svg_text(double(left + 1), double(y + 15), str(number), 10, "#24292f", "middle");
    }
    text(10, begin + 15, str("rank ", r), 12, "#57606a", "start");
    for (size_t i = 0; i < routing.token.size(); ++i) {  // rows at their experts
      const int64_t token = routing.token[i], e = choices[size_t(r)][size_t(routing.choice[i])],
                    x = right + 86 + filled[size_t(e)]++ * slot;
      boxes += str("<rect x=\"", x, "\" y=\"", expert_y(e) + 1, "\" width=\"", slot - 2, "\" height=\"", row - 2,
                   "\" rx=\"4\" fill=\"", color(r, 82), "\"/>\n");
      boxes += str("<text x=\"", x + slot / 2 - 1, "\" y=\"", expert_y(e) + 15,
                   "\" font-size=\"10\" fill=\"#24292f\" text-anchor=\"middle\">", first + token, "</text>\n");
    }
  }
  for (int64_t e = 0; e < experts; ++e) {
    boxes += str("<rect x=\"", right, "\" y=\"", expert_y(e), "\" width=\"80\" height=\"", row, "\" rx=\"4\" fill=\"",
                 color(e / (experts / ranks), 92), "\" stroke=\"", color(e / (experts / ranks), 55), "\"/>\n");
    boxes += str("<text x=\"", right + 40, "\" y=\"", expert_y(e) + 15,
                 "\" font-size=\"12\" fill=\"#24292f\" text-anchor=\"middle\">expert ", e, "</text>\n");
  }
  text(8, 20,
       str("top-", top_k, ", ", experts, " experts on ", counted(ranks, "rank"),
           capacity < 0 ? std::string(", nothing dropped")
                        : str(", capacity ", capacity, " of each rank: ", dropped, " dropped"),
           "; ", sent, " rows go to another rank"),
       14, "#24292f", "start");
  return out + boxes + "</svg>\n";
}

}  // namespace lockstep::moe
