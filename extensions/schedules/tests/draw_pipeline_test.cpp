// Drawings of pipelines and of ring attention: the grid, the SVG, and the pictures in docs/.
#include <doctest/doctest.h>

#include "extensions/schedules/draw.h"
#include "tests/golden_folder.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace lockstep::pipeline;

TEST_CASE("pipeline schedules: the grid and the picture") {
  CHECK(draw_grid(make_schedule({ScheduleKind::one_f_one_b, 2, 3})) ==
        "rank 0   F0 F1 .  .  B0 B0 F2 B1 B1 .  B2 B2\n"
        "rank 1   .  F0 B0 B0 F1 B1 B1 F2 B2 B2 .  .\n");
  CHECK(draw_grid(make_schedule({ScheduleKind::zb_h1, 2, 2})) ==
        "rank 0   F0 F1 .  I0 W0 I1 W1\n"
        "rank 1   .  F0 I0 F1 I1 W0 W1\n");
  CHECK(contains(draw_grid(make_schedule({ScheduleKind::interleaved, 2, 2})), "rank 0   F0a F1a F0b F1b"));
  for (const std::string& name : names_of_kinds()) {
    const ScheduleKind kind = parse_kind(name);
    for (const int p : {1, 4, 32}) {
      const std::string svg =
          draw_svg(make_schedule({kind, p, 2 * p, 0}), {.forward = 1, .input = 1, .weight = 0.5, .latency = 0.1});
      CHECK(svg.starts_with("<svg "));
      CHECK(svg.ends_with("</svg>\n"));
      CHECK(!contains(svg, "nan"));
      CHECK(contains(svg, std::string(name_of(kind)) + ": "));
    }
  }
  CHECK_ERROR(draw_svg(make_schedule({ScheduleKind::gpipe, 33, 1})), "32 ranks or fewer, got 33");
  CHECK_ERROR(draw_svg(make_schedule({ScheduleKind::gpipe, 2, 1}), {0, 0, 0}), "costs of more than 0");
}

TEST_CASE("the pictures in docs/pipeline.md and docs/sequence-parallel.md are those that are drawn") {
  const auto check = [](const char* file, const std::string& svg, const char* arguments) {
    const bool same = docs_image(file) == svg;
    CHECK_MESSAGE(same, file, " is not what is drawn now: lockstep schedule ", arguments, " --svg FILE");
  };
  using Row = std::pair<const char*, ScheduleKind>;
  for (const auto& [file, kind] :
       {Row{"pipeline_1f1b.svg", ScheduleKind::one_f_one_b}, Row{"pipeline_zb_h1.svg", ScheduleKind::zb_h1},
        Row{"pipeline_interleaved.svg", ScheduleKind::interleaved},
        Row{"pipeline_dualpipe_v.svg", ScheduleKind::dualpipe_v}})
    check(file, draw_svg(make_schedule({kind, 4, 8})), "KIND --stages 4 --micro-batches 8");
  check("ring_attention.svg", sequence::draw_svg(4), "ring-attention --ranks 4");
  CHECK_ERROR(sequence::draw_svg(17), "1 to 16 ranks, got 17");
}
