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
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tensor/graph.h"

namespace lockstep::engine {

/// One micro-batch of train_batch().
struct MicroBatch {
  pipeline::Sample sample = {};
  int64_t number = 0;   // number in the step
  uint64_t calls = 0;   // random calls made while its data were drawn
  int64_t tokens = -1;  // tokens that the loss is a sum over; -1: the loss is a mean

  /// Copies each tensor whose memory is shared, because drawing the next micro-batch may overwrite it. Returns false if
  /// such a tensor is not contiguous, since a copy would have other strides.
  bool keep();
};

/// The state that a rank tells the others before a step.
struct StepVote {
  int64_t reason = 0;  // hash of the reason to run normally; 0: none
  int64_t shapes = 0;  // hash of the data's shapes and dtypes
  int64_t model = 0;   // hash of the model: Model::state()
  int64_t tokens = 0;  // number of tokens
};

/// Decides for each step whether it runs normally, is recorded or replayed.
class StepGraphs {
 public:
  /// A recorded step.
  struct Recorded {
    std::vector<int64_t> models = {};  // Model::state() of all ranks at the last run
    int moves = 0;                     // number of times `models` has changed
    bool refused = false;
    std::vector<std::vector<std::string>> calls = {};  // collectives recorded, for each of groups()
    // Inputs of the recording, allocated before it starts: memory allocated during a recording may be reused within it.
    std::vector<pipeline::Sample> samples = {};
    Tensor factor = {};               // one element: the loss factor
    std::vector<Tensor> tokens = {};  // one element for each micro-batch: its number of tokens
    std::vector<Tensor> losses = {};  // outputs of the recording
    zero::Zero::Captured update = {};
    std::optional<Graph> graph = {};
  };
  static constexpr size_t most = 4;  ///< most recordings; each keeps the memory of a forward and backward
  StepGraphs(EngineBase::Impl& engine, bool wanted) : m_(engine), wanted_(wanted) {}

  /// Ranks that hold different parts of a model agree on whether steps are recorded. Collective.
  void agree();
  /// True if steps may be replayed. Then call run() for each step; if run() returns false, run the step normally.
  bool are_wanted();
  /// True if the data of the coming step may be drawn in advance.
  bool may_draw() const;
  /// Records or replays a step, and returns true. Returns false, without effect, if the step must run normally.
  /// Collective.
  bool run(const std::vector<MicroBatch>& step, std::optional<double> metric);
  void drop() { recorded_.clear(); }  ///< forgets all recordings
  /// Returns a text: "2 shapes recorded, 198 of 200 steps replayed", or the reason why no step is replayed.
  std::string status();

 private:
  /// Lists of a model's parameters, buffers and modules, made once per step.
  struct Model {
    explicit Model(nn::Module& module)
        : parameters(module.named_parameters()), buffers(module.named_buffers()), modules(module.named_modules()) {}
    std::vector<nn::NamedParameter> parameters;
    std::vector<nn::NamedBuffer> buffers;
    std::vector<std::pair<std::string, nn::Module*>> modules;
    /// Hash of everything that must not change between a recording and its replay: addresses of parameters and buffers,
    /// which parameters are trained, and which modules are in training mode.
    int64_t state() const;
  };
  // The functions below that return a string return the reason why a step cannot be a graph, or "" if it can.
  bool is_shared() const;
  std::vector<dist::ProcessGroup*> groups() const;
  std::string reason_against_all() const;
  std::string of_participants(bool ever) const;
  const std::string& why_never();
  std::string why_not(const Model& model, const std::vector<MicroBatch>& step, bool has_metric) const;
  std::string who_listens(const Model& model) const;
  std::vector<StepVote> ask(const StepVote& mine, dist::ProcessGroup& ranks) const;
  std::string agreed_reason(const std::string& mine, const std::vector<StepVote>& votes);
  std::string agreed_reason(const std::string& mine);
  std::string other_calls(const std::vector<std::string>& mine, dist::ProcessGroup& ranks) const;
  bool record(Recorded& to, const std::vector<MicroBatch>& step);
  void step_on(Recorded& made, const std::vector<MicroBatch>& step);
  bool replay(Recorded& recorded, const std::vector<MicroBatch>& step, std::optional<double> metric);
  void say_once(const std::string& reason);

  EngineBase::Impl& m_;
  const bool wanted_;
  std::optional<std::string> never_;
  std::map<std::vector<int64_t>, Recorded> recorded_;  // by shapes of all ranks; the same on all ranks
  std::map<int64_t, std::string> reasons_;             // reasons of all ranks by hash; the same on all ranks
  double tokens_ = 0;                                  // tokens of all ranks
  std::set<std::string> said_;
  std::string last_reason_;
  int64_t replays_ = 0, steps_ = 0;
};

}  // namespace lockstep::engine
