// Clocks of ranks, and traces of several ranks on one clock.
#include <doctest/doctest.h>

#include <cmath>

#include "dist/clock.h"
#include "tensor/ops.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"
#include "tests/trace/read.h"
#include "trace/trace.h"

namespace dist = lockstep::dist;
namespace trace = lockstep::trace;
using testing::TempDir;

TEST_CASE("clock: ranks of one machine differ by no more than the error") {
  for (const char* transport : {"threads", "tcp"}) {
    for (const int ranks : {1, 2, 3}) {
      dist::spawn(ranks,
                  [&](int rank) {
                    const dist::ClockOffset measured = dist::measure_clock(dist::world(), 8),
                                            used = dist::clock_of(dist::world());
                    LOCKSTEP_CHECK(std::abs(measured.offset_ns) <= measured.error_ns, "offset ", measured.offset_ns,
                                   " error ", measured.error_ns);
                    LOCKSTEP_CHECK((measured.error_ns > 0) == (rank > 0), "error ", measured.error_ns);
                    LOCKSTEP_CHECK(used.offset_ns == 0 && used.error_ns == 0, "offset ", used.offset_ns);
                    LOCKSTEP_CHECK(dist::world().traffic().sent == 0, "the world sent ", dist::world().traffic().sent);
                  },
                  {.transport = transport});
    }
  }
  CHECK_ERROR(dist::spawn(1, [](int) { dist::measure_clock(dist::world(), 0); }), "expected 1 round or more, got 0");
}

TEST_CASE("clock: a trace of every rank, with its collectives on rows of their own") {
  const TempDir folder;
  constexpr int ranks = 3;
  dist::spawn(ranks, [&](int rank) {
    dist::ProcessGroup& world = dist::world();
    dist::start_trace(folder.str(), world);
    const lockstep::Tensor x = lockstep::full({6}, rank, {.dtype = lockstep::f64, .device = lockstep::cpu});
    world.all_reduce(x, {.algorithm = dist::Algorithm::ring, .tag = "now"});
    auto later = world.all_reduce(x, {.tag = "later", .async = true});
    later.wait();
    dist::stop_trace(world);
  });
  double zero = 0, runs = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    CAPTURE(rank);
    const auto all = read_trace(folder / ("rank-" + std::to_string(rank) + ".json"));
    const auto head = with(all, "name", "trace").at(0)["args"];
    CHECK(head["rank"] == rank);
    CHECK(head["ranks"] == ranks);
    if (rank == 0) runs = head["run"];
    CHECK(head["run"] == runs);
    std::vector<Record> reduced = with(all, "name", "all_reduce");
    REQUIRE(reduced.size() == 2);
    for (const Record& r : reduced) {
      CHECK(r["cat"] == "collective");
      CHECK(r["tid"] != 0);
      CHECK(r["args"]["bytes"] == 48);
      CHECK(r["args"]["ranks"] == ranks);
      CHECK(r["args"]["group"] == "world");
    }
    CHECK(reduced[0]["args"]["sent"] == 2 * 16 * (ranks - 1));  // a ring all-reduce sends 2(n-1) parts
    CHECK(contains(reduced[0]["args"]["call"], "tag now"));
    // On one clock, no rank ends the all-reduce before all ranks have begun it.
    const double begun = reduced[0]["ts"], ended = begun + reduced[0]["dur"].get<double>();
    if (rank == 0) zero = begun;
    CHECK(ended >= zero);
    CHECK(with(all, "name", "clock at the end").size() == 1);
    CHECK(with(all, "name", "trace ends").size() == 1);
  }
}

TEST_CASE("clock: a rank that cannot write its trace stops all") {
  CHECK_ERROR(dist::spawn(2, [](int) { dist::start_trace("/proc/no/such/place", dist::world()); }),
              "[trace] cannot create the folder /proc/no/such/place");
}
