#pragma once
// Trains a model in stages: each rank holds consecutive layers, and executes its part of a schedule (schedule.h).
//
//   pipeline::PipelineEngine engine(layers, {.stages = 4, .micro_batches = 8}, loss);  // 4 ranks; on 8: two pipelines
//   optim::AdamW optimizer(engine.module().parameters());
//   const double loss = engine.train_batch(data);  // the same on every rank; .grad is the mean over all micro-batches
//   optimizer.step();
//   optimizer.zero_grad();
//
// Ranks form a mesh (parallel/mesh.h): replicas of the pipeline (dp), stages (pp), context-parallel ranks (cp) and
// tensor-parallel ranks (tp). A step has micro_batches x dp micro-batches; replica d runs the numbers d·micro_batches
// to (d+1)·micro_batches - 1. Context-parallel ranks run the same micro-batches, each on its part of the tokens: Data
// cuts the sequences, and attention layers of parallel/sequence/ exchange keys and values.
//
// Reproducibility: gradients are summed in the fixed order of dist/summation_tree.h. With one replica, or if dp and
// micro_batches are powers of two, parameters are therefore bit-identical to those of one process that accumulates the
// same micro-batches, for any schedule, split and number of stages.
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "autograd/split_backward.h"
#include "base/at_end.h"
#include "base/clock.h"
#include "dist/process_group.h"
#include "parallel/agreement.h"
#include "parallel/gradient_sum.h"
#include "parallel/mesh.h"
#include "pipeline/module.h"
#include "pipeline/split.h"
#include "tensor/stream.h"

namespace lockstep::pipeline {

class Link;

/// Options of PipelineEngine.
struct EngineOptions {
  int stages = 0;         ///< 0: one stage per rank; otherwise a divisor of the number of ranks
  int micro_batches = 1;  ///< micro-batches per step and pipeline
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int chunks = 0;  ///< chunks per rank; 0: the schedule's default
  /// How layers are distributed over the virtual stages.
  SplitBy split = {};
  /// Overrides `split`: the index of the first layer of each virtual stage and, as last element, the number of layers.
  std::vector<int> bounds = {};
  int checkpoint_interval = 0;                  ///< layers that are recomputed together in backward; 0: none
  bool dynamic_shapes = false;                  ///< true: send shapes with every micro-batch; false: only once
  std::optional<PipelineSchedule> custom = {};  ///< a schedule of your own, checked before training starts
  /// The mesh of the ranks; null: replicas x stages over all ranks. If the mesh has tensor-parallel ranks, the caller's
  /// LayerSpec::make must return layers that are sharded already.
  const parallel::Mesh* mesh = nullptr;
  std::optional<DType> dtype = {};  ///< dtype of the parameters; default: as the layers are built
  /// False: .grad is the sum over the micro-batches of this replica only, and the caller (ZeRO) reduces over replicas.
  bool reduce = true;
};

/// Seconds of a rank in the last train_batch(). A step takes as long as the slowest rank of the pipeline.
struct RankTime {
  double busy = 0;  ///< computing, and queueing messages
  double idle = 0;  ///< waiting for messages, and for the slowest rank at the end
};

/// Pipeline-parallel training of a list of layers.
class PipelineEngine {
 public:
  using Options = EngineOptions;
  /// Builds this rank's layers and links. Collective over `world` (default: dist::world(); if that is not initialised,
  /// a single rank trains alone). Errors, on all ranks: fewer layers than virtual stages; a number of ranks that
  /// `stages` does not divide; an impossible or wrong schedule; layers or options that differ between ranks.
  PipelineEngine(std::vector<LayerSpec> layers, Options options, Loss loss, dist::ProcessGroup* world = nullptr);
  PipelineEngine(const PipelineEngine&) = delete;
  ~PipelineEngine();

  /// This rank's layers. Every rank that uses a tied parameter has a copy; identical gradients keep the copies equal.
  nn::Module& module() { return *module_; }
  /// Forward and backward of all micro-batches. Returns the mean loss, the same on all ranks. Error when a parameter
  /// still has a .grad from an earlier step. `scale` transforms the loss before backward (loss scaling).
  double train_batch(const Data& data, const std::function<Variable(const Variable&)>& scale = {});
  /// The first half of train_batch(), which may be recorded in a Graph (tensor/graph.h) after one step has run
  /// normally. Returns the loss of each micro-batch, undefined on ranks that do not compute it. The second half,
  /// mean_loss(), averages these losses over all ranks.
  std::vector<Tensor> forward_backward(const Data& data, const std::function<Variable(const Variable&)>& scale = {});
  /// Averages the losses that forward_backward() returned, over all ranks. Collective.
  double mean_loss(const std::vector<Tensor>& losses);
  /// Multiplies the gradients of all stages by max_norm / (norm + 1e-6) if that is below 1. Returns the norm before
  /// clipping. Collective. Error if the plan has tensor parallelism or `reduce` is false.
  double clip_grad_norm(double max_norm);
  /// Euclidean norm of the gradients of all stages. squares: the sum of squares of each of this rank's gradients, by
  /// parameter name. A tied parameter counts once. Sums follow the order of the model, so the result is bit-identical
  /// to that of one process. Collective.
  double norm(const std::vector<std::pair<std::string, double>>& squares) const;
  /// Returns the losses of `micro_batches` micro-batches per pipeline, without gradients and in eval mode. Shapes may
  /// differ between micro-batches. `measure` replaces the loss, and returns `values` numbers for each micro-batch.
  std::vector<double> eval_batch(const Data& data, int micro_batches, const Loss& measure = {}, int values = 1);
  /// Sets the number of the next train_batch(), which seeds dropout and appears in messages; each step increments it.
  void set_step(uint64_t step) { step_ = step; }

  /// The schedule that train_batch() executes.
  const PipelineSchedule& schedule() const { return schedule_; }
  /// The index of the first layer of each virtual stage and, as last element, the number of layers.
  const std::vector<int>& bounds() const { return bounds_; }
  int stage() const { return rank_; }                                 ///< this rank's stage, 0 .. stages - 1
  bool is_first() const { return schedule_.place(0).rank == rank_; }  ///< true if this rank holds the first layer
  /// True if this rank holds the last layer.
  bool is_last() const { return schedule_.place(schedule_.virtual_stages() - 1).rank == rank_; }
  /// Times of all ranks by world rank, the same on every rank. A step replayed from a graph does not update them.
  const std::vector<RankTime>& times() const { return times_; }
  /// Idle seconds of all ranks, divided by their idle and busy seconds, in the last train_batch(): the "bubble" of
  /// simulate() and of the papers' formulas.
  double bubble() const;
  /// True if this stage sums the gradient of the parameter and counts it in the norm. For a tied parameter, only the
  /// first stage that uses the parameter does so.
  bool leads(const std::string& parameter) const;
  /// Position of a parameter in norm()'s sum: its layer, and its index in that layer. nullopt on stages for which
  /// leads() is false.
  std::optional<std::pair<int, int>> place_in_norm(const std::string& parameter) const;
  /// This rank's process groups for messages and for tied parameters, in the same order on all ranks. The mesh's groups
  /// are not included.
  std::vector<dist::ProcessGroup*> groups() const;
  /// Bytes that this rank has sent to other stages so far.
  int64_t bytes_sent() const;

 private:
  /// A micro-batch in one of this rank's chunks of layers, from its forward to the end of its backward.
  struct Flight {
    Values inputs, outputs;         // inputs: leaves; outputs: activations for the next stage, or the loss
    std::vector<Tensor> gradients;  // gradients of the outputs, then of the inputs
    std::vector<Tensor> targets;    // on the last stage
    std::optional<SplitBackward> split;
    std::vector<std::pair<Variable, Tensor>> late;  // gradients kept until add() has those of tied parameters
    uint64_t random_call = 0;  // random calls made before the forward; after the forward, its calls are included
  };
  enum class Road : uint8_t { activation, gradient, tied };
  /// A parameter group shared by several virtual stages (LayerSpec::ties). The first of them sums its gradients.
  struct Tie {
    std::string key;
    std::vector<int> stages;                    // virtual stages that use the group, in ascending order
    std::vector<Variable> parameters;           // empty when this rank uses none
    std::shared_ptr<dist::ProcessGroup> ranks;  // ranks that use the group; null if only one does, and on other ranks
  };
  /// Identifies a message that the virtual stage `stage` sends. tie: index in ties_, for gradients of tied parameters.
  struct Message {
    Road road;
    int stage, micro_batch;
    size_t tie = 0;
    auto operator<=>(const Message&) const = default;
  };
  /// A link from one rank to another, and the messages that will come over it to this rank, in order. Link::post() may
  /// have been called for the first one.
  struct Lane {
    std::unique_ptr<Link> link;
    std::deque<Message> expected;
  };
  /// A parameter, and its position in the whole model. trained: its requires_grad when the engine was made.
  struct Place : StageModule::Numbered {
    bool leads = true, trained = true;
  };

  // Defined in setup.cpp:
  void agree() const;
  void make_module();
  void make_links(int ahead);
  void make_ties();

  // Defined in engine.cpp:
  void run(const Lists& all);
  void act(const StepAction& a);
  void draw(const StepAction& a, Flight& f);
  void forward(const StepAction& a, Flight& f);
  void backward(const StepAction& a, Flight& f);
  void backward_weight(Flight& f);
  template <class Fn> auto together(const Fn& fn);
  /// Returns an object that adds the seconds of its lifetime to `to`.
  static auto stopwatch(double& to) {
    return AtEnd([&to, start = steady_seconds()] { to += steady_seconds() - start; });
  }
  int stage_of(const StepAction& a) const { return schedule_.virtual_stage(rank_, a.chunk); }
  bool remote(int stage) const { return schedule_.is_remote(stage, rank_); }
  int64_t number(int64_t micro_batch) const { return at_.dp * int64_t(now_.micro_batches) + micro_batch; }

  // Defined in transfers.cpp:
  void send_activation(const StepAction& a, Flight& f);
  void receive_activation(const StepAction& a, Flight& f);
  void send(const Message& message, int to_stage, std::vector<Tensor> tensors, const Shapes* shapes = nullptr);
  bool post(Lane& lane, bool must);
  std::vector<Tensor> fetch(const Message& wanted);
  static std::string tag(const Message& message);
  /// Returns the key in shapes_ of the activation that `stage` sends. In training without dynamic_shapes, shapes are
  /// sent to another rank only once, and hold for all micro-batches (-1).
  std::pair<int, int> shapes_key(int stage, int micro_batch) const {
    const bool is_far = schedule_.place(stage).rank != schedule_.place(stage + 1).rank;
    return {stage, is_far && now_.training && !options_.dynamic_shapes ? -1 : micro_batch};
  }
  void expect(const Lists& all);
  std::vector<double> gather_losses(const std::vector<Tensor>& losses);

  std::vector<std::pair<Variable, Tensor>> take_tied(const StepAction& a);  // gradients from the next stage of each tie
  void add(const StepAction& a, Flight& f);
  void reduce();
  std::vector<Variable> train_frozen();
  void drop_flights() noexcept;
  void abandon() noexcept;

  const std::vector<LayerSpec> layers_;
  const Options options_;
  const Loss loss_;
  dist::ProcessGroup* const world_;  // null for a single process
  std::unique_ptr<parallel::Mesh> own_mesh_;
  const parallel::Mesh* mesh_ = nullptr;    // null for a single process
  dist::ProcessGroup* replicas_ = nullptr;  // null for a single rank
  parallel::Plan plan_;                     // plan_: the mesh's plan; at_: this rank's coordinates
  parallel::Coordinates at_;
  int rank_ = 0;  // this rank's stage
  PipelineSchedule schedule_;
  Lists step_list_;  // of a training step
  std::vector<int> bounds_;
  std::unique_ptr<StageModule> module_;
  std::map<std::string, Place> places_;
  parallel::FrozenSince frozen_;

  std::map<std::tuple<Road, int, int>, Lane> lanes_;  // by sending and receiving rank
  std::vector<Tie> ties_;
  // The gradients of a tie go from a stage to the previous one that uses the tie. key: index in ties_.
  Ties hops_;
  std::map<int, parallel::GradientSum> sums_;  // by chunk; without chunks that have nothing to train
  // Shapes of activations. Key: the virtual stage that sends them, and the micro-batch (-1: all micro-batches).
  std::map<std::pair<int, int>, Shapes> shapes_;

  /// The current train_batch() or eval_batch().
  struct Run {
    const Data* data = nullptr;
    int micro_batches = 1;
    bool training = false;
    const std::function<Variable(const Variable&)>* scale = nullptr;
    const Loss* loss = nullptr;  // returns `values` numbers
    int values = 1;
  } now_;
  uint64_t step_ = 0;
  std::map<std::pair<int, int>, Flight> flights_;   // by chunk and micro-batch
  std::map<Message, std::vector<Tensor>> arrived_;  // from another rank, or from another chunk of this rank
  std::vector<Tensor> losses_;                      // of micro-batches; undefined on other stages
  double waited_ = 0, ran_ = 0;  // waited_: seconds that the current run waits for messages; ran_: all its seconds
  // Device events at the start and the end of run(). Set if device streams, not the host, wait for messages.
  std::optional<std::pair<Event, Event>> took_;
  std::vector<RankTime> times_;
};

}  // namespace lockstep::pipeline
