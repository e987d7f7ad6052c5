#pragma once
// Losses beyond those of autograd/ops.h, composed of differentiable operations. Meaning and defaults are those of
// torch.nn.functional (focal loss: torchvision's); x first, then target. Tensors of one call have one shape, unless
// said otherwise. Values (signs, classes, variances) are checked where they lie on the CPU: elsewhere nobody waits.
#include <functional>
#include <vector>

#include "autograd/ops.h"

namespace lockstep {

// --- of numbers ---
/// Binary cross entropy of probabilities x in [0, 1]; logarithms count as -100 at least. bce_with_logits keeps more
/// digits. weight broadcasts to x.
Variable bce_loss(const Variable& x, const Variable& target, const Tensor& weight = {},
                  Reduction reduction = Reduction::mean);
struct PoissonNllOptions {
  bool log_input = true;  ///< x is the logarithm of the rate
  bool full = false;      ///< adds Stirling's approximation of log(target!) where target > 1
  double eps = 1e-8;      ///< added to a rate before its logarithm
};
Variable poisson_nll_loss(const Variable& x, const Variable& target, const PoissonNllOptions& options = {},
                          Reduction reduction = Reduction::mean);
struct GaussianNllOptions {
  bool full = false;  ///< adds 0.5 log(2 pi)
  double eps = 1e-6;  ///< a variance counts as this at least; its gradient goes through
};
/// variance >= 0: of x's shape, or without x's last dim, or of size 1 in one dim.
Variable gaussian_nll_loss(const Variable& x, const Variable& target, const Variable& variance,
                           const GaussianNllOptions& options = {}, Reduction reduction = Reduction::mean);
struct FocalOptions {
  double alpha = 0.25;  ///< weight of target 1, and 1 - alpha of target 0; below 0: none
  double gamma = 2;
};
/// bce_with_logits times (1 - probability of the target)^gamma (Lin et al., 2017). Not reduced by default.
Variable sigmoid_focal_loss(const Variable& x, const Variable& target, const FocalOptions& options = {},
                            Reduction reduction = Reduction::none);

// --- of signs: target is 1 or -1, of any dtype ---
Variable soft_margin_loss(const Variable& x, const Tensor& target, Reduction reduction = Reduction::mean);
Variable hinge_embedding_loss(const Variable& x, const Tensor& target, double margin = 1,
                              Reduction reduction = Reduction::mean);
/// target 1: a should be larger than b, by margin.
Variable margin_ranking_loss(const Variable& a, const Variable& b, const Tensor& target, double margin = 0,
                             Reduction reduction = Reduction::mean);
/// a and b (N, D), target (N); or (D) and a scalar. margin in [-1, 1].
Variable cosine_embedding_loss(const Variable& a, const Variable& b, const Tensor& target, double margin = 0,
                               Reduction reduction = Reduction::mean);

// --- of classes: x (N, C) or (C) ---
struct MultiMarginOptions {
  int p = 1;  ///< 1 or 2
  double margin = 1;
  Tensor weight;  ///< (C), optional
};
/// target: i64 classes, (N) or a scalar.
Variable multi_margin_loss(const Variable& x, const Tensor& target, const MultiMarginOptions& options = {},
                           Reduction reduction = Reduction::mean);
/// target: i64 of x's shape; the classes of a row, and after them -1. Needs memory for N C^2 numbers.
Variable multilabel_margin_loss(const Variable& x, const Tensor& target, Reduction reduction = Reduction::mean);
/// x (..., C) are logits, target numbers in [0, 1] of x's shape; weight broadcasts to x.
Variable multilabel_soft_margin_loss(const Variable& x, const Variable& target, const Tensor& weight = {},
                                     Reduction reduction = Reduction::mean);

// --- of sequences ---
struct CtcOptions {
  int64_t blank = 0;
  bool zero_infinity = false;  ///< a target that is too long for its input counts 0, without a gradient
};
/// Connectionist temporal classification (Graves et al., 2006) of log probabilities (T, N, C), or (T, C) of one
/// sequence; target i64 (N, S), or all (sum of target_lengths), never the blank. mean divides each loss by its target's
/// length. Computed on the CPU.
Variable ctc_loss(const Variable& log_probabilities, const Tensor& target, const std::vector<int64_t>& input_lengths,
                  const std::vector<int64_t>& target_lengths, const CtcOptions& options = {},
                  Reduction reduction = Reduction::mean);

// --- of distances ---
/// |x - y + eps| in the p-norm over the last dim; p > 0, also INFINITY.
Variable pairwise_distance(const Variable& x, const Variable& y, double p = 2, double eps = 1e-6, bool keepdim = false);
struct TripletOptions {
  double margin = 1, p = 2, eps = 1e-6;
  bool swap = false;  ///< the negative's distance is that to the positive where that one is smaller
};
/// max(0, margin + distance(anchor, positive) - distance(anchor, negative)) of (..., D): one for each row.
Variable triplet_margin_loss(const Variable& anchor, const Variable& positive, const Variable& negative,
                             const TripletOptions& options = {}, Reduction reduction = Reduction::mean);
struct TripletDistanceOptions {
  /// Called in the inputs' dtype; empty: pairwise_distance.
  std::function<Variable(const Variable&, const Variable&)> distance;
  double margin = 1;
  bool swap = false;
};
Variable triplet_margin_with_distance_loss(const Variable& anchor, const Variable& positive, const Variable& negative,
                                           const TripletDistanceOptions& options = {},
                                           Reduction reduction = Reduction::mean);

}  // namespace lockstep
