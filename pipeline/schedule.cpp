// Builds a schedule by the rules of its kind, which schedules/KIND.cpp defines. See schedule.h.
#include "pipeline/schedule.h"

#include <algorithm>

#include "base/check.h"
#include "base/suggest.h"
#include "pipeline/schedules/rules.h"

namespace lockstep::pipeline {
namespace {

const Rules* const kinds[] = {
#define KIND(x) &rules::x,
#include "pipeline/schedules/kinds.def"
#undef KIND
};
const Rules& rules_of(Kind kind) { return *kinds[size_t(kind)]; }

constexpr std::string_view whats[] = {"forward",
                                      "backward",
                                      "backward of the input",
                                      "backward of the weights",
                                      "sending the activation",
                                      "receiving the activation",
                                      "sending the gradient",
                                      "receiving the gradient"};
constexpr int most_stages = 4096, most_micro_batches = 1 << 20, most_chunks = 64;

/// Returns the request with the number of chunks filled in. Error if no schedule exists for the request.
Request checked(Request r) {
  const Rules& rules = rules_of(r.kind);
  const std::string what = str("[schedule] ", name_of(r.kind), ": expected ");
  r.chunks = chunks_of(r);
  LOCKSTEP_CHECK(r.stages >= 1 && r.stages <= most_stages, what, "1 to ", most_stages, " stages, got ", r.stages);
  LOCKSTEP_CHECK(r.micro_batches >= 1 && r.micro_batches <= most_micro_batches, what, "1 to ", most_micro_batches,
                 " micro-batches, got ", r.micro_batches);
  LOCKSTEP_CHECK(r.chunks >= 1 && r.chunks <= most_chunks, what, "1 to ", most_chunks, " chunks a rank, got ",
                 r.chunks);
  LOCKSTEP_CHECK(rules.any_chunks || r.chunks == rules.chunks, what, rules.chunks, " chunk",
                 rules.chunks > 1 ? "s" : "", " a rank, got ", r.chunks,
                 rules.chunks == 1 ? "; interleaved has several" : "");
  const std::string refusal = rules.refusal ? rules.refusal(r) : "";
  LOCKSTEP_CHECK(refusal.empty(), what, refusal);
  return r;
}

}  // namespace

int chunks_of(const Request& r) { return r.chunks == 0 ? rules_of(r.kind).chunks : r.chunks; }

std::string refusal_of(const Request& request) {
  try {
    checked(request);
  } catch (const Error& error) { return std::string(error.what()).substr(std::string_view("[schedule] ").size()); }
  return "";
}

std::vector<std::string> names_of_kinds() {
  std::vector<std::string> names;
  for (const Rules* rules : kinds) names.emplace_back(rules->name);
  return names;
}

std::string_view name_of(Kind kind) { return rules_of(kind).name; }
std::string_view name_of(What what) { return whats[size_t(what)]; }
bool is_kind(std::string_view name) {
  return std::any_of(std::begin(kinds), std::end(kinds), [&](const Rules* rules) { return rules->name == name; });
}

Kind parse_kind(std::string_view name) {
  const std::vector<std::string> known = names_of_kinds();
  const auto found = std::find(known.begin(), known.end(), name);
  LOCKSTEP_CHECK(found != known.end(), "[schedule] expected ", listed(known), ", got \"", name, "\"",
                 suggestion(name, known));
  return Kind(found - known.begin());
}

std::string to_string(const Action& a) {
  return str(name_of(a.what), " of micro-batch ", a.micro_batch, a.chunk > 0 ? str(", chunk ", a.chunk) : "");
}

int Schedule::virtual_stage(int rank, int chunk) const {
  if (rules_of(request.kind).is_v && chunk == 1) return 2 * request.stages - 1 - rank;
  return chunk * request.stages + rank;
}

Schedule::Position Schedule::place(int stage) const {
  const int chunk = stage / request.stages, rank = stage % request.stages;
  return {rules_of(request.kind).is_v && chunk == 1 ? request.stages - 1 - rank : rank, chunk};
}

namespace {

/// The computations of a rank, each preceded by its receive and followed by its send.
std::vector<Action> with_transfers(const Schedule& s, int rank, const std::vector<Action>& computations) {
  std::vector<Action> list;
  for (const Action& a : computations) {
    const int stage = s.virtual_stage(rank, a.chunk);
    const bool before = s.is_remote(stage - 1, rank), after = s.is_remote(stage + 1, rank);
    const bool is_forward = a.what == What::forward, is_weight = a.what == What::backward_weight;
    const auto transfer = [&](What what) { list.push_back({what, a.micro_batch, a.chunk}); };
    if (is_forward && before) transfer(What::receive_activation);
    if (!is_forward && !is_weight && after) transfer(What::receive_gradient);
    list.push_back(a);
    if (is_forward && after) transfer(What::send_activation);
    if (!is_forward && !is_weight && before) transfer(What::send_gradient);
  }
  return list;
}

}  // namespace

Schedule make_schedule(const Request& request) {
  Schedule s{checked(request), {}};
  for (int rank = 0; rank < s.request.stages; ++rank)
    s.ranks.push_back(with_transfers(s, rank, rules_of(request.kind).computations(s.request, rank)));
  return s;
}

Formula formula(const Request& request, const Costs& costs) {
  return rules_of(request.kind).bubble(checked(request), costs);
}

/// With n ranks, each rank runs micro-batches 0 to n - 1 through its first chunk of layers, then through its second,
/// ... Then the next n micro-batches, and so on.
std::vector<std::vector<Action>> forwards_of(const Schedule& s, int micro_batches) {
  std::vector<std::vector<Action>> all;
  for (int rank = 0; rank < s.request.stages; ++rank) {
    std::vector<Action> forwards;
    for (int first = 0; first < micro_batches; first += s.request.stages)
      for (int chunk = 0; chunk < s.request.chunks; ++chunk)
        for (int i = first; i < std::min(first + s.request.stages, micro_batches); ++i)
          forwards.push_back({What::forward, i, chunk});
    all.push_back(with_transfers(s, rank, forwards));
  }
  return all;
}

}  // namespace lockstep::pipeline
