// Schedules: programs, names, and requests that are refused. Tests in extensions/schedules/ prove the schedules right.
#include <doctest/doctest.h>

#include <set>

#include "dist/schedule.h"
#include "tests/dist/every_schedule.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;

TEST_CASE("direct: in no step two ranks send to the same one") {
  for (const Collective c : {Collective::all_reduce, Collective::all_to_all}) {
    for (int n = 2; n <= 17; ++n) {
      std::set<std::pair<int, int>> senders, receivers;
      for (const Transfer& t : make_schedule(Algorithm::direct, {c, n})) {
        if (t.from == t.to) continue;
        CHECK(senders.insert({t.step, t.from}).second);
        CHECK(receivers.insert({t.step, t.to}).second);
      }
    }
  }
}

TEST_CASE("programs are the parts of a schedule") {
  for_each_pair([&](Algorithm a, Collective c) {
    const CollectiveRequest r{c, 7, 3};
    const auto all = make_schedule(a, r);
    size_t observed = 0;
    for (int rank = 0; rank < r.ranks; ++rank) {
      for (const Transfer& t : program_of(a, r, rank)) observed += t.from == t.to ? 2 : 1;
    }
    CHECK(observed == 2 * all.size());
    CHECK(make_schedule(a, r) == all);  // make_schedule() is a pure function
  });
  CHECK_ERROR(program_of(Algorithm::ring, {Collective::all_reduce, 4}, 4), "expected a rank from 0 to 3, got 4");
}

TEST_CASE("names, and rejected values") {
  for (int i = 0; i <= int(Collective::batch); ++i) CHECK(parse_collective(name_of(Collective(i))) == Collective(i));
  for (const Algorithm a : all_algorithms()) CHECK(parse_algorithm(name_of(a)) == a);
  for (const char* part :
       {"[algorithm] expected automatic, ring, direct, one_shot", "or ", ", got \"rign\"; did you mean ring?"})
    CHECK_ERROR(parse_algorithm("rign"), part);
  CHECK_ERROR(parse_collective("allreduce"), "did you mean all_reduce?");
  CHECK_FALSE(contains(message([] { parse_algorithm("butterfly"); }), "did you mean"));
  const auto visit = [](Algorithm a, const CollectiveRequest& r) {
    return message([&] { visit_schedule(a, r, [](const Transfer&) {}); });
  };
  CHECK(contains(visit(Algorithm::ring, {Collective::all_reduce, 0}), "expected 1 rank or more, got 0"));
  CHECK(contains(visit(Algorithm::ring, {Collective::broadcast, 4, 4}), "expected a root from 0 to 3, got 4"));
  CHECK(contains(visit(Algorithm::ring, {Collective::all_to_all, 4}),
                 "ring has no schedule for all_to_all; expected one of direct"));
  CHECK(contains(visit(Algorithm::automatic, {Collective::all_reduce, 4}), "automatic has no schedule for all_reduce"));
  CHECK(contains(visit(Algorithm::direct, {Collective::barrier, 4}),
                 "direct has no schedule for barrier: no algorithm has"));
  CHECK(contains(visit(Algorithm::ring, {Collective::all_gather, 4, 0, true}), "all_gather does not reduce"));
  CHECK(contains(visit(Algorithm::ring, {Collective::all_reduce, 4, 0, false, {0, 1}}),
                 "expected the host of each of 4 ranks, got 2"));
  CHECK(contains(visit(Algorithm::direct, {Collective::all_to_all, 50000}), "46340"));
}
