// The control plane of a job, as its ranks see it: the store, every kind of failure with its message and time limit,
// and leaving.
// A number in a test's name is a row of docs/faults.md.
#include "dist/control.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "dist/local_control.h"
#include "dist/net.h"
#include "dist/rank_table.h"
#include "dist/wire.h"
#include "tests/dist/at_once.h"
#include "tests/dist/job.h"
#include "tests/dist/proxy.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

void check_all(const std::map<int, std::string>& said, const std::string& expected) {
  for (const auto& [rank, text] : said) {
    INFO("rank ", rank, " said: ", text);
    CHECK(contains(text, expected));
  }
}

/// The child process and the other ranks of a job of three meet. Then the others call met() and wait. Checks that each
/// is soon told of a failure of this kind, which blames the child and has these texts.
void check_failure(
    TestJob& job, int child, Fault fault, const std::vector<std::string>& texts,
    const std::function<void(Control&)>& met = [](Control&) {}) {
  const auto said = job.run(job.without(child), [&](Control& control) {
    control.barrier("meet", job.all(), Seconds(20));
    const double start = now_seconds();
    try {
      met(control);
      until_failed(control);
    } catch (const DistError& error) {
      CHECK(error.fault == fault);
      CHECK(error.rank == child);
      CHECK(now_seconds() - start < slack());
      throw;
    }
  });
  for (const std::string& text : texts) check_all(said, text);
}

void check_numbers(Control& control) {
  control.set("k", "12x");
  CHECK_ERROR(control.add("k", 1), "[store] expected a number in key 'k' to add 1 to, got '12x'");
  control.set("k", "9223372036854775807");
  CHECK_ERROR(control.add("k", 1), "[store] expected a number in key 'k'");
  CHECK(control.add("k", -1) == 9223372036854775806);
}

Activity in_seq(uint64_t sequence, const std::string& collective = "all_reduce f32 x 8, tag w1") {
  return {.completed = sequence - 1, .group = "world", .collective = collective};
}

Activity message_to(const std::string& text) {
  Activity activity = in_seq(1, text);
  activity.messages = 1;
  return activity;
}

/// Runs rank 0 of a job, and rank 1 behind the proxy on a thread of its own; returns what each says.
std::pair<std::string, std::string> run_behind(const Proxy& proxy, TestJob& job,
                                               const std::function<void(Control&)>& rank_0,
                                               const std::function<void(Control&)>& rank_1) {
  Rendezvous far = job.place(1);
  far.port = proxy.port();
  std::string said;
  std::thread other([&] { said = message([&] { rank_1(*Control::join(far)); }); });
  const std::string near = job.run({0}, rank_0).at(0);
  other.join();
  return {near, said};
}

// Reports again and again that this rank waits, as an executor does; throws the job's failure.
void wait_for(Control& control, int peer, uint64_t messages, bool is_send) {
  for (const double end = now_seconds() + 20; now_seconds() < end;
       std::this_thread::sleep_for(control.place().heartbeat / 2)) {
    control.waits(peer, messages, is_send);
    if (control.failed()) control.raise();
  }
  throw Error("no failure within 20 s");
}

}  // namespace

TEST_CASE("control: keys, values, counters and barriers, worlds 1 to 8") {
  for (int world = 1; world <= 8; ++world) {
    TestJob job(world);
    check_calm(job.run(job.all(), [&](Control& control) {
      const int rank = control.place().rank, next = (rank + 1) % world;
      CHECK(control.place().port == job.base.port);
      CHECK(control.own_address() == "127.0.0.1");
      CHECK(control.host() == host_identity());
      const auto value = [](int of) { return std::string(size_t(of) * 70001, char('a' + of)); };
      control.set(str("value ", rank), value(rank));
      CHECK(control.get(str("value ", next), Seconds(10)) == value(next));
      control.add("sum", rank + 1);
      control.barrier("a", job.all(), Seconds(10));
      CHECK(control.add("sum", 0) == world * (world + 1) / 2);
      CHECK(control.get("sum", Seconds(1)) == std::to_string(world * (world + 1) / 2));
      for (int i = 0; i < 20; ++i) control.barrier("again", job.all(), Seconds(10));  // a barrier's name may be reused
      if (rank < 2 && world >= 3) control.barrier("some", {0, 1}, Seconds(10));
      CHECK(!control.try_get("nothing"));
    }));
  }
}

TEST_CASE("control: ranks that are threads add to numbers only") {
  const auto controls = local_controls(1, {.world_size = 1});
  CHECK(controls[0]->add("n", 2) == 2);
  check_numbers(*controls[0]);
}

TEST_CASE("control: sizes of keys and values") {
  TestJob job(1);
  check_calm(job.run({0}, [&](Control& control) {
    for (const size_t size : {size_t(0), size_t(1), size_t(65537), value_limit}) {
      const std::string value(size, 'v');
      control.set("k", value);
      CHECK(*control.try_get("k") == value);
    }
    control.set("", "empty key");
    CHECK(*control.try_get("") == "empty key");
    control.set(std::string(key_limit, 'k'), std::string(value_limit, 'v'));
    CHECK(control.get(std::string(key_limit, 'k'), Seconds(1)).size() == value_limit);
    const std::string binary("\0\xff\n", 3);
    control.set(binary, binary);
    CHECK(*control.try_get(binary) == binary);
    CHECK_ERROR(control.set(std::string(key_limit + 1, 'k'), ""),
                "[store] expected a key of at most 8192 bytes, got one of 8193");
    CHECK_ERROR(control.set("k", std::string(value_limit + 1, 'v')),
                "[store] expected a value of at most 8388608 bytes for key 'k', got 8388609");
    check_numbers(control);
    CHECK_ERROR(control.get("none", Seconds(0.05)), "[store] waited 0.05 s for key 'none', which nobody has set");
    CHECK_ERROR(control.get("none", Seconds(-1)), "expected a timeout >= 0");
    CHECK_ERROR(control.raise(), "expected a failure, got none");
    CHECK(!control.failed());
    control.leave();
    control.leave();
    CHECK_ERROR(control.set("k", ""), "got a call after leave()");
  }));
}

// takes half a minute with a sanitizer
TEST_CASE("control: the store holds 256 MiB and then says so" * doctest::skip(sanitized)) {
  TestJob job(1, 5, 60);
  check_calm(job.run({0}, [&](Control& control) {
    const std::string value(value_limit, 'v');
    for (int i = 0; i < 3; ++i) control.set("same", value);  // replacing a value frees the old one
    for (int i = 0; i < 30; ++i) control.set(str("key ", i), value);
    CHECK_ERROR(control.set("key 30", value), "[store] is full: it holds at most 256 MiB");
    control.set("key 0", "small");  // frees memory
    control.set("key 30", value);
  }));
}

TEST_CASE("control: a barrier names the missing ranks, and may be retried") {
  TestJob job(3);
  check_calm(job.run(job.all(), [&](Control& control) {
    const int rank = control.place().rank;
    control.begin(in_seq(9));
    control.end();
    if (rank == 2) {
      control.get("go", Seconds(20));
      return control.barrier("b", job.all(), Seconds(20));
    }
    if (rank == 1) {
      control.get("timed out", Seconds(20));
      control.set("go", "");
      return control.barrier("b", job.all(), Seconds(20));
    }
    CHECK_ERROR(control.barrier("b", {0, 1, 2}, Seconds(0.3)),
                "[barrier 'b'] waited 0.3 s; missing ranks: 1, 2 (of 0-2): rank 1 is between collectives, after seq "
                "9, step 0");
    control.set("timed out", "");
    control.barrier("b", {0, 1, 2}, Seconds(20));
    CHECK_ERROR(control.barrier("b", {1, 2}, Seconds(1)),
                "[barrier 'b'] expected to be called by one of ranks 1, 2, got rank 0");
    CHECK_ERROR(control.barrier("b", {0, 3}, Seconds(1)), "expected ranks from 0 to 2, got 3");
  }));
  TestJob other(2);
  const auto said = other.run(other.all(), [&](Control& control) {
    if (control.place().rank == 0) control.barrier("b", {0, 1}, Seconds(20));
    else control.barrier("b", {1}, Seconds(20)), control.barrier("b", {1, 0}, Seconds(20));
  });
  check_all(said, "ranks disagree on who meets at barrier 'b'");
}

TEST_CASE("control: every rank raises the first reported error") {
  for (const int world : {1, 2, 5}) {
    TestJob job(world);
    std::atomic<int> first{-1};
    const auto said = job.run(job.all(), [&](Control& control) {
      const int rank = control.place().rank;
      control.barrier("begin", job.all(), Seconds(20));
      if (rank >= world - 2) {  // two ranks fail at the same time
        const DistError won = control.report(Fault::mismatch, rank, str("broken by ", rank));
        CHECK(control.failed());
        CHECK_ERROR(control.raise(), won.what());
        CHECK(won.rank == control.report(Fault::timeout, 0, "later").rank);
        first = won.rank;
        CHECK_ERROR(control.set("k", "v"), won.what());
      }
      // Ends a pending wait, too.
      if (rank == 0) CHECK_ERROR(control.get("never", Seconds(20)), "broken by");
      until_failed(control);
    });
    check_all(said, str("[rank ", first, "] broken by ", first));
  }
}

TEST_CASE("control 1: a rank that is killed is named to all within a second") {
  TestJob job(3, 5);
  Child child("step3 in9 meet kill", job.place(1));
  check_failure(job, 1, Fault::rank_failed,
                {str("rank 1 (pid ", child.pid(), " on ", host_name(),
                     ") died; it was last seen in step 3, in seq 9 (all_reduce f32 x 8, tag w1)")});
  CHECK(child.wait() == 128 + SIGKILL);
}

TEST_CASE("control 2: the store is lost when rank 0 is killed") {
  TestJob job(3, 5);
  Child child("meet kill", job.place(0));
  check_failure(job, 0, Fault::store_lost,
                {str("the store at 127.0.0.1:", job.base.port, " is lost: rank 0 (pid ", child.pid(), " on ",
                     host_name(), ") died or is cut off")});
}

TEST_CASE("control 3: a rank that is stopped is silent after three heartbeats") {
  for (const int stopped : {1, 0}) {
    TestJob job(3, 0.2);
    Child child("step3 after8 meet until_failed", job.place(stopped));
    std::vector<std::string> texts{"(stopped, swapped out, or cut off)", str("rank ", stopped, " (pid ", child.pid())};
    if (stopped == 1) {
      texts.push_back(str(child.pid(), " on ", host_name(), ") is silent: no heartbeat for 0."));
      texts.push_back("it was in step 3, after seq 8");
    }
    std::atomic<int> ready{0};
    check_failure(job, stopped, Fault::rank_silent, texts, [&](Control&) {
      if (++ready == 2) child.signal(SIGSTOP);
    });
    child.signal(SIGCONT);  // when it continues it learns of the failure, and does not report the others as silent
    CHECK(child.wait() == 3);
    CHECK(contains(child.output(), stopped == 1 ? "fault rank silent 1" : "fault "));
  }
}

TEST_CASE("control 4: a rank that stops for less than three heartbeats goes on") {
  for (const int stopped : {1, 0}) {
    TestJob job(3, 1);
    Child child("meet meet", job.place(stopped));
    std::atomic<int> ready{0};
    check_calm(job.run(job.without(stopped), [&](Control& control) {
      control.barrier("meet", {0, 1, 2}, Seconds(20));
      if (++ready == 2) {
        child.signal(SIGSTOP);
        // longer than the interval between two heartbeats
        std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        child.signal(SIGCONT);
      }
      control.barrier("meet", {0, 1, 2}, Seconds(20));
    }));
    CHECK(child.wait() == 0);
  }
}

TEST_CASE("control 5: what a rank says of its failure reaches all, its end does not cover it") {
  TestJob job(3, 5);
  Child child("meet report kill", job.place(1));
  check_failure(job, 1, Fault::rank_failed, {"[rank 1] forward: no such layer"});
}

TEST_CASE("control 6: a rank that calls exit(0) early has left, and others that need it are told") {
  TestJob job(3, 0.2);
  Child child("step3 after8 meet exit", job.place(1));
  check_failure(job, 1, Fault::rank_left,
                {"rank 0 waits in seq 9 (all_reduce f32 x 8, tag w1); rank 1 has left after seq 8; all ranks must make "
                 "the same calls"},
                [](Control& control) {
                  control.begin(in_seq(9));
                  if (control.place().rank == 0) wait_for(control, 1, 0, false);
                });
  CHECK(child.wait() == 0);
  TestJob second(3, 0.2);
  Child early("step3 meet exit", second.place(1));
  // the job fails although only one rank is at the barrier
  check_failure(second, 1, Fault::rank_left, {"rank 2 waits at barrier 'end'; rank 1 has left the group in step 3"},
                [](Control& control) {
                  if (control.place().rank == 2) control.barrier("end", {0, 1, 2}, Seconds(20));
                });
}

TEST_CASE("control 12: one collective more at the end") {
  TestJob job(3, 0.2);
  const auto said = job.run(job.all(), [&](Control& control) {
    control.begin(in_seq(8));
    control.end();
    if (control.place().rank > 0) return control.leave();
    while (control.explain(job.all()).find("rank 1 has left after seq 8; rank 2 has left after seq 8") ==
           std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    control.begin(in_seq(9));
    wait_for(control, 2, 0, false);
  });
  CHECK(contains(said.at(0), "rank 0 waits in seq 9 (all_reduce f32 x 8, tag w1); ranks 1, 2 have left after seq 8"));
  CHECK(said.at(1) == "");
  CHECK(said.at(2) == "");
}

TEST_CASE("control: a rank that left after its part of a collective is not blamed") {
  TestJob job(2, 0.1);
  check_calm(job.run(job.all(), [&](Control& control) {
    control.begin(in_seq(9));
    if (control.place().rank == 1) return control.end();
    // No error: the bytes of rank 1 are still in transit.
    for (int i = 0; i < 20; ++i, std::this_thread::sleep_for(std::chrono::milliseconds(50))) control.waits(1, 0, false);
    CHECK(!control.failed());
    control.end();
  }));
}

TEST_CASE("control 13: ranks that wait for each other in a circle") {
  struct Row {
    int world;
    std::vector<std::pair<int, bool>> waits;
    std::string text;
  };
  const Row rows[] = {
      {2,
       {{1, false}, {0, false}},
       "deadlock: rank 0 waits to receive from rank 1 (tag t0), rank 1 waits to receive from rank 0 (tag t1)"},
      {2,
       {{1, true}, {0, true}},
       "deadlock: rank 0 waits to send to rank 1 (tag t0), rank 1 waits to send to rank 0 (tag t1)"},
      {4,
       {{1, false}, {3, false}, {-1, false}, {1, true}},
       "deadlock: rank 1 waits to receive from rank 3 (tag t1), rank 3 waits to send to rank 1 (tag t3)"},
      {3,
       {{1, false}, {2, false}, {0, false}},
       "deadlock: rank 0 waits to receive from rank 1 (tag t0), rank 1 waits to receive from rank 2 (tag t1), rank 2 "
       "waits to receive from rank 0 (tag t2)"},
  };
  at_once(rows, [](const Row& row) {
    TestJob job(row.world, 0.2);
    const double start = now_seconds();
    const auto said = job.run(job.all(), [&](Control& control) {
      const int rank = control.place().rank;
      const auto [peer, is_send] = row.waits[size_t(rank)];
      if (peer < 0) until_failed(control);
      control.begin(message_to(str(is_send ? "send" : "receive", " f32 x 8, tag t", rank)));
      wait_for(control, peer, 1, is_send);
    });
    check_all(said, row.text);
    CHECK(now_seconds() - start < slack());
  });
}

TEST_CASE("control: leaving in any order, also rank 0 first, keeps the store for the rest") {
  at_once(std::vector{0, 1, 2}, [](int first) {
    TestJob job(3, 0.2);
    check_calm(job.run(job.all(), [&](Control& control) {
      if (control.place().rank == first) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      CHECK(control.add("n", 1) <= 2);
      control.barrier("rest", job.without(first), Seconds(20));
      CHECK(!control.failed());
    }));
  });
}

TEST_CASE("control: many threads of a rank ask at once") {
  TestJob job(2);
  check_calm(job.run(job.all(), [&](Control& control) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 50; ++i) {
          control.add("n", 1);
          control.begin(in_seq(uint64_t(i + 1), str("all_reduce f32 x ", t)));
          control.set(str("k", t), std::string(size_t(i * 100), 'x'));
          control.end();
        }
        CHECK(!control.explain({0, 1}).empty());
      });
    for (std::thread& thread : threads) thread.join();
    control.barrier("end", {0, 1}, Seconds(20));
    CHECK(control.add("n", 0) == 600);
  }));
}

TEST_CASE("control 20: a cut cable is silence on both sides, a reset connection is a death") {
  at_once(std::vector{1, 0}, [](int unplugged) {
    TestJob job(2, 0.2);
    Proxy proxy("127.0.0.1", job.base.port);
    const auto run = [&](Control& control) {
      control.barrier("meet", {0, 1}, Seconds(20));
      if (control.place().rank == 0) unplugged ? proxy.hold(true) : proxy.cut();
      until_failed(control);
    };
    const auto [near, far] = run_behind(proxy, job, run, run);
    CHECK(contains(near, unplugged ? "is silent: no heartbeat for 0."
                                   : "died; it was last seen in step 0, before its first collective"));
    if (unplugged) CHECK(contains(far, "rank 0 (pid "));
    CHECK(contains(far, unplugged ? "which hosts the store, is silent: no heartbeat for 0." : "is lost: rank 0"));
  });
}

TEST_CASE("control 21: a slow network is slow, not wrong") {
  TestJob job(2, 1);
  Proxy proxy("127.0.0.1", job.base.port, {.delay = 0.1, .piece = 7});
  const auto [near, far] = run_behind(
      proxy, job,
      [](Control& control) {
        control.barrier("meet", {0, 1}, Seconds(20));
        CHECK(control.try_get("k") == std::string(500, 'x'));
      },
      [](Control& control) {
        control.set("k", std::string(500, 'x'));
        control.barrier("meet", {0, 1}, Seconds(20));
      });
  CHECK(near == "");
  CHECK(far == "(no error)");
}

TEST_CASE("control 15, 16: damaged and cut streams end in an error, never in a hang or a wrong answer") {
  std::atomic<int> errors{0};
  std::vector<uint64_t> seeds(18);
  std::iota(seeds.begin(), seeds.end(), 1);
  const auto run = [](Control& control) {
    for (int i = 0; i < 10; ++i) control.barrier("meet", {0, 1}, Seconds(2));
  };
  at_once(
      seeds,
      [&](uint64_t seed) {
        const double start = now_seconds();
        TestJob job(2, 1, 2);
        ProxyFaults faults{.seed = seed};
        if (seed % 3 == 0) faults.truncate_after = int64_t(seed * 37);
        else if (seed % 3 == 1) faults.flip_at = int64_t(seed * 7);
        else faults.cut_after = int64_t(seed * 41);
        Proxy proxy("127.0.0.1", job.base.port, faults);
        const auto [near, far] = run_behind(proxy, job, run, run);
        INFO("seed ", seed, ": ", far, " / ", near);
        // the disconnected rank gets an error; the other may see it leave
        CHECK((far != "(no error)" || near == "" || contains(near, "has left")));
        CHECK(now_seconds() - start < 5 * slack());
        errors += far != "(no error)";
      },
      seeds.size());
  CHECK(errors > 9);
}

TEST_CASE("control 30: too few descriptors is an error that names the limit") {
  const struct {
    int world, rank, descriptors;
    const char* expected;
  } rows[] = {
      {48, 0, 32, "open files for a world of 48, its limit is 32: raise it with ulimit -n"},
      {2, 0, 11, "its limit is 11: raise it with ulimit -n"},  // the listener already takes descriptor 9
      {2, 1, 3, "this process has no open files left, its limit is 3: raise it with ulimit -n"},
  };
  for (const auto& row : rows) {
    if (row.rank == 1 && sanitized) continue;  // the sanitizer itself needs descriptors
    TestJob job(row.world);
    Child child("never", job.place(row.rank), row.descriptors);
    CHECK(child.wait() == 4);
    CHECK(contains(child.output(), row.expected));
  }
}

TEST_CASE("control 30: too few threads is an error that says so" *
          doctest::skip(sanitized)) {  // the sanitizer's own memory exceeds any limit
  for (const int rank : {0, 1}) {
    TestJob job(2, 1, 5);
    Child child("no_threads", job.place(rank));
    std::map<int, std::string> other;
    if (rank == 1) other = job.run({0}, [](Control&) {});
    CHECK(child.wait() == 4);
    CAPTURE(child.output());
    CHECK(contains(child.output(), "cannot start"));
    CHECK(contains(child.output(), "the limit of processes and threads is reached; raise it with ulimit -u"));
  }
}

TEST_CASE("rank table 49: conclusions depend on the time they are given, not on a clock") {
  RankTable rank_table(3, 1.0);
  for (int rank = 0; rank < 3; ++rank)
    rank_table.sit({rank, 3, uint32_t(100 + rank), "host", "", "job", uint64_t(rank)}, 0);
  rank_table.begin(10);
  CHECK(!rank_table.judge(12.9));
  rank_table.heard(0, 12);
  rank_table.heard(2, 12);
  CHECK(contains(rank_table.judge(13.1)->what(), "rank 1 (pid 101 on host) is silent: no heartbeat for 3.1 s"));
  CHECK(rank_table.judge(13.1)->fault == Fault::rank_silent);
  rank_table.heard(1, 13.1);
  CHECK(!rank_table.judge(13.2));

  Activity a = message_to("receive f32 x 8, tag a"), b = message_to("receive f32 x 8, tag b");
  a.waiting = b.waiting = true;
  a.waits_for = 1, b.waits_for = 0;
  const auto both_wait = [&](double now) {
    for (int rank = 0; rank < 3; ++rank) rank_table.heard(rank, now);
    rank_table.doing(0, a, true, now);
    rank_table.doing(1, b, true, now);
    return rank_table.judge(now);
  };
  for (const double now : {20.0, 21.0, 22.0, 22.9}) CHECK(!both_wait(now));
  CHECK(both_wait(23)->fault == Fault::deadlock);
  b.sent_to = {{2, 5}, {0, 1}};  // not a deadlock: the message that rank 0 waits for has been sent and is in transit
  for (const double now : {24.0, 25.0, 26.0, 27.0, 28.0}) CHECK(!both_wait(now));
  b.sent_to = {{2, 5}};
  for (const double now : {29.0, 30.0, 31.0}) CHECK(!both_wait(now));
  CHECK(both_wait(32)->fault == Fault::deadlock);
  for (int rank = 0; rank < 3; ++rank) rank_table.heard(rank, 35);
  CHECK(!rank_table.judge(35));  // the ranks' states are old: the ranks may have continued

  CHECK(rank_table.explain({0, 1, 2, 7}) ==
        "rank 0 waits in receive f32 x 8, tag a for rank 1, step 0; rank 1 waits in receive f32 x 8, tag b for rank 0, "
        "step 0; rank 2 is in step 0, in no collective yet");
  CHECK(text_of(std::vector<int>{0, 1, 2, 4, 6, 7}) == "0-2, 4, 6, 7");
  CHECK(text_of(std::vector<int>{}) == "");
}
