// Traces: the records that are written, with many threads and ranks, on a full disk, and when the process is killed.
#include <doctest/doctest.h>
#include <signal.h>

#include <filesystem>
#include <thread>

#include "tensor/ops.h"
#include "tests/file_limit.h"
#include "tests/fork.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"
#include "tests/trace/read.h"
#include "trace/sink.h"
#include "trace/trace.h"

namespace fs = std::filesystem;
namespace trace = lockstep::trace;
using testing::TempDir;
using trace::Category;

TEST_CASE("trace: names may have any characters") {
  const struct {
    std::string name, printed;
  } rows[] = {{"plain", "plain"},
              {"", ""},
              {"a \"quoted\" \\ name", "a \"quoted\" \\ name"},
              {std::string("zero \0 line \n tab \t", 20), std::string("zero \0 line \n tab \t", 20)},
              {"grün π 𝄞", "grün π 𝄞"},
              {"cut \xc3", "cut \ufffd"},
              {"\xff\xfe", "\ufffd\ufffd"},
              {"overlong \xc0\xaf", "overlong \ufffd\ufffd"},
              {"surrogate \xed\xa0\x80", "surrogate \ufffd\ufffd\ufffd"},
              {"too large \xf4\x90\x80\x80", "too large \ufffd\ufffd\ufffd\ufffd"},
              {std::string(100'000, 'x'), std::string(100'000, 'x')}};
  const TempDir folder;
  trace::start(folder / "t.json");
  for (const auto& row : rows)
    trace::record(row.name, Category::other, trace::now(), trace::now(), {{"text", row.name}});
  trace::stop();
  const auto records = with(read_trace(folder / "t.json"), "ph", "X");
  REQUIRE(records.size() == std::size(rows));
  for (size_t i = 0; i < records.size(); ++i) {
    CHECK(records[i]["name"] == rows[i].printed);
    CHECK(records[i]["args"]["text"] == rows[i].printed);
  }
}

TEST_CASE("trace: scopes, counters, notes") {
  const TempDir folder;
  { const trace::Scope before("before"); }
  std::optional<trace::Scope> early(std::in_place, "begun before the trace");
  trace::start(folder / "t.json");
  early.reset();
  {
    const trace::Step step(7);
    trace::Scope outer("outer", Category::forward, {{"a", 1}, {"b", -2.5}, {"c", "text"}, {"d", NAN}}, 3);
    outer.add({"late", int64_t(1) << 60});
    for (const char* more : {"six", "seven", "eight"}) outer.add({more, 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const trace::Scope inner("inner");
    lockstep::add(lockstep::ones({3}, {.device = lockstep::cpu}), lockstep::ones({3}, {.device = lockstep::cpu}));
    trace::counter("loss", {{"loss", 0.5}});
    trace::instant("now");
    trace::note("settings", "{\"lr\":\n0.1}");
  }
  trace::stop();
  trace::stop();  // no effect
  const auto all = read_trace(folder / "t.json");
  CHECK(with(all, "name", "before").empty());
  CHECK(with(all, "name", "begun before the trace").empty());
  const auto the_only = [&](const std::string& name) {
    const auto found = with(all, "name", name);
    REQUIRE(found.size() == 1);
    return found[0];
  };
  const Record outer = the_only("outer 3"), inner = the_only("inner"), add = the_only("add");
  const double begun = inner["ts"], ended = begun + inner["dur"].get<double>();
  CHECK(outer["cat"] == "forward");
  // Only six arguments are kept. Times are in microseconds.
  CHECK(outer["args"] ==
        Record{{"a", 1}, {"b", -2.5}, {"c", "text"}, {"d", nullptr}, {"late", int64_t(1) << 60}, {"six", 1}});
  CHECK(outer["dur"].get<double>() >= 2000);
  CHECK(add["cat"] == "operation");
  CHECK(begun <= add["ts"].get<double>());
  CHECK(ended <= outer["ts"].get<double>() + outer["dur"].get<double>());
  CHECK(the_only("step 7")["args"]["step"] == 7);
  CHECK(with(all, "name", "loss")[0]["args"]["loss"] == 0.5);
  CHECK(with(all, "name", "settings")[0]["args"]["lr"] == 0.1);
  CHECK(with(all, "name", "memory")[0]["args"].contains("activation"));
  the_only("now"), the_only("trace ends");
}

TEST_CASE("trace: a killed process leaves a trace that viewers can read") {
  const TempDir folder;
  CHECK(testing::in_fork([&] {
          trace::start(folder.path, {.rank = 2, .ranks = 4});
          for (int i = 0; i < 3; ++i) const trace::Step step(i);
          { const trace::Scope lost("held back"); }
          raise(SIGKILL);
        }) == 128 + SIGKILL);
  const auto all = read_trace(folder / "rank-2.json", false);
  // The record of step 2 may still be buffered.
  for (const char* name : {"step 0", "step 1"}) CHECK(with(all, "name", name).size() == 1);
  CHECK(with(all, "name", "memory").size() == 3);
  CHECK(with(all, "name", "trace ends").empty());
  for (const Record& r : all) CHECK(r["pid"] == 2);
}

TEST_CASE("trace: records that a fork inherits are written once, by the parent") {
  const TempDir folder;
  trace::start(folder / "t.json");
  { const trace::Scope scope("parent"); }
  testing::in_fork([] {
    { const trace::Scope scope("child"); }
    trace::flush();
  });
  trace::stop();
  const auto all = read_trace(folder / "t.json");
  CHECK(with(all, "name", "parent").size() == 1);
  CHECK(with(all, "name", "child").empty());
}

TEST_CASE("trace: threads and ranks") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const TempDir folder;
    const int scopes = 500;
    const trace::Track row("a row without a rank");
    std::vector<std::thread> threads;
    std::atomic<int> begun{0};
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        trace::start(folder.path, {.rank = rank, .ranks = ranks});
        ++begun;
        while (begun < ranks) std::this_thread::yield();
        const trace::Track own("group", rank);
        std::thread helper([&, at = trace::rank_of_thread()] {
          const trace::ThreadScope mine(at, "helper");
          for (int i = 0; i < scopes; ++i) const trace::Scope scope("help", Category::data, {{"rank", rank}});
        });
        for (int i = 0; i < scopes; ++i) {
          const trace::Scope scope("work", Category::forward, {{"rank", rank}});
          trace::record("collective", Category::collective, trace::now(), trace::now(), {}, &own);
        }
        trace::record("whose", Category::other, trace::now(), trace::now(), {}, &row);
        helper.join();
        ++begun;
        while (begun < 2 * ranks) std::this_thread::yield();  // a thread that ended would no longer count
        trace::stop();
      });
    }
    for (std::thread& t : threads) t.join();
    for (int rank = 0; rank < ranks; ++rank) {
      const auto all = read_trace(folder / ("rank-" + std::to_string(rank) + ".json"));
      for (const char* name : {"work", "help"}) {
        const auto found = with(all, "name", name);
        CHECK(found.size() == scopes);
        for (const Record& r : found) CHECK(r["args"]["rank"] == rank);
      }
      CHECK(with(all, "name", "collective").size() == scopes);
      CHECK(with(all, "name", "whose").size() == (ranks == 1));  // with several ranks, this row belongs to none of them
      const int main = with(all, "name", "work")[0]["tid"], helper = with(all, "name", "help")[0]["tid"],
                group = with(all, "name", "collective")[0]["tid"];
      CHECK(main == 0);
      CHECK(helper != main);
      CHECK(group != main);
      CHECK(group != helper);
      std::vector<std::string> names;
      for (const Record& r : with(all, "name", "thread_name")) names.push_back(r["args"]["name"]);
      for (const char* name : {"main", "helper", "group"}) CHECK(std::count(names.begin(), names.end(), name) == 1);
    }
  }
}

TEST_CASE("trace: a limit, and a disk that is full") {
  const TempDir folder;
  SUBCASE("limit") {
    trace::start(folder / "t.json", {.limit_bytes = 1 << 16});
    for (int i = 0; i < 5000; ++i) const trace::Scope scope("a scope of many");
    trace::stop();
    CHECK(fs::file_size(folder / "t.json") <= 1 << 16);
    const auto all = read_trace(folder / "t.json", false);
    CHECK(all.size() > 300);
    CHECK(contains(all.back()["name"], "trace limit of 65536 bytes reached"));
  }
  SUBCASE("full") {
    const testing::FileLimit full(0);
    trace::start(folder / "t.json");
    { const trace::Scope scope("nowhere"); }
    trace::stop();
  }
}

TEST_CASE("trace: wrong calls") {
  const TempDir folder;
  std::ofstream(folder / "a-file") << "x";
  const struct {
    std::string path;
    trace::TraceOptions options;
    std::string error;
  } rows[] = {{"", {}, "expected a folder or a file, got an empty path"},
              {folder / "t.json", {.rank = 0, .ranks = 2}, "expected a folder for the traces of 2 ranks"},
              {folder.path, {.rank = 2, .ranks = 2}, "expected a rank from 0 to 1, got 2"},
              {folder.path, {.limit_bytes = 10}, "expected a limit of 65536 bytes or more, got 10"},
              {folder / "none/t.json", {}, "none/t.json: cannot be written: No such file"},
              {folder / "a-file/below", {}, "cannot create the folder"}};
  for (const auto& row : rows) {
    CHECK_ERROR(trace::start(row.path, row.options), row.error);
    CHECK(!trace::on());
  }
  trace::start(folder.path);
  CHECK_ERROR(trace::start(folder.path), "rank 0 is already being traced");
  trace::stop();
}
