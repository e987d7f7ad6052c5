// The report about flight records: which rank is late, and records that are missing or damaged.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "dist/flight.h"
#include "extensions/launcher/launcher.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace lockstep::dist;
using testing::TempDir;

namespace {

struct Row {
  const char* group;
  uint64_t sequence;
  const char* call;
  bool ended;
};
void record(const std::string& folder, int rank, int world, const std::vector<Row>& rows) {
  Flight flight;
  for (const Row& row : rows) {
    const uint64_t ticket = flight.start(row.group, row.sequence, row.call, 3);
    if (row.ended) flight.finish(ticket);
  }
  flight.write(folder, rank, world, "timeout");
}

}  // namespace

TEST_CASE("flight: names the late rank and its call") {
  const std::pair<const char*, std::vector<std::vector<Row>>> rows[] = {
      {"rank 2 is late: it is in seq 8 (broadcast f32 x 4 from rank 0); ranks 0, 1, 3 wait in seq 9 (all_reduce f32 x "
       "8, tag w1)\n",
       {{{"world", 9, "all_reduce f32 x 8, tag w1", false}},
        {{"world", 8, "broadcast f32 x 4 from rank 0", true}, {"world", 9, "all_reduce f32 x 8, tag w1", false}},
        {{"world", 7, "barrier", true}, {"world", 8, "broadcast f32 x 4 from rank 0", false}},
        {{"world", 9, "all_reduce f32 x 8, tag w1", false}}}},
      {"rank 1 is late: it left seq 4 (barrier) and is in no collective; rank 0 waits in seq 5 (barrier)\n",
       {{{"world", 5, "barrier", false}}, {{"world", 4, "barrier", true}}}},
      {"ranks disagree in seq 5: ranks 0, 2 call all_reduce f32 x 8; rank 1 calls all_reduce f32 x 9\n",
       {{{"world", 5, "all_reduce f32 x 8", false}},
        {{"world", 5, "all_reduce f32 x 9", false}},
        {{"world", 5, "all_reduce f32 x 8", false}}}},
      // Rank 2 is late in dp because rank 1 is late in pp: the cause is listed first.
      {"rank 1 is late: it left seq 2 (barrier) and is in no collective; rank 2 waits in seq 3 (barrier) of group pp\n"
       "rank 2 is late: it left seq 6 (barrier) and is in seq 3 (barrier) of group pp; rank 0 waits in seq 7 "
       "(all_reduce f32 x 1) of group dp\n",
       {{{"dp", 7, "all_reduce f32 x 1", false}},
        {{"pp", 2, "barrier", true}},
        {{"dp", 6, "barrier", true}, {"pp", 3, "barrier", false}}}},
      {"rank 0 waits in receive f32 x 8 from rank 1, tag a\nrank 1 waits in receive f32 x 8 from rank 0, tag b\n",
       {{{"world", 0, "receive f32 x 8 from rank 1, tag a", false}},
        {{"world", 0, "receive f32 x 8 from rank 0, tag b", false}}}},
      {"no rank waits for another\n", {{{"world", 5, "barrier", true}}, {{"world", 5, "barrier", true}}, {}}},
  };
  for (const auto& [expected, ranks] : rows) {
    const TempDir dir;
    const std::string folder = dir / "records";  // made by the first write
    for (size_t r = 0; r < ranks.size(); ++r) record(folder, int(r), int(ranks.size()), ranks[r]);
    const std::string text = explain_flight(folder);
    CAPTURE(text);
    CHECK(text.starts_with(expected));
    CHECK(contains(text, "  rank 1: "));
  }
}

TEST_CASE("flight: missing and damaged records") {
  const TempDir dir;
  const std::string folder = dir / "records";  // made by the first write
  CHECK_ERROR(explain_flight(folder), "expected files flight-RANK.json in " + folder);
  record(folder, 1, 3, {{"world", 5, "barrier", false}});
  CHECK(contains(explain_flight(folder), "ranks 0, 2 left no record: killed, or lost before it could write one"));
  record(folder, 1, 3, {{"world", 6, "barrier", false}});  // replaces the older file
  CHECK(contains(explain_flight(folder), "seq 6"));
  std::string good;
  std::getline(std::ifstream(folder + "/flight-1.json"), good, '\0');
  for (const std::string& bad :
       {std::string(), good.substr(0, good.size() / 2), std::string("[]"), std::string("{\"rank\": 0}"),
        std::string(R"({"rank":0,"world":1,"why":"","entries":[{"group":"world","sequence":1}]})")}) {
    std::ofstream(folder + "/flight-0.json") << bad;
    CHECK_ERROR(explain_flight(folder), "expected a flight record in");
  }
  for (const char* rank : {"-1", "0.5", "1048577", "4294967296", "5555555555555555555555555555555555555", "\"0\""}) {
    CAPTURE(rank);
    std::ofstream(folder + "/flight-0.json") << R"({"rank":)" << rank << R"(,"world":1,"why":"","entries":[]})";
    CHECK_ERROR(explain_flight(folder), "where an integer from 0 to 1048576 is expected");
  }
  // A pipe in the folder does not block.
  std::filesystem::remove(folder + "/flight-0.json");
  REQUIRE(mkfifo((folder + "/flight-0.json").c_str(), 0600) == 0);
  CHECK_ERROR(explain_flight(folder), "flight-0.json: cannot be read: it is a pipe");
}
