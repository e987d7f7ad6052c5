#pragma once
// What ranks of gpt train share besides gradients: sequences (--context-parallel) and experts (--experts, --expert-parallel).
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "apps/gpt/options.h"
#include "moe/expert_parallel.h"
#include "sequence/context_parallel.h"

namespace apps {

void add_sharing_options(CLI::App& train, GptOptions& o);
/// How ranks attend to the sequences that they share.
lockstep::sequence::ContextOptions context_options(const GptOptions& o);
/// Error for options that contradict each other.
void check_sharing(const GptOptions& o);
/// Into config.json, what a saved model is made of; and experts in a model of that file.
void describe_sharing(Json& config, const GptOptions& o);
void add_saved_experts(lockstep::nn::GPT& model, const Json& config, const std::string& path);

class Sharing {
 public:
  /// Puts experts into the model, shares its sequences, makes the groups unless `mesh` has them (then for good: stages take layers out), and tells
  /// o.common.parallel. All ranks call it.
  Sharing(GptOptions& o, const Team& team, lockstep::nn::GPT& model, const lockstep::parallel::Mesh* mesh = nullptr);

  /// This rank's part of the sequences of a micro-batch.
  lockstep::data::Example part_of(const lockstep::data::Example& sample) const;
  /// The loss and the experts' own.
  lockstep::Variable with_aux_loss(const lockstep::Variable& loss);
  /// What the experts of (a part of) the model did in a forward.
  void count(lockstep::nn::Module& part);
  /// Of this step, over all ranks: "aux_loss", "expert_tokens", "dropped". Each expert layer was counted `times` times.
  void report(Json& line, int64_t times);
  /// The same of the last step, for the closing line.
  void summarize(Json& result) const;
  /// evaluate_text() of whole sequences, by the ranks of `team`.
  TextLoss evaluate(const lockstep::Tensor& tokens, int64_t batches, const Team& team, lockstep::data::ToDevice& to_device);

  bool has_spread_experts() const { return o_.experts > 0 && o_.expert_parallel > 1; }
  /// Null when ranks share nothing.
  const lockstep::parallel::Mesh* mesh() const { return mesh_.get(); }
  /// A copy of the model with all experts, on every rank.
  std::unique_ptr<lockstep::nn::GPT> whole() const;
  /// Of the whole model.
  int64_t parameter_count() const;

 private:
  const GptOptions& o_;
  const Team& team_;
  lockstep::nn::GPT& model_;
  std::shared_ptr<const lockstep::parallel::Mesh> mesh_;
  std::optional<lockstep::sequence::ContextParallel> context_;
  std::vector<lockstep::Tensor> aux_losses_;  // of this step's micro-batches
  std::vector<double> tokens_;                // that chose each expert in this step; then all, and those dropped
  double last_aux_ = 0, last_busiest_ = 0, last_dropped_ = 0;
};

}  // namespace apps
