// Simulates serving. See simulate.h.
#include "extensions/serving/simulate.h"

#include <algorithm>
#include <sstream>
#include <tuple>

#include "base/check.h"
#include "base/suggest.h"
#include "extensions/figures/svg.h"
#include "tensor/shape.h"

namespace lockstep::serve {

namespace {

constexpr size_t max_plotted_requests = 40, max_columns = 400;

/// The state of each request in a step, for drawing. > 0: number of prompt tokens processed; 0: a token of the
/// answer is computed; -1: waiting; -2: preempted; -3: absent.
std::vector<int64_t> column(const Simulated& run, const Simulated::Slot& slot) {
  std::vector<int64_t> cells(run.requests.size(), -3);
  for (size_t r = 0; r < cells.size(); ++r)
    if (run.requests[r].arrived <= slot.start && run.requests[r].ended > slot.start) cells[r] = -1;
  for (const ScheduledTokens& w : slot.step.work)
    cells[size_t(w.number)] =
        run.requests[size_t(w.number)].first <= slot.start && w.count == 1 && w.last ? 0 : w.count;
  for (const int64_t number : slot.step.put_back) cells[size_t(number)] = -2;
  return cells;
}

}  // namespace

std::vector<Arrival> parse_arrivals(const std::string& text) {
  std::vector<Arrival> all;
  std::stringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    Arrival a;
    bool good = true;
    const auto take = [&]<class T>(T& number, const std::string& of) {
      const auto read = read_number<T>(of);
      number = read.value_or(0), good = good && read;
    };
    const std::vector<std::string> at = split(word.substr(std::min(word.find_first_not_of(' '), word.size())), ':'),
                                   common = split(at.back(), '/'), sizes = split(common[0], '+');
    take(a.time, at[0]), take(a.prompt, sizes[0]), take(a.answer, sizes.back());
    if (common.size() == 2) take(a.common, common[1]);
    good = good && at.size() == 2 && common.size() <= 2 && sizes.size() == 2;
    LOCKSTEP_CHECK(good && a.time >= 0 && a.time < 1e9 && a.prompt > 0 && a.answer > 0 &&
                       a.prompt + a.answer <= 1 << 20 && a.common >= 0 && a.common <= a.prompt,
                   "expected requests such as 0:300+20,5:40+10 (at 0 ms a prompt of 300 tokens, answered with 20; "
                   "300+20/256: 256 of them are a prefix that other prompts share), each before 1e9 ms and of at most "
                   "1048576 tokens, got '",
                   word, "'");
    all.push_back(a);
  }
  std::stable_sort(all.begin(), all.end(), [](const Arrival& a, const Arrival& b) { return a.time < b.time; });
  LOCKSTEP_CHECK(!all.empty() && all.size() <= 10'000, "expected 1 to 10,000 requests, got ", all.size());
  return all;
}

Simulated simulate(const std::vector<Arrival>& arrivals, SchedulerState start, const StepCosts& costs) {
  Simulated run{.state = std::move(start)};
  SchedulerState& state = run.state;
  std::vector<int64_t> left;  // tokens of each answer
  double now = 0;
  for (size_t next = 0; next < arrivals.size() || !state.running.empty() || !state.waiting.empty();) {
    if (state.running.empty() && state.waiting.empty()) now = std::max(now, arrivals[next].time);
    for (; next < arrivals.size() && arrivals[next].time <= now; ++next) {
      const Arrival& a = arrivals[next];
      std::vector<int64_t> prompt;  // after the common prefix, each prompt has unique tokens
      for (int64_t t = 0; t < a.prompt; ++t) prompt.push_back(t < a.common ? t : (int64_t(next) + 1) * (1 << 24) + t);
      add(state, std::move(prompt), a.prompt + a.answer);
      run.requests.push_back({.arrived = a.time});
      left.push_back(a.answer);
    }
    const BatchStep step = next_step(state);
    const double end = now + costs.step + costs.row * double(step.rows());
    run.slots.push_back({now, end, step, state.blocks.count() - state.blocks.free()});
    run.rows += step.rows();
    for (const int64_t number : step.started)
      if (run.requests[size_t(number)].started == 0) run.requests[size_t(number)].started = now;
    done(state, step);
    for (const ScheduledTokens& w : step.work) {
      if (!w.last) continue;
      ++run.tokens;
      if (run.requests[size_t(w.number)].first == 0) run.requests[size_t(w.number)].first = end;
      if (--left[size_t(w.number)] > 0) {
        append(state, w.number, (int64_t(1) << 40) + w.number);
        continue;
      }
      run.requests[size_t(w.number)].ended = end;
      finish(state, w.number);
    }
    now = end;
  }
  return run;
}

std::string draw_grid(const Simulated& run) {
  LOCKSTEP_CHECK(run.slots.size() <= max_columns, "[draw] expected ", max_columns, " steps or fewer, got ",
                 run.slots.size(), "; simulate fewer requests");
  std::vector<std::vector<std::string>> cells;
  size_t width = 1;
  for (const Simulated::Slot& slot : run.slots) {
    auto& texts = cells.emplace_back();
    for (const int64_t c : column(run, slot)) {
      texts.push_back(c > 0 ? std::to_string(c) : c == 0 ? "#" : c == -1 ? "." : c == -2 ? "x" : "");
      width = std::max(width, texts.back().size());
    }
  }
  std::string out;
  for (size_t r = 0; r < run.requests.size(); ++r) {
    std::string row = format("request %-4zu", r);
    for (const auto& texts : cells) row += std::string(width + 1 - texts[r].size(), ' ') + texts[r];
    out += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string draw_svg(const Simulated& run) {
  LOCKSTEP_CHECK(run.requests.size() <= max_plotted_requests && run.slots.size() <= max_columns, "[draw] expected ",
                 max_plotted_requests, " requests and ", max_columns, " steps or fewer, got ", run.requests.size(),
                 " and ", run.slots.size(), "; simulate fewer requests");
  constexpr double left = 78, top = 50, line = 24, box = 20, bars = 46;
  const auto requests = double(run.requests.size());
  const double span = run.slots.back().end, width = std::clamp(double(run.slots.size()) * 20, 560., 1600.),
               scale = width / span;
  const double below = top + line * requests + 12, page = left + width + 16;
  std::string out = svg::begin(page, below + 2 * (bars + 12) + 34);
  using svg::ink, svg::soft;
  const char *prompt = "#80b1e8", *text = "#8fce9b", *waits = "#d0d7de", *way = "#e5838a";
  out +=
      svg::text(8, 20,
                str(counted(int64_t(run.requests.size()), "request"), ", ", counted(int64_t(run.slots.size()), "step"),
                    " of at most ", run.state.limits.rows, " rows, ", counted(run.state.blocks.count(), "block"),
                    format("; %.0f tokens a second", 1000 * double(run.tokens) / span)),
                14, ink);
  const auto rect = [&](double x, double y, double w, double h, const char* color) {
    out += svg::rect(x, y, w, h, svg::attribute("fill", color));
  };
  const auto row_of = [&](size_t r) { return top + line * double(r); };
  for (size_t r = 0; r < run.requests.size(); ++r) out += svg::text(8, row_of(r) + 14, str("request ", r), 12, soft);
  for (const Simulated::Slot& slot : run.slots) {
    const double x = left + slot.start * scale, w = (slot.end - slot.start) * scale;
    const std::vector<int64_t> cells = column(run, slot);
    for (size_t r = 0; r < cells.size(); ++r) {
      const double y = row_of(r);
      if (cells[r] == -1) rect(x, y + box / 2 - 1, w, 2, waits);
      if (cells[r] == -1 || cells[r] == -3) continue;
      const char* const color = cells[r] > 0 ? prompt : cells[r] == 0 ? text : way;
      out += svg::rect(x, y, w, box, svg::attribute("fill", color) + " stroke=\"white\"");
      const std::string words = cells[r] > 0 ? std::to_string(cells[r]) : "";
      const double size = std::min(11., w / (0.62 * double(words.size()) + 0.2));
      if (!words.empty() && size >= 5)
        out += svg::text(x + w / 2, y + box * 0.5 + size * 0.36, words, size, ink, "middle");
    }
    const auto bar = [&](double at, double part, const char* color) {
      rect(x, at + bars * (1 - part), std::max(w - 0.5, 0.5), bars * part, color);
    };
    bar(below, double(slot.step.rows()) / double(run.state.limits.rows), "#3d74b5");
    bar(below + bars + 12, double(slot.blocks) / double(run.state.blocks.count()), "#b08fce");
  }
  out += svg::text(8, below + bars - 4, "rows", 12, soft);
  out += svg::text(8, below + 2 * bars + 8, "blocks", 12, soft);
  const double y = below + 2 * (bars + 12) + 4;
  double x = left;
  for (const auto& [color, words, advance] : {std::tuple{prompt, "tokens of the prompt", 154.},
                                              {text, "a token of the answer", 156.},
                                              {waits, "waits", 66.},
                                              {way, "gives its blocks back", 0.}}) {
    rect(x, y, 13, 13, color);
    out += svg::text(x + 18, y + 11, words, 12, soft);
    x += advance;
  }
  return out + svg::end;
}

}  // namespace lockstep::serve
