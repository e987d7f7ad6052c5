#pragma once
// Base class of the 1-bit optimizers. They move gradients or momenta between ranks themselves, so the model must not be
// wrapped in DDP or ZeRO:
//
//   onebit::OneBitAdam opt(model.parameters(), {.lr = 3e-4, .freeze_step = 1000});   // broadcasts rank 0's parameters
//   loss.backward();                                                                 // this rank's gradients
//   opt.step();                                                                      // the same update on all ranks
//   opt.zero_grad();
//
// Exact steps average gradients, bit-identically to DDP, and then run the plain optimizer. Compressed steps send one
// bit per element.
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/process_group.h"
#include "engine/engine.h"
#include "engine/exchange.h"
#include "extensions/deepspeed/onebit/compressed.h"
#include "optim/optimizer.h"
#include "parallel/gradient_sum.h"

namespace lockstep::onebit {

/// Options of one step.
struct OneBitStepOptions {
  double grad_scale = 1;  ///< factor for the gradients: 1 / micro-batches, 1 / loss scale
  /// Clip gradients to this norm; 0: no clipping. OneBitStepReport::norm is the norm that is compared with max_norm.
  double max_norm = 0;
  bool skip_nonfinite = false;  ///< if any rank has NaN or infinity in a gradient, no rank changes anything
  bool want_norm = false;       ///< compute the norm even without max_norm and skip_nonfinite
};

/// Outcome of one step.
struct OneBitStepReport {
  bool compressed = false;  ///< true for a compressed step
  bool skipped = false;     ///< true if a gradient was not finite: nothing was changed
  /// Norm before clipping, if it was computed. In exact steps: the norm of the mean gradient. In compressed steps no
  /// rank knows the mean gradient; `norm` is then the root mean square of the norms of the ranks' own gradients, an
  /// upper bound. All ranks clip by the same factor.
  double norm = NAN;
};

/// Numbers of exact and of compressed steps so far, and the bytes that this rank has sent in these steps.
struct Volume {
  int64_t exact_steps = 0, exact_bytes = 0, compressed_steps = 0, compressed_bytes = 0;
};

/// Compression errors of this rank, as flat tensors. worker: errors of the values that this rank sends. server: errors
/// of the chunk that this rank averages for all ranks.
struct Errors {
  Tensor worker, server;
};

/// An optimizer that communicates. Subclasses define exact and compressed steps.
class OneBitOptimizer : public optim::Optimizer, public engine::Exchanging {
 public:
  /// Updates all trained parameters. Collective. Errors: a trained parameter has no gradient; DDP has already reduced
  /// the gradients; the call is inside a graph capture.
  OneBitStepReport step(const OneBitStepOptions& options);
  void step(double grad_scale = 1) override { step(OneBitStepOptions{.grad_scale = grad_scale}); }
  bool communicates() const override { return true; }
  std::unique_ptr<engine::Exchange> exchange(nn::Module& model, dist::ProcessGroup& group,
                                             engine::Exchange::Options options) override;
  dist::ProcessGroup& group() const { return group_; }  ///< the ranks that train together

  /// Sets a mask of the parameter's shape (else Error), by which the parameter's momentum is multiplied after each
  /// compressed exchange. Elements whose gradients are always 0 need a 0 in the mask, because one bit cannot express 0.
  /// The mask is not part of the state.
  void set_exp_avg_mask(const Variable& parameter, const Tensor& mask);

  /// True while all ranks hold the same parameters; false for 0/1 Adam between two exchanges.
  virtual bool is_synchronized() const { return true; }
  /// Makes the parameters the same on all ranks, for evaluation and checkpoints. Collective.
  virtual void synchronize() {}

  int64_t steps() const { return steps_; }          ///< steps that were not skipped
  const Volume& volume() const { return volume_; }  ///< communication so far

  /// Loads a state. Compression errors are not part of it, since they differ between ranks: they restart at zero, as in
  /// DeepSpeed, unless load_errors() restores them.
  void load_state(const optim::OptimizerState& state) override;
  /// This rank's compression errors, not copied. Undefined before the first compressed exchange, and in a group of one.
  Errors errors() const;
  /// Restores errors() after load_state(), so that training continues bit-identically. Error if they were saved with a
  /// different number of ranks.
  void load_errors(const Errors& errors);
  /// Number of elements of Errors::worker, padding included.
  int64_t error_size();

 protected:
  /// group: null means dist::world().
  OneBitOptimizer(dist::ProcessGroup* group, const CompressedAllReduce::Options& options);
  /// Must be the last call of a constructor. Collective. Broadcasts rank 0's values; Error unless all ranks have the
  /// same parameters and options.
  void start();

  /// A parameter during a step. `parameter`: its values in f32; for a 16-bit parameter, `parameter` is the f32 master
  /// copy, and `low` is the 16-bit tensor.
  struct Slot {
    int group = 0;
    Variable variable;
    Tensor parameter, low, mask;
    Tensor sent;  ///< the tensor to exchange; all_reduce() replaces its values by their mean over ranks
    optim::ParameterState* state = nullptr;
    Tensor& tensor(const char* name) { return state->zeros(name, parameter); }
  };
  /// Returns a Slot for each trained parameter. If fn is given, adds 1 to each parameter's number of steps, and calls
  /// fn with the Slot and the gradient, in the dtype of Slot::parameter. fn may keep and change the gradient.
  std::vector<Slot> slots(const std::function<void(Slot& slot, const Tensor& grad)>& fn = {});
  /// To be called after a parameter was changed: updates its 16-bit copy and its version.
  void changed(Slot& slot);
  /// Replaces Slot::sent of all slots by the compressed mean over ranks.
  void all_reduce(const std::vector<Slot>& slots, std::string_view tag);
  void reset_errors() { compressed_.reset(); }
  /// Error for a parameter that was added after the second moment was frozen.
  void check_has_variance(const Slot& slot) const;
  /// Sets elements of a compressed momentum (or gradient) to 0 where the user's mask says so, and where the second
  /// moment is 0. There the gradient has always been 0, which one bit cannot express, and the optimizer would divide by
  /// about 0. frozen: true if the second moment no longer changes.
  void apply_masks(Slot& slot, const Tensor& momentum, bool frozen);

  /// Returns the value of an option that counts steps. Error unless it has the same value in all groups.
  int64_t common(const char* option) const;
  /// True if step number `step`, counted from 1, averages gradients exactly. Default: up to freeze_step.
  virtual bool is_exact(int64_t step) const { return step <= common("freeze_step"); }
  /// Calls update() for one parameter, and then changed().
  void update_exactly(Slot& slot, const Tensor& grad, double grad_scale);
  /// An exact step; gradients hold the mean over ranks. Default: update_exactly() for each parameter.
  virtual void exact_step(int64_t step, double grad_scale);
  /// A compressed step; gradients are this rank's own.
  virtual void compressed_step(int64_t step, double grad_scale) = 0;

  dist::ProcessGroup& group_;

 private:
  std::vector<std::string> describe();
  void notice_parameters();
  void check_gradients();
  CompressedAllReduce& compressed();

  CompressedAllReduce::Options compression_;
  std::unique_ptr<CompressedAllReduce> compressed_;
  std::vector<Variable> trained_;
  std::vector<int> group_of_;
  std::optional<parallel::GradientSum> mean_;
  std::map<const void*, Tensor> masks_;    // set by set_exp_avg_mask()
  std::map<const void*, Tensor> nonzero_;  // 1 where a frozen second moment is not 0; undefined: everywhere
  int64_t steps_ = 0;
  Volume volume_;
};

/// The 1-bit optimizer of an engine; null with other optimizers. With 0/1 Adam, synchronize() before evaluating.
OneBitOptimizer* optimizer_of(const engine::EngineBase& engine);

}  // namespace lockstep::onebit
