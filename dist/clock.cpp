// clock.cpp: measures how far the ranks' clocks differ, and starts and stops traces that record this. See clock.h.
#include "dist/clock.h"

#include <cmath>
#include <limits>
#include <vector>

#include "dist/job.h"
#include "trace/trace.h"

namespace lockstep::dist {

ClockOffset measure_clock(ProcessGroup& world, int rounds) {
  LOCKSTEP_CHECK(rounds >= 1, "[clock] expected 1 round or more, got ", rounds);
  std::vector<int> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(r);
  const auto group = world.new_group(all, "clock");  // a group of its own, so that its messages do not mix with others
  const Tensor question = Tensor::from(std::vector<int64_t>{0}, {1}),
               answer = Tensor::from(std::vector<int64_t>{0}, {1});
  ClockOffset best;
  int64_t shortest = std::numeric_limits<int64_t>::max();
  if (group->rank() == 0) {
    for (int r = 1; r < group->size(); ++r) {
      for (int i = 0; i < rounds; ++i) {
        group->receive(question, r);
        answer.data<int64_t>()[0] = trace::now();
        group->send(answer, r);
      }
    }
    return best;
  }
  for (int i = 0; i < rounds; ++i) {
    const int64_t asked = trace::now();
    group->send(question, 0);
    group->receive(answer, 0);
    const int64_t answered = trace::now(), trip = answered - asked;
    if (trip >= shortest) continue;
    shortest = trip;
    best = {answer.data<int64_t>()[0] - (asked + trip / 2), (trip + 1) / 2};
  }
  return best;
}

ClockOffset clock_of(ProcessGroup& group) {
  const ClockOffset measured = measure_clock(group);
  World* const world = current_world();
  if (!world) return measured;
  const std::vector<int>& hosts = world->job->hosts();
  const bool shared = hosts.at(size_t(group.world_rank(group.rank()))) == hosts.at(size_t(group.world_rank(0)));
  return shared && std::abs(measured.offset_ns) <= measured.error_ns ? ClockOffset{} : measured;
}

void start_trace(const std::string& folder, ProcessGroup& group, int64_t limit_bytes) {
  const ClockOffset clock = clock_of(group);
  const Tensor facts = Tensor::from(std::vector<int64_t>{trace::now(), 0}, {2});
  // Rank 0's start time also serves as the id of this run: no other run on rank 0's machine starts at the same time.
  facts.data<int64_t>()[1] = facts.data<int64_t>()[0];
  group.broadcast(facts, 0, {.tag = "trace"});
  trace::start(folder, {.rank = group.rank(),
                        .ranks = group.size(),
                        .offset_ns = clock.offset_ns,
                        .error_ns = clock.error_ns,
                        .zero_ns = facts.data<int64_t>()[0],
                        .run = facts.data<int64_t>()[1],
                        .limit_bytes = limit_bytes});
  group.barrier({}, "trace");  // a rank that cannot write its file fails here, before training starts
}

void stop_trace(ProcessGroup& group) {
  const ClockOffset clock = clock_of(group);
  trace::note("clock at the end", str("{\"offset_ns\":", clock.offset_ns, ",\"error_ns\":", clock.error_ns, "}"));
  trace::stop();
}

}  // namespace lockstep::dist
