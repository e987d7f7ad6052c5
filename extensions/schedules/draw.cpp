// draw.cpp: schedules as text tables and SVG pictures. See draw.h.
#include "extensions/schedules/draw.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "base/suggest.h"
#include "extensions/figures/svg.h"
#include "extensions/schedules/schedule_check.h"

namespace lockstep::dist {
namespace {

/// A list of chunks as text: "0-3,6".
std::string join(const std::vector<int32_t>& chunks) {
  std::string text;
  for (size_t i = 0; i < chunks.size();) {
    size_t end = i + 1;
    while (end < chunks.size() && chunks[end] == chunks[end - 1] + 1) ++end;
    text += str(i ? "," : "", chunks[i], end - i > 2 ? str("-", chunks[end - 1]) : "");
    i = end - i > 2 ? end : i + 1;
  }
  return text;
}

/// Transfers of one step that differ only in their chunk. The table prints them as one message.
struct TransferGroup {
  Transfer first;
  std::vector<int32_t> chunks;

  std::string slot(int32_t s) const { return s > 0 ? str("[", s, "]") : ""; }
  std::string text(int ranks) const {
    const std::string what = join(chunks) + slot(first.source.slot);
    if (first.action == TransferAction::scale) return what + str(" / ", ranks);
    const std::string where = first.from == first.to ? "own" : str(first.to);
    return what + (first.action == TransferAction::reduce ? " +> " : " -> ") + where + slot(first.target.slot);
  }
};

std::vector<std::vector<TransferGroup>> messages_by_step(Algorithm algorithm, const CollectiveRequest& request) {
  std::vector<std::vector<TransferGroup>> steps;
  visit_schedule(algorithm, request, [&](const Transfer& t) {
    if (steps.size() <= size_t(t.step)) steps.resize(size_t(t.step) + 1);
    auto& step = steps.back();
    const auto same = [&](const TransferGroup& m) {
      return std::tuple(m.first.from, m.first.to, m.first.source.slot, m.first.target.slot, m.first.action) ==
             std::tuple(t.from, t.to, t.source.slot, t.target.slot, t.action);
    };
    if (step.empty() || !same(step.back())) step.push_back({t, {}});
    step.back().chunks.push_back(t.source.chunk);
  });
  return steps;
}

constexpr size_t max_width = 180;

std::string title(Algorithm algorithm, const CollectiveRequest& r, const CollectiveCheck& check) {
  return str(name_of(algorithm), " ", name_of(r.collective), has_root(r.collective) ? str(", root ", r.root) : "", ": ",
             counted(r.ranks, "rank"), ", ", counted(check.chunks, "chunk"), ", ", counted(check.steps, "step"),
             check.joins > 0 ? str(" (", check.rounds, " between ranks)") : "", "; the busiest rank sends ",
             counted(std::ranges::max(check.sent), "chunk"));
}

}  // namespace

std::string draw_table(Algorithm algorithm, const CollectiveRequest& request) {
  const auto steps = messages_by_step(algorithm, request);
  std::vector<std::vector<std::string>> rows{{"  step"}};  // the ranks' names, then a row for each step
  std::vector<size_t> widths;
  if (request.ranks <= 16) {
    for (int rank = 0; rank < request.ranks; ++rank) rows[0].push_back(str("rank ", rank));
    for (size_t s = 0; s < steps.size(); ++s) {
      std::vector<std::string>& row = rows.emplace_back(rows[0].size());
      row[0] = format("%6zu", s);
      for (const TransferGroup& m : steps[s]) {
        std::string& cell = row[size_t(m.first.from) + 1];
        cell += (cell.empty() ? "" : "; ") + m.text(request.ranks);
      }
    }
    widths.resize(rows[0].size());
    for (const auto& row : rows)
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  if (widths.empty() || std::accumulate(widths.begin(), widths.end(), 3 * (widths.size() - 1)) > max_width) {
    out += "  step    from  what\n";
    for (size_t s = 0; s < steps.size(); ++s)
      for (const TransferGroup& m : steps[s])
        out += format("%6zu  %6d  ", s, m.first.from) + m.text(request.ranks) + "\n";
    return out;
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += format("%-*s   ", int(widths[i]), row[i].c_str());
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

namespace {

constexpr const char *ink = "#24292f", *faint = "#d8dee4";
constexpr double page = 1120, left = 58, gap = 48;

/// The square that shows one chunk on one rank: the number of terms summed in it, and the step's action on it.
struct Square {
  int terms = 0;
  bool added = false, arrived = false, divided = false;
};

/// Builds the SVG picture of a schedule: computes the layout, and follows the contents of all chunks step by step.
class Picture {
 public:
  Picture(Algorithm algorithm, const CollectiveRequest& request)
      : r_(request), steps_(messages_by_step(algorithm, request)), check_(check_schedule(algorithm, request)) {
    columns_ = int(check_.chunks <= r_.ranks ? check_.chunks : r_.ranks);
    lines_ = int(check_.chunks) / columns_;
    side_ = columns_ <= 2 ? 22 : columns_ <= 4 ? 18 : columns_ <= 8 ? 12 : 8;
    for (int rank = 0; rank < r_.ranks; ++rank) {
      for (int32_t c = 0; c < check_.chunks; ++c)
        if (starts_with(r_, rank, c)) square(rank, {c, 0}).terms = 1;
    }
    used_ = squares_;
    for (const auto& step : steps_)
      for (const TransferGroup& m : step)
        for (const int32_t c : m.chunks) used_[{m.first.to, c, m.first.target.slot}];
    block_ = columns_ * side_;
    row_ = (1 + check_.slots) * lines_ * side_ + 16 + 3 * check_.slots;
    title_ = title(algorithm, r_, check_);
  }

  std::string draw() {
    const int count = int(steps_.size()), fit = std::max(1, int((page - left - block_) / (block_ + gap)));
    const int bands = std::max(1, (count + fit - 1) / fit), per_band = (count + bands - 1) / bands;
    const std::string legend =
        std::string(is_reduction(r_.collective)
                        ? "Fill: share of the terms summed; +: added in this step; dark frame: complete sum."
                        : "Filled: the rank has the chunk; dark frame: received in this step.") +
        (check_.slots > 0 ? " Below: scratch copies." : "");
    const double words = 20 + std::max(7.6 * double(title_.size()), 6.1 * double(legend.size()));
    const double band_height = 26 + r_.ranks * row_ + 10,
                 width = std::max(left + block_ + per_band * (block_ + gap) + 16, words);
    for (int band = 0; band < bands; ++band) {
      const double top = 56 + band * band_height;
      const int begin = band * per_band, end = std::min(count, begin + per_band);
      for (int rank = 0; rank < r_.ranks; ++rank)
        text(8, y(top, rank, {0, 0}) + lines_ * side_ / 2. + 4, str("rank ", rank), 12, ink, "start");
      state(top, 0, begin == 0 ? "start" : "");
      for (int s = begin; s < end; ++s) step(top, s - begin, s);
    }
    const double height = 56 + bands * band_height;
    text(8, 20, title_, 14, ink, "start");
    text(8, 38, legend, 11.5, "#57606a", "start");
    flush();
    return svg::begin(width, height, style()) + parts_ + svg::end;
  }

 private:
  using Key = std::tuple<int, int32_t, int32_t>;  // rank, chunk, slot
  Square& square(int rank, const ChunkSlot& p) { return squares_[{rank, p.chunk, p.slot}]; }
  double x(int column, const ChunkSlot& p) const { return left + column * (block_ + gap) + p.chunk % columns_ * side_; }
  double y(double top, int rank, const ChunkSlot& p) const {
    return top + 26 + rank * row_ + p.slot * (lines_ * side_ + 3) + p.chunk / columns_ * side_;
  }
  /// Adds a path. Paths of one CSS class `look` are written as one element.
  void add(const std::string& look, const std::string& path) { paths_[look] += path; }
  void flush() {
    for (const auto& [look, path] : paths_) parts_ += "<path class=\"" + look + "\" d=\"" + path + "\"/>\n";
    paths_.clear();
    parts_ += texts_;
    texts_.clear();
  }
  static std::string box(double px, double py, double w, double h) {
    return format("M%.5g %.5gh%.4gv%.4gh-%.4gz", px, py, w, h, w);
  }
  /// Draws the squares of all ranks as they are after a step, in one column.
  void state(double top, int column, const std::string& name) {
    text(left + column * (block_ + gap) + block_ / 2, top + 14, name, 11.5, "#57606a", "middle");
    const int all = is_reduction(r_.collective) ? r_.ranks : 1;
    for (const auto& [key, nothing] : used_) {
      const auto [rank, chunk, slot] = key;
      const Square& s = square(rank, {chunk, slot});
      const double px = x(column, {chunk, slot}), py = y(top, rank, {chunk, slot}), size = side_ - 2;
      const double part = s.terms == 0 ? 0 : std::max(0.15, std::min(1., double(s.terms) / all));
      const bool marked = is_reduction(r_.collective) ? s.terms >= all : s.arrived;
      if (part > 0) add(str("f", color(chunk)), box(px, py + size * (1 - part), size, size * part));
      add(marked ? "m" : part > 0 ? str("o", color(chunk)) : "e", box(px, py, size, size));
      if (s.added || s.divided)
        text(px + size / 2, py + size / 2 + side_ * 0.26, s.added ? "+" : "÷", side_ * 0.8,
             s.terms * 2 > all ? "white" : ink, "middle");
    }
    flush();
  }
  /// Draws the transfers of step s, and the squares of all ranks as they are after it.
  void step(double top, int column, int s) {
    for (auto& [key, one] : squares_) one = {one.terms};
    const auto before = squares_;
    bool crosses = false;
    for (const TransferGroup& m : steps_[size_t(s)]) {
      const Transfer& t = m.first;
      crosses |= t.from != t.to;
      for (size_t i = 0; i < m.chunks.size(); ++i) {
        const int32_t chunk = m.chunks[i];
        Square& target = square(t.to, {chunk, t.target.slot});
        const auto source = before.find({t.from, chunk, t.source.slot});
        const int terms = source == before.end() ? 0 : source->second.terms;
        target = {t.action == TransferAction::reduce ? target.terms + terms : terms, t.action == TransferAction::reduce,
                  true, t.action == TransferAction::scale};
        if (t.action == TransferAction::scale) continue;
        const double offset =
            std::min(3., lines_ * side_ / double(m.chunks.size())) * (double(i) - double(m.chunks.size() - 1) / 2);
        const auto middle = [&](int rank, int slot) {
          return y(top, rank, {0, slot}) + lines_ * side_ / 2. - 1 + offset;
        };
        arrow(left + column * (block_ + gap) + block_, middle(t.from, t.source.slot),
              left + (column + 1) * (block_ + gap) - 3, middle(t.to, t.target.slot), color(chunk));
      }
      // After an addition inside one rank, the scratch copy that was added is not needed any more: draw it as empty.
      if (t.from == t.to && t.action == TransferAction::reduce)
        for (const int32_t chunk : m.chunks) square(t.from, {chunk, t.source.slot}) = {};
    }
    state(top, column + 1, str("step ", s, crosses ? "" : " (own)"));
  }
  void arrow(double x1, double y1, double x2, double y2, int which) {
    const double bend = (x2 - x1) * 0.45, tip = 5;
    add(str("a", which),
        format("M%.5g %.5gC%.5g %.5g %.5g %.5g %.5g %.5g", x1, y1, x1 + bend, y1, x2 - bend, y2, x2 - tip, y2));
    add(str("f", which), format("M%.5g %.5gl-%.4g -3v6z", x2, y2, tip));
  }
  void text(double px, double py, const std::string& words, double size, const char* c, const char* anchor) {
    if (!words.empty()) texts_ += svg::text(px, py, words, size, c, anchor);
  }
  /// Index of a chunk's colour. Chunks c and c + columns_ have the same colour.
  int color(int32_t chunk) const { return chunk % columns_; }
  std::string style() const {
    std::string all =
        format("<style>path{fill:none}.m{stroke:%s;stroke-width:1.3}.e{stroke:%s;stroke-width:.8}", ink, faint);
    for (int i = 0; i < columns_; ++i) {
      // Neighbouring colours differ in lightness too.
      const std::string hsl = format("hsl(%.0f,62%%,%d%%)", std::fmod(212 + 360. * i / columns_, 360), i % 2 ? 42 : 56);
      all += format("path.f%d{fill:%s}.o%d{stroke:%s;stroke-width:.8}.a%d{stroke:%s;stroke-width:1.3}", i, hsl.c_str(),
                    i, hsl.c_str(), i, hsl.c_str());
    }
    return all + "</style>\n";
  }

  const CollectiveRequest& r_;
  std::vector<std::vector<TransferGroup>> steps_;
  CollectiveCheck check_;
  int columns_ = 1, lines_ = 1;  // chunks per block, horizontally and vertically
  double side_ = 0, block_ = 0, row_ = 0;
  std::map<Key, Square> squares_, used_;
  std::map<std::string, std::string> paths_;
  std::string title_, parts_, texts_;
};

}  // namespace

std::string draw_svg(Algorithm algorithm, const CollectiveRequest& request) {
  LOCKSTEP_CHECK(request.ranks <= 16, "[draw] expected 16 ranks or fewer, got ", request.ranks,
                 "; a picture with more ranks is unreadable; use the table");
  return Picture(algorithm, request).draw();
}

}  // namespace lockstep::dist
