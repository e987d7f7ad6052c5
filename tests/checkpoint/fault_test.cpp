// Saves that fail: killed at the k-th file operation, full or failing disks, two jobs in one folder. In every case
// either the old or the new checkpoint loads bit for bit. Cases 33, 34 and 38 of docs/faults.md.
#include <sys/wait.h>

#include <chrono>
#include <set>
#include <thread>

#include "checkpoint/folder.h"
#include "tests/checkpoint/util.h"
#include "tests/fork.h"

using namespace lockstep;
using namespace lockstep::checkpoints;
using Fault = FaultyCalls::Fault;

namespace {

/// The old or the new checkpoint is intact, and the next job saves as usual.
void check_complete(const Run& run, bool done, std::set<int>& observed) {
  const int v = load_version(run.path());
  observed.insert(v);
  CHECK((v == 2 || (v == 1 && !done)));
  save(run.path(), "two", of_one_rank(3), nullptr, options_with(&healthy));
  CHECK(load_version(run.path()) == 3);
  const std::string list = run.dir.list("run");
  CHECK((list == "latest two" || list == "latest two~2"));
}

/// Saves version 2 from `world` processes; rank r uses calls_of(r). Returns true if all succeed.
bool save_in_processes(int world, const std::string& path, const std::function<FaultyCalls(int)>& calls_of,
                       bool async) {
  return message([&] {
           dist::spawn(world,
                       [&](int rank) {
                         FaultyCalls calls = calls_of(rank);
                         save(path, "two", contents_of(Cut::flat, world, rank, 2), &dist::world(),
                              options_with(&calls, async));
                       },
                       {.kind = dist::SpawnOptions::Kind::processes,
                        .transport = "shm",
                        .timeout = dist::Seconds(20),
                        .heartbeat = dist::Seconds(0.5)});
         }) == "(no error)";
}

/// Saves version 2 by this process.
void save_two(const Run& run, FaultyCalls& calls) {
  save(run.path(), "two", of_one_rank(2), nullptr, options_with(&calls));
}

int64_t calls_of_a_save() {
  FaultyCalls calls;
  save_two(Run(), calls);
  return calls.calls();
}

}  // namespace

TEST_CASE("33: killed at the k-th file operation: the old or the new, and the next save clears up") {
  std::set<int> observed;
  int64_t k = 0;
  for (bool done = false; !done;) {
    ++k;
    CAPTURE(k);
    const Run run;
    const int code = testing::in_fork([&] {
      FaultyCalls calls(Fault::kill, k);
      save_two(run, calls);
    });
    done = code == 0;
    CHECK((done || code == 137));
    check_complete(run, done, observed);
  }
  CHECK(observed == std::set<int>{1, 2});
  CHECK(k == calls_of_a_save() + 1);
  CHECK(k > 30);
}

TEST_CASE("33: one rank of several, or all of them, killed at the k-th file operation") {
  constexpr int world = thread_sanitized ? 2 : 3;
  for (const int victim : {0, world - 1, -1}) {  // -1: all ranks
    CAPTURE(victim);
    std::set<int> observed;
    int runs = 0;
    for (bool done = false; !done; ++runs) {
      const int k = runs + 1;
      CAPTURE(k);
      const Run run;
      done = save_in_processes(
          world, run.path(),
          [&](int rank) { return victim < 0 || rank == victim ? FaultyCalls(Fault::kill, k) : FaultyCalls(); },
          runs % 2 == 1);
      check_complete(run, done, observed);
    }
    CHECK(observed == std::set<int>{1, 2});
    CHECK(runs > (victim == world - 1 ? 5 : 30));
  }
}

TEST_CASE(
    "34: the k-th file operation fails, once or from then on: an Error, the old one intact, and the same job goes on") {
  const int64_t count = calls_of_a_save();
  for (const auto& [fault, error] :
       {std::pair{Fault::fail, ENOSPC}, {Fault::fail, EIO}, {Fault::fail, EROFS}, {Fault::fail_from, ENOSPC}}) {
    int refused = 0;
    for (int64_t k = 1; k <= count; ++k) {
      CAPTURE(k);
      const Run run;
      FaultyCalls calls(fault, k, error);
      Saver saver(run.path(), nullptr, options_with(&calls));
      const std::string text = message([&] { saver.save("two", of_one_rank(2)); });
      calls.repair();
      const int v = load_version(run.path());
      if (text == "(no error)") {  // the failed call removed an old checkpoint, which is not an error
        CHECK(v == 2);
      } else {
        ++refused;
        CHECK(contains(text, "[checkpoint] two was not saved into "));
        CHECK(contains(text, std::strerror(error)));
        if (contains(text, "the checkpoint is complete")) CHECK((v == 1 || v == 2));
        else CHECK(v == 1);
      }
      saver.save("three", of_one_rank(3));
      CHECK(load_version(run.path()) == 3);
      CHECK(run.dir.list("run") == "latest lock three");
    }
    CHECK(refused > 20);
  }
}

TEST_CASE("34: interrupted and short calls are no errors") {
  const int64_t count = calls_of_a_save();
  for (int64_t k = 1; k <= count; ++k) {
    for (const Fault fault : {Fault::fail, Fault::shorten}) {
      CAPTURE(k);
      const Run run;
      FaultyCalls calls(fault, k, EINTR);
      save_two(run, calls);
      CHECK(load_version(run.path()) == 2);
      CHECK(run.dir.list("run") == "latest two");
    }
  }
}

TEST_CASE("34: one rank's disk is full: all ranks say so and go on") {
  constexpr int world = 3;
  for (const int victim : {0, 2}) {
    for (int64_t k = 1;; ++k) {
      INFO("victim ", victim, ", k ", k);
      const Run run;
      int64_t count = 0;
      const auto texts = testing::on_ranks<std::string>(world, [&](int rank) {
        FaultyCalls calls(rank == victim ? Fault::fail : Fault::none, k, ENOSPC);
        Saver saver(run.path(), &dist::world(), options_with(&calls));
        const std::string text = message([&] { saver.save("two", contents_of(Cut::flat, world, rank, 2)); });
        if (rank == victim) count = calls.calls();
        calls.repair();
        dist::world().barrier();
        if (rank == 0 && text != "(no error)" && !contains(text, "the checkpoint is complete"))
          LOCKSTEP_CHECK(load_version(run.path()) == 1, "the old one is gone");
        dist::world().barrier();
        saver.save("three", contents_of(Cut::flat, world, rank, 3));
        return text;
      });
      for (const std::string& text : texts) CHECK(text == texts[0]);
      if (texts[0] != "(no error)") CHECK(contains(texts[0], "No space left on device"));
      if (texts[0] != "(no error)" && victim == 2)
        CHECK(contains(texts[0], "two was not saved into " + run.path() + ": rank 2: [file] cannot "));
      CHECK(load_version(run.path()) == 3);
      CHECK(run.dir.list("run") == "latest three");
      if (count < k) break;
    }
  }
}

TEST_CASE("34: a rank whose disk hangs: all ranks say so after write_timeout and go on") {
  struct Slow final : FileCalls {
    std::atomic<bool> slow{true};
    int sync(int) override {
      if (slow.exchange(false)) std::this_thread::sleep_for(std::chrono::seconds(2));
      return 0;
    }
  } slow;
  const Run run;
  const auto texts = testing::on_ranks<std::string>(3, [&](int rank) {
    SaveOptions options = options_with(rank == 1 ? &slow : static_cast<FileCalls*>(&healthy));
    options.write_timeout = dist::Seconds(0.5);
    Saver saver(run.path(), &dist::world(), options);
    const std::string text = message([&] { saver.save("two", contents_of(Cut::flat, 3, rank, 2)); });
    if (rank != 1) LOCKSTEP_CHECK(load_version(run.path()) == 1, "the old one is gone");
    saver.save("three", contents_of(Cut::flat, 3, rank, 3));
    return text;
  });
  check_each(texts, {"rank 1: waited 0.5 s for rank 1 to write its file"});
  CHECK(load_version(run.path()) == 3);
  CHECK(run.dir.list("run") == "latest three");
}

TEST_CASE("38: two jobs and one folder") {
  TempDir dir;
  Warnings warnings;
  const Contents c = of_one_rank(1);
  {
    Saver first(dir.str(), nullptr, {.warn = warnings.sink()});
    first.save("a", c);
    Saver second(dir.str(), nullptr, {.warn = warnings.sink()});
    const std::string text = message([&] { second.save("b", c); });
    CHECK(contains(text, str("another job saves into this folder: pid ", getpid(), " on ")));
    CHECK(contains(text, "end it, or save into another folder"));
    CHECK(testing::in_fork([&] {
            const std::string said = message([&] { save(dir.str(), "c", c, nullptr, {.warn = quiet}); });
            if (!contains(said, "another job saves into this folder")) _exit(1);
          }) == 0);
    CHECK(dir.list() == "a latest lock");
    testing::in_fork([&] { first.~Saver(); });
    CHECK(dir.list() == "a latest lock");  // only the parent removes its lock
    first.save("d", c);
  }
  CHECK(dir.list() == "a d latest");
  Saver(dir.str(), nullptr, {.warn = warnings.sink()}).save("e", c);
  CHECK(warnings.take() == "");

  const pid_t child = fork();  // a job that dies while it holds the lock
  if (child == 0) {
    Saver* const saver = new Saver(dir.str(), nullptr, {.warn = quiet});
    saver->save("f", c);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  CHECK(fs::exists(dir / "lock"));
  save(dir.str(), "g", c, nullptr, {.warn = warnings.sink()});
  CHECK(contains(warnings.take(), str("stale: pid ", child, " on ")));

  // The lock of another host counts as held, because its kernel cannot be asked.
  dir.write("lock", R"({"pid": 12, "host": "elsewhere", "since": "2025-01-31 12:00:00 UTC"})");
  CHECK_ERROR(save(dir.str(), "h", c),
              "a job on another host has left its lock: pid 12 on elsewhere since 2025-01-31 12:00:00 UTC; when it "
              "has ended remove this file, or set take_over");
  CHECK(!fs::exists(dir / "h"));
  save(dir.str(), "h", c, nullptr, {.take_over = true, .warn = warnings.sink()});
  CHECK(contains(warnings.take(), "taking it over"));
  CHECK(!fs::exists(dir / "lock"));
  for (const char* rest : {"", "{", "{}"}) {  // truncated by a power cut
    dir.write("lock", rest);
    save(dir.str(), "i", c, nullptr, {.warn = warnings.sink()});
  }

  // All ranks of the job get the error.
  Saver first(dir.str(), nullptr, {.warn = warnings.sink()});
  first.save("j", c);
  const auto texts = testing::on_ranks<std::string>(2, [&](int rank) {
    return message([&] { save(dir.str(), "k", contents_of(Cut::flat, 2, rank, 1), &dist::world()); });
  });
  check_each(texts, {"another job saves into this folder"});
}
