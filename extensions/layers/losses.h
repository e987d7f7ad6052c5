#pragma once
// Losses that autograd/ops.h and the extension operations lack, composed of differentiable operations. Meaning and
// defaults are as in torch.nn.functional (focal loss: torchvision); the prediction comes first, then the target. All
// tensors of a call have one shape unless stated otherwise. Values (signs, classes, variances) are checked on the CPU
// only: on a device the check would have to wait for the kernels.
#include <functional>

#include "autograd/ops.h"
#include "extensions/operations/losses.h"
#include "nn/module.h"

namespace lockstep {

// --- regression and probabilities ---
/// Binary cross entropy of probabilities x in [0, 1]. Logarithms are clamped to at least -100. weight broadcasts to x.
/// bce_with_logits() is more accurate.
Variable bce_loss(const Variable& x, const Variable& target, const Tensor& weight = {},
                  Reduction reduction = Reduction::mean);
/// Options of poisson_nll_loss().
struct PoissonNllOptions {
  bool log_input = true;  ///< true: x is the logarithm of the rate; false: the rate itself
  bool full = false;      ///< true: adds Stirling's approximation of log(target!) where target > 1
  double eps = 1e-8;      ///< added to a rate before its logarithm is taken
};
/// Negative log-likelihood of counts `target` under a Poisson distribution of rate e^x (rate x if log_input is false).
Variable poisson_nll_loss(const Variable& x, const Variable& target, const PoissonNllOptions& options = {},
                          Reduction reduction = Reduction::mean);
/// Options of gaussian_nll_loss().
struct GaussianNllOptions {
  bool full = false;  ///< true: adds the constant 0.5 log(2 pi)
  double eps = 1e-6;  ///< lower bound of the variance; the gradient ignores the bound
};
/// Negative log-likelihood of `target` under a normal distribution with mean x. The variance is >= 0 and has x's shape,
/// x's shape without the last dim, or x's shape with size 1 in one dim.
Variable gaussian_nll_loss(const Variable& x, const Variable& target, const Variable& variance,
                           const GaussianNllOptions& options = {}, Reduction reduction = Reduction::mean);
/// Options of sigmoid_focal_loss().
struct FocalOptions {
  double alpha = 0.25;  ///< weight of target 1; target 0 has 1 - alpha; below 0: no weights
  double gamma = 2;     ///< focusing exponent, >= 0
};
/// bce_with_logits() times (1 - probability of the target)^gamma (Lin et al., 2017). Not reduced by default.
Variable sigmoid_focal_loss(const Variable& x, const Variable& target, const FocalOptions& options = {},
                            Reduction reduction = Reduction::none);

// --- target is 1 or -1, of any dtype ---
/// log(1 + exp(-target * x)).
Variable soft_margin_loss(const Variable& x, const Tensor& target, Reduction reduction = Reduction::mean);
/// x for target 1, max(0, margin - x) for target -1.
Variable hinge_embedding_loss(const Variable& x, const Tensor& target, double margin = 1,
                              Reduction reduction = Reduction::mean);
/// max(0, margin - target * (a - b)): for target 1, a should exceed b by margin.
Variable margin_ranking_loss(const Variable& a, const Variable& b, const Tensor& target, double margin = 0,
                             Reduction reduction = Reduction::mean);
/// 1 - cos(a, b) for target 1, max(0, cos(a, b) - margin) for target -1. Either a and b are (N, D) and target is (N),
/// or a and b are (D) and target is a scalar. margin in [-1, 1].
Variable cosine_embedding_loss(const Variable& a, const Variable& b, const Tensor& target, double margin = 0,
                               Reduction reduction = Reduction::mean);

// --- classification: x (N, C) or (C) ---
/// Options of multi_margin_loss().
struct MultiMarginOptions {
  /// Exponent of each term, 1 or 2.
  int p = 1;
  double margin = 1;
  Tensor weight = {};  ///< class weights (C); optional
};
/// Sum over all classes but the target of max(0, margin - x[target] + x[class])^p, divided by C. target: i64 classes,
/// (N) or a scalar.
Variable multi_margin_loss(const Variable& x, const Tensor& target, const MultiMarginOptions& options = {},
                           Reduction reduction = Reduction::mean);
/// Sum of max(0, 1 - x[own] + x[other]) over all pairs of a target class `own` and another class, divided by C. target:
/// i64 of x's shape; each row lists its target classes and then -1. Needs memory for N C^2 numbers.
Variable multilabel_margin_loss(const Variable& x, const Tensor& target, Reduction reduction = Reduction::mean);
/// Mean over the classes of bce_with_logits(). x (..., C) holds logits; target has x's shape and values in [0, 1];
/// weight broadcasts to x.
Variable multilabel_soft_margin_loss(const Variable& x, const Variable& target, const Tensor& weight = {},
                                     Reduction reduction = Reduction::mean);

// --- distances ---
/// The p-norm of x - y + eps over the last dim; p > 0 or INFINITY.
Variable pairwise_distance(const Variable& x, const Variable& y, double p = 2, double eps = 1e-6, bool keepdim = false);
/// Options of triplet_margin_loss().
struct TripletOptions {
  double margin = 1, p = 2, eps = 1e-6;
  bool swap = false;  ///< true: uses distance(positive, negative) where that is smaller than distance(anchor, negative)
};
/// max(0, margin + distance(anchor, positive) - distance(anchor, negative)) for each row of (..., D).
Variable triplet_margin_loss(const Variable& anchor, const Variable& positive, const Variable& negative,
                             const TripletOptions& options = {}, Reduction reduction = Reduction::mean);
/// Options of triplet_margin_with_distance_loss(); margin and swap as in TripletOptions.
struct TripletDistanceOptions {
  /// Called with the inputs in their own dtype; empty: pairwise_distance().
  std::function<Variable(const Variable&, const Variable&)> distance = {};
  double margin = 1;
  bool swap = false;
};
/// triplet_margin_loss() with a distance function given by the caller.
Variable triplet_margin_with_distance_loss(const Variable& anchor, const Variable& positive, const Variable& negative,
                                           const TripletDistanceOptions& options = {},
                                           Reduction reduction = Reduction::mean);

}  // namespace lockstep

namespace lockstep::nn {

// --- losses as layers; functions compute the same ---
/// Mean of (x - target)^2.
struct MSELoss : Layer<MSELoss> {
  /// Returns a scalar. x and target must have the same shape.
  Variable forward(const Variable& x, const Variable& target) { return mse_loss(x, target); }
};
/// Mean of |x - target|.
struct L1Loss : Layer<L1Loss> {
  Variable forward(const Variable& x, const Variable& target) { return l1_loss(x, target); }
};
/// Mean binary cross entropy of sigmoid(x) with targets in [0, 1].
struct BCEWithLogitsLoss : Layer<BCEWithLogitsLoss> {
  Variable forward(const Variable& x, const Variable& target) { return bce_with_logits(x, target); }
};
/// Cross entropy of logits (N, C, ...) with targets: class indices i64 (N, ...), or probabilities (N, C, ...).
struct CrossEntropyLoss : Layer<CrossEntropyLoss> {
  explicit CrossEntropyLoss(CrossEntropyOptions options = CrossEntropyOptions()) : o(std::move(options)) {}
  /// The loss: a scalar, or one number per target if o.reduction is none.
  Variable forward(const Variable& logits, const Variable& target) { return cross_entropy(logits, target, o); }
  CrossEntropyOptions o;
};

}  // namespace lockstep::nn
