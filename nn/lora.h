#pragma once
// LoRA (Hu et al., 2021): a model stays as it is, and beside some of its Linears small ones are trained.
//
//   y = base(x) + (alpha / r) B(A(dropout(x)))         A (r, in) starts as Linears do, B (out, r) with zeros
//
//   nn::Lora lora = nn::add_lora(model, {.r = 8, .alpha = 16});   // the optimizer comes after: it sees what is trained
//   ...
//   lora.merge();                                                  // now it is a plain model with other weights
//
// Adapters are modules below their Linear, named by its fields(): checkpoints, DDP, ZeRO, pipelines and tensor
// parallelism find them there. Files: nn/hugging_face/adapter.h.
#include <memory>
#include <string>
#include <vector>

#include "nn/activation.h"
#include "nn/linear.h"

namespace lockstep::nn {

struct LoraOptions {
  int64_t r = 8;
  double alpha = 8, dropout = 0;  ///< dropout: of what goes into A
  bool rslora = false;            ///< alpha / sqrt(r) in place of alpha / r (Kalajdzievski, 2023)
  /// Linears by the ends of their names: "in_proj", "mlp.up", "blocks.0.attention.out_proj"; "q_proj", "k_proj" and
  /// "v_proj" are the rows of an attention's in_proj. Empty: q_proj and v_proj of attention with rope, in_proj of
  /// others.
  std::vector<std::string> targets = {};
  std::vector<std::string> modules_to_save = {};  ///< modules, by the ends of their names, that are trained whole
  friend bool operator==(const LoraOptions&, const LoraOptions&) = default;
};

/// Some outputs of a Linear that have a B of their own.
struct LoraPart {
  std::string target;  ///< the name they were found by: "blocks.0.attention.q_proj"
  int64_t row = 0, rows = 0;
};

/// The adapter of one Linear. Its parts share one A of (parts r, in), which is one product.
struct LowRank : Layer<LowRank> {
  LowRank(const LoraOptions& options, int64_t in, int64_t out, std::vector<LoraPart> parts, const Cut& cut);
  /// x (..., in) gives what is to be added, (..., out); 0 where no part is.
  Variable forward(const Variable& x);
  void fields(Fields& f) override;
  void sliced(const PartOf& of) override;
  std::string options() const override;

  int64_t r, out;
  double scale;
  std::vector<LoraPart> parts;  ///< by rows
  Cut cut;                      ///< of the Linear, from which A's and B's follow
  Dropout dropout;
  Linear a;
  std::vector<Linear> b;
};

/// The adapters of a model, which must outlive it.
class Lora {
 public:
  struct Adapter {
    std::string name;  ///< of its Linear
    Linear* linear = nullptr;
    std::shared_ptr<LowRank> low_rank;
  };
  const LoraOptions& options() const { return options_; }
  const std::vector<Adapter>& adapters() const { return adapters_; }
  /// Adds scale B A to the weights, and takes the adapters out: what is left is a plain model. Error when parameters
  /// are not whole and here (ZeRO 3, tensor parallelism, built empty).
  void merge();
  /// The way back, exact up to rounding.
  void unmerge();
  bool is_merged() const { return merged_; }

 private:
  friend Lora add_lora(Module& model, const LoraOptions& options);
  void add_to_weights(double times);
  LoraOptions options_;
  std::vector<Adapter> adapters_;
  bool merged_ = false;
};

/// Puts adapters beside the Linears that are meant, and freezes everything else. Before optimizers and plans. Error,
/// and nothing is changed, for a target that names nothing.
Lora add_lora(Module& model, const LoraOptions& options = {});

}  // namespace lockstep::nn
