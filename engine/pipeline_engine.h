#pragma once
// Pipelines as DeepSpeed's configuration file describes them: a model as a list of layers, of which each rank builds its own.
//
//   engine::PipelineModule module{.layers = {pipeline::layer<nn::Linear>({.in = 10, .out = 20}), ...}, .loss_fn = loss, .num_stages = 2};
//   auto engine = engine::initialize(module, {.config = "ds_config.json"});     // on every rank
//   const double loss = engine.train_batch(data);                               // a whole step: all micro-batches, clip, update, next learning rate
//
// What pipeline::Engine (pipeline/engine.h) leaves to its caller happens here: optimizer and schedule from the config, fp16 with loss scaling, bf16,
// ZeRO 1 among the copies of a stage, clipping over all stages and slices, checkpoints that any other plan loads.
//
// Bits: those of engine::Engine on one rank with the same micro-batches, for powers of two, any number of stages, schedule and cut. Slices and
// parts of sequences split sums: near them.
#include "engine/engine.h"
#include "engine/part.h"
#include "pipeline/engine.h"

namespace lockstep::engine {

struct PipelineModule {
  std::vector<pipeline::LayerSpec> layers;
  pipeline::Loss loss_fn;
  int num_stages = 0;                       ///< 0: pipeline.stages of the config
  std::string partition_method = {};        ///< empty: pipeline.partition
  std::optional<int> activation_checkpoint_interval = {};  ///< not given: pipeline.activation_checkpoint_interval
  std::vector<int> bounds = {};             ///< where each virtual stage begins, and the number of layers, in place of partition_method
  std::optional<pipeline::Schedule> schedule = {};  ///< one of your own, in place of pipeline.schedule
};

struct PipelineArgs {
  /// In place of the config's: called on every rank with what it trains. Its parameters have the names of the whole model.
  std::function<std::unique_ptr<optim::Optimizer>(nn::Module& stage)> optimizer = {};
  std::function<std::unique_ptr<optim::Schedule>(optim::Optimizer& optimizer)> lr_scheduler = {};  ///< of that optimizer
  data::DatasetPtr<data::Example> training_data = nullptr;  ///< for train_batch() without data
  ConfigSource config = {};
  const Arguments* args = nullptr;          ///< their config, where `config` is not given
  const parallel::Mesh* mesh = nullptr;     ///< who is where; must outlive the engine. Default: copies x stages of all ranks. With cp data are this rank's parts of sequences
  dist::ProcessGroup* group = nullptr;      ///< all ranks, when there is no mesh; default: dist::world()
  std::map<std::string, Sliced> slices = {};   ///< parameters of which this rank has a slice
  optim::GradScaler* grad_scaler = nullptr;    ///< scales the loss where fp16 does not (autocast)
  int loader_workers = 0;
  std::function<void(const std::string&)> log = {};
};

class PipelineEngine : public EngineBase {
 public:
  /// Error on all ranks for what cannot be: see docs/pipeline.md.
  PipelineEngine(PipelineModule module, PipelineArgs args);

  /// A step: gradient_accumulation_steps micro-batches of each copy of the pipeline, and the update. Gives back their mean loss.
  double train_batch(const pipeline::Data& data, std::optional<double> metric = {});
  /// With the next micro-batches of training_data: an Example's input for the first layer, its target for the loss.
  double train_batch(std::optional<double> metric = {});
  /// The mean loss of so many micro-batches of each copy (0: as many as in training), of any size; without gradients.
  double eval_batch(const pipeline::Data& data, int micro_batches = 0);

  pipeline::Engine& pipeline() const;
  const parallel::Mesh& mesh() const;

  /// The whole model's tensors and the optimizer's state on rank 0 of all, as one process would have them, and the way back from what all
  /// ranks can read. Collective, and not small: save_checkpoint() is for large models.
  struct WholeState {
    nn::State model;
    optim::OptimizerState optimizer;
  };
  WholeState whole_state();
  /// `steps`: that it has taken; not given: as many as this engine.
  void load_whole_state(const nn::State& model, const optim::OptimizerState& optimizer, std::optional<int64_t> steps = {});

 private:
  struct Stage;
  PipelineEngine(std::shared_ptr<Stage> stage, InitializeArgs args);
  std::shared_ptr<Stage> stage_;
};

PipelineEngine initialize(PipelineModule module, PipelineArgs args);

}  // namespace lockstep::engine
