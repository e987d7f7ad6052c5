// schedule_check.cpp: runs a schedule on symbols instead of numbers, to check its results. See schedule_check.h.
#include "extensions/schedules/schedule_check.h"

#include <algorithm>

#include "dist/summation_tree.h"
#include "extensions/schedules/place_map.h"

namespace lockstep::dist {
namespace {

constexpr size_t max_errors = 8;

/// The symbolic contents of a place (a chunk, or a scratch copy of it), and the last transfers that used the place.
struct Cell {
  int64_t value = -1;                // -1: not written yet
  int32_t read = -1, written = -1;   // last step that read or wrote it
  int32_t reader = -1, writer = -1;  // the rank at the other end of that transfer
};

/// The rank that a chunk's data comes from, in collectives without a reduction.
int origin(const CollectiveRequest& r, int64_t chunk) {
  if (r.collective == Collective::all_to_all) return int(chunk / r.ranks);
  return r.collective == Collective::broadcast || r.collective == Collective::scatter ? r.root : int(chunk);
}

/// A sum as text: "((0+1)+(2+3))", "mean(0+1)". Terms are named by their ranks.
std::string write_sum(const CollectiveCheck& check, int64_t value, size_t longest) {
  std::string out;
  std::vector<std::pair<int64_t, const char*>> stack{{value, nullptr}};  // values, and texts between them
  while (!stack.empty()) {
    if (out.size() > longest) return out + "...";
    const auto [item, text] = stack.back();
    stack.pop_back();
    if (text != nullptr) {
      out += text;
    } else if (item < check.computed_from) {
      out += str(item / check.chunks);
    } else {
      const CollectiveCheck::Node& node = check.nodes[size_t(item - check.computed_from)];
      const bool divided = node.right < 0, bracketed = divided && node.left >= check.computed_from;
      out += divided ? bracketed ? "mean" : "mean(" : "(";
      if (!bracketed) stack.push_back({0, ")"});
      if (!divided) {
        stack.push_back({node.right, nullptr});
        stack.push_back({0, "+"});
      }
      stack.push_back({node.left, nullptr});
    }
  }
  return out;
}

class Checker {
 public:
  Checker(const CollectiveRequest& request, int64_t chunks)
      : request_(request), n_(request.ranks), places_(request.ranks, chunks) {
    check_.chunks = chunks;
    check_.computed_from = n_ * chunks;
    check_.sent.resize(size_t(n_));
    check_.received.resize(size_t(n_));
  }

  void add(const Transfer& t) {
    if (!well_formed(t)) return;
    if (t.step != step_) ++check_.steps;
    step_ = t.step;
    check_.slots = std::max({check_.slots, t.source.slot, t.target.slot});
    if (t.from == t.to) {
      ++check_.joins;
    } else {
      ++check_.transfers;
      check_.rounds += round_ != t.step;
      round_ = t.step;
      ++check_.sent[size_t(t.from)];
      ++check_.received[size_t(t.to)];
    }
    const int64_t read = value(places_.at(t.from, t.source), t.from, t.source);
    if (read < 0) return error(t, "reads a place that has not been written yet; write it in an earlier step");
    if (t.action != TransferAction::scale) {
      Cell& source = places_.at(t.from, t.source);
      if (source.written == t.step)
        return error(t, str("reads what rank ", source.writer, " writes in the same step: they wait for each other"));
      source.read = t.step;
      source.reader = t.to;
    }
    Cell& target = places_.at(t.to, t.target);
    if (target.read == t.step)
      return error(t, str("writes what rank ", target.reader, " reads in the same step: they wait for each other"));
    if (target.written == t.step) return error(t, str("writes where rank ", target.writer, " writes in the same step"));
    const int64_t old = value(target, t.to, t.target);
    if (t.action == TransferAction::reduce && old < 0) return error(t, "adds to a place that has not been written yet");
    target.written = t.step;
    target.writer = t.from;
    target.value = t.action == TransferAction::copy     ? read
                   : t.action == TransferAction::reduce ? sum(old, read)
                                                        : node(read, -1, lowest(read));
  }

  CollectiveCheck finish() {
    if (is_reduction(request_.collective)) check_.results.assign(size_t(check_.chunks), -1);
    // all_to_all has n·n chunks, of which each rank must hold every n-th.
    const bool all_to_all = request_.collective == Collective::all_to_all;
    for (int rank = 0; rank < n_; ++rank) {
      for (int64_t chunk = all_to_all ? rank : 0; chunk < check_.chunks; chunk += all_to_all ? n_ : 1) {
        if (!ends_with(request_, rank, chunk)) continue;
        const ChunkSlot place{int32_t(chunk), 0};
        const int64_t found = value(places_.at(rank, place), rank, place);
        const int64_t expected = origin(request_, chunk) * check_.chunks + chunk;
        if (is_reduction(request_.collective)) check_sum(rank, chunk, found);
        else if (found != expected)
          error(str("at the end rank ", rank, " should have ", text(expected), " as chunk ", chunk, ", but has ",
                    text(found)));
      }
    }
    check_.in_tree_order.resize(check_.results.size());
    for (size_t c = 0; c < check_.results.size(); ++c)
      check_.in_tree_order[c] = check_.right() && is_tree(check_.results[c]);
    return std::move(check_);
  }

 private:
  bool well_formed(const Transfer& t) {
    const auto rank = [&](int r) { return r >= 0 && r < n_; };
    const auto place = [&](const ChunkSlot& p) {
      return p.chunk >= 0 && p.chunk < check_.chunks && p.slot >= 0 && p.slot <= PlaceMap<Cell>::max_slot;
    };
    const bool same = t.from == t.to && t.source == t.target;
    const char* wrong =
        !rank(t.from) || !rank(t.to)                 ? "names a rank out of range; use 0 to ranks - 1"
        : !place(t.source) || !place(t.target)       ? "names a chunk or slot out of range; use 0 to chunks - 1"
        : t.step < std::max(step_, 0)                ? "comes after a later step; sort them by step"
        : t.action == TransferAction::scale && !same ? "divides from one place into another; it must do so in place"
        : t.action != TransferAction::scale && same  ? "has the same source and target; leave it out"
                                                     : nullptr;
    if (wrong != nullptr) error(t, wrong);
    return wrong == nullptr;
  }

  int64_t value(const Cell& cell, int rank, const ChunkSlot& p) const {
    if (cell.value >= 0 || p.slot != 0 || !starts_with(request_, rank, p.chunk)) return cell.value;
    return rank * check_.chunks + p.chunk;
  }
  int lowest(int64_t value) const {
    return value < check_.computed_from ? int(value / check_.chunks)
                                        : check_.nodes[size_t(value - check_.computed_from)].lowest;
  }
  int64_t node(int64_t left, int64_t right, int low) {
    check_.nodes.push_back({left, right, low});
    return check_.computed_from + int64_t(check_.nodes.size()) - 1;
  }
  /// Puts the operand with the lowest rank on the left: a + b and b + a have the same bits, so they become one symbol.
  int64_t sum(int64_t a, int64_t b) { return lowest(a) <= lowest(b) ? node(a, b, lowest(a)) : node(b, a, lowest(b)); }
  /// True if two values are the same sum in the same order. `known` must contain no term twice.
  bool same(int64_t known, int64_t other) const {
    std::vector<std::pair<int64_t, int64_t>> stack{{known, other}};
    while (!stack.empty()) {
      const auto [a, b] = stack.back();
      stack.pop_back();
      if (a == b) continue;
      if (a < check_.computed_from || b < check_.computed_from || (nodes(a).right < 0) != (nodes(b).right < 0))
        return false;
      stack.emplace_back(nodes(a).left, nodes(b).left);
      if (nodes(a).right >= 0) stack.emplace_back(nodes(a).right, nodes(b).right);
    }
    return true;
  }

  void check_sum(int rank, int64_t chunk, int64_t found) {
    int64_t& result = check_.results[size_t(chunk)];
    if (result == found && found >= 0) return;  // checked already
    if (result >= 0) {
      if (found >= 0 && (!check_.right() || same(result, found))) return;
      return error(str("at the end chunk ", chunk, " differs between ranks: rank ", rank, " has ", text(found),
                       ", another ", text(result)));
    }
    result = found;
    const auto wrong = [&](const std::string& what) {
      error(str("at the end chunk ", chunk, " of rank ", rank, " ", what, ": ", text(found)));
    };
    if (found < 0) return wrong("is missing");
    const bool divided = found >= check_.computed_from && nodes(found).right < 0;
    if (divided != request_.mean)
      return wrong(divided ? "was divided, but no mean was asked for" : "was not divided by the number of ranks");
    visited_.assign(size_t(n_), false);
    int64_t terms = 0;
    std::vector<int64_t> stack{divided ? nodes(found).left : found};
    while (!stack.empty()) {
      const int64_t value = stack.back();
      stack.pop_back();
      if (value >= check_.computed_from) {
        if (nodes(value).right < 0) return wrong("was divided more than once, or before its sum was complete");
        stack.push_back(nodes(value).left);
        stack.push_back(nodes(value).right);
        continue;
      }
      const int64_t owner = value / check_.chunks;
      if (value % check_.chunks != chunk) return wrong(str("holds ", text(value)));
      if (visited_[size_t(owner)]) return wrong(str("holds the term of rank ", owner, " twice"));
      visited_[size_t(owner)] = true;
      ++terms;
    }
    if (terms < n_)
      wrong(str("lacks the term of rank ", std::find(visited_.begin(), visited_.end(), false) - visited_.begin()));
  }

  bool is_tree(int64_t result) const {
    struct Part {
      int64_t value, begin, end;
    };
    std::vector<Part> stack{{request_.mean ? nodes(result).left : result, 0, n_}};
    while (!stack.empty()) {
      const Part p = stack.back();
      stack.pop_back();
      if ((p.end - p.begin == 1) != (p.value < check_.computed_from) || lowest(p.value) != p.begin) return false;
      if (p.end - p.begin == 1) continue;
      const int64_t middle = tree_split(p.begin, p.end);  // sum() puts the lower ranks on the left
      stack.push_back({nodes(p.value).left, p.begin, middle});
      stack.push_back({nodes(p.value).right, middle, p.end});
    }
    return true;
  }
  const CollectiveCheck::Node& nodes(int64_t value) const { return check_.nodes[size_t(value - check_.computed_from)]; }

  std::string text(int64_t value) const {
    if (value < 0) return "nothing";
    if (value < check_.computed_from) return str("chunk ", value % check_.chunks, " of rank ", value / check_.chunks);
    return write_sum(check_, value, 100);
  }
  void error(const Transfer& t, const std::string& what) {
    error(str("step ", t.step, ": rank ", t.from, " -> rank ", t.to, " (chunk ", t.source.chunk,
              t.source.slot ? str(" slot ", t.source.slot) : "", " to chunk ", t.target.chunk,
              t.target.slot ? str(" slot ", t.target.slot) : "", ") ", what));
  }
  void error(std::string text) {
    if (check_.errors.size() < max_errors) check_.errors.push_back(std::move(text));
  }

  const CollectiveRequest& request_;
  const int64_t n_;
  int32_t step_ = -1, round_ = -1;
  PlaceMap<Cell> places_;
  std::vector<bool> visited_;
  CollectiveCheck check_;
};

}  // namespace

bool starts_with(const CollectiveRequest& r, int rank, int64_t chunk) {
  switch (r.collective) {
    case Collective::all_gather:
    case Collective::gather: return chunk == rank;
    case Collective::broadcast:
    case Collective::scatter: return rank == r.root;
    case Collective::all_to_all: return chunk / r.ranks == rank;
    default: return true;
  }
}

bool ends_with(const CollectiveRequest& r, int rank, int64_t chunk) {
  switch (r.collective) {
    case Collective::reduce_scatter:
    case Collective::scatter: return chunk == rank;
    case Collective::reduce:
    case Collective::gather: return rank == r.root;
    case Collective::all_to_all: return chunk % r.ranks == rank;
    default: return true;
  }
}

CollectiveCheck check_schedule(Algorithm algorithm, const CollectiveRequest& request) {
  Checker checker(request, chunk_count(algorithm, request));
  visit_schedule(algorithm, request, [&](const Transfer& t) { checker.add(t); });
  return checker.finish();
}

CollectiveCheck check_transfers(std::span<const Transfer> transfers, const CollectiveRequest& request, int64_t chunks) {
  LOCKSTEP_CHECK(request.ranks >= 1 && chunks >= 1, "[schedule] expected 1 rank and 1 chunk or more, got ",
                 request.ranks, " and ", chunks);
  Checker checker(request, chunks);
  for (const Transfer& t : transfers) checker.add(t);
  return checker.finish();
}

bool CollectiveCheck::all_in_tree_order() const {
  return !in_tree_order.empty() && std::ranges::count(in_tree_order, false) == 0;
}

std::string CollectiveCheck::order(int64_t chunk) const {
  LOCKSTEP_CHECK(chunk >= 0 && chunk < chunks, "[schedule] expected a chunk from 0 to ", chunks - 1, ", got ", chunk);
  if (results.empty() || results[size_t(chunk)] < 0) return "";
  return write_sum(*this, results[size_t(chunk)], size_t(-1));
}

}  // namespace lockstep::dist
