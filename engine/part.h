#pragma once
// What an engine must know when its model is a part of one: a stage of a pipeline, slices of layers. Not for users: they see pipeline_engine.h.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "optim/loss_scaler.h"
#include "parallel/mesh.h"
#include "zero/zero.h"

namespace lockstep::engine {

/// A parameter that slices of layers have in parts: which elements along one dim of the whole this rank has, in its order.
struct Sliced {
  Shape whole;
  int64_t dim = 0;
  std::vector<dist::Range> ranges;
};

/// `piece` is of this rank's slice: the pieces of the whole tensor that it consists of. Their tensors share its memory.
std::vector<checkpoints::Piece> of_whole(const checkpoints::Piece& piece, const Sliced& sliced);

struct Part : zero::OtherParts {
  /// A parameter of this part, in the order of the whole model.
  struct Place {
    int layer = 0, place = 0;
    bool leads = true;       // this part counts it, and writes it into checkpoints; a tied one stands in several
    bool is_double = false;  // f64
  };

  explicit Part(const parallel::Mesh& mesh) : mesh(&mesh) {}
  void agree(zero::StepReport& report) override;
  double norm(const std::vector<std::pair<std::string, double>>& squares) override;
  dist::ProcessGroup& everybody() const { return mesh->world(); }
  /// The parameter that a piece ("model.NAME", "optimizer.KEY.NAME") is of.
  static std::string parameter_of(const std::string& piece);
  bool leads(const std::string& piece) const;
  /// In whole tensors.
  std::vector<checkpoints::Piece> whole_pieces(const checkpoints::Piece& piece) const;

  const parallel::Mesh* mesh;
  std::map<std::string, Place> places;
  std::map<std::string, Sliced> sliced;
  bool is_empty = false;                 // nothing to train here: the engine's model stands for it, and is not saved
  bool has_data = true;                  // this part reads the training data
  optim::GradScaler* grad_scaler = nullptr;
  std::string text;                      // "1f1b, dp2+pp2", for people
  int loads = 0;                         // of checkpoints: the training data go on elsewhere
};

/// Everybody's pieces as whole tensors at rank 0 of `group`, and everybody's numbers; empty elsewhere. Collective.
struct WholeTensors {
  std::map<std::string, Tensor> tensors;
  checkpoints::Numbers numbers;
};
WholeTensors gather_pieces(const std::vector<checkpoints::Piece>& mine, const checkpoints::Numbers& numbers, dist::ProcessGroup& group);

}  // namespace lockstep::engine
