#pragma once
// L-BFGS, as PyTorch has it: for small models and the whole data set at a time. It evaluates the loss as often as it
// needs, so its step takes a closure:
//   optim::LBFGS opt(net.parameters(), {.line_search = true});
//   opt.step([&] { return mse_loss(net(x), y); });
#include <functional>

#include "optim/optimizer.h"

namespace lockstep::optim {

struct LBFGSOptions {
  double lr = 1, max_iter = 20;
  double max_eval = 0;  ///< evaluations a step; 0: max_iter * 5 / 4
  double tolerance_grad = 1e-7, tolerance_change = 1e-9, history_size = 100;
  bool line_search = false;  ///< strong Wolfe conditions (PyTorch's "strong_wolfe"); else steps of lr
  std::vector<OptionRange> table();
};

class LBFGS : public OptimizerOf<LBFGSOptions> {
 public:
  /// One group of f32 or f64 parameters, all of one dtype; Error otherwise.
  LBFGS(std::vector<Variable> parameters, const LBFGSOptions& options);
  const char* name() const override { return "LBFGS"; }
  bool is_elementwise() const override { return false; }

  /// Up to max_iter iterations. loss() computes the loss, whose gradients are cleared before and made after it. Gives
  /// the loss of the beginning. Under DistributedDataParallel all ranks call it, and the mean of their losses counts.
  double step(const std::function<Variable()>& loss);
  int64_t evaluations() const { return evaluations_; }  ///< of the loss, in all steps
  OptimizerState state() const override;
  void load_state(const OptimizerState& state) override;

  /// Errors: there is no step without the loss, for part of the parameters, or by ZeRO.
  void step(double grad_scale) override;
  void update(int group, Tensor& parameter, const Tensor& grad, ParameterState& state, Tensor& low,
              double grad_scale) override;

 private:
  /// A place on the line that is searched: the loss, its gradient, and the gradient along the line.
  struct Point {
    double at = 0, loss = 0, slope = 0;
    Tensor grad;
  };
  Point evaluate(const std::function<Variable()>& loss);
  Point line_search(const std::function<Point(double at)>& evaluate_at, const Tensor& direction, Point start,
                    double at) const;
  Tensor values() const;
  void set_values(const Tensor& flat);
  void turn(const Tensor& grad);  ///< direction_ for this gradient, from those before it

  std::vector<Tensor> changes_, steps_;  // of the gradient and of the parameters, the newest last
  Tensor direction_, grad_;              // of the last iteration
  double scale_ = 1, at_ = 0;            // of the inverse Hessian to begin with; length of the last step
  int64_t iterations_ = 0, evaluations_ = 0;
  std::vector<bool> trained_;  // parameters, in the last step; none: there was no step
};

}  // namespace lockstep::optim
