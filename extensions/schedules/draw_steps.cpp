// draw_steps.cpp: steps of pipelines and of ring attention as pictures, and pipelines as text grids. See draw.h.
#include <algorithm>
#include <cmath>

#include "base/suggest.h"
#include "extensions/figures/svg.h"
#include "extensions/schedules/draw.h"
#include "parallel/sequence/plan.h"

namespace lockstep::pipeline {
namespace {

/// The place of a computation in a table: forward, backward, backward_input, backward_weight.
size_t place_of(Do what) { return size_t(what) - size_t(Do::forward); }

}  // namespace

std::string draw_grid(const PipelineSchedule& s) {
  const double unit = s.request.chunks;  // one column per forward of a chunk
  const Simulation run = simulate(s, {.forward = unit, .input = unit, .weight = unit});
  size_t width = 2;
  const auto name = [&](const StepAction& a) {
    return "FBIW"[place_of(a.what)] + std::to_string(a.micro_batch) +
           (s.request.chunks > 1 ? std::string(1, char('a' + a.chunk % 26)) : "");
  };
  for (const auto& rank : run.ranks)
    for (const TimedAction& slot : rank) width = std::max(width, name(slot.action).size());
  std::string out;
  for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
    std::string row = format("rank %-3zu", rank);
    int64_t now = 0;
    const auto cell = [&](const std::string& text) {
      row += " " + text + std::string(width - text.size(), ' ');
      ++now;
    };
    for (const TimedAction& slot : run.ranks[rank]) {
      while (now < std::llround(slot.start)) cell(".");
      while (now < std::llround(slot.end)) cell(name(slot.action));
    }
    while (now < std::llround(run.seconds)) cell(".");
    out += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string draw_svg(const PipelineSchedule& s, const StageCosts& costs) {
  LOCKSTEP_CHECK(s.request.stages <= 32, "[draw] expected 32 ranks or fewer, got ", s.request.stages,
                 "; more rows are not legible; use the text grid");
  const Simulation run = simulate(s, costs);
  LOCKSTEP_CHECK(run.seconds > 0, "[draw] expected costs of more than 0, got a step of ", run.seconds, " s");
  const PipelineRequest& r = s.request;
  constexpr double left = 62, top = 48, row = 24, box = 20;
  const double columns = run.seconds / std::max((costs.forward + costs.input + costs.weight) / 3 / r.chunks, 1e-300);
  const double width = std::clamp(columns * 17, 460., 1600.), scale = width / run.seconds;
  const double height = top + row * r.stages + 34, page = left + width + 16;
  std::string out = svg::begin(page, height);
  using svg::ink, svg::soft;
  out += svg::text(8, 20,
                   str(name_of(r.kind), ": ", counted(r.stages, "stage"), ", ", counted(r.micro_batches, "micro-batch"),
                       r.chunks > 1 ? str(", ", r.chunks, " chunks a rank (later ones darker)") : "",
                       format("; idle %.1f %%", 100 * run.bubble)),
                   14, ink);
  // The background shows through where a rank is idle.
  out += svg::rect(left, top - 2, width, row * r.stages, svg::attribute("fill", "#f1f3f5"));
  const auto color = [&](const StepAction& a) {
    constexpr int hues[] = {212, 140, 175, 35};
    const int dark = r.chunks > 1 ? 26 * a.chunk / (r.chunks - 1) : 0;
    return format("hsl(%d,55%%,%d%%)", hues[place_of(a.what)], 78 - dark);
  };
  for (size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const double y = top + row * double(rank);
    out += svg::text(8, y + box * 0.7, str("rank ", rank), 12, soft);
    for (const TimedAction& slot : run.ranks[rank]) {
      const double x = left + slot.start * scale, w = (slot.end - slot.start) * scale;
      if (w <= 0) continue;
      out += svg::rect(x, y, w, box, svg::attribute("fill", color(slot.action)) + " stroke=\"white\"");
      const std::string number = std::to_string(slot.action.micro_batch);
      const double size = std::min(11., w / (0.62 * double(number.size()) + 0.2));
      if (size >= 5)
        out += svg::text(x + w / 2, y + box * 0.5 + size * 0.36, number, size,
                         r.chunks > 1 && 2 * slot.action.chunk >= r.chunks ? "#ffffff" : ink, "middle");
    }
  }
  const auto has = [&](Do what) {
    return std::ranges::any_of(run.ranks[0], [&](const TimedAction& slot) { return slot.action.what == what; });
  };
  const bool split = has(Do::backward_weight), full = has(Do::backward);
  double x = left;
  const auto key = [&](Do what, const std::string& words, double advance) {
    const double y = top + row * r.stages + 10;
    out += svg::rect(x, y, 13, 13, svg::attribute("fill", color({what, 0, 0})));
    out += svg::text(x + 18, y + 11, words, 12, soft);
    x += advance;
  };
  key(Do::forward, "forward", 84);
  if (full) key(Do::backward, "backward", 92);
  const std::string part = full ? "" : "backward: ";  // no prefix beside the key "backward", to save room
  if (split) key(Do::backward_input, part + "input gradient", full ? 124 : 176);
  if (split) key(Do::backward_weight, part + "weight gradient", 0);
  return out + svg::end;
}

}  // namespace lockstep::pipeline

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
