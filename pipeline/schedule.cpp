#include "pipeline/schedule.h"

#include <algorithm>

#include "tensor/check.h"
#include "tensor/suggest.h"

namespace lockstep::pipeline {
namespace {

constexpr std::string_view kinds[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe-v"};
constexpr std::string_view whats[] = {"forward", "backward", "backward of the input", "backward of the weights", "sending the activation", "receiving the activation",
                                      "sending the gradient", "receiving the gradient"};
constexpr int most_stages = 4096, most_micro_batches = 1 << 20, most_chunks = 64;

/// Fills in the chunks; Error when there is no schedule for these numbers.
Request checked(Request r) {
  const bool has_chunks = r.kind == Kind::interleaved || r.kind == Kind::dualpipe_v;
  const std::string what = str("[schedule] ", name_of(r.kind), ": expected ");
  if (r.chunks == 0) r.chunks = has_chunks ? 2 : 1;
  LOCKSTEP_CHECK(r.stages >= 1 && r.stages <= most_stages, what, "1 to ", most_stages, " stages, got ", r.stages);
  LOCKSTEP_CHECK(r.micro_batches >= 1 && r.micro_batches <= most_micro_batches, what, "1 to ", most_micro_batches, " micro-batches, got ", r.micro_batches);
  LOCKSTEP_CHECK(r.chunks >= 1 && r.chunks <= most_chunks, what, "1 to ", most_chunks, " chunks a rank, got ", r.chunks);
  LOCKSTEP_CHECK(has_chunks || r.chunks == 1, what, "1 chunk a rank, got ", r.chunks, "; interleaved has several");
  if (r.kind == Kind::interleaved) {
    const int below = r.micro_batches / r.stages * r.stages, above = below + r.stages;
    LOCKSTEP_CHECK(r.micro_batches % r.stages == 0, what, "micro-batches in groups of as many as there are stages (", r.stages, "), got ", r.micro_batches, "; use ",
                   below > 0 ? str(below, " or ", above) : str(above), ", or 1f1b, which takes any number");
  }
  if (r.kind == Kind::dualpipe_v) {
    LOCKSTEP_CHECK(r.chunks == 2, what, "2 chunks a rank, got ", r.chunks);
    LOCKSTEP_CHECK(r.micro_batches >= 2 * r.stages, what, "at least two micro-batches a stage (", 2 * r.stages, "), got ", r.micro_batches, "; zb-h1 and 1f1b take any number");
  }
  return r;
}

std::vector<Action> computations(const Request& r, int rank) {
  switch (r.kind) {
    case Kind::gpipe: return gpipe(r, rank);
    case Kind::one_f_one_b: return one_f_one_b(r, rank);
    case Kind::interleaved: return interleaved(r, rank);
    case Kind::zb_h1: return zb_h1(r, rank);
    case Kind::dualpipe_v: return dualpipe_v(r, rank);
  }
  fail("[schedule] unknown kind");
}

}  // namespace

std::string_view name_of(Kind kind) { return kinds[size_t(kind)]; }
std::string_view name_of(What what) { return whats[size_t(what)]; }
bool is_kind(std::string_view name) { return std::find(std::begin(kinds), std::end(kinds), name) != std::end(kinds); }

Kind parse_kind(std::string_view name) {
  const auto found = std::find(std::begin(kinds), std::end(kinds), name);
  if (found != std::end(kinds)) return Kind(found - std::begin(kinds));
  fail(str("[schedule] expected one of gpipe, 1f1b, interleaved, zb-h1 and dualpipe-v, got \"", name, "\"", suggestion(name, {std::begin(kinds), std::end(kinds)})));
}

std::string to_string(const Action& a) { return str(name_of(a.what), " of micro-batch ", a.micro_batch, a.chunk > 0 ? str(", chunk ", a.chunk) : ""); }

int Schedule::virtual_stage(int rank, int chunk) const {
  if (request.kind == Kind::dualpipe_v && chunk == 1) return 2 * request.stages - 1 - rank;
  return chunk * request.stages + rank;
}

Schedule::Place Schedule::place(int stage) const {
  const int chunk = stage / request.stages, rank = stage % request.stages;
  return {request.kind == Kind::dualpipe_v && chunk == 1 ? request.stages - 1 - rank : rank, chunk};
}

Schedule make_schedule(const Request& request) {
  Schedule s{checked(request), {}};
  for (int rank = 0; rank < s.request.stages; ++rank) {
    std::vector<Action>& list = s.ranks.emplace_back();
    for (const Action& a : computations(s.request, rank)) {
      const int stage = s.virtual_stage(rank, a.chunk);
      const bool before = stage > 0 && s.place(stage - 1).rank != rank, after = stage + 1 < s.virtual_stages() && s.place(stage + 1).rank != rank;
      const bool is_forward = a.what == What::forward, is_weight = a.what == What::backward_weight;
      const auto transfer = [&](What what) { list.push_back({what, a.micro_batch, a.chunk}); };
      if (is_forward && before) transfer(What::receive_activation);
      if (!is_forward && !is_weight && after) transfer(What::receive_gradient);
      list.push_back(a);
      if (is_forward && after) transfer(What::send_activation);
      if (!is_forward && !is_weight && before) transfer(What::send_gradient);
    }
  }
  return s;
}

}  // namespace lockstep::pipeline
