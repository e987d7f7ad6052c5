#pragma once
// Trains a model in stages: each rank holds consecutive layers, and runs its part of a schedule (schedule.h).
//
//   pipeline::Engine engine(layers, {.stages = 4, .micro_batches = 8}, loss);      // on 4 ranks; on 8: two pipelines,
//   data parallel optim::AdamW optimizer(engine.module().parameters()); const double loss = engine.train_batch(data);
//   // the same on every rank; .grad is the mean over all micro-batches optimizer.step(); optimizer.zero_grad();
//
// Ranks form a mesh (parallel/mesh.h): copies of the pipeline, stages, parts of sequences, slices of layers. A step has
// micro_batches x dp micro-batches; copy d of dp has d·micro_batches and those after it. Ranks along cp have the same
// ones, each its part of their tokens: cut by Data, attended to by layers that know it (parallel/sequence/). Bits:
// gradients are summed in the one order of dist/summation_tree.h, so with powers of two parameters have the bits of one
// process that accumulates the same micro-batches, for any schedule, split and number of stages.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dist/process_group.h"
#include "parallel/mesh.h"
#include "pipeline/module.h"
#include "pipeline/schedule.h"
#include "pipeline/split.h"

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
  const parallel::Mesh* mesh =
      nullptr;  ///< else made of the ranks: copies x stages. With slices, layers are cut by `make` of their LayerSpec
  std::optional<DType> dtype = {};  ///< of parameters, from the start
  bool reduce = true;  ///< false: .grad is the sum over the micro-batches of this copy only; what comes after is up to
                       ///< who adds up the copies (ZeRO)
};

/// What a rank did in the last train_batch(). A step takes as long as the slowest rank of the pipeline.
struct RankTime {
  double busy = 0,
         idle = 0;  ///< seconds: computing and handing over; waiting for messages, and for the slowest rank at the end
};

class Engine {
 public:
  using Options = EngineOptions;
  /// Called by all ranks of `world` (default: dist::world(); one rank trains alone). Error on all ranks: fewer layers
  /// than virtual stages, ranks that do not divide, a schedule that does not exist or is wrong, ranks with other layers
  /// or options.
  Engine(std::vector<LayerSpec> layers, Options options, Loss loss, dist::ProcessGroup* world = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;

  /// This rank's layers. Tied parameters are there on every rank that has them: an optimizer keeps them equal.
  nn::Module& module();
  /// Forward and backward of all micro-batches; adds nothing to .grad that was there before, which is an Error. Gives
  /// back the mean loss. `scale` changes the loss that backward starts from.
  double train_batch(const Data& data, const std::function<Variable(const Variable&)>& scale = {});
  /// The Euclidean norm of the gradients of all stages, a tied one counted once, and its bits those of one process;
  /// scales them all by max_norm / (norm + 1e-6) when that is below 1.
  double clip_grad_norm(double max_norm);
  /// The losses of `micro_batches` micro-batches of each pipeline, of any size, without gradients; the module is in
  /// eval mode meanwhile. measure: in place of the loss, so many `values` of each micro-batch.
  std::vector<double> eval_batch(const Data& data, int micro_batches, const Loss& measure = {}, int values = 1);
  /// The number of the next train_batch(), for dropout and messages; rises by itself.
  void set_step(uint64_t step);

  const Schedule& schedule() const;
  /// Where each virtual stage begins, and the number of layers.
  const std::vector<int>& bounds() const;
  int stage() const;      ///< this rank's, 0 .. stages - 1
  bool is_first() const;  ///< has the first layer, or the last
  bool is_last() const;
  /// Of all ranks, by their number in the world; the same everywhere.
  const std::vector<RankTime>& times() const;
  /// The idle part of the last train_batch(), over all ranks: what simulate() and the papers' formulas call the bubble.
  double bubble() const;
  /// A parameter of this rank in the order of the whole model. leads: this stage adds its gradient up (of a tied one:
  /// the first that has it).
  struct Member {
    std::string name;
    int layer = 0, place = 0;
    bool leads = true;
  };
  std::vector<Member> places() const;
  /// Bytes that this rank sent to other stages so far.
  int64_t bytes_sent() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

/// By layer and place there.
using NumberedNorms = std::map<std::pair<int, int>, double>;
/// The norm of all parameters from the norm of each, whichever ranks of `pp` have it: added up in the order of the
/// model, so its bits are those of one process. Collective; null: this rank has all.
double norm_of_stages(NumberedNorms norms, dist::ProcessGroup* pp);

/// Seconds of forward and backward of each layer, on one micro-batch: for SplitBy::Method::time. Every layer is built,
/// run and dropped.
std::vector<double> measure(const std::vector<LayerSpec>& layers, const std::vector<Tensor>& inputs, int repeats = 3);

}  // namespace lockstep::pipeline
