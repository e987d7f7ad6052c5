#pragma once
// Captures whole steps of train_batch() on a CUDA device as graphs (tensor/graph.h). Internal to engine/.
//
//   first step with new shapes  runs normally, so that everything made on first use exists
//   second                      is recorded, which executes nothing, then replayed
//   later ones                  data, loss scale, learning rates ─▶ memory of the recording
//                               ─▶ replay: forward and backward of all micro-batches, sums over ranks,
//                               norm, clip, update ─▶ losses, norm, overflow?
//
// A recording makes the same calls as a normal step, so its results are bit-identical. Decisions that a model takes on
// the host (a branch on a member, a probability of dropout) are taken once per recording.
//
// With several ranks, all do the same in each step: run it normally, record it, or replay what they recorded together.
// Before a step, they exchange whether a graph is possible, the shapes of their data, and the state of their model. The
// shapes of all ranks are the key of a recording. After a recording, they exchange whether it succeeded, and the ranks
// of each group compare the recorded collectives. With pipeline stages or tensor parallelism, a whole schedule is
// recorded.
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/micro_batch.h"
#include "tensor/graph.h"

namespace lockstep::engine {

/// Decides for each step whether it runs normally, is recorded or replayed.
class StepGraphs {
 public:
  /// A recorded step.
  struct Recorded {
    std::vector<int64_t> models = {};  // hashes of all ranks' models at the last run
    int moves = 0;                     // number of times `models` has changed
    bool refused = false;
    std::vector<std::pair<dist::ProcessGroup*, std::vector<std::string>>> calls = {};  // collectives recorded, by group
    // Inputs of the recording, allocated before it starts: memory allocated during a recording may be reused within it.
    std::vector<MicroBatch> step = {};
    Tensor factor = {};               // one element: the loss factor
    std::vector<Tensor> tokens = {};  // one element for each micro-batch: its number of tokens
    std::vector<Tensor> losses = {};  // outputs of the recording
    zero::Zero::Captured update = {};
    std::optional<Graph> graph = {};
  };
  static constexpr size_t limit = 4;  ///< most recordings; each keeps the memory of a forward and backward
  StepGraphs(EngineBase::Impl& engine, bool wanted) : m_(engine), wanted_(wanted) {}

  /// Decides whether any step can be a graph; called once the engine is built. Collective if ranks hold different parts
  /// of a model.
  void agree();
  /// True if steps may be replayed. Then call run() for each step; if run() returns false, run the step normally.
  bool are_wanted();
  /// Records or replays a step, and returns true. Returns false, without effect, if it must run normally. Collective.
  bool run(const std::vector<MicroBatch>& step, std::optional<double> metric);
  void drop() { recorded_.clear(); }  ///< forgets all recordings
  /// Returns a text: "2 shapes recorded, 198 of 200 steps replayed", or the reason why no step is replayed.
  std::string status() const;

 private:
  std::vector<dist::ProcessGroup*> groups() const;
  // These functions return the reason why a step cannot be a graph, or "" if it can.
  std::string reason_against_all() const;
  std::string why_not(const std::vector<MicroBatch>& step, bool has_metric, std::vector<uint64_t>& state) const;
  std::string who_listens(std::vector<uint64_t>& state) const;
  std::string agreed_reason(const std::string& mine) const;
  std::string other_calls(const std::vector<std::string>& mine, dist::ProcessGroup& ranks) const;
  bool record(Recorded& to, const std::vector<MicroBatch>& step);
  bool replay(Recorded& recorded, const std::vector<MicroBatch>& step, std::optional<double> metric);
  bool decline(const std::string& reason);

  EngineBase::Impl& m_;
  const bool wanted_;
  std::string never_;                                   // the reason why no step can be a graph; "" if some can
  std::map<std::vector<int64_t>, Recorded> recorded_;   // by shapes of all ranks; the same on all ranks
  std::map<std::vector<int64_t>, std::string> agreed_;  // reasons agreed on, by hashes of all ranks' reasons
  std::set<std::string> said_;
  std::string last_reason_;
  int64_t replays_ = 0, steps_ = 0;
};

}  // namespace lockstep::engine
