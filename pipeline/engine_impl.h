#pragma once
// What pipeline::Engine holds; setup.cpp makes it, engine.cpp runs it, transfers.cpp moves, gradients.cpp adds up. Not
// for users.
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/split_backward.h"
#include "parallel/buckets.h"
#include "pipeline/engine.h"
#include "pipeline/link.h"
#include "pipeline/simulate.h"

namespace lockstep::pipeline {

struct Engine::Impl {
  Impl(std::vector<LayerSpec> layers, Options options, Loss loss, dist::ProcessGroup* world);

  /// A micro-batch in a chunk, from its forward to its last backward.
  struct Flight {
    Values inputs, outputs;         // leaves; what the next stage gets, or the loss
    std::vector<Tensor> gradients;  // of the outputs
    std::optional<SplitBackward> split;
    uint64_t random_call = 0;  // drawn when it came, then when it goes
  };
  enum class Road : uint8_t { activation, gradient, tied };
  /// A layer key that several virtual stages have. Gradients go from the last to the first, which adds up.
  struct Tie {
    std::string key;
    std::vector<int> stages;                    // rising
    std::vector<Variable> parameters;           // empty where this rank has none
    std::shared_ptr<dist::ProcessGroup> ranks;  // that have it; null when it is one, or not this one
    std::map<std::pair<int, int64_t>, std::vector<Tensor>>
        waiting;  // by stage that gave it and micro-batch: for a chunk of this rank
  };
  /// Gradients of a micro-batch to which those of tied layers are still to come from the stage after.
  struct Late {
    Action action;
    std::vector<std::pair<Variable, Tensor>> gradients;
  };
  struct Expected {
    int stage, micro_batch, tie;
  };  // a message that comes over a link, from this stage

  // setup.cpp
  void agree();
  void make_links();
  void make_ties();
  Ties tie_pairs() const;

  // transfers.cpp
  void send_activation(const Action& a);
  void receive_activation(const Action& a);
  void send_gradient(const Action& a);
  void receive_gradient(const Action& a);
  bool post(Road road, int from_rank, bool must);
  std::vector<Tensor> fetch(Road road, int from, int micro_batch, int tie = 0);
  bool has_come(Road road, int from, int micro_batch, int tie);
  std::string tag(Road road, int stage, int64_t micro_batch) const;
  Link& link(Road road, int from, int to) { return *links.at({road, from, to}); }
  void expect(const std::vector<std::vector<Action>>& all);
  std::vector<double> gather_losses();
  [[noreturn]] void fail_everywhere(const std::string& message) const;

  // engine.cpp
  void begin(const Data& of, int micro_batches) {
    data = &of, count = micro_batches;
    scale = nullptr, measure = nullptr, values = 1, training = false;
  }
  void run(const std::vector<std::vector<Action>>& all);
  void forward(const Action& a);
  void backward(const Action& a);
  void backward_weight(const Action& a);
  struct Held {
    Sample sample;
    int left = 1;              // ends that still want it
    uint64_t random_call = 0;  // numbers that were drawn for it
  };
  const Held& sample(int64_t micro_batch);
  template <class Fn> auto together(const Fn& fn);
  Flight& flight(const Action& a) { return flights.at({a.chunk, a.micro_batch}); }
  bool remote(int stage) const { return stage >= 0 && stage < virtual_stages && schedule.place(stage).rank != rank; }
  int64_t number(int micro_batch) const { return int64_t(dp_rank) * count + micro_batch; }
  uint64_t random_number(int micro_batch) const {
    return uint64_t(number(micro_batch) * cp_size + cp_rank);
  }  // ranks that share one have other tokens

  // gradients.cpp
  std::vector<std::pair<Variable, Tensor>> take_tied(const Action& a);  // from the stage after in each tie
  bool tied_have_come(const Action& a);
  void collect(const Action& a);
  void collect_late(size_t most);
  void reduce();
  double grad_norm();
  void abandon() noexcept;

  const std::vector<LayerSpec> layers;
  const Options options;
  const Loss loss_of;
  const Loss* measure = nullptr;  // what evaluation wants in place of the loss, so many `values`
  int values = 1;
  dist::ProcessGroup* const world;  // null alone
  std::unique_ptr<parallel::Mesh> own_mesh;
  const parallel::Mesh* mesh = nullptr;                 // null alone
  dist::ProcessGroup *pp = nullptr, *copies = nullptr;  // null of one
  int rank = 0, dp_rank = 0, dp_size = 1, cp_rank = 0, cp_size = 1, virtual_stages = 1;
  Schedule schedule;
  std::vector<int> bounds;
  std::unique_ptr<StageModule> module;

  std::map<std::tuple<Road, int, int>, std::unique_ptr<Link>> links;  // by ranks, that of the sender first
  std::vector<std::shared_ptr<dist::ProcessGroup>> link_groups;
  std::vector<Tie> ties;
  std::vector<std::optional<parallel::GradientAccumulator>> sums;  // by chunk; none: nothing in it is trained
  std::map<int, Shapes> shapes_sent;                               // of training, by virtual stage
  std::map<std::pair<int, int>, Shapes>
      shapes_known;  // by virtual stage that sends, and micro-batch (-1: all of training)
  std::map<std::pair<Road, int>, std::deque<Expected>> expected,
      posted;  // by the rank that sends: what is still to be posted, and what was

  // A step
  uint64_t step = 0;
  int count = 1;                                                           // micro-batches of this run
  std::map<std::pair<int, int>, Flight> flights;                           // by chunk and micro-batch
  std::map<std::tuple<Road, int, int, int>, std::vector<Tensor>> arrived;  // from stage, micro-batch, tie
  std::deque<Late> late;
  std::map<int64_t, Held> samples;
  std::map<int64_t, Tensor> losses;
  bool training = false;
  double waited = 0, ran = 0;  // seconds of this rank's run: for messages, altogether
  std::vector<RankTime> times;
  const Data* data = nullptr;
  const std::function<Variable(const Variable&)>* scale = nullptr;
};

/// Adds the seconds of its life.
class Stopwatch {
 public:
  explicit Stopwatch(double& to) : to_(to) {}
  ~Stopwatch() { to_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;

 private:
  double& to_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// The same values as leaves of the next stage.
inline Values leaves_of(const std::vector<Tensor>& tensors, const Shapes& shapes) {
  Values values;
  for (size_t i = 0; i < tensors.size(); ++i) values.emplace_back(tensors[i], shapes.tensors[i].wants_grad);
  return values;
}

}  // namespace lockstep::pipeline
