// Pipeline schedules: valid for all sizes, as long as the papers say; and the checker finds invalid ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "pipeline/schedule_check.h"
#include "pipeline/simulate.h"
#include "tests/messages.h"
#include "tests/pipeline/custom_schedule.h"

using namespace lockstep;
using namespace lockstep::pipeline;

namespace {

constexpr int max_stages = 16, max_micro_batches = 64;

bool exists(ScheduleKind kind, int p, int m) {
  return message([&] { make_schedule({kind, p, m}); }) == "(no error)";
}

/// Calls fn(schedule) for every number of stages and micro-batches that the kind supports.
template <class Fn> void for_all(ScheduleKind kind, const Fn& fn) {
  for (int p = 1; p <= max_stages; ++p) {
    for (int m = 1; m <= max_micro_batches; ++m) {
      if (!exists(kind, p, m)) continue;
      for (const int v : kind == ScheduleKind::interleaved ? std::vector<int>{1, 2, 3, 5} : std::vector<int>{0})
        fn(make_schedule({kind, p, m, v}));
    }
  }
}

/// The papers' bound on the number of activations that a rank keeps.
int activations_kept(const PipelineRequest& r, int rank) {
  switch (r.kind) {
    case ScheduleKind::gpipe: return r.micro_batches;
    case ScheduleKind::one_f_one_b: return std::min(r.stages - rank, r.micro_batches);
    case ScheduleKind::interleaved:
      return std::min(2 * (r.stages - rank - 1) + (r.chunks - 1) * r.stages + 1, r.micro_batches * r.chunks);
    case ScheduleKind::zb_h1: return std::min(r.stages, r.micro_batches);
    case ScheduleKind::dualpipe_v: return 2 * r.stages + 1;
  }
  return -1;
}

}  // namespace

TEST_CASE("pipeline schedules: right for 1 to 16 stages and 1 to 64 micro-batches, with the buffers of the paper") {
  for (const std::string& name : names_of_kinds()) {
    const ScheduleKind kind = parse_kind(name);
    int observed = 0;
    std::string wrong;
    for_all(kind, [&](const PipelineSchedule& s) {
      const PipelineCheck check = check_schedule(s);
      const int p = s.request.stages, m = s.request.micro_batches;
      const int64_t messages = s.request.kind == ScheduleKind::dualpipe_v
                                   ? int64_t(4) * (p - 1) * m
                                   : int64_t(2) * (p * s.request.chunks - 1) * m * (p > 1);
      std::string what = check.right() ? "" : check.errors[0];
      if (check.ahead != 2) what += str(" ahead ", check.ahead);
      if (check.messages != messages) what += str(" messages ", check.messages, " not ", messages);
      for (int rank = 0; rank < p; ++rank) {
        const int is = check.right() ? check.buffers[size_t(rank)] : 0, wanted = activations_kept(s.request, rank);
        if (s.request.kind == ScheduleKind::dualpipe_v ? is > wanted : is != wanted)
          what += str(" rank ", rank, " keeps ", is, " not ", wanted);
      }
      if (!what.empty() && wrong.empty()) wrong = str("p ", p, ", m ", m, ", v ", s.request.chunks, ": ", what);
      ++observed;
    });
    CAPTURE(name_of(kind));
    CHECK(wrong == "");
    CHECK(observed >= 700);
  }
}

TEST_CASE("pipeline schedules: on streams of devices, one for each way; with one for both they are found to deadlock") {
  for (const std::string& name : names_of_kinds()) {
    const ScheduleKind kind = parse_kind(name);
    CAPTURE(name);
    int observed = 0, stuck = 0;
    std::string wrong;
    for_all(kind, [&](const PipelineSchedule& s) {
      const int p = s.request.stages, m = s.request.micro_batches;
      if (p < 2 || p > 8 || m < 4 || m > 24) return;
      ++observed;
      stuck += !check_streams(s, {}, {.one_for_both_ways = true}).empty();
      PipelineSchedule evaluation = s;
      for (const int micro_batches : {1, m, 2 * m + 1}) {
        evaluation.ranks = evaluation_of(s, micro_batches);
        evaluation.request.micro_batches = micro_batches;
        for (const std::string& error : check_streams(evaluation))
          if (wrong.empty()) wrong = str("evaluation of ", micro_batches, ", p ", p, ", m ", m, ": ", error);
      }
    });
    CHECK(wrong == "");
    CHECK(observed > 50);
    // gpipe sends all activations before any gradient, so it cannot get stuck
    CHECK(stuck == (kind == ScheduleKind::gpipe ? 0 : observed));
  }
  const std::vector<std::string> errors =
      check_streams(make_schedule({ScheduleKind::one_f_one_b, 2, 4}), {}, {.one_for_both_ways = true});
  CHECK(errors == std::vector<std::string>{"deadlock: rank 0 waits for the gradient of micro-batch 1, stage 1",
                                           "deadlock: rank 1 waits for the activation of micro-batch 2, stage 0"});
  // Valid if sends do not block; if they do, enough of them must be allowed in flight.
  for (const auto& [micro_batches, ahead] : {std::pair{4, 2}, {8, 4}, {16, 8}, {32, 16}})
    CHECK(check_schedule(testing::chunk_by_chunk(2, micro_batches, 2)).ahead == ahead);
  CHECK(contains(check_streams(testing::chunk_by_chunk(2, 8, 2)).at(0),
                 "deadlock: rank 0 waits, before it sends the activation of micro-batch 6, stage 0, until"));
}

TEST_CASE("pipeline schedules: idle time matches the formula") {
  struct Row {
    ScheduleKind kind;
    std::vector<StageCosts> costs;
  };
  const StageCosts even, backward_heavy{1, 1.5, .5}, light{1.2, 1, .7}, forward_heavy{3, 1, 1};
  for (const auto& [kind, all] :
       {Row{ScheduleKind::gpipe, {even, backward_heavy, light, forward_heavy}},
        Row{ScheduleKind::one_f_one_b, {even, backward_heavy, light, forward_heavy}},
        Row{ScheduleKind::interleaved, {even, backward_heavy, light, forward_heavy}},
        Row{ScheduleKind::zb_h1,
            {even, light, {1, 1, .25}, forward_heavy, backward_heavy, {1, 1, 2}, {1, 2, 2}, {2, 1, 3}}},
        Row{ScheduleKind::dualpipe_v,
            {even, light, {1, 1, .25}, {2, 1, 1}, {1, 1, 1, 0, true}, {2, 2, .5, 0, true}}}}) {
    for (const StageCosts& costs : all) {
      double max_error = 0;
      for_all(kind, [&](const PipelineSchedule& s) {
        if (&costs != &all[0] && s.request.micro_batches % 5 > 1) return;  // some sizes are enough
        const Simulation run = simulate(s, costs);
        max_error = std::max(max_error, std::abs(run.bubble - formula(s.request, costs).bubble));
        const double work = s.request.micro_batches * (costs.forward + costs.input + costs.weight);
        for (const double busy : run.busy) max_error = std::max(max_error, std::abs(busy / work - 1));
      });
      CAPTURE(name_of(kind));
      CAPTURE(costs.forward);
      CAPTURE(costs.input);
      CAPTURE(costs.weight);
      CAPTURE(costs.paired);
      CHECK(max_error < 1e-9);
    }
  }
  // A formula that holds for some costs only says so.
  CHECK(contains(formula({ScheduleKind::dualpipe_v, 2, 4}, {1, 2, 1}).text, "(for I+W >= F >= I >= W, not these)"));
  CHECK(!contains(formula({ScheduleKind::dualpipe_v, 2, 4}, {1, 1, 1}).text, "for I+W"));
  // The order of schedules by bubble, for the same work.
  const auto bubble = [](ScheduleKind kind) { return simulate(make_schedule({kind, 8, 32, 0})).bubble; };
  CHECK(bubble(ScheduleKind::gpipe) == doctest::Approx(bubble(ScheduleKind::one_f_one_b)));
  CHECK(bubble(ScheduleKind::interleaved) < bubble(ScheduleKind::one_f_one_b));
  CHECK(bubble(ScheduleKind::zb_h1) < bubble(ScheduleKind::interleaved));
  CHECK(bubble(ScheduleKind::dualpipe_v) < bubble(ScheduleKind::zb_h1));
  // The latency counts once forward and once backward.
  CHECK(simulate(make_schedule({ScheduleKind::gpipe, 4, 8, 0}), {1, 1, 1, 0.25}).seconds ==
        doctest::Approx(33 + 2 * 3 * 0.25));
}

TEST_CASE("pipeline schedules: where the stages lie, and names") {
  const PipelineSchedule round = make_schedule({ScheduleKind::interleaved, 3, 6, 2}),
                         v = make_schedule({ScheduleKind::dualpipe_v, 3, 6, 0});
  for (const PipelineSchedule* s : {&round, &v}) {
    for (int stage = 0; stage < s->virtual_stages(); ++stage) {
      const auto place = s->place(stage);
      CHECK(s->virtual_stage(place.rank, place.chunk) == stage);
    }
  }
  CHECK(round.place(4).rank == 1);
  CHECK(v.place(4).rank == 1);
  CHECK(v.place(3).rank == 2);
  CHECK(v.place(5).rank == 0);
  for (const std::string& name : names_of_kinds()) CHECK(name_of(parse_kind(name)) == name);
  CHECK_ERROR(parse_kind("1f1"), "did you mean 1f1b?");
  for (const auto& [request, part] : std::vector<std::pair<PipelineRequest, std::string>>{
           {{ScheduleKind::one_f_one_b, 0, 1}, "1 to 4096 stages, got 0"},
           {{ScheduleKind::gpipe, 2, 0}, "micro-batches, got 0"},
           {{ScheduleKind::one_f_one_b, 2, 4, 2}, "1 chunk a rank, got 2"},
           {{ScheduleKind::interleaved, 4, 6}, "stages (4), got 6; use 4 or 8, or 1f1b"},
           {{ScheduleKind::interleaved, 4, 3}, "use 4, or 1f1b"},
           {{ScheduleKind::dualpipe_v, 4, 7}, "(8), got 7"},
           {{ScheduleKind::dualpipe_v, 4, 8, 3}, "2 chunks a rank, got 3"},
           {{ScheduleKind::zb_h1, 4, -1}, "got -1"}}) {
    CHECK(contains(message([&r = request] { make_schedule(r); }), part));
  }
}

TEST_CASE("pipeline schedules: the checker rejects wrong lists") {
  const PipelineSchedule good = make_schedule({ScheduleKind::one_f_one_b, 3, 4});
  const auto errors = [](const PipelineSchedule& s) {
    std::string all;
    for (const std::string& e : check_schedule(s).errors) all += e + "\n";
    return all;
  };
  const auto index = [](const std::vector<StepAction>& list, StepAction a) {
    return size_t(std::find(list.begin(), list.end(), a) - list.begin());
  };
  CHECK(errors(good) == "");
  struct Row {
    int rank;
    StepAction action;
    const char* expected;
  };
  for (const Row& row :
       {Row{1, {Do::receive_gradient, 2, 0}, "there is no receiving the gradient of micro-batch 2"},
        Row{1,
            {Do::receive_activation, 1, 0},
            "rank 1, forward of micro-batch 1: its input was not received from stage 0"},
        Row{0, {Do::send_activation, 3, 0}, "rank 0, stage 0: there is no sending the activation of micro-batch 3"},
        Row{2, {Do::backward, 1, 0}, "rank 2, stage 2: there is no backward of micro-batch 1"},
        Row{2, {Do::forward, 0, 0}, "comes before its forward"}}) {
    PipelineSchedule s = good;
    auto& list = s.ranks[size_t(row.rank)];
    list.erase(list.begin() + std::ptrdiff_t(index(list, row.action)));
    CHECK(contains(errors(s), row.expected));
  }
  {  // Every action that is missing or doubled is noticed.
    int unnoticed = 0;
    for (size_t rank = 0; rank < 3; ++rank) {
      for (size_t i = 0; i < good.ranks[rank].size(); ++i) {
        PipelineSchedule without = good, twice = good;
        without.ranks[rank].erase(without.ranks[rank].begin() + std::ptrdiff_t(i));
        twice.ranks[rank].insert(twice.ranks[rank].begin() + std::ptrdiff_t(i), good.ranks[rank][i]);
        unnoticed += errors(without).empty() + errors(twice).empty();
      }
    }
    CHECK(unnoticed == 0);
  }
  {  // a deadlock: a rank waits for the first gradient before it sends the activation that leads to it
    PipelineSchedule s = good;
    auto& list = s.ranks[1];
    const size_t send = index(list, {Do::send_activation, 2, 0}), receive = index(list, {Do::receive_gradient, 1, 0});
    CHECK(send < receive);
    std::rotate(list.begin() + std::ptrdiff_t(send), list.begin() + std::ptrdiff_t(send) + 1, list.end());
    CHECK(contains(errors(s),
                   "deadlock: rank 2, stage 2, waits in receiving the activation of micro-batch 2 for rank 1"));
    CHECK(
        contains(errors(s), "deadlock: rank 1, stage 1, waits in receiving the gradient of micro-batch 2 for rank 2"));
  }
  {
    PipelineSchedule s = good;
    s.ranks[0].push_back({Do::forward, 4, 0});
    CHECK(contains(errors(s), "expected micro-batches 0 to 3 and chunks 0 to 0"));
    s.ranks[0].back() = {Do::forward, 0, -1};
    CHECK(contains(errors(s), "expected micro-batches 0 to 3"));
    s = good;
    s.ranks.pop_back();
    CHECK(contains(errors(s), "expected a list for each of 3 ranks, got 2"));
    s = make_schedule({ScheduleKind::gpipe, 1, 4});
    std::swap(s.ranks[0][5], s.ranks[0][6]);
    CHECK(contains(errors(s), "in the order of the micro-batches, 1 is next"));
  }
  // The gradient of a tied weight goes from the last stage to the first for each micro-batch; a split backward may
  // deadlock.
  CHECK(check_schedule(good, {{2, 0}}).right());
  CHECK(contains(check_schedule(good, {{0, 2}}).errors.at(0), "deadlock"));
}

TEST_CASE("pipeline schedules: costs below 0 are refused") {
  CHECK_ERROR(simulate(make_schedule({ScheduleKind::gpipe, 2, 1}), {-1, 0, 0}), "costs of 0 or more, got -1");
}
