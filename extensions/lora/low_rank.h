#pragma once
// LoRA (Hu et al., 2021): the model is frozen, and low-rank adapters beside some of its Linears are trained.
//
//   y = base(x) + (alpha / r) B(A(dropout(x)))    A (r, in) starts like a Linear, B (out, r) at zero
//
//   nn::Lora lora = nn::add_lora(model, {.r = 8, .alpha = 16});   // then the optimizer, for the trainable parameters
//   ...
//   lora.merge();                                                 // now a plain model with other weights
//
// An adapter is a module below its Linear and appears in the Linear's fields(), so checkpoints, DDP, ZeRO, pipelines
// and tensor parallelism find it. Adapter files: adapter.h.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/activation.h"
#include "nn/linear.h"

namespace lockstep::nn {

/// Options of add_lora(); names and meanings are those of peft's LoraConfig.
struct LoraOptions {
  int64_t r = 8;
  double alpha = 8, dropout = 0;  ///< dropout on the input of A
  bool rslora = false;            ///< true: scale by alpha / sqrt(r) instead of alpha / r (Kalajdzievski, 2023)
  /// Linears, by the ends of their names: "in_proj", "mlp.up", "blocks.0.attention.out_proj". "q_proj", "k_proj" and
  /// "v_proj" select rows of an attention's in_proj. Empty: q_proj and v_proj in attention with rope, in_proj in other
  /// attention.
  std::vector<std::string> targets = {};
  std::vector<std::string> modules_to_save = {};  ///< modules, by the ends of their names, that stay trainable
  /// Ranks and alphas of single targets in place of r and alpha, by the ends of names: {"mlp.up", 16}. If several names
  /// fit, the longest one counts.
  std::map<std::string, int64_t> rank_pattern = {};
  std::map<std::string, double> alpha_pattern = {};
  friend bool operator==(const LoraOptions&, const LoraOptions&) = default;
};

/// A range of a Linear's outputs that an adapter changes. Each range has its own matrix B.
struct LoraPart {
  std::string target;  ///< full name of the target: "blocks.0.attention.q_proj"
  int64_t row = 0, rows = 0;
  int64_t r = 0;                ///< rank; 0: that of the options
  double alpha = 0, scale = 0;  ///< alpha 0: that of the options; LowRank sets scale
};

/// The adapter of one Linear. Its parts use different rows of one matrix A (sum of the parts' r, in), so a single
/// product with A computes the input of every B.
struct LowRank : Layer<LowRank> {
  /// Makes an adapter for a Linear with weight (out, in). cut: how tensor parallelism shards the Linear (nn/cut.h).
  LowRank(const LoraOptions& options, int64_t in, int64_t out, std::vector<LoraPart> parts, const Cut& cut);
  /// x (..., in) gives the amount to add, (..., out); outputs outside the parts get 0.
  Variable forward(const Variable& x);
  void fields(Fields& f) override;
  void sharded(const PartOf& of) override;
  std::string options() const override;

  int64_t out;
  std::vector<LoraPart> parts;  ///< ordered by row
  Cut cut;                      ///< cut of the Linear; determines the cuts of A and B
  Dropout dropout;
  Linear a;
  std::vector<Linear> b;
};

/// The adapters of a model. The model must outlive this object.
class Lora {
 public:
  /// One adapter and its Linear.
  struct Adapter {
    std::string name;  ///< the Linear's name
    Linear* linear = nullptr;
    std::shared_ptr<LowRank> low_rank;
  };
  /// The options of add_lora().
  const LoraOptions& options() const { return options_; }
  /// All adapters, in the order of the model's fields().
  const std::vector<Adapter>& adapters() const { return adapters_; }
  /// Adds each adapter's scaled product B A to the weight of its Linear and removes the adapter, which leaves a plain
  /// model. Error for weights that are quantised, sharded (ZeRO 3, tensor parallelism) or built empty.
  void merge();
  /// Undoes merge(), up to rounding.
  void unmerge();
  /// True between merge() and unmerge().
  bool is_merged() const { return merged_; }

 private:
  friend Lora add_lora(Module& model, const LoraOptions& options);
  void add_to_weights(double times);
  LoraOptions options_;
  std::vector<Adapter> adapters_;
  bool merged_ = false;
};

/// Adds adapters to the selected Linears and freezes all other parameters. Call it before optimizers and tensor
/// parallelism exist. Error, with the model unchanged, if a target matches nothing.
Lora add_lora(Module& model, const LoraOptions& options = {});

}  // namespace lockstep::nn
