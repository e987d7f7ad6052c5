// Process groups: the shared body over every transport, the errors when ranks disagree, and order under random delays.
// A number in a test's name is a row of docs/faults.md.
#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "../messages.h"
#include "base/threads.h"
#include "dist/job.h"
#include "dist/shard.h"
#include "group_body.h"
#include "tests/dist/at_once.h"
#include "tests/dist/job.h"
#include "tests/dist/outcomes.h"
#include "tests/dist/values.h"
#include "tests/environment.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace lockstep::dist;
using testing::check_ranks;
using testing::check_reports;
using testing::ones_of;
using testing::outcome;
using testing::outcomes;

namespace {

using Kind = SpawnOptions::Kind;

void wait_for_failure() {
  while (!world().control().failed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace

TEST_CASE("group: every collective over threads") {
  for (int n = 1; n <= (thread_sanitized ? 3 : 8); ++n) {  // eight ranks would take two minutes with ThreadSanitizer
    CAPTURE(n);
    check_ranks(n, [](int) { check_group(world()); });
  }
}

TEST_CASE("group: every collective over processes") {
  for (const std::string transport : {"shm", "tcp"}) {
    for (int n = 2; n <= (thread_sanitized ? 2 : 4); ++n) {
      INFO("transport ", transport, ", n ", n);
      check_ranks(n, [](int) { check_group(world()); }, {.kind = Kind::processes, .transport = transport});
    }
  }
}

// One rank of a launched job, started by tests/namespaces.py on one of several hosts.
TEST_CASE("group: a rank of a job" * doctest::skip()) {
  REQUIRE(getenv("RANK"));
  CHECK(message([] {
          init();
          guard([] { check_group(world()); });
          shutdown();
        }) == "(no error)");
}

TEST_CASE("group: threads over other transports") {
  for (const std::string transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    check_ranks(3, [](int) { check_group(world()); }, {.transport = transport});
  }
}

TEST_CASE("group 7, 8, 9, 10, 11: ranks that disagree are told, all of them, with both sides named") {
  struct Row {
    std::string expected;
    std::function<void(ProcessGroup&, int)> call;
  };
  const auto reduce = [](int64_t count, DType dtype, dist::ReduceOp op, const char* tag) {
    return [=](ProcessGroup& g) { g.all_reduce(ones_of(count, dtype), {.op = op, .tag = tag}); };
  };
  const Row rows[] = {
      {"calls all_reduce f32 x 8 sum, tag w1; rank 2 calls all_reduce f32 x 9 sum, tag w1",
       [&](auto& g, int r) { reduce(r == 2 ? 9 : 8, f32, dist::ReduceOp::sum, "w1")(g); }},
      {"rank 2 calls all_reduce f32 x 8 max, tag w1",
       [&](auto& g, int r) { reduce(8, f32, r == 2 ? dist::ReduceOp::max : dist::ReduceOp::sum, "w1")(g); }},
      {"rank 2 calls all_reduce f32 x 8 sum, tag b1",
       [&](auto& g, int r) {
         reduce(8, f32, dist::ReduceOp::sum, r == 2 ? "b1" : "w1")(g);
         reduce(8, f32, dist::ReduceOp::sum, r == 2 ? "w1" : "b1")(g);
       }},
      {"calls broadcast f32 x 8 from rank ", [](auto& g, int r) { g.broadcast(ones_of(8), r == 2 ? 2 : 0); }},
      {"rank 2 calls all_reduce f32 x 8 sum by ring",
       [](auto& g, int r) { g.all_reduce(ones_of(8), {.algorithm = r == 2 ? Algorithm::ring : Algorithm::direct}); }},
      {"rank 2 calls barrier", [](auto& g, int r) { r == 2 ? g.barrier() : (void)g.all_reduce(ones_of(8)); }},
      {"rank 2 calls barrier, tag new_group b of 0,1",
       [](auto& g, int r) {
         g.new_group(r == 2 ? std::vector{0, 1} : std::vector{0, 2}, "b");
       }},
      {"expects 8 bytes from rank 2, which sends 12",
       [](auto& g, int r) {
         const Tensor all = ones_of(6);
         g.gather(r == 0 ? all : Tensor(), ones_of(r == 2 ? 3 : 2), 0);
       }},
      {"has 6 elements, 2 of them for rank 2, which has a part of 3",
       [](auto& g, int r) {
         const Tensor all = ones_of(6);
         g.scatter(ones_of(r == 2 ? 3 : 2), r == 0 ? all : Tensor(), 0, {.algorithm = Algorithm::ring});
       }},
      {"rank 1 calls send f32 x 8 to rank 2, tag a; rank 2 calls receive f32 x 9 from rank 1, tag a",
       [](auto& g, int r) {
         r == 1   ? (void)g.send(ones_of(8), 2, {.tag = "a"})
         : r == 2 ? (void)g.receive(ones_of(9), 1, {.tag = "a"})
                  : (void)0;
         g.barrier();
       }},
      {"rank 1 calls send f32 x 8 to rank 2; rank 2 calls receive bf16 x 8 from rank 1",
       [](auto& g, int r) {
         if (r == 1) g.send(ones_of(8), 2);
         if (r == 2) g.receive(ones_of(8, bf16), 1);
         g.barrier();
       }},
  };
  for (const Row& row : rows) {
    CAPTURE(row.expected);
    const auto body = [&](int rank) {
      row.call(world(), rank);
      world().barrier();
    };
    check_reports(3, body, {row.expected, "ranks disagree in group world"});
  }
}

TEST_CASE("group: an error is the error of every later call, and of asynchronous ones in wait()") {
  const auto body = [](int rank) {
    Work work = world().all_reduce(ones_of(rank == 0 ? 4 : 5), {.async = true}),
         second = world().all_reduce(ones_of(4), {.async = true});
    const std::string first = message([&] { work.wait(); });
    if (message([&] { second.wait(); }) != first || message([&] { world().barrier(); }) != first)
      throw Error("another error: " + first);
    work.wait();
  };
  check_reports(2, body, {"rank 0 calls all_reduce f32 x 4 sum; rank 1 calls all_reduce f32 x 5 sum"});
}

TEST_CASE("group 12: one collective more at the end") {
  const auto texts = outcomes(3, [](int rank) {
    for (int i = 0; i < 8; ++i) world().all_reduce(ones_of(8), {.tag = "w0"});
    if (rank == 0) world().all_reduce(ones_of(8), {.tag = "w1"});
  });
  CHECK(texts[0] ==
        "rank 0 waits in seq 9 (all_reduce f32 x 8, tag w1); ranks 1, 2 have left after seq 8; all ranks must make the "
        "same calls");
}

TEST_CASE("group 13: ranks that wait for each other") {
  const struct {
    int ranks;
    std::function<void(int rank)> body;
    std::vector<std::string> parts;
  } circles[] = {
      {2,
       [](int rank) { world().receive(ones_of(8), 1 - rank, {.tag = rank == 0 ? "a" : "b"}); },
       {"deadlock: rank 0 waits to receive from rank 1 (tag a), rank 1 waits to receive from rank 0 (tag b); "
        "let one of these ranks make its calls in another order"}},
      {3,
       [](int rank) { world().send(ones_of(3000000), (rank + 1) % 3); },
       {"deadlock: rank 0 waits to send to rank 1", "rank 2 waits to send to rank 0"}},
      // a stage that forgets to receive: the error has the tag of its micro-batch
      {2,
       [](int rank) {
         const char* const tag = rank == 0 ? "gradient of micro-batch 3" : "activation of micro-batch 4";
         world().receive(ones_of(4), 1 - rank, {.tag = tag});
       },
       {"gradient of micro-batch 3", "activation of micro-batch 4"}}};
  at_once(circles, [](const auto& circle) { check_reports(circle.ranks, circle.body, circle.parts); });
}

TEST_CASE("group: a slow rank is no deadlock") {
  check_ranks(2,
              [](int rank) {
                // Longer than three heartbeats.
                if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(700));
                const Tensor t = ones_of(4);
                if (rank == 0) world().receive(t, 1);
                else world().send(t, 0);
                world().all_reduce(t);
              },
              {.heartbeat = Seconds(0.1)});
}

TEST_CASE("group: barriers and collectives that time out name the missing ranks") {
  const auto barrier = [](int rank) {
    if (rank == 1) {
      wait_for_failure();
      world().barrier();
    }
    world().barrier(Seconds(0.4));
  };
  const auto reduce = [](int rank) {
    if (rank == 1) wait_for_failure();
    world().all_reduce(ones_of(4), {.tag = "g"});
  };
  check_reports(3, barrier, {"[barrier] waited 0.4 s in group world, call 1; missing ranks: 1 (of 0-2)"});
  check_reports(
      3, reduce,
      {"all_reduce f32 x 4, tag g", "this rank waits to hear from rank 1", "rank 1 is in step 0, in no collective yet"},
      1);
}

TEST_CASE("group: all ranks raise the error that one rank throws") {
  const auto texts = outcomes(3, [](int rank) {
    set_step(3);
    world().all_reduce(ones_of(4));
    if (rank == 1) throw Error("bad sample 17");
    world().all_reduce(ones_of(4));
  });
  CHECK(texts[0] == "[rank 1] bad sample 17");
  CHECK(texts[1] == "bad sample 17");
  CHECK(texts[2] == texts[0]);
  for (const Kind kind : {Kind::threads, Kind::processes}) {
    try {
      spawn(3,
            [](int rank) {
              if (rank == 1) throw std::out_of_range("bad index");
              world().barrier();
            },
            {.kind = kind});
      FAIL("no error");
    } catch (const DistError& e) {
      CHECK(std::string(e.what()) == "[rank 1] bad index");
      CHECK(e.rank == 1);
      CHECK(e.fault == Fault::rank_failed);
    }
  }
  CHECK(outcome(2, [](int rank) {
          if (rank == 0) throw 7;
        }) == "[rank 0] an exception that is not a std::exception; throw a std::exception, which names the cause");
}

TEST_CASE("group: destroyed with work on its way") {
  check_ranks(2, [](int rank) {
    Work work;
    const Tensor t = ones_of(1 << 20);
    {
      const auto group = world().new_group({0, 1}, "short");
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      work = group->all_reduce(t, {.async = true});
    }
    work.wait();
    if (t.to_vector<float>()[12345] != 2) throw Error("wrong sum");
    const auto again = world().new_group({1, 0}, "short");  // a name may be reused
    again->barrier();
  });
  // The rank that throws does not wait for the other rank's part of the collective.
  const auto texts = outcomes(2, [](int rank) {
    const auto group = world().new_group({0, 1}, "half");
    if (rank == 0) {
      const Tensor t = ones_of(4);
      (void)group->all_reduce(t, {.async = true});
      throw Error("early");
    }
    wait_for_failure();
    group->all_reduce(ones_of(4));
  });
  CHECK(texts[1] == "[rank 0] early");
}

TEST_CASE("group: worlds of this process and of its threads") {
  CHECK(!is_initialized());
  CHECK_ERROR(world(), "expected dist::init() (or spawn()) before");
  CHECK_ERROR(init("mars://x"), "mars");
  CHECK_ERROR(init(Rendezvous{.rank = 2, .world_size = 2}), "got rank 2 of 2");
  CHECK_ERROR(init(Rendezvous{}, "gloo"),
              "[init] expected backend auto, native, nccl, got \"gloo\"; add_backend() adds others");
  ProcessGroup& single = init(Rendezvous{.port = 1});  // a world of one needs no store, so the port is not used
  CHECK(&single == &world());
  CHECK(single.size() == 1);
  check_group(single);
  CHECK_ERROR(init(Rendezvous{}), "[init] expected one call, got a second one");
  CHECK(contains(outcome(2, [](int) {}), "[spawn] expected a process without a world"));
  CHECK_ERROR_IS(guard([] { throw Error("x"); }), "x");
  CHECK_ERROR_IS(single.barrier(), "[rank 0] x");  // guard() has marked the group as failed
  shutdown();
  shutdown();
  CHECK(!is_initialized());
  CHECK(contains(outcome(0, [](int) {}), "[spawn] expected 1 to 4096 ranks, got 0"));
  CHECK(contains(outcome(2, [](int) {}, {.kind = Kind::processes, .transport = "threads"}),
                 "expected transport auto, shm or tcp between processes"));
  CHECK(contains(outcome(2, [](int) {}, {.transport = "smoke"}), "got \"smoke\""));
  CHECK(contains(outcome(2, [](int) { init(Rendezvous{}); }),
                 "[init] expected one call, got a second one; leave init() out where spawn()"));
}

TEST_CASE("group: random collectives under random delays are bit-identical to a run without delays") {
  // All ranks draw the same calls; delays and the choice of asynchronous calls differ by rank.
  const auto run = [](bool chaos) {
    std::vector<float> result;
    const std::string error = outcome(4, [&](int rank) {
      std::mt19937 script(1234), own(uint32_t(99 * rank + 5));
      const auto draw = [&](int n) { return int(script() % uint32_t(n)); };
      ProcessGroup& g = world();
      const auto pair = g.split(rank / 2, rank, "pair");
      const Tensor state = ones_of(5000);
      for (float* x = state.data<float>(); x < state.data<float>() + 5000; ++x) *x = float(int(own() % 1000)) / 7.f;
      std::vector<Work> works;
      for (int step = 0; step < 1000; ++step) {
        const int kind = draw(7), begin = draw(2000), size = draw(3000), root = draw(4), algorithm = draw(3);
        const Tensor part = state.narrow(0, begin, size);
        const auto wait_for_all = [&] {
          for (Work& w : works) w.wait();
          works.clear();
        };
        const CollectiveOptions o{.op = draw(2) ? dist::ReduceOp::mean : dist::ReduceOp::max,
                                  .algorithm = algorithm ? Algorithm::direct : Algorithm::ring,
                                  .async = chaos && own() % 2 == 0};
        if (chaos && own() % 20 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 2000));
        if (chaos && own() % 50 == 0) std::this_thread::yield();
        switch (kind) {
          case 0:
          case 1: works.push_back(g.all_reduce(part, o)); break;
          case 2: works.push_back(g.broadcast(part, root, o)); break;
          case 3: {
            const Range mine = shard_range(size, 4, rank);
            works.push_back(g.reduce_scatter(part.narrow(0, mine.begin, mine.size()), part, o));
            works.push_back(g.all_gather(part, part.narrow(0, mine.begin, mine.size()), o));
            break;
          }
          case 4:
            wait_for_all();
            pair->all_reduce(part, {.op = dist::ReduceOp::mean, .async = o.async}).wait();
            break;
          case 5: {
            wait_for_all();
            const Tensor out = part.clone();
            g.exchange({{true, out, (rank + 1) % 4, "next"}, {false, part, (rank + 3) % 4, "next"}}, {.async = o.async})
                .wait();
            break;
          }
          default: g.barrier();
        }
        if (works.size() > 8) wait_for_all();
      }
      for (Work& w : works) w.wait();
      const Tensor all = Tensor::from(std::vector<float>(20000), {20000});
      g.all_gather(all, state);
      if (rank == 0) result = all.to_vector<float>();
    });
    CHECK(error == "(no error)");
    return result;
  };
  const auto calm = run(false), wild = run(true);
  REQUIRE(calm.size() == 20000);
  CHECK(std::memcmp(calm.data(), wild.data(), 80000) == 0);
}

TEST_CASE("group: ranks that are threads share the threads of operations") {
  const Threads seven(7);
  for (const int n : {1, 2, 3, 8}) {
    check_ranks(n, [n](int) {
      if (get_threads() != std::max(1, 7 / n)) throw Error(str("threads: ", get_threads()));
    });
    CHECK(get_threads() == 7);
  }
}

TEST_CASE("group: a forced algorithm") {
  const testing::EnvironmentVariable algorithm("LOCKSTEP_ALGORITHM", "ring");
  check_ranks(3, [](int) {
    const Tensor t = ones_of(6);
    world().all_reduce(t);  // two steps, each with one message out and one in
    if (world().traffic().messages != 4) throw Error(str("messages: ", world().traffic().messages));
    world().gather(world().rank() == 0 ? ones_of(3) : Tensor(), ones_of(1), 0);
  });
  const testing::EnvironmentVariable misspelt("LOCKSTEP_ALGORITHM", "rings");
  CHECK(contains(outcome(2, [](int) {}), "[LOCKSTEP_ALGORITHM] expected automatic, ring, direct"));
}
