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
/// The parameter that a name in a checkpoint belongs to.
std::string parameter_of(const std::string& saved);
/// The checkpoint's name for a name in the optimizer's state.
std::string saved_name(const std::string& of_state);
/// The inverse of saved_name().
std::string state_name(const std::string& saved);

/// Splits a piece of a tensor-parallel slice into pieces of the whole tensor; the slice consists of `ranges` of
/// elements along `dim`. The new pieces share the memory of `piece`.
std::vector<checkpoints::Piece> of_whole(const checkpoints::Piece& piece, const Shape& whole, int64_t dim,
                                         const std::vector<dist::Range>& ranges);

/// The part of one rank, with what ZeRO must know about the other parts.
struct Part : zero::OtherParts {
  /// Builds this rank's layers. Collective.
  Part(PipelineModule module, const Config& config, const parallel::Mesh& mesh, const InitializeArgs& args);
  ~Part() override;
  void agree(zero::StepReport& report) override;
  double norm(const std::vector<std::pair<std::string, double>>& squares) override;
  Tensor captured_norm(const Tensor& own, std::vector<NormPiece>& pieces) override;
  /// Prepares a step for capture in a graph: stages exchange the positions of their norms in the sum, and connections
  /// for sums are opened. Collective.
  void prepare_capture();
  /// Process groups of a step besides the replicas of this part, in an order that all ranks share.
  std::vector<dist::ProcessGroup*> groups() const;
  /// The module that the engine trains.
  nn::Module& model();
  /// Removes and returns the gradients that the schedule has left, so that one backward on the tape can produce them.
  std::pair<std::vector<Variable>, std::vector<Tensor>> take_gradients();
  /// True if this part saves the piece in checkpoints. Several parts may hold a tied parameter, but only one saves it.
  bool leads(const std::string& piece) const;
  /// A piece of this part as pieces of whole tensors.
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
