#pragma once
// Losses of PyTorch that the core does without, composed of differentiable operations: the prediction comes first, then
// the target, and shapes must agree.
#include "autograd/ops.h"

namespace lockstep {

/// Negative log-likelihood: -weight * log_probabilities at the target class. Shapes as for cross_entropy().
Variable nll_loss(const Variable& log_probabilities, const Tensor& target, const CrossEntropyOptions& options = {});
/// |x - target|.
Variable l1_loss(const Variable& x, const Variable& target, Reduction reduction = Reduction::mean);
/// (x - target)^2 / (2 beta) where |x - target| < beta, else |x - target| - beta / 2. Girshick, 2015.
Variable smooth_l1_loss(const Variable& x, const Variable& target, double beta = 1,
                        Reduction reduction = Reduction::mean);
/// (x - target)^2 / 2 where |x - target| <= delta, else delta (|x - target| - delta / 2). Huber, 1964.
Variable huber_loss(const Variable& x, const Variable& target, double delta = 1, Reduction reduction = Reduction::mean);
/// Binary cross entropy of sigmoid(x). weight and pos_weight (factor of the positive term) broadcast to x.
Variable bce_with_logits(const Variable& x, const Variable& target, const Tensor& weight = {},
                         const Tensor& pos_weight = {}, Reduction reduction = Reduction::mean);
/// Reduction of kl_div(); batchmean divides the sum by the size of dim 0.
enum class KlReduction { none, mean, sum, batchmean };
/// Kullback-Leibler divergence target * (log target - x), where x holds log-probabilities. log_target: true if target
/// holds log-probabilities, too.
Variable kl_div(const Variable& x, const Variable& target, KlReduction reduction = KlReduction::mean,
                bool log_target = false);

}  // namespace lockstep
