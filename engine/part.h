#pragma once
// A rank's part of a model that is cut by pipeline stages or tensor parallelism. Not for users: they see engine.h.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "parallel/mesh.h"
#include "pipeline/engine.h"
#include "tensor/step_batch.h"
#include "zero/zero.h"

namespace lockstep::engine {

// Names in a checkpoint are "model.NAME", "optimizer.KEY.NAME" (for tensors and "step") and "optimizer.group.0.lr";
// names in an optimizer's state are "state.NAME.KEY" and "group.0.lr".
/// Returns the parameter's name, NAME, in a name of a checkpoint.
std::string parameter_of(const std::string& saved);
/// Converts a name of an optimizer's state to the name in a checkpoint.
std::string saved_name(const std::string& of_state);
/// The inverse of saved_name().
std::string state_name(const std::string& saved);

/// Converts a contiguous piece of a tensor-parallel slice to contiguous pieces of the whole tensor (of shape `whole`).
/// ranges: the indices along `dim` that form the slice. The results share the memory of `piece`.
std::vector<checkpoints::Piece> of_whole(const checkpoints::Piece& piece, const Shape& whole, int64_t dim,
                                         const std::vector<dist::Range>& ranges);

/// This rank's part of a model under pipeline or tensor parallelism. As zero::OtherParts, it lets ZeRO compute a
/// gradient norm and detect overflows over all parts.
struct Part : zero::OtherParts {
  /// Builds this rank's layers. Collective.
  Part(PipelineModule module, const Config& config, const parallel::Mesh& mesh, const InitializeArgs& args);
  ~Part() override;
  void agree(zero::StepReport& report) override;
  double norm(const std::vector<std::pair<std::string, double>>& squares) override;
  Tensor captured_norm(const Tensor& own, std::vector<NormPiece>& pieces) override;
  /// Prepares the capture of a step as a graph. The stages tell each other in which order to add the squares of their
  /// gradients. A first all-reduce opens the connections that the capture uses. Collective.
  void prepare_capture();
  /// The process groups whose collectives a step calls, except the group of replicas. Same order on all ranks.
  std::vector<dist::ProcessGroup*> groups() const;
  /// The module that the engine trains.
  nn::Module& model();
  /// Removes the gradients that the pipeline schedule has computed from their parameters. Returns the parameters and
  /// their gradients.
  std::pair<std::vector<Variable>, std::vector<Tensor>> take_gradients();
  /// True if this part saves the tensor named `piece` in checkpoints. Several parts may hold a tied parameter, but only
  /// one of them saves it.
  bool leads(const std::string& piece) const;
  /// Converts a piece of this rank's tensor, which may be a tensor-parallel slice, to pieces of the whole tensor.
  std::vector<checkpoints::Piece> whole_pieces(const checkpoints::Piece& piece) const;

  const parallel::Mesh* mesh;
  std::unique_ptr<pipeline::Engine> engine;
  std::map<std::string, tensor_parallel::Cut> sliced;
  std::set<std::string> partial;  // parameters for which each tensor-parallel rank has only a term of the gradient
  std::unique_ptr<nn::Module> nothing;  // a dummy parameter for a rank without trainable ones; not saved
  bool has_data = true;                 // true if this rank reads training data
  std::string text;                     // "1f1b, dp2+pp2", for messages

 private:
  std::vector<NormPiece> pieces_;  // made by prepare_capture()
  int64_t places_ = 0;             // number of norm positions of a stage
};

/// The result of gather_pieces().
struct WholeTensors {
  std::map<std::string, Tensor> tensors;
  checkpoints::Numbers numbers;
};
/// Assembles whole tensors from the pieces of all ranks, and merges the numbers of all ranks. Only rank 0 of `group`
/// gets the result; it is empty on other ranks. Collective.
WholeTensors gather_pieces(const std::vector<checkpoints::Piece>& mine, const checkpoints::Numbers& numbers,
                           dist::ProcessGroup& group);

}  // namespace lockstep::engine
