// Faults of real processes: the error on the other ranks, how soon it comes, and that nothing is left behind.
// A number in a test's name is a row of docs/faults.md.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "dist/process_group.h"
#include "tests/dist/flight_record.h"
#include "tests/dist/job.h"
#include "tests/dist/values.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace lockstep::dist;
using testing::ones_of;

namespace {

constexpr int ranks = 3;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t large = 1 << 20;
#else
constexpr int64_t large = 16 << 20;  // elements: 64 MiB
#endif

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

/// Notes of each rank, in shared memory that outlives the processes.
struct Notes {
  struct Rank {
    char text[1024];
    double reported;
    std::atomic<pid_t> pid;
  };
  Rank rank[ranks];
  std::atomic<double> fault;  // time of the fault
};

struct Shared {
  Notes* notes =
      static_cast<Notes*>(mmap(nullptr, sizeof(Notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ~Shared() { munmap(notes, sizeof(Notes)); }
  Notes* operator->() const { return notes; }
  std::string text(int r) const { return notes->rank[r].text; }
  double delay(int r) const { return notes->rank[r].reported - notes->fault; }
};

/// Runs `fn` on three processes; each one notes its error. Returns the error of spawn().
std::string run(const Shared& shared, const std::function<void(int)>& fn, double timeout = 60) {
  std::memset(static_cast<void*>(shared.notes), 0, sizeof(Notes));
  const size_t files = open_files();
  const std::string text = message([&] {
    spawn(ranks,
          [&](int rank) {
            Notes::Rank& note = shared->rank[rank];
            note.pid = getpid();
            try {
              fn(rank);
            } catch (const std::exception& e) {
              std::strncpy(note.text, e.what(), sizeof note.text - 1);
              note.reported = now_seconds();
              throw;
            }
          },
          {.kind = SpawnOptions::Kind::processes,
           .transport = "shm",
           .timeout = Seconds(timeout),
           .heartbeat = Seconds(0.5)});
  });
  CHECK(open_files() == files);
  CHECK((waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD));  // every process has ended
  return text;
}

/// Checks that all ranks but `failed` were soon told an error that contains these texts.
void check_reported(const Shared& shared, int failed, const std::vector<std::string>& texts) {
  for (int r = 0; r < ranks; ++r) {
    if (r == failed) continue;
    CAPTURE(shared.text(r));
    for (const std::string& text : texts) CHECK(contains(shared.text(r), text));
    CHECK(shared.delay(r) < slack());
  }
}

/// Raises `signal` in this rank after a second, from another thread.
void signal_soon(const Shared& shared, int signal) {
  std::thread([&shared, signal] {
    sleep_ms(1000);  // by then the others have received a heartbeat with its current call
    shared->fault = now_seconds();
    kill(getpid(), signal);
  }).detach();
}

/// All-reduces a large tensor forever; calls begun() after the second one.
void reduce_for_ever(const std::function<void()>& begun) {
  const Tensor data = ones_of(large);
  for (uint64_t step = 1;; ++step) {
    if (step == 3) begun();
    set_step(step);
    world().all_reduce(data, {.op = dist::ReduceOp::max, .tag = "g"});
  }
}

struct FlightFolder : testing::TempDir {
  FlightFolder() { setenv("LOCKSTEP_FLIGHT_DIR", path.c_str(), 1); }
  ~FlightFolder() { unsetenv("LOCKSTEP_FLIGHT_DIR"); }
};

}  // namespace

TEST_CASE("faults 1: a rank is killed in the middle of an all_reduce of 64 MiB") {
  const Shared shared;
  const FlightFolder folder;
  const std::string text = run(shared, [&](int rank) {
    reduce_for_ever([&] {
      if (rank == 1) signal_soon(shared, SIGKILL);
    });
  });
  CAPTURE(text);
  CHECK(contains(text, "rank 1"));
  check_reported(shared, 1,
                 {str("rank 1 (pid ", shared->rank[1].pid.load()), "died; it was last seen in step ", "in seq ",
                  str("all_reduce f32 x ", large, " max, tag g")});
  CHECK(!std::filesystem::exists(folder / "flight-1.json"));
  for (const int rank : {0, 2})
    CHECK(contains(testing::stuck_in(folder.path, rank), str("all_reduce f32 x ", large, " max, tag g")));
}

TEST_CASE("faults 2: the rank that hosts the store is killed") {
  const Shared shared;
  const std::string text = run(shared, [&](int rank) {
    reduce_for_ever([&] {
      if (rank == 0) signal_soon(shared, SIGKILL);
    });
  });
  CHECK(contains(text, "rank 0"));
  check_reported(shared, 0, {"the store at 127.0.0.1:"});
}

TEST_CASE("faults 3: a stopped rank is silent") {
  const Shared shared;
  const FlightFolder folder;
  const std::string text = run(shared, [&](int rank) {
    world().barrier();
    if (rank == 1) {
      shared->fault = now_seconds();
      raise(SIGSTOP);
    }
    world().all_reduce(ones_of(8), {.tag = "w1"});
    world().all_reduce(ones_of(8), {.tag = "w2"});
  });
  check_reported(shared, 1, {str("rank 1 (pid ", shared->rank[1].pid.load()), "is silent: no heartbeat for "});
  CHECK(contains(text, "rank 1"));
  for (const int rank : {0, 2})
    CHECK(contains(testing::stuck_in(folder.path, rank), "world 2: all_reduce f32 x 8, tag w1"));
}

TEST_CASE("faults 4: a rank that is stopped for a moment goes on") {
  const Shared shared;
  CHECK(run(shared, [&](int rank) {
          const Tensor data = ones_of(1000);
          std::thread helper;
          if (rank == 0) {
            helper = std::thread([&] {
              while (!shared->rank[1].reported) sleep_ms(1);
              sleep_ms(300);
              kill(shared->rank[1].pid, SIGCONT);
            });
          }
          for (int i = 0; i < 20; ++i) {
            if (rank == 1 && i == 7) {
              shared->rank[1].reported = now_seconds();
              raise(SIGSTOP);
            }
            world().all_reduce(data, {.op = dist::ReduceOp::mean});
            world().all_reduce(data);
            for (float* x = data.data<float>(); x < data.data<float>() + 1000; ++x) *x = *x / ranks + 1;
          }
          if (helper.joinable()) helper.join();
          if (data.to_vector<float>()[999] != 21) throw Error(str("wrong result: ", data.to_vector<float>()[999]));
        }) == "(no error)");
}

TEST_CASE("faults 5: a rank throws in a step") {
  const Shared shared;
  const std::string text = run(shared, [&](int rank) {
    for (uint64_t step = 1; step < 100; ++step) {
      set_step(step);
      if (rank == 1 && step == 3) {
        shared->fault = now_seconds();
        throw Error("forward: sample 17 is not a number");
      }
      world().all_reduce(ones_of(1000));
    }
  });
  CHECK(text == "[rank 1] forward: sample 17 is not a number");
  for (const int r : {0, 2}) CHECK(shared.text(r) == text);
  check_reported(shared, 1, {});
}

TEST_CASE("faults 6: a rank calls exit(0) early") {
  const Shared shared;
  const std::string text = run(shared, [&](int rank) {
    world().all_reduce(ones_of(8), {.tag = "w0"});
    if (rank == 1) {
      shared->fault = now_seconds();
      exit(0);
    }
    world().all_reduce(ones_of(8), {.tag = "w1"});
  });
  CAPTURE(text);
  CHECK(contains(text, "waits in seq 2 (all_reduce f32 x 8, tag w1); rank 1 has left after seq 1"));
  for (const int r : {0, 2}) CHECK(shared.text(r) == text);
  check_reported(shared, 1, {});
}

TEST_CASE("faults 12: one collective more at the end, between processes") {
  const Shared shared;
  const std::string text = run(shared, [&](int rank) {
    for (int i = 0; i < 8; ++i) world().all_reduce(ones_of(8), {.tag = "w0"});
    if (rank == 0) world().all_reduce(ones_of(8), {.tag = "w1"});
  });
  CAPTURE(text);
  CHECK(contains(text, "rank 0 waits in seq 9 (all_reduce f32 x 8, tag w1); "));
  CHECK(contains(text, "left after seq 8"));
}

TEST_CASE("faults 7, 10, 11, 13: processes that disagree, or wait for each other") {
  const Shared shared;
  const struct {
    const char* expected;
    std::function<void(int)> call;
  } rows[] = {
      {"calls all_reduce f32 x 8 sum, tag w1; rank 2 calls all_reduce f32 x 9 sum, tag w1",
       [](int r) { world().all_reduce(ones_of(r == 2 ? 9 : 8), {.tag = "w1"}); }},
      {"rank 2 calls all_reduce f32 x 8 sum, tag b1",
       [](int r) {
         world().all_reduce(ones_of(8), {.tag = r == 2 ? "b1" : "w1"});
         world().all_reduce(ones_of(8), {.tag = r == 2 ? "w1" : "b1"});
       }},
      {"rank 2 calls broadcast f32 x 8 from rank 0",
       [](int r) { r == 2 ? world().broadcast(ones_of(8), 0) : world().all_reduce(ones_of(8)); }},
      {"deadlock: rank 0 waits to receive from rank 1 (tag a), rank 1 waits to receive from rank 0 (tag b)",
       [](int r) {
         if (r < 2) world().receive(ones_of(8), 1 - r, {.tag = r == 0 ? "a" : "b"});
         else world().barrier();
       }},
  };
  for (const auto& row : rows) {
    const double start = now_seconds();
    const std::string text = run(shared, [&](int rank) {
      row.call(rank);
      world().barrier();
    });
    CAPTURE(text);
    CHECK(contains(text, row.expected));
    for (int r = 0; r < ranks; ++r) CHECK(shared.text(r) == text);
    CHECK(now_seconds() - start < 2 * slack());
  }
}

TEST_CASE("faults 5: a rank that hears nobody is ended by spawn()") {
  const Shared shared;
  const double start = now_seconds();
  const std::string text = run(shared, [&](int rank) {
    if (rank == 1) throw Error("stop");
    // Never calls a collective.
    if (rank == 2)
      while (true) sleep_ms(1000);
    world().barrier();
  });
  CHECK(text == "[rank 1] stop");
  CHECK(now_seconds() - start < 4 + slack());
}
