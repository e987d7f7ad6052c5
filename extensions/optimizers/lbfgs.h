#pragma once
// L-BFGS with PyTorch's interface, for small models and full-batch training. It evaluates the loss several times per
// step, so step() takes a closure:
//   optim::LBFGS opt(net.parameters(), {.line_search = true});
//   opt.step([&] { return mse_loss(net(x), y); });
#include <functional>

#include "optim/optimizer.h"

namespace lockstep::optim {

/// Options of LBFGS, as in PyTorch.
struct LBFGSOptions {
  double lr = 1, max_iter = 20;
  double max_eval = 0;  ///< evaluations per step; 0: max_iter * 5 / 4
  double tolerance_grad = 1e-7, tolerance_change = 1e-9, history_size = 100;
  /// True: search for a step that meets the strong Wolfe conditions ("strong_wolfe"); false: steps of length lr.
  bool line_search = false;
  std::vector<OptionRange> table();  ///< names and ranges of the options
};

/// Limited-memory BFGS (Nocedal, 1980).
class LBFGS : public OptimizerOf<LBFGSOptions> {
 public:
  /// One group of f32 or f64 parameters, all of one dtype; Error otherwise.
  LBFGS(std::vector<Variable> parameters, const LBFGSOptions& options);
  const char* name() const override { return "LBFGS"; }
  bool is_elementwise() const override { return false; }

  /// Runs up to max_iter iterations and returns the initial loss. loss() computes the loss. step() clears the
  /// gradients before each call of loss(), and computes the gradients after the call. Under DistributedDataParallel all
  /// ranks must call step(), which minimises the mean of their losses.
  double step(const std::function<Variable()>& loss);
  int64_t evaluations() const { return evaluations_; }  ///< evaluations of the loss so far
  OptimizerState state() const override;
  void load_state(const OptimizerState& state) override;

  /// step(grad_scale) and update() raise an Error: L-BFGS needs the loss, and all parameters at once.
  void step(double grad_scale) override;
  void update(int group, Tensor& parameter, const Tensor& grad, ParameterState& state, Tensor& low,
              double grad_scale) override;

 private:
  /// A point on the search line: position, loss, gradient, and slope along the line.
  struct Point {
    double at = 0, loss = 0, slope = 0;
    Tensor grad;
  };
  Point evaluate(const std::function<Variable()>& loss);
  Point line_search(const std::function<Point(double at)>& evaluate_at, const Tensor& direction, Point start,
                    double at) const;
  Tensor values() const;
  void set_values(const Tensor& flat);
  void new_direction(const Tensor& grad);  ///< computes direction_ from this gradient and the history

  std::vector<Tensor> changes_, steps_;  // changes of gradient and parameters, newest last
  Tensor direction_, grad_;              // direction and gradient of the last iteration
  double scale_ = 1, at_ = 0;            // scale_ * identity: the initial inverse Hessian; at_: length of the last step
  int64_t iterations_ = 0, evaluations_ = 0;
  std::vector<bool> trained_;  // which parameters were trainable in the last step; empty before the first
};

}  // namespace lockstep::optim
