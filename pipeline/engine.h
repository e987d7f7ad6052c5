#pragma once
// Trains a model in stages: each rank holds consecutive layers, and runs its part of a schedule (schedule.h).
//
//   pipeline::Engine engine(layers, {.stages = 4, .micro_batches = 8}, loss);  // on 4 ranks; on 8: two pipelines
//   optim::AdamW optimizer(engine.module().parameters());
//   const double loss = engine.train_batch(data);  // the same on every rank; .grad is the mean over all micro-batches
//   optimizer.step();
//   optimizer.zero_grad();
//
// Ranks form a mesh (parallel/mesh.h): copies of the pipeline, stages, parts of sequences, slices of layers. A step has
// micro_batches x dp micro-batches; copy d of dp has d·micro_batches and those after it. Ranks along cp have the same
// ones, each its part of their tokens: cut by Data, attended to by layers that know it (parallel/sequence/). Bits:
// gradients are summed in the one order of dist/summation_tree.h, so with powers of two parameters have the bits of one
// process that accumulates the same micro-batches, for any schedule, split and number of stages.
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
#include "dist/process_group.h"
#include "parallel/agreement.h"
#include "parallel/buckets.h"
#include "parallel/mesh.h"
#include "pipeline/link.h"
#include "pipeline/module.h"
#include "pipeline/simulate.h"
#include "pipeline/split.h"
#include "tensor/at_end.h"
#include "tensor/clock.h"

namespace lockstep::pipeline {

/// A micro-batch: what the first layer takes, and what the loss takes besides what the last layer gives.
struct Sample {
  std::vector<Tensor> inputs, targets;
};
/// Called on the ranks that have the first or the last layer, with the number of the micro-batch in the step, 0 ..
/// micro_batches x dp - 1, rising; random numbers that it draws are the same on both. None: the data has ended, which
/// is an Error on all ranks.
using Data = std::function<std::optional<Sample>(int64_t micro_batch)>;
using Loss = std::function<Variable(const Values& outputs, const std::vector<Tensor>& targets)>;

struct EngineOptions {
  int stages = 0;         ///< 0: as many as ranks; else they must divide
  int micro_batches = 1;  ///< of a step, for each pipeline
  Kind schedule = Kind::one_f_one_b;
  int chunks = 0;  ///< of each rank; 0: as the schedule has by default
  SplitBy split = {};
  std::vector<int> bounds = {};  ///< instead of `split`: where each virtual stage begins, and the number of layers
  int checkpoint_interval = 0;   ///< recompute every so many layers in backward; 0: none
  bool dynamic_shapes = false;   ///< exchange shapes with every micro-batch, not once
  std::optional<Schedule> custom = {};  ///< a schedule of your own, checked before anything starts
  /// Else made of the ranks: copies x stages. With slices, layers are cut by `make` of their LayerSpec.
  const parallel::Mesh* mesh = nullptr;
  std::optional<DType> dtype = {};  ///< of parameters, from the start
  /// False: .grad is the sum over the micro-batches of this copy only; what comes after is up to who adds up the copies
  /// (ZeRO).
  bool reduce = true;
};

/// What a rank did in the last train_batch(). A step takes as long as the slowest rank of the pipeline.
struct RankTime {
  double busy = 0;  ///< seconds: computing and handing over
  double idle = 0;  ///< waiting for messages, and for the slowest rank at the end
};

class Engine {
 public:
  using Options = EngineOptions;
  /// Called by all ranks of `world` (default: dist::world(); one rank trains alone). Error on all ranks: fewer layers
  /// than virtual stages, ranks that do not divide, a schedule that does not exist or is wrong, ranks with other layers
  /// or options.
  Engine(std::vector<LayerSpec> layers, Options options, Loss loss, dist::ProcessGroup* world = nullptr);
  Engine(const Engine&) = delete;
  ~Engine();

  /// This rank's layers. Tied parameters are there on every rank that has them: an optimizer keeps them equal.
  nn::Module& module() { return *module_; }
  /// Forward and backward of all micro-batches; adds nothing to .grad that was there before, which is an Error. Gives
  /// back the mean loss. `scale` changes the loss that backward starts from.
  double train_batch(const Data& data, const std::function<Variable(const Variable&)>& scale = {});
  /// Its two halves. The first may be recorded in a Graph (tensor/graph.h) behind a step that was not, and gives back
  /// the losses of micro-batches; undefined where this rank has them not.
  std::vector<Tensor> forward_backward(const Data& data, const std::function<Variable(const Variable&)>& scale = {});
  double mean_loss(const std::vector<Tensor>& losses);
  /// Scales the gradients of all stages by max_norm / (norm + 1e-6) when that is below 1; gives back their norm().
  double clip_grad_norm(double max_norm);
  /// The Euclidean norm of the gradients of all stages, from the sum of squares of each that this rank has, by name. A
  /// tied one counts once, and all are added in the order of the model: the bits are those of one process. Collective.
  double norm(const std::vector<std::pair<std::string, double>>& squares) const;
  /// The losses of `micro_batches` micro-batches of each pipeline, of any size, without gradients; the module is in
  /// eval mode meanwhile. measure: in place of the loss, so many `values` of each micro-batch.
  std::vector<double> eval_batch(const Data& data, int micro_batches, const Loss& measure = {}, int values = 1);
  /// The number of the next train_batch(), for dropout and messages; rises by itself.
  void set_step(uint64_t step) { step_ = step; }

  const Schedule& schedule() const { return schedule_; }
  /// Where each virtual stage begins, and the number of layers.
  const std::vector<int>& bounds() const { return bounds_; }
  int stage() const { return rank_; }                                 ///< this rank's, 0 .. stages - 1
  bool is_first() const { return schedule_.place(0).rank == rank_; }  ///< has the first layer
  bool is_last() const { return schedule_.place(virtual_stages_ - 1).rank == rank_; }
  /// Of all ranks, by their number in the world; the same everywhere. Of the last step that was not a graph's.
  const std::vector<RankTime>& times() const { return times_; }
  /// The idle part of the last train_batch(), over all ranks: what simulate() and the papers' formulas call the bubble.
  double bubble() const;
  /// Whether this stage adds up the gradient of a parameter, and counts it: of a tied one, the first that has it.
  bool leads(const std::string& parameter) const;
  /// Then: its layer and place there, which is its place in norm()'s sum; none elsewhere.
  std::optional<std::pair<int, int>> place_in_norm(const std::string& parameter) const;
  /// Those that messages and ties have beside the mesh's, of this rank, in an order that all ranks share.
  std::vector<dist::ProcessGroup*> groups() const;
  /// Bytes that this rank sent to other stages so far.
  int64_t bytes_sent() const;

 private:
  /// A micro-batch in a chunk, from its forward to its last backward.
  struct Flight {
    Values inputs, outputs;         // leaves; what the next stage gets, or the loss
    std::vector<Tensor> gradients;  // of the outputs
    std::optional<SplitBackward> split;
    uint64_t random_call = 0;  // drawn when it came, then when it goes
  };
  enum class Road : uint8_t { activation, gradient, tied };
  /// What several virtual stages have (LayerSpec::ties). Gradients go from the last to the first, which adds up.
  struct Tie {
    std::string key;
    std::vector<int> stages;                    // rising
    std::vector<Variable> parameters;           // empty where this rank has none
    std::shared_ptr<dist::ProcessGroup> ranks;  // that have it; null when it is one, or not this one
    // By stage that gave it and micro-batch: for a chunk of this rank.
    std::map<std::pair<int, int64_t>, std::vector<Tensor>> waiting;
    int before(int stage) const;  // that has it, too; -1: none
    int after(int stage) const;
  };
  /// Gradients of a micro-batch to which those of tied layers are still to come from the stage after.
  struct Late {
    Action action;
    std::vector<std::pair<Variable, Tensor>> gradients;
  };
  /// What comes over a link, from this virtual stage.
  struct Message {
    Road road;
    int stage, micro_batch, tie = 0;
    auto operator<=>(const Message&) const = default;
  };
  struct Held {
    Sample sample;
    int left = 1;              // ends that still want it
    uint64_t random_call = 0;  // numbers that were drawn for it
  };
  /// Of a parameter in the whole model.
  struct Place {
    int layer = 0, place = 0;
    bool leads = true;
    Variable parameter;
    bool trained = true;  // when this was made
  };

  // setup.cpp
  void agree() const;
  void make_module();
  void make_links();
  void make_ties();
  Ties tie_pairs() const;

  // engine.cpp
  void run(const std::vector<std::vector<Action>>& all);
  void forward(const Action& a);
  void backward(const Action& a);
  void backward_weight(const Action& a);
  const Held& sample(int64_t micro_batch);
  template <class Fn> auto together(const Fn& fn);
  /// Adds the seconds of its life.
  static auto stopwatch(double& to) {
    return AtEnd([&to, start = steady_seconds()] { to += steady_seconds() - start; });
  }
  Flight& flight(const Action& a);
  bool remote(int stage) const { return schedule_.is_remote(stage, rank_); }
  int64_t number(int64_t micro_batch) const { return at_.dp * int64_t(now_.micro_batches) + micro_batch; }
  /// Ranks that share a micro-batch have other tokens of it.
  uint64_t random_number(int micro_batch) const { return uint64_t(number(micro_batch) * plan_.cp + at_.cp); }

  // transfers.cpp
  void send_activation(const Action& a);
  void receive_activation(const Action& a);
  void send_gradient(const Action& a);
  void receive_gradient(const Action& a);
  bool post(Road road, int from_rank, bool must);
  std::vector<Tensor> fetch(const Message& wanted);
  bool has_come(const Message& wanted);
  static std::string tag(const Message& message);
  /// Shapes of training, which are told once.
  bool fixed_shapes() const { return now_.training && !options_.dynamic_shapes; }
  Link& link(Road road, int from, int to);
  void expect(const std::vector<std::vector<Action>>& all);
  std::vector<double> gather_losses();

  // gradients.cpp
  std::vector<std::pair<Variable, Tensor>> take_tied(const Action& a);  // from the stage after in each tie
  bool tied_have_come(const Action& a);
  void collect(const Action& a);
  void collect_late(size_t most);
  void reduce();
  std::vector<Variable> train_frozen();
  void abandon() noexcept;

  const std::vector<LayerSpec> layers_;
  const Options options_;
  const Loss loss_;
  dist::ProcessGroup* const world_;  // null alone
  std::unique_ptr<parallel::Mesh> own_mesh_;
  const parallel::Mesh* mesh_ = nullptr;                  // null alone
  dist::ProcessGroup *pp_ = nullptr, *copies_ = nullptr;  // null of one
  parallel::Plan plan_;                                   // of the mesh, and where this rank is in it
  parallel::Coordinates at_;
  int rank_ = 0, virtual_stages_ = 1;  // this rank's stage
  int ahead_ = 2;                      // Check::ahead
  Schedule schedule_;
  std::vector<int> bounds_;
  std::unique_ptr<StageModule> module_;
  std::map<std::string, Place> places_;
  parallel::FrozenSince frozen_;

  std::map<std::tuple<Road, int, int>, std::unique_ptr<Link>> links_;  // by ranks, that of the sender first
  std::vector<Tie> ties_;
  std::vector<std::optional<parallel::GradientAccumulator>> sums_;  // by chunk; none: nothing in it is trained
  std::map<int, Shapes> shapes_sent_;                               // of training, by virtual stage
  // By virtual stage that sends, and micro-batch (-1: all of training).
  std::map<std::pair<int, int>, Shapes> shapes_known_;
  // By the rank that sends: what is still to be posted, and what was.
  std::map<std::pair<Road, int>, std::deque<Message>> expected_, posted_;

  /// A step, or an evaluation.
  struct Run {
    const Data* data = nullptr;
    int micro_batches = 1;
    bool training = false;
    const std::function<Variable(const Variable&)>* scale = nullptr;
    const Loss* measure = nullptr;  // what evaluation wants in place of the loss, so many `values`
    int values = 1;
  } now_;
  uint64_t step_ = 0;
  std::map<std::pair<int, int>, Flight> flights_;  // by chunk and micro-batch
  std::map<Message, std::vector<Tensor>> arrived_;
  std::deque<Late> late_;
  std::map<int64_t, Held> samples_;
  std::map<int64_t, Tensor> losses_;
  double waited_ = 0, ran_ = 0;                  // seconds of this rank's run: for messages, altogether
  std::optional<std::pair<Event, Event>> took_;  // its ends on the device, where its stream waits for messages
  std::vector<RankTime> times_;
};

}  // namespace lockstep::pipeline
