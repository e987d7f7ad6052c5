// The lists of a step: what each plan makes, as text.
#include <doctest/doctest.h>

#include "pipeline/schedule.h"

using namespace lockstep;
using namespace lockstep::pipeline;
using parallel::StepReplicas;

namespace {

const std::string tail = " reduce losses check norm update gather scale rates report";

std::vector<std::string> texts(const Lists& lists, int chunks = 1) {
  std::vector<std::string> all;
  for (const std::vector<StepAction>& list : lists) {
    std::string text = to_string(list, chunks);
    if (text.ends_with(tail)) text.resize(text.size() - tail.size());
    all.push_back(text);
  }
  return all;
}

}  // namespace

TEST_CASE("a step's list: a replica of a whole model, for each stage of ZeRO") {
  CHECK(to_string(parallel::step_of({.micro_batches = 2}, 0)) == "d0 F0 B0 d1 F1 B1>" + tail);
  const StepReplicas consecutive{.count = 2, .micro_batches = 2}, interleaved{2, 2, true};
  CHECK(texts({step_of(consecutive, 0), step_of(consecutive, 1)}) ==
        std::vector<std::string>{"d0 F0 B0 d1 F1 B1>", "d2 F2 B2 d3 F3 B3>"});
  CHECK(texts({step_of(interleaved, 0), step_of(interleaved, 1)}) ==
        std::vector<std::string>{"d0 F0 B0> d2 F2 B2>", "d1 F1 B1> d3 F3 B3>"});
}

TEST_CASE("a step's list: stages draw, pass activations on, and add each micro-batch's gradients") {
  CHECK(texts(step_of(make_schedule({ScheduleKind::one_f_one_b, 2, 4}))) ==
        std::vector<std::string>{"d0 F0 a0> d1 F1 a1> <g0 B0 +0 d2 F2 a2> <g1 B1 +1 d3 F3 a3> <g2 B2 +2 <g3 B3 +3",
                                 "<a0 d0 F0 B0 g0> +0 <a1 d1 F1 B1 g1> +1 <a2 d2 F2 B2 g2> +2 <a3 d3 F3 B3 g3> +3"});
  // The first stage adds a micro-batch when the weights of two more are done: its tied table waits for the last stage.
  CHECK(texts(step_of(make_schedule({ScheduleKind::zb_h1, 2, 3}), {{1, 0}})) ==
        std::vector<std::string>{"d0 F0 a0> d1 F1 a1> <g0 I0 W0 d2 F2 a2> <g1 I1 W1 <g2 I2 W2 +0 +1 +2",
                                 "<a0 d0 F0 I0 g0> <a1 d1 F1 I1 g1> W0 +0 <a2 d2 F2 I2 g2> W1 +1 W2 +2"});
  CHECK(to_string(evaluation_of(make_schedule({ScheduleKind::one_f_one_b, 2, 4}), 2)[0]) ==
        "d0 F0 a0> d1 F1 a1> losses");
  CHECK(to_string(evaluation_of(make_schedule({ScheduleKind::one_f_one_b, 2, 4}), 2)[1]) ==
        "<a0 d0 F0 <a1 d1 F1 losses");
}

TEST_CASE("a step's list: chunks of one rank pass activations and gradients to each other") {
  CHECK(texts(step_of(make_schedule({ScheduleKind::interleaved, 1, 1})), 2) ==
        std::vector<std::string>{"d0a F0a a0a> <a0b F0b B0b g0b> +0b <g0a B0a +0a"});
  const auto v = texts(step_of(make_schedule({ScheduleKind::dualpipe_v, 2, 4})), 2);
  CHECK(v[0].starts_with("d0a F0a a0a> d1a F1a a1a> d2a F2a a2a> <a0b F0b"));  // drawn once, though it has both ends
  CHECK(v[1].starts_with("<a0a F0a a0a> <a0b F0b a0b>"));
}
