#pragma once
// What train.cpp and pipeline.cpp share.
#include <memory>
#include <string>
#include <vector>

#include "apps/gpt/options.h"
#include "parallel/mesh.h"
#include "optim/optim.h"
#include "tensor_parallel/apply.h"

namespace apps {

std::unique_ptr<lockstep::nn::GPT> make_gpt(const GptOptions& o, int64_t vocab);
/// In two groups: matrices decay, biases and norms do not.
std::unique_ptr<lockstep::optim::Optimizer> make_optimizer(const GptOptions& o, lockstep::nn::Module& model, const Team& team);
/// Linear warm-up, then a cosine from 1 to the lowest ratio.
double lr_factor(const GptOptions& o, int64_t step);

/// The text to learn, and its last part, kept for validation. Error when one of them is too short.
struct TextParts { lockstep::Tensor training, validation; };
TextParts split_text(const GptOptions& o, const lockstep::data::Tokenizer& tokenizer, const lockstep::Tensor& all, const lockstep::nn::GPT& model);

/// What config.json says of a run.
Json config_of(const GptOptions& o, const lockstep::nn::GPT& model, int64_t micro_batches);
/// What of it must stay the same when a run goes on.
std::vector<std::string> fixed_options(const GptOptions& o);

/// What a plan must fit.
lockstep::parallel::PlanSizes sizes_of(const GptOptions& o, const lockstep::nn::GPT::Options& shape, int64_t ranks);

/// gpt train with stages (pp) or slices (tp), and sequences that ranks share (cp): `plan` says how many; its copies (dp) are 0 where no one has said.
void gpt_train_parts(GptOptions options, const std::optional<lockstep::engine::Config>& config, lockstep::parallel::Plan plan);

/// gpt train --tensor-parallel N: the model's slices, and which ranks have the same ones.
class SlicedGpt {
 public:
  /// Cuts the model, when asked to.
  SlicedGpt(const GptOptions& options, lockstep::nn::GPT& model, const Team& team);
  ~SlicedGpt();
  /// The ranks that have this rank's slices, or the whole team.
  const Team& copies() const;
  /// Null when the model is whole.
  const lockstep::tensor_parallel::TensorParallel* sliced() const;
  /// Whether any of the ranks that share a model says so.
  bool any(bool mine) const;
  /// Runs `fn` with the whole model, and the whole state in the optimizer.
  void while_whole(lockstep::optim::Optimizer* optimizer, const std::function<void()>& fn) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
/// Error when other options do not go with --tensor-parallel.
void check_tensor_parallel(const GptOptions& options);

}  // namespace apps
