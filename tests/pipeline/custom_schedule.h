#pragma once
// A custom schedule: several chunks per rank, where a rank runs all forwards of a chunk before those of the next. A
// rank sends all activations of a chunk before it receives any of the next chunk, so blocking sends would need many
// messages in flight.
#include "pipeline/schedule.h"

namespace testing {

/// The schedule described above.
inline lockstep::pipeline::PipelineSchedule chunk_by_chunk(int stages, int micro_batches, int chunks) {
  using namespace lockstep::pipeline;
  PipelineSchedule s = make_schedule({ScheduleKind::interleaved, stages, micro_batches, chunks});
  for (int rank = 0; rank < stages; ++rank) {
    std::vector<StepAction>& list = s.ranks[size_t(rank)];
    list.clear();
    for (const bool back : {false, true}) {
      for (int i = 0; i < chunks * micro_batches; ++i) {
        const int chunk = back ? chunks - 1 - i / micro_batches : i / micro_batches, micro = i % micro_batches,
                  stage = s.virtual_stage(rank, chunk), step = back ? -1 : 1;
        if (s.is_remote(stage - step, rank))
          list.push_back({back ? Do::receive_gradient : Do::receive_activation, micro, chunk});
        list.push_back({back ? Do::backward : Do::forward, micro, chunk});
        if (s.is_remote(stage + step, rank))
          list.push_back({back ? Do::send_gradient : Do::send_activation, micro, chunk});
      }
    }
  }
  return s;
}

}  // namespace testing
