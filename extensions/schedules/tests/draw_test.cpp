// Drawings of schedules: the table matches the transfers, the SVG is complete, and the pictures in docs/ are up to
// date.
#include <doctest/doctest.h>

#include <algorithm>
#include <regex>

#include "extensions/schedules/draw.h"
#include "extensions/schedules/schedule_check.h"
#include "tests/dist/every_schedule.h"
#include "tests/golden_folder.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::dist;

TEST_CASE("the table of a schedule") {
  CHECK(draw_table(Algorithm::ring, {Collective::all_reduce, 3, 0, true}) ==
        "  step   rank 0   rank 1   rank 2\n"
        "     0   2 +> 1   0 +> 2   1 +> 0\n"
        "     1   1 +> 1   2 +> 2   0 +> 0\n"
        "     2   0 / 3    1 / 3    2 / 3\n"
        "     3   0 -> 1   1 -> 2   2 -> 0\n"
        "     4   2 -> 1   0 -> 2   1 -> 0\n");
  CHECK(contains(draw_table(Algorithm::direct, {Collective::reduce_scatter, 4}),
                 "     1   2 -> 2[1]     3 -> 3[1]     0 -> 0[1]     1 -> 1[1]\n"));
  CHECK(contains(draw_table(Algorithm::direct, {Collective::reduce_scatter, 4}), "     3   0[1] +> own"));
  CHECK(contains(draw_table(parse_algorithm("halving_doubling"), {Collective::all_reduce, 5}), "0-4 +> 0"));
  CHECK(contains(draw_table(parse_algorithm("tree"), {Collective::gather, 20, 3}),
                 "  step    from  what\n     0       4  4 -> 3\n"));  // too wide for a table: one line per transfer
  CHECK(draw_table(Algorithm::ring, {Collective::all_reduce, 1}) == "  step   rank 0\n");
}

// True if every tag is closed and every attribute is quoted, as a browser requires.
static bool well_formed(const std::string& svg) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z]+)((?: [A-Za-z-]+=\"[^\"<]*\")*)(/?)>");
  size_t tags = 0;
  for (std::sregex_iterator it(svg.begin(), svg.end(), tag), end; it != end; ++it) {
    ++tags;
    const auto& m = *it;
    if (m[1].length() > 0) {
      if (open.empty() || open.back() != m[2].str()) return false;
      open.pop_back();
    } else if (m[4].length() == 0) {
      open.push_back(m[2].str());
    }
  }
  return open.empty() && tags == size_t(std::count(svg.begin(), svg.end(), '<'));
}

TEST_CASE("the picture of a schedule") {
  for_each_pair([](Algorithm a, Collective c) {
    for (const int n : {1, 2, 4, 5, 8}) {
      const CollectiveRequest r{c, n, n / 2, is_reduction(c), {}};
      INFO(describe(a, r));
      const std::string svg = draw_svg(a, r);
      CHECK(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 "));
      CHECK(well_formed(svg));
      CHECK(svg.size() < 120000);
      CHECK(svg.find("nan") == std::string::npos);
      // One arrow for every transfer; only arrows contain a curve.
      const CollectiveCheck check = check_schedule(a, r);
      CHECK(std::count(svg.begin(), svg.end(), 'C') ==
            check.transfers + check.joins -
                (r.mean ? std::count_if(check.nodes.begin(), check.nodes.end(),
                                        [](const auto& node) { return node.right < 0; })
                        : 0));
    }
  });
  CHECK(draw_svg(Algorithm::ring, {Collective::all_reduce, 4}).size() < 12000);
  CHECK_ERROR(draw_svg(Algorithm::ring, {Collective::all_reduce, 17}), "expected 16 ranks or fewer, got 17");
}

TEST_CASE("the pictures in the documents are those that `lockstep schedule --svg` draws") {
  using Row = std::pair<const char*, CollectiveRequest>;
  const CollectiveRequest two_hosts{Collective::all_reduce, 6, 0, false, {0, 0, 0, 1, 1, 1}};
  const Row rows[] = {{"ring", {Collective::all_reduce, 4}},
                      {"server", {Collective::all_reduce, 4}},
                      {"direct", {Collective::reduce_scatter, 4}},
                      {"tree", {Collective::all_reduce, 8}},
                      {"halving_doubling", {Collective::all_reduce, 8}},
                      {"hierarchical", two_hosts}};
  for (const auto& [algorithm, request] : rows) {
    const std::string file = str(algorithm, "_", name_of(request.collective), ".svg");
    CHECK_MESSAGE(docs_image(file) == draw_svg(parse_algorithm(algorithm), request), file,
                  " is not what is drawn now: see docs/collectives.md for how to make it");
  }
}
