#pragma once
// Mixture of experts: a gate sends each token to its top k of E experts, so that a model has E times the parameters of
// its feed-forward layers at about k times the work. (Shazeer et al., 2017; GShard, Lepikhin et al., 2020; Switch,
// Fedus et al., 2021.)
//
//   moe::Layer layer({.width = 64, .experts = 8, .top_k = 2}, expert_group);   // this rank builds 8/P of them
//   Variable y = layer(x);                                                      // (..., width), also of others'
//   experts (loss + layer.aux_loss).backward();
//
//        gate           dispatch: all-to-all          experts           combine: all-to-all back, weighted sum
//   x ──▶ probabilities ──▶ rows sorted by expert ──▶ e0 e1 | e2 e3 ──▶ y = Σ weight_i expert_i(x)
//
// Only rows that exist are sent, so an expert may take as many as it gets (drop_tokens off). Nothing is padded.
#include <functional>
#include <memory>
#include <vector>

#include "dist/process_group.h"
#include "nn/linear.h"
#include "parallel/moe/routing.h"

namespace lockstep::moe {

/// Which tokens stay when an expert is full: the first; any, drawn while training (DeepSpeed's use_rts); those with the
/// highest probability. automatic, as DeepSpeed: random for k = 1, position for k = 2, probability for more.
enum class Drop { automatic, position, random, probability };
/// What experts' outputs are multiplied by: the probability over all experts; the same divided by the sum over those
/// that took the token; a softmax over the k chosen logits (Mixtral). automatic, as DeepSpeed: probability for k = 1,
/// normalized for more.
enum class Weights { automatic, probability, normalized, softmax_of_chosen };
/// While training. jitter: the gate's input times U(0.99, 1.01) (Switch); rsample: Gumbel noise on logits that choose.
enum class Noise { none, jitter, rsample };

/// DeepSpeed's names and defaults where it has them (MoE(hidden_size, expert, num_experts, ep_size, k, ...)).
struct Options {
  int64_t width, experts;
  int64_t inner = 0;  ///< of an expert, nn::Mlp; 0: 4 width
  /// Another kind of expert: (N, width) to (N, width).
  std::function<std::unique_ptr<nn::Module>(int64_t expert)> make = {};
  int64_t top_k = 1;
  double capacity_factor = 1, eval_capacity_factor = 1;  ///< see capacity(); every rank's tokens count for themselves
  int64_t min_capacity = 4;
  bool drop_tokens = true;
  Drop drop = Drop::automatic;
  Weights weights = Weights::automatic;
  Noise noise = Noise::none;
  /// k = 2, while training: the second is drawn (Gumbel noise), not the second best.
  bool second_expert_sampling = true;
  /// Beside the experts an Mlp for every token, mixed by a learned softmax of two (Rajbhandari et al., 2022).
  bool use_residual = false;
  /// Of E Σ f_e p_e: f_e the part of the tokens that chose e, p_e its mean probability (Switch, eq. 4 to 6).
  double balance_coef = 0.01;
  double z_coef = 0;                ///< of the mean of logsumexp(logits)² (ST-MoE, Zoph et al., 2022, eq. 5)
  bool balance_over_group = false;  ///< f_e over all ranks of the group, not this one's tokens alone
};

struct Layer : nn::Layer<Layer> {
  /// `group`: the ranks that share the experts, E/P each, in order; null: all are here. An expert starts the same
  /// wherever it is.
  explicit Layer(const Options& options, std::shared_ptr<dist::ProcessGroup> group = nullptr);
  /// All ranks of the group call it, and its backward, the same number of times; with any number of tokens, none too.
  Variable forward(const Variable& x);
  void fields(nn::Fields& f) override;
  std::string options() const override;
  Variable own_loss() override { return aux_loss; }

  /// Number of the first expert here.
  int64_t first_expert() const { return rank() * int64_t(experts.size()); }

  Options o;
  Variable gate;                                     ///< (experts, width)
  std::vector<std::shared_ptr<nn::Module>> experts;  ///< those of this rank, "experts.4", "experts.5", ...
  std::shared_ptr<nn::Mlp> residual;
  std::shared_ptr<nn::Linear> coefficient;
  std::shared_ptr<dist::ProcessGroup> group;

  // Of the last forward, this rank's tokens
  Variable aux_loss;          ///< balance_coef * balance + z_coef * z, on the tape
  double balance = 0, z = 0;  ///< read when `measure`
  bool measure = false;       ///< waits for the device to have them
  Routing routing;

 private:
  struct Gate {
    Variable weights;
    Routing routing;
  };
  int64_t rank() const { return group ? group->rank() : 0; }
  Gate choose(const Variable& x);
  void add_losses(const Variable& logits, const Variable& probabilities, const std::vector<int64_t>& choices);
  Variable compute(const Variable& rows, const std::vector<int64_t>& each);
  Variable run_experts(const Variable& rows, const std::vector<int64_t>& each);
};

/// All moe::Layers below a model, in the order of fields().
std::vector<Layer*> layers_of(nn::Module& model);
/// Theirs, for parallel::CheckpointOptions::beside.
std::vector<Variable*> aux_losses(nn::Module& model);

}  // namespace lockstep::moe
