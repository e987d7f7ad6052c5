#pragma once
// Mixture of experts: a gate sends each token to its top k of E experts. The model has E times the parameters of its
// feed-forward layers, at about k times the work (Shazeer et al., 2017; GShard, Lepikhin et al., 2020; Switch, Fedus et
// al., 2021).
//
//   moe::MoeLayer layer({.width = 64, .experts = 8, .top_k = 2}, expert_group);   // 8/P experts on each of P ranks
//   Variable y = layer(x);                                                      // (..., width), using all 8 experts
//   (loss + layer.aux_loss).backward();
//
//         gate              dispatch: all-to-all        experts             combine: all-to-all back, weighted sum
//   x ──▶ probabilities ──▶ rows sorted by expert ──▶   e0 e1 │ e2 e3 ──▶   y = Σ_i weight_i expert_i(x)
//
// Only rows that exist are sent, without padding, so an expert can take any number of tokens (drop_tokens = false).
#include <functional>
#include <memory>
#include <vector>

#include "dist/process_group.h"
#include "nn/linear.h"
#include "parallel/moe/routing.h"

namespace lockstep::moe {

/// Which tokens an expert drops when it is full: position keeps the first tokens; random keeps a random choice while
/// training (DeepSpeed's use_rts), and in evaluation the first tokens; probability keeps the most probable tokens.
/// automatic, as in DeepSpeed: random for k = 1, position for k = 2, probability for more.
enum class Drop { automatic, position, random, probability };
/// Weights of the experts' outputs. probability: the softmax over all experts; normalized: probability, divided by its
/// sum over the experts that took the token; softmax_of_chosen: a softmax over the k chosen logits (Mixtral).
/// automatic, as in DeepSpeed: probability for k = 1, normalized for more.
enum class GateWeights { automatic, probability, normalized, softmax_of_chosen };
/// Noise of the gate while training. jitter: multiplies the gate's input by U(0.99, 1.01) (Switch). rsample: adds
/// Gumbel noise to the logits that choose the experts.
enum class Noise { none, jitter, rsample };

/// Options of a layer, with DeepSpeed's names and defaults where it has them (MoE(hidden_size, expert, num_experts,
/// ep_size, k, ...)).
struct MoeOptions {
  int64_t width, experts;  ///< width of tokens; number of experts over all ranks
  int64_t inner = 0;       ///< hidden width of an expert's nn::Mlp; 0: 4 width
  /// If set, makes the expert with this number, in place of an nn::Mlp: a module that maps (N, width) to (N, width).
  std::function<std::unique_ptr<nn::Module>(int64_t expert)> make = {};
  int64_t top_k = 1;                                     ///< experts per token
  double capacity_factor = 1, eval_capacity_factor = 1;  ///< see capacity(); each rank counts its own tokens
  int64_t min_capacity = 4;                              ///< lower bound of the capacity
  /// True: an expert drops tokens above its capacity; false: it takes any number.
  bool drop_tokens = true;
  Drop drop = Drop::automatic;
  GateWeights weights = GateWeights::automatic;
  Noise noise = Noise::none;
  /// true, for k = 2, while training: draw the second expert (Gumbel noise); false: take the second best.
  bool second_expert_sampling = true;
  /// true: Residual MoE (Rajbhandari et al., 2022): every token also passes an Mlp, and the results of the Mlp and of
  /// the experts are added with two weights from a learned softmax.
  bool use_residual = false;
  /// Coefficient of the load balancing loss E Σ_e f_e p_e: f_e is the fraction of tokens that chose expert e, p_e its
  /// mean probability (Switch, eq. 4 to 6).
  double balance_coef = 0.01;
  double z_coef = 0;  ///< coefficient of the mean of logsumexp(logits)² (ST-MoE, Zoph et al., 2022, eq. 5)
  bool balance_over_group = false;  ///< true: f_e counts the tokens of all ranks of the group; false: only this rank's
};

/// A mixture-of-experts layer: the gate and this rank's experts.
struct MoeLayer : nn::Layer<MoeLayer> {
  /// `group`: the P ranks that share the E experts, E/P each, in order; null: this rank has all experts. An expert's
  /// initial values do not depend on the rank that holds it. Errors: P does not divide E; other options out of range.
  explicit MoeLayer(const MoeOptions& options, std::shared_ptr<dist::ProcessGroup> group = nullptr);
  /// Applies the layer to x (..., width) with any number of tokens, even none. Returns the same shape. Forward and
  /// backward are collective: all ranks of the group must call forward() equally often.
  Variable forward(const Variable& x);
  void fields(nn::Fields& f) override;
  std::string options() const override;
  Variable own_loss() override { return aux_loss; }

  /// Index, among all experts, of the first expert on this rank.
  int64_t first_expert() const { return rank() * int64_t(experts.size()); }

  MoeOptions o;
  Variable gate;                                     ///< (experts, width)
  std::vector<std::shared_ptr<nn::Module>> experts;  ///< this rank's experts: "experts.4", "experts.5", ...
  std::shared_ptr<nn::Mlp> residual;                 ///< the Mlp of use_residual
  std::shared_ptr<nn::Linear> coefficient;           ///< mixes `residual` with the experts: Linear(width, 2)
  std::shared_ptr<dist::ProcessGroup> group;         ///< ranks that share the experts; may be null

  // Results of the last forward for this rank's tokens
  Variable aux_loss;          ///< balance_coef * balance + z_coef * z, on the tape
  double balance = 0, z = 0;  ///< the two losses; only updated with `measure`
  bool measure = false;       ///< true: forward waits for the device, and stores `balance` and `z`
  Routing routing;            ///< assignment of tokens to experts

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

/// All moe::MoeLayers in a model, in the order of fields().
std::vector<MoeLayer*> layers_of(nn::Module& model);
/// The aux_loss variables of all moe::MoeLayers in a model, for parallel::CheckpointOptions::beside.
std::vector<Variable*> aux_losses(nn::Module& model);

}  // namespace lockstep::moe
