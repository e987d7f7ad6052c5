#pragma once
// A whole step of train_batch() on a CUDA device as one recorded piece of work (tensor/graph.h). Internal to engine/.
//
//   first of its shapes    runs as it is: what is made on first use exists
//   second                 recorded, which does nothing, and replayed
//   and all others         data, loss scale, learning rates ─▶ the recording's memory ─▶ replay: forward and backward
//                          of all micro-batches, sums over ranks, norm, clip, update ─▶ losses, norm, overflow?
//
// The recording calls what a step that runs as it is calls, so bits are the same. What a model decides on the host (a
// branch on a member, a probability of dropout) is decided once a recording.
//
// Several ranks do the same in each step: run it as it is, record it, or replay what they recorded together. Before it
// they tell each other whether they can, the shapes of their data, and what their model is made of; the shapes of all
// ranks are those of the step. Behind a recording they tell each other whether it went well, and the ranks of each
// group which collectives of it are in it. Stages and slices do what copies do: their schedule is recorded as a whole.
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tensor/graph.h"

namespace lockstep::engine {

/// One of train_batch()'s.
struct MicroBatch {
  pipeline::Sample sample = {};
  int64_t number = 0;   // in the step
  uint64_t calls = 0;   // random numbers that its data have drawn
  int64_t tokens = -1;  // -1: the loss is a mean

  /// Makes the data last when the next micro-batch is drawn, perhaps into the same memory. False where a copy would lie
  /// in another way.
  bool keep();
};

/// What a rank says of the coming step.
struct StepVote {
  int64_t reason = 0;  // hash of why it is to run as it is; 0: it need not
  int64_t shapes = 0;  // hashes of the data's, and of Model::state()
  int64_t model = 0;
  int64_t tokens = 0;
};

class StepGraphs {
 public:
  static constexpr size_t most = 4;  ///< shapes: each keeps the memory of a forward and backward
  StepGraphs(EngineBase::Impl& engine, bool wanted) : m_(engine), wanted_(wanted) {}

  /// Ranks that have different parts of a model agree on whether steps are recorded. Collective.
  void agree();
  /// Whether steps may be replays, so that run() is to be called before each.
  bool are_wanted();
  /// Whether the data of the coming step may be drawn before it begins.
  bool may_draw() const;
  /// Runs a step. False, and nothing is done, where it is to run as it is, as when not all of it could be drawn.
  /// Collective.
  bool run(const std::vector<MicroBatch>& step, std::optional<double> metric);
  void drop() { recorded_.clear(); }
  /// "2 shapes recorded, 198 of 200 steps replayed", or why not.
  std::string status();

 private:
  struct Recorded {
    std::vector<int64_t> models = {};  // of all ranks, when it ran last
    int moves = 0;                     // how often they have changed
    bool refused = false;
    std::vector<std::vector<std::string>> calls = {};  // collectives, of each of groups()
    // What it reads. Made before it is: memory of the recording may have held something else earlier in it.
    std::vector<pipeline::Sample> samples = {};
    Tensor factor = {};               // of one element
    std::vector<Tensor> tokens = {};  // the same, of each micro-batch
    std::vector<Tensor> losses = {};  // and makes
    zero::Zero::Captured update = {};
    std::optional<Graph> graph = {};
  };
  /// What a model is made of now; gathered once a step.
  struct Model {
    explicit Model(nn::Module& module)
        : parameters(module.named_parameters()), buffers(module.named_buffers()), modules(module.named_modules()) {}
    std::vector<nn::NamedParameter> parameters;
    std::vector<nn::NamedBuffer> buffers;
    std::vector<std::pair<std::string, nn::Module*>> modules;
    /// Hash of what a recording takes for granted: where parameters and buffers lie, what is trained, and modes.
    int64_t state() const;
  };
  bool is_shared() const;
  std::vector<dist::ProcessGroup*> groups() const;
  std::string reason_against_all() const;
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
  std::map<std::vector<int64_t>, Recorded> recorded_;  // by shapes of all ranks, on all of them
  std::map<int64_t, std::string> reasons_;             // of all ranks, on all of them, by hash
  double tokens_ = 0;                                  // of all ranks
  std::set<std::string> said_;
  std::string last_reason_;
  int64_t replays_ = 0, steps_ = 0;
};

}  // namespace lockstep::engine
