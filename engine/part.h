#pragma once
// What a rank has of a model that is cut: a stage of a pipeline, slices of layers. Not for users: they see engine.h.
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

// Names of a checkpoint are "model.NAME", "optimizer.KEY.NAME" (of tensors and "step") and "optimizer.group.0.lr"; of
// an optimizer's state "state.NAME.KEY" and "group.0.lr".
/// The parameter that a name of a checkpoint is of.
std::string parameter_of(const std::string& saved);
std::string saved_name(const std::string& of_state);
std::string state_name(const std::string& saved);

/// `piece` is of this rank's slice, which has these elements along one dim: the pieces of the whole tensor that it
/// consists of. Their tensors share its memory.
std::vector<checkpoints::Piece> of_whole(const checkpoints::Piece& piece, const Shape& whole, int64_t dim,
                                         const std::vector<dist::Range>& ranges);

struct Part : zero::OtherParts {
  /// Builds this rank's layers. Collective.
  Part(PipelineModule module, const Config& config, const parallel::Mesh& mesh, const InitializeArgs& args);
  ~Part() override;
  void agree(zero::StepReport& report) override;
  double norm(const std::vector<std::pair<std::string, double>>& squares) override;
  Tensor captured_norm(const Tensor& own, std::vector<NormPiece>& pieces) override;
  /// Before a step is captured: stages tell each other where their norms are in the sum, and what moves sums is
  /// connected. Collective.
  void prepare_capture();
  /// What a step calls beside the copies of this part, in an order that all ranks share.
  std::vector<dist::ProcessGroup*> groups() const;
  /// What the engine trains.
  nn::Module& model();
  /// Takes the gradients away that a run of the schedule left, to give them to the tape as those of one backward.
  std::pair<std::vector<Variable>, std::vector<Tensor>> take_gradients();
  /// Whether this part writes it into checkpoints; a tied parameter stands in several.
  bool leads(const std::string& piece) const;
  /// In whole tensors.
  std::vector<checkpoints::Piece> whole_pieces(const checkpoints::Piece& piece) const;

  const parallel::Mesh* mesh;
  std::unique_ptr<pipeline::Engine> engine;
  std::map<std::string, tensor_parallel::Cut> sliced;
  std::set<std::string> partial;        // of whose gradients each slice has a part
  std::unique_ptr<nn::Module> nothing;  // in place of parameters, where there is nothing to train; it is not saved
  bool has_data = true;                 // this part reads the training data
  std::string text;                     // "1f1b, dp2+pp2", for people

 private:
  std::vector<NormPiece> pieces_;  // of prepare_capture()
  int64_t places_ = 0;             // for sums of a stage's parameters
};

/// Everybody's pieces as whole tensors at rank 0 of `group`, and everybody's numbers; empty elsewhere. Collective.
struct WholeTensors {
  std::map<std::string, Tensor> tensors;
  checkpoints::Numbers numbers;
};
WholeTensors gather_pieces(const std::vector<checkpoints::Piece>& mine, const checkpoints::Numbers& numbers,
                           dist::ProcessGroup& group);

}  // namespace lockstep::engine
