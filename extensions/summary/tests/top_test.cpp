// `lockstep top`: the states of ranks, and what is read from a run's folder while it grows.
#include "extensions/summary/top.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "dist/net.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace testing;

namespace {

std::string lock_of(int64_t pid, const std::string& host) {
  return str("{\"pid\": ", pid, ", \"host\": \"", host, "\", \"since\": \"2026-01-31 12:00:00 UTC\"}\n");
}
/// The number of a process that has ended.
int64_t ended_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}
void append(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::app) << text; }

/// A run's folder after two of ten steps, whose lock names this process.
struct RunFolder : TempDir {
  RunFolder() {
    write("config.json", R"({"program": "gpt", "model": "GPT", "steps": 10, "plan": "dp2", "precision": "f32"})");
    write("metrics.jsonl",
          "{\"step\": 1, \"epoch\": 1, \"loss\": 4.0, \"lr\": 0.5, \"grad_norm\": 2.5}\n"
          "{\"step\": 2, \"epoch\": 1, \"loss\": 2.0, \"lr\": 0.25, \"grad_norm\": 1.5, \"val_loss\": 3.25}\n");
    write("lock", lock_of(::getpid(), dist::host_name()));
  }
  RankStatus status(int rank) const {
    return {.rank = rank,
            .ranks = 2,
            .host = "node",
            .pid = 7 + rank,
            .step = 2,
            .steps = 10,
            .time = 1.7e9,
            .steps_per_second = 0.5,
            .unit = "tokens",
            .units = 640,
            .memory = 1 << 20,
            .peak = 3 << 20,
            .in_collectives = rank == 0 ? 0.75 : 0.5};
  }
};

}  // namespace

TEST_CASE("top: a rank's state is written whole, and read back") {
  const RunFolder run;
  RankStatus status = run.status(1);
  status.ended = true;
  CHECK(write_status(run.str(), status));
  CHECK(run.list(".run") == "status-1.json");
  const auto back = read_status(run.str(), 1);
  REQUIRE(back);
  CHECK((back->rank == 1 && back->ranks == 2 && back->host == "node" && back->pid == 8 && back->step == 2));
  CHECK((back->steps == 10 && back->time == 1.7e9 && back->steps_per_second == 0.5 && back->unit == "tokens"));
  CHECK((back->units == 640 && back->memory == 1 << 20 && back->peak == 3 << 20 && back->in_collectives == 0.5));
  CHECK(back->ended);
  CHECK_FALSE(read_status(run.str(), 0));
  run.write(".run/status-0.json", "{\"rank\": 0");
  CHECK_FALSE(read_status(run.str(), 0));
  CHECK_FALSE(write_status(run / "none", status));
  CHECK_FALSE(std::filesystem::exists(run / "none"));
}

TEST_CASE("top: the time in collectives counts overlapping ones once") {
  using Spans = std::vector<std::pair<int64_t, int64_t>>;
  struct Row {
    Spans spans;
    double part;
  };
  for (const Row& row : std::vector<Row>{{{}, 0},
                                         {{{100, 150}}, 0.5},
                                         {{{100, 150}, {120, 160}}, 0.6},
                                         {{{120, 130}, {100, 110}}, 0.2},
                                         {{{0, 110}, {190, 300}}, 0.2},
                                         {{{0, 50}, {250, 300}}, 0},
                                         {{{150, 0}}, 0.5},  // it still runs
                                         {{{0, 300}, {110, 120}}, 1}}) {
    std::vector<dist::Flight::Entry> entries;
    for (const auto& [started, ended] : row.spans) entries.push_back({.started_ns = started, .ended_ns = ended});
    CHECK(time_in_collectives(entries, 100, 200) == doctest::Approx(row.part));
  }
  // A full record that begins at 150 says nothing about the time before.
  const std::vector<dist::Flight::Entry> full(dist::Flight::capacity,
                                              dist::Flight::Entry{.started_ns = 150, .ended_ns = 175});
  CHECK(time_in_collectives(full, 100, 200) == doctest::Approx(0.5));
}

TEST_CASE("top: a run that grows, is resumed, and ends") {
  const RunFolder run;
  RunView view(run.str());
  CHECK(view.is_running());
  CHECK(contains(view.table(), "gpt  plan dp2  precision f32  running: pid "));
  CHECK(contains(view.table(), "step 2/10 (epoch 1)  20.0 %\n"));
  CHECK(contains(view.table(), "loss 3.9000 (last step 2.0000)  lr 0.25  grad_norm 1.5\n"));
  CHECK(contains(view.table(), "val_loss 3.25  (step 2)\n"));
  CHECK_FALSE(contains(view.table(), "rank"));

  write_status(run.str(), run.status(0));
  append(run / "metrics.jsonl", "{\"step\": 3, \"loss\": 2.0, \"lr\": 0.125");
  view.refresh();
  CHECK(view.step() == 2);  // the line is not complete
  append(run / "metrics.jsonl", ", \"grad_norm\": 1}\n");
  view.refresh();
  CHECK(view.step() == 3);
  CHECK(contains(view.table(), "step 3/10  30.0 %  0:14 left\n"));
  CHECK(contains(view.table(), "0.5 steps/s  320 tokens/s\n"));
  CHECK(contains(view.table(), "1.0 MiB"));
  CHECK(contains(view.table(), "   1  no state in this folder"));
  CHECK(contains(view.line(), "step 3/10  30.0 %  0:14 left  loss 3.8050 (last step 2.0000)  lr 0.125  grad_norm 1"));
  write_status(run.str(), run.status(1));
  view.refresh();
  // Rank 1 is there for the shortest time, so rank 0 waits for it.
  CHECK(contains(view.table(), "75 %    25 %"));
  CHECK(contains(view.table(), "50 %     0 %"));

  // A resumed run replaces the file by a shorter one.
  run.write("new", "{\"step\": 1, \"loss\": 4.0, \"lr\": 0.5}\n");
  std::filesystem::rename(run / "new", run / "metrics.jsonl");
  view.refresh();
  CHECK(view.step() == 1);
  CHECK_FALSE(contains(view.table(), "val_loss"));

  RankStatus last = run.status(0);
  last.ended = true;
  write_status(run.str(), last);
  std::filesystem::remove(run / "lock");
  view.refresh();
  CHECK_FALSE(view.is_running());
  CHECK(contains(view.table(), "  ended\n"));
}

TEST_CASE("top: whether a job runs in the folder") {
  const RunFolder run;
  const std::string here = dist::host_name();
  struct Row {
    std::string lock;
    bool running;
    const char* said;
  };
  for (const Row& row : std::vector<Row>{{lock_of(::getpid(), here), true, "running: pid "},
                                         {lock_of(ended_process(), here), false, "died: pid "},
                                         {lock_of(1, here + "-other"), true, "running: pid 1 on "},
                                         {"", false, "not running; --resume continues it"},
                                         {"{\"pid\"", false, "not running"}}) {
    run.write("lock", row.lock);
    const RunView view(run.str());
    CHECK(view.is_running() == row.running);
    CHECK(contains(view.table(), row.said));
  }
  std::filesystem::remove(run / "lock");
  std::filesystem::create_directory(run / ".run");  // the layout of Hugging Face's Trainer
  run.write(".run/lock", lock_of(::getpid(), here));
  CHECK(RunView(run.str()).is_running());
}

TEST_CASE("top: of a long metrics.jsonl the end is read") {
  const RunFolder run;
  std::ofstream out(run / "metrics.jsonl");
  for (int step = 1; step <= 200000; ++step) out << str("{\"step\": ", step, ", \"loss\": 1.5, \"lr\": 0.1}\n");
  out.close();
  const RunView view(run.str());
  CHECK(view.step() == 200000);
  CHECK(contains(view.table(), "loss 1.5000"));
}

TEST_CASE("top: what it refuses") {
  const TempDir dir;
  CHECK_ERROR(RunView(dir / "none"), "got no such folder");
  CHECK_ERROR(RunView(dir.str()), "expected the folder of a run (--out)");
  dir.write("metrics.jsonl", "oops\n");
  CHECK_ERROR(RunView(dir.str()), "metrics.jsonl:1");
}

TEST_CASE("top: durations") {
  for (const auto& [seconds, text] : std::vector<std::pair<int64_t, std::string>>{
           {0, "0:00"}, {7, "0:07"}, {61, "1:01"}, {3599, "59:59"}, {3600, "1:00:00"}, {90061, "25:01:01"}})
    CHECK(clock_text(seconds) == text);
}
