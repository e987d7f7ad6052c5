// Reading and merging traces: complete, truncated and foreign ones.
#include "extensions/forecast/trace_file.h"

#include "extensions/forecast/tests/util.h"

using namespace testing;
using namespace lockstep;
using namespace lockstep::report;

TEST_CASE("traces: reading gives the written records") {
  const TempDir folder;
  const trace::Track group("group world", 0);
  traced(folder, 0, 1, [&] {
    put("backward", Category::backward, 2, 3);
    put("matmul", Category::backward, 2.1, 2.9);  // a node of the tape
    put("matmul", Category::operation, 2.2, 2.3);
    put("matmul", Category::operation, 2.3, 2.5);
    put("forward 0", Category::forward, 1, 1.5, {{"micro_batch", 0}});
    put("all_reduce", Category::collective, 2.4, 2.6, {{"bytes", 64}, {"call", "all_reduce f32 x 16"}}, &group);
    trace::note("settings", "{\"lr\": 0.5}");
    trace::counter("loss", {{"loss", 2.5}});
  });
  const RankTrace t = read_trace(folder / "rank-0.json");
  CHECK(t.ended);
  REQUIRE(t.events.size() == 3);
  CHECK(t.events[0].name == "forward 0");
  CHECK(t.events[0].begin == doctest::Approx(1));
  CHECK(t.events[0].seconds == doctest::Approx(0.5));
  CHECK(t.events[1].name == "backward");
  CHECK(t.events[2].number("bytes") == 64);
  CHECK(t.events[2].text("call") == "all_reduce f32 x 16");
  CHECK(t.events[2].row > 0);  // an extra row, because row 0 is the main thread's
  CHECK(t.operations.at("matmul").calls == 2);
  CHECK(t.operations.at("matmul").seconds == doctest::Approx(0.3));
  CHECK(t.notes.at("settings").at("lr").as_number() == 0.5);
  CHECK(t.counters.at("loss").at(0).values.at("loss").as_number() == 2.5);
}

TEST_CASE("traces: of a file cut at any byte, the records before the cut are read") {
  const TempDir folder;
  traced(folder, 0, 1, [&] {
    for (int i = 0; i < 20; ++i) put("forward", Category::forward, i, i + 0.5);
  });
  const std::string all = folder.read("rank-0.json");
  const size_t head = all.find("\"forward\"") - 8;
  size_t highest = 0;
  for (size_t length = head; length < all.size(); length += 7) {
    folder.write("rank-0.json", all.substr(0, length));
    const RankTrace t = read_trace(folder / "rank-0.json");
    CHECK(t.events.size() >= highest);
    CHECK(t.ended == (length >= all.size() - 1));
    highest = t.events.size();
    std::vector<std::string> warnings;
    merge_traces(folder.path, folder / "out.json", warnings);
    CHECK(data::read_json(folder / "out.json").as_array().size() >= highest);  // valid JSON, wherever the trace was cut
    CHECK(warnings.size() == !t.ended);
  }
  CHECK(highest == 20);
}

TEST_CASE("traces: clocks that drifted are put right") {
  const TempDir folder;
  traced(folder, 0, 2, [] { put("forward", Category::forward, 10, 11); });
  const int64_t now = trace::now(), begun = now - 5'000'000'000;
  trace::start(folder.path,
               {.rank = 1, .ranks = 2, .offset_ns = 1000, .error_ns = 500, .zero_ns = now - 10'000'000'000, .run = 7});
  // 5 s after zero, halfway to the end: half of the drift
  trace::record("forward", Category::forward, begun, begun + 1'000'000'000);
  trace::note("clock at the end", "{\"offset_ns\":3001000,\"error_ns\":900}");
  trace::stop();
  const RankTrace late = read_trace(folder / "rank-1.json");
  CHECK(late.events.at(0).begin == doctest::Approx(5.0015).epsilon(1e-4));
  CHECK(late.clock_error == doctest::Approx(900e-9));
  std::vector<std::string> warnings;
  CHECK(merge_traces(folder.path, folder / "all.json", warnings) == std::vector<int>{0, 1});
  CHECK(warnings.empty());
  double at = 0;
  const auto merged = data::read_json(folder / "all.json");
  for (const auto& r : merged.as_array())
    if (r.at("name").as_string() == "forward" && r.at("pid").as_int() == 1) at = r.at("ts").as_number();
  CHECK(at * 1e-6 == doctest::Approx(late.events[0].begin).epsilon(1e-6));
}

TEST_CASE("traces: missing ranks, mixed runs, files of another program") {
  const TempDir folder;
  std::vector<std::string> warnings;
  CHECK(read_traces(folder.path, warnings).empty());
  CHECK_ERROR(merge_traces(folder.path, folder / "x.json", warnings), "expected files rank-N.json in " + folder.str());
  for (const int rank : {0, 2, 10}) traced(folder, rank, 11, [] { put("forward", Category::forward, 0, 1); });
  const auto three = read_traces(folder.path, warnings);
  REQUIRE(three.size() == 3);
  CHECK(three[1].rank == 2);
  CHECK(three[2].rank == 10);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "no trace of rank 1, 3, 4, 5, 6, 7, 8, 9 (of 0 to 10)"));

  warnings.clear();
  fs::last_write_time(folder / "rank-2.json", fs::last_write_time(folder / "rank-2.json") - std::chrono::hours(1));
  for (const int rank : {0, 1})
    traced(
        folder, rank, 2, [] { put("forward", Category::forward, 0, 1); }, 8);
  fs::last_write_time(folder / "rank-10.json", fs::last_write_time(folder / "rank-2.json"));
  CHECK(read_traces(folder.path, warnings).size() == 2);
  REQUIRE(warnings.size() == 2);
  CHECK(contains(warnings[0] + warnings[1], "rank-2.json belongs to another run and was left out"));

  const struct {
    std::string text, error;
  } rows[] = {{"", "expected a trace that Lockstep wrote"},
              {"{}", "expected a trace that Lockstep wrote"},
              {"[\n", "found no record that says so"},
              {"[\n{\"name\":\"x\",\"ph\":\"X\"},\n]\n", "found no record that says so"},
              {"[\nnot a record\n]\n", "expected a record on every line, got \"not a record\""},
              {"[\n{\"name\":\"trace\",\"ph\":\"M\",\"args\":{\"rank\":3,\"ranks\":2,\"run\":1,\"offset_ns\":0,\"error_"
               "ns\":0}},\n",
               "expected a rank from 0 to 1, got 3"},
              {"[\n{\"name\":\"trace\",\"ph\":\"M\",\"args\":{}},\n", "expected a key \"rank\""}};
  for (const auto& row : rows) {
    folder.write("rank-0.json", row.text);
    const std::string said = message([&] { read_trace(folder / "rank-0.json"); });
    CHECK_MESSAGE(contains(said, row.error), said);
    CHECK(contains(said, "rank-0.json"));
  }
}

TEST_CASE("traces: subfolders are searched") {
  const TempDir folder;
  trace::start(folder / "trace", {.zero_ns = zero_ns});
  trace::stop();
  CHECK(find_traces(folder.path).size() == 1);
}
