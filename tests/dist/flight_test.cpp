// The flight record: what it keeps and writes.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "dist/flight.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace lockstep::dist;
using testing::TempDir;

namespace {

void record(const std::string& folder, int rank, int world, const char* call) {
  Flight flight;
  flight.start("world", 5, call, 3);
  flight.write(folder, rank, world, "timeout");
}

}  // namespace

TEST_CASE("flight: keeps the last 1,024") {
  Flight flight;
  const uint64_t first = flight.start("world", 1, "a", 0);
  for (uint64_t i = 2; i <= 3000; ++i) flight.finish(flight.start("world", i, "b", i));
  flight.finish(first, "too late to matter");
  const auto all = flight.entries();
  REQUIRE(all.size() == 1024);
  CHECK(all.front().sequence == 3000 - 1023);
  CHECK(all.back().sequence == 3000);
  for (const auto& e : all) CHECK((e.ended_ns >= e.started_ns && e.error.empty()));
}

TEST_CASE("flight: several threads may record") {
  Flight flight;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) flight.finish(flight.start("g", 1, "c", 0), "e");
    });
  for (auto& t : threads) t.join();
  CHECK(flight.entries().size() == 1024);
}

TEST_CASE("flight: records are replaced, and what cannot be written is no error") {
  const TempDir dir;
  const std::string folder = dir / "records";  // made by the first write
  record(folder, 4, 5, "barrier");
  CHECK(contains(dir.read("records/flight-4.json"), "barrier"));
  record(folder, 4, 5, "all_reduce f32 x 8");
  CHECK(contains(dir.read("records/flight-4.json"), "all_reduce f32 x 8"));
  // A pipe in the folder does not block.
  REQUIRE(mkfifo((folder + "/flight-0.json.tmp").c_str(), 0600) == 0);
  record(folder, 0, 5, "barrier");  // prints an error to stderr
  CHECK(!std::filesystem::exists(folder + "/flight-0.json"));
  // If the folder cannot be created: a line on stderr, no exception.
  std::ofstream(folder + "/file") << "x";
  Flight().write(folder + "/file/sub", 0, 1, "why");
}
