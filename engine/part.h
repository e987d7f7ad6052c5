#pragma once
// A rank's part of a model that is divided by pipeline or tensor parallelism. Internal: programs use engine.h.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "engine/exchange.h"
#include "engine/pipeline_module.h"
#include "optim/step_batch.h"
#include "parallel/mesh.h"
#include "parallel/tensor_parallel/apply.h"
#include "pipeline/engine.h"
#include "zero/zero.h"

namespace lockstep::engine {

/// Converts a contiguous piece of a tensor-parallel shard to contiguous pieces of the whole tensor (of shape `full`).
/// ranges: the indices along `dim` that form the shard. The results share the memory of `piece`.
std::vector<checkpoints::Piece> of_full(const checkpoints::Piece& piece, const Shape& full, int64_t dim,
                                        const std::vector<dist::Range>& ranges);

/// This rank's part of a model under pipeline or tensor parallelism. Its overrides of zero::OtherParts let ZeRO compute
/// the gradient norm, and detect overflow, over the parts of all ranks.
struct ModelPart : zero::OtherParts {
  /// Builds this rank's layers. Collective.
  ModelPart(PipelineModule module, const Config& config, const parallel::Mesh& mesh, const InitializeArgs& args);
  ~ModelPart() override;
  void agree(zero::StepReport& report) override;
  double norm(const std::vector<std::pair<std::string, double>>& squares) override;
  Tensor captured_norm(const Tensor& own, std::vector<NormPiece>& pieces) override;
  /// Prepares the capture of a step as a CUDA graph. Stages agree on the order in which the gradient norm adds up
  /// their parameters. A first all-reduce opens the connections that the captured step will use. Collective.
  void prepare_capture();
  /// The process groups whose collectives a step calls, except the group of replicas. Same order on all ranks.
  std::vector<dist::ProcessGroup*> groups() const;
  /// The module that the engine trains.
  nn::Module& model();
  /// Sums the gradients of which each tensor-parallel rank has only a term. Error if no parameter got a gradient.
  void complete_gradients();
  /// True if this part saves the tensor named `piece` in checkpoints. Several parts may hold a tied parameter, but only
  /// one of them saves it.
  bool leads(const std::string& piece) const;
  /// Converts a piece of this rank's tensor, which may be a tensor-parallel shard, to pieces of the whole tensor.
  std::vector<checkpoints::Piece> full_pieces(const checkpoints::Piece& piece) const;

  const parallel::Mesh* mesh;
  std::unique_ptr<pipeline::PipelineEngine> engine;
  std::map<std::string, tensor_parallel::ShardLayout> sharded;
  std::set<std::string> partial;  // parameters for which each tensor-parallel rank has only a term of the gradient
  std::unique_ptr<nn::Module> nothing;  // a dummy parameter for a rank without trainable ones; not saved
  bool has_data = true;                 // true if this rank reads training data
  std::string text;                     // "1f1b, dp2+pp2", for messages

 private:
  std::vector<NormPiece> pieces_;  // made by prepare_capture()
  int64_t places_ = 0;             // largest number of trained parameters of a stage
};

/// The tensors and numbers of a checkpoint, assembled from all ranks by gather_pieces().
struct FullTensors {
  std::map<std::string, Tensor> tensors;
  checkpoints::Numbers numbers;
};
/// Assembles whole tensors from the pieces of all ranks. Merges the numbers (counters, rates) of all ranks. Only rank 0
/// of `group` gets the result; it is empty on other ranks. Collective.
FullTensors gather_pieces(const std::vector<checkpoints::Piece>& mine, const checkpoints::Numbers& numbers,
                          dist::ProcessGroup& group);

}  // namespace lockstep::engine
