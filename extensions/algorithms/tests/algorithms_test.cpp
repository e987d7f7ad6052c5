// The algorithms of this extension: names, requests, and what other ranks get to know. Tests in extensions/schedules/
// prove the schedules right.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "dist/fingerprint.h"
#include "dist/schedule.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;

TEST_CASE("algorithms of the extension are named like those of the core") {
  const std::vector<std::string> names = names_of_algorithms();
  for (const std::string name : {"tree", "halving_doubling", "hierarchical", "server"}) {
    const Algorithm a = parse_algorithm(name);
    CHECK(name_of(a) == name);
    CHECK(std::count(names.begin(), names.end(), name) == 1);
    CHECK(uses_hosts(a) == (name == "hierarchical"));
  }
  CHECK_FALSE(uses_hosts(Algorithm::ring));
  CHECK_ERROR(parse_algorithm("halfing_doubling", "LOCKSTEP_ALGORITHM"), "did you mean halving_doubling?");
}

TEST_CASE("requests that an algorithm of the extension refuses") {
  const auto visit = [](const char* name, const CollectiveRequest& r) {
    return message([&] { visit_schedule(parse_algorithm(name), r, [](const Transfer&) {}); });
  };
  CHECK(contains(visit("tree", {Collective::all_to_all, 4}),
                 "tree has no schedule for all_to_all; expected one of direct, hierarchical, server"));
  CHECK(contains(visit("halving_doubling", {Collective::gather, 4}), "halving_doubling has no schedule for gather"));
  CHECK(contains(visit("hierarchical", {Collective::all_reduce, 4, 0, false, {0, 1}}),
                 "expected the host of each of 4 ranks, got 2"));
}

TEST_CASE("headers tell all algorithms apart, whatever their numbers are") {
  std::set<uint32_t> hashes{hash_of(Algorithm::automatic)};
  for (const Algorithm a : all_algorithms()) CHECK(hashes.insert(hash_of(a)).second);
  CHECK(hash_of(parse_algorithm("tree")) == uint32_t(hash_text("tree")));
  Call call{.collective = Collective::all_reduce, .algorithm = parse_algorithm("tree"), .count = 8};
  const Header mine = header_of(call, 1, 1, 0);
  call.algorithm = parse_algorithm("server");
  CHECK_ERROR(check_same(mine, header_of(call, 1, 1, 1), "world"),
              "rank 0 calls all_reduce f32 x 8 sum by tree; rank 1 calls all_reduce f32 x 8 sum by server");
}
