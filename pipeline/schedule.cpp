// Builds a schedule by the rules of its kind, which schedules/KIND.cpp defines. See schedule.h.
#include "pipeline/schedule.h"

#include <algorithm>
#include <deque>
#include <set>

#include "base/check.h"
#include "base/suggest.h"
#include "pipeline/schedules/rules.h"

namespace lockstep::pipeline {
namespace {

const ScheduleRules* const kinds[] = {
#define KIND(x) &rules::x,
#include "pipeline/schedules/kinds.def"
#undef KIND
};
const ScheduleRules& rules_of(ScheduleKind kind) { return *kinds[size_t(kind)]; }

constexpr int max_stages = 4096, max_micro_batches = 1 << 20, max_chunks = 64;

/// Returns the request with the number of chunks filled in. Error if no schedule exists for the request.
PipelineRequest checked(PipelineRequest r) {
  const ScheduleRules& rules = rules_of(r.kind);
  const std::string what = str("[schedule] ", name_of(r.kind), ": expected ");
  r.chunks = chunks_of(r);
  LOCKSTEP_CHECK(r.stages >= 1 && r.stages <= max_stages, what, "1 to ", max_stages, " stages, got ", r.stages);
  LOCKSTEP_CHECK(r.micro_batches >= 1 && r.micro_batches <= max_micro_batches, what, "1 to ", max_micro_batches,
                 " micro-batches, got ", r.micro_batches);
  LOCKSTEP_CHECK(r.chunks >= 1 && r.chunks <= max_chunks, what, "1 to ", max_chunks, " chunks a rank, got ", r.chunks);
  LOCKSTEP_CHECK(rules.any_chunks || r.chunks == rules.chunks, what, rules.chunks, " chunk",
                 rules.chunks > 1 ? "s" : "", " a rank, got ", r.chunks,
                 rules.chunks == 1 ? "; use interleaved for several" : "");
  const std::string refusal = rules.refusal ? rules.refusal(r) : "";
  LOCKSTEP_CHECK(refusal.empty(), what, refusal);
  return r;
}

}  // namespace

int chunks_of(const PipelineRequest& r) { return r.chunks == 0 ? rules_of(r.kind).chunks : r.chunks; }

std::string refusal_of(const PipelineRequest& request) {
  try {
    checked(request);
  } catch (const Error& error) { return std::string(error.what()).substr(std::string_view("[schedule] ").size()); }
  return "";
}

std::vector<std::string> names_of_kinds() {
  std::vector<std::string> names;
  for (const ScheduleRules* rules : kinds) names.emplace_back(rules->name);
  return names;
}

std::string_view name_of(ScheduleKind kind) { return rules_of(kind).name; }
bool is_kind(std::string_view name) {
  return std::any_of(std::begin(kinds), std::end(kinds),
                     [&](const ScheduleRules* rules) { return rules->name == name; });
}

ScheduleKind parse_kind(std::string_view name) {
  const std::vector<std::string> known = names_of_kinds();
  const auto found = std::find(known.begin(), known.end(), name);
  LOCKSTEP_CHECK(found != known.end(), "[schedule] expected ", listed(known), ", got \"", name, "\"",
                 suggestion(name, known));
  return ScheduleKind(found - known.begin());
}

int PipelineSchedule::virtual_stage(int rank, int chunk) const {
  if (rules_of(request.kind).is_v && chunk == 1) return 2 * request.stages - 1 - rank;
  return chunk * request.stages + rank;
}

PipelineSchedule::Position PipelineSchedule::place(int stage) const {
  const int chunk = stage / request.stages, rank = stage % request.stages;
  return {rules_of(request.kind).is_v && chunk == 1 ? request.stages - 1 - rank : rank, chunk};
}

namespace {

/// Returns `list` with transfers: a computation's receives come before it, its sends after it. near: false adds the
/// transfers between ranks, true those between chunks of this rank.
std::vector<StepAction> with_transfers(const PipelineSchedule& s, int rank, const std::vector<StepAction>& list,
                                       bool near = false) {
  std::vector<StepAction> all;
  for (const StepAction& a : list) {
    const int stage = s.virtual_stage(rank, a.chunk), last = s.virtual_stages() - 1;
    const bool before = stage > 0 && (s.place(stage - 1).rank == rank) == near,
               after = stage < last && (s.place(stage + 1).rank == rank) == near;
    const bool is_forward = a.what == Do::forward, is_input = a.what == Do::backward || a.what == Do::backward_input;
    const auto transfer = [&](bool wanted, Do what) {
      if (wanted) all.push_back({what, a.micro_batch, a.chunk});
    };
    transfer(is_forward && before, Do::receive_activation);
    transfer(is_input && after, Do::receive_gradient);
    all.push_back(a);
    transfer(is_forward && after, Do::send_activation);
    transfer(is_input && before, Do::send_gradient);
  }
  return all;
}

}  // namespace

PipelineSchedule make_schedule(const PipelineRequest& request) {
  PipelineSchedule s{checked(request), {}};
  for (int rank = 0; rank < s.request.stages; ++rank)
    s.ranks.push_back(with_transfers(s, rank, rules_of(request.kind).computations(s.request, rank)));
  return s;
}

BubbleFormula formula(const PipelineRequest& request, const StageCosts& costs) {
  return rules_of(request.kind).bubble(checked(request), costs);
}

namespace {

/// Completes the list of one rank. A schedule's list, `given`, has only computations and transfers between ranks.
std::vector<StepAction> completed(const PipelineSchedule& s, int rank, const std::vector<StepAction>& given,
                                  const Ties& ties, bool trains) {
  const std::vector<StepAction> list = with_transfers(s, rank, given, true);
  std::vector<StepAction> all;
  std::deque<StepAction> late;  // micro-batches whose tied gradients come from a later stage
  std::set<int> loaded;
  const auto add_late = [&](size_t limit) {
    for (; late.size() > limit; late.pop_front()) all.push_back(late.front());
  };
  for (size_t i = 0; i < list.size(); ++i) {
    const StepAction& a = list[i];
    const int stage = s.virtual_stage(rank, a.chunk);
    const bool is_end = stage == 0 || stage + 1 == s.virtual_stages();
    if (a.what == Do::forward && is_end && loaded.insert(a.micro_batch).second)
      all.push_back({Do::draw, a.micro_batch, a.chunk});
    if (a.what == Do::backward) add_late(0);  // sums take micro-batches in order
    all.push_back(a);
    if (a.what != Do::backward && a.what != Do::backward_weight) continue;
    const StepAction add{Do::add, a.micro_batch, a.chunk};
    if (i + 1 < list.size() && list[i + 1] == StepAction{Do::send_gradient, a.micro_batch, a.chunk})
      all.push_back(list[++i]);  // the previous stage waits for this gradient
    const bool waits = std::any_of(ties.begin(), ties.end(), [&](const auto& tie) { return tie.to == stage; });
    constexpr size_t max_late = 2;  // each of them keeps the gradients of a chunk in memory
    if (a.what == Do::backward_weight && waits) late.push_back(add), add_late(max_late);
    else all.push_back(add);
  }
  add_late(0);
  parallel::add_tail(all, trains);
  return all;
}

}  // namespace

Lists step_of(const PipelineSchedule& s, const Ties& ties) {
  Lists all;
  for (size_t rank = 0; rank < s.ranks.size(); ++rank)
    all.push_back(completed(s, int(rank), s.ranks[rank], ties, true));
  return all;
}

/// With n ranks, each rank runs micro-batches 0 to n - 1 through its first chunk of layers, then through its second,
/// ... Then the next n micro-batches, and so on.
Lists evaluation_of(const PipelineSchedule& s, int micro_batches) {
  Lists all;
  for (int rank = 0; rank < s.request.stages; ++rank) {
    std::vector<StepAction> forwards;
    for (int first = 0; first < micro_batches; first += s.request.stages)
      for (int chunk = 0; chunk < s.request.chunks; ++chunk)
        for (int i = first; i < std::min(first + s.request.stages, micro_batches); ++i)
          forwards.push_back({Do::forward, i, chunk});
    all.push_back(completed(s, rank, with_transfers(s, rank, forwards), {}, false));
  }
  return all;
}

}  // namespace lockstep::pipeline
