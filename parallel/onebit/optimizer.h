#pragma once
// What the 1-bit optimizers share. They move gradients (or momenta) between ranks, so the model is in no wrapper:
//
//   onebit::OneBitAdam opt(model.parameters(), {.lr = 3e-4, .freeze_step = 1000});   // now all have rank 0's
//   loss.backward();                                                                 // this rank's gradients
//   opt.step();                                                                      // the same on all ranks
//   opt.zero_grad();
//
// Exact steps average gradients as DDP does, and then are an ordinary optimizer's; compressed ones send a bit a number.
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/process_group.h"
#include "optim/optimizer.h"
#include "parallel/buckets.h"
#include "parallel/onebit/compressed.h"

namespace lockstep::onebit {

struct StepOptions {
  double grad_scale = 1;  ///< gradients are multiplied by it: 1 / micro-batches, 1 / loss scale
  /// Clip to this norm (0: no clipping): of the mean gradient in exact steps, else see StepReport::norm.
  double max_norm = 0;
  bool skip_nonfinite = false;  ///< when any rank has NaN or infinity in a gradient, no rank changes anything
  bool want_norm = false;       ///< report the norm also without these two
};

struct StepReport {
  bool compressed = false;
  bool skipped = false;
  /// With clipping, skip_nonfinite or want_norm, before clipping: the norm of the mean gradient; in compressed steps
  /// nobody knows it, and this is the root mean square of the ranks' own norms, which is no smaller. All ranks clip by
  /// the same factor.
  double norm = NAN;
};

/// Bytes that this rank has sent in its steps.
struct Volume {
  int64_t exact_steps = 0, exact_bytes = 0, compressed_steps = 0, compressed_bytes = 0;
};

/// What compression took from numbers and still owes, flat: of this rank as a worker, and as the server of a chunk.
struct Errors {
  Tensor worker, server;
};

class Optimizer : public optim::Optimizer {
 public:
  /// Collective. Error when a trained parameter has no gradient, or when its gradients are already reduced by DDP.
  StepReport step(const StepOptions& options);
  void step(double grad_scale = 1) override { step(StepOptions{.grad_scale = grad_scale}); }
  bool communicates() const override { return true; }
  dist::ProcessGroup& group() const { return group_; }

  /// Multiplies the momentum of a parameter after each compressed exchange: 0 where gradients are always 0, as one bit
  /// cannot say 0. Not part of the state.
  void set_exp_avg_mask(const Variable& parameter, const Tensor& mask);

  /// Whether all ranks hold the same parameters now (0/1 Adam: not between two exchanges).
  virtual bool is_synchronized() const { return true; }
  /// Makes it so, for evaluation and checkpoints. Collective.
  virtual void synchronize() {}

  int64_t steps() const { return steps_; }
  const Volume& volume() const { return volume_; }

  /// Errors of compression start at zero again, as in DeepSpeed: each rank has its own, load_errors() takes them.
  void load_state(const optim::OptimizerState& state) override;
  /// Undefined before the first compressed exchange, and in a group of one.
  Errors errors() const;
  /// After load_state(), by as many ranks as had them: the run then goes on to the bit.
  void load_errors(const Errors& errors);
  /// Elements of a rank's worker errors, padding included.
  int64_t error_size();

 protected:
  /// group: null is dist::world().
  Optimizer(dist::ProcessGroup* group, const CompressedAllReduce::Options& options);
  /// All ranks must have the same parameters and options; then rank 0's values go everywhere. Constructors end with it.
  /// Collective.
  void start();

  /// A parameter in a step: `parameter` is its master copy where it has 16 bits.
  struct Slot {
    int group = 0;
    Variable variable;
    Tensor parameter, low, mask;
    Tensor sent;  // what all_reduce() averages
    optim::ParameterState* state = nullptr;
    Tensor& tensor(const char* name) { return state->zeros(name, parameter); }
  };
  /// Slots of all trained parameters, in their order; fn sees each with its gradient, in the parameter's precision, and
  /// may keep it.
  std::vector<Slot> slots(const std::function<void(Slot& slot, const Tensor& grad)>& fn = {});
  /// After a parameter was changed: its 16-bit copy, and its version.
  void changed(Slot& slot);
  /// Slot::sent becomes its compressed mean.
  void all_reduce(const std::vector<Slot>& slots, std::string_view tag);
  void reset_errors() { compressed_.reset(); }
  /// Error for a parameter that joined when the second moment was frozen already.
  void check_has_variance(const Slot& slot) const;
  /// Takes out of a compressed momentum (or gradient) what must be 0: by the user's mask, and where the second moment
  /// is 0, as nothing was ever seen there: one bit cannot say 0, and the quotient would be anything. frozen: the second
  /// moment does not change any more.
  void apply_masks(Slot& slot, const Tensor& momentum, bool frozen);

  /// An option that counts steps for the whole optimizer. Error when groups differ.
  int64_t common(const char* option) const;
  /// Whether step number `step`, from 1, averages gradients exactly. Default: up to freeze_step.
  virtual bool is_exact(int64_t step) const { return step <= common("freeze_step"); }
  /// update() of one parameter.
  void update_exactly(Slot& slot, const Tensor& grad, double grad_scale);
  /// An exact step: gradients are the mean over ranks. Default: update_exactly() for each parameter.
  virtual void exact_step(int64_t step, double grad_scale);
  /// Gradients are this rank's own.
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
  std::optional<parallel::GradientAccumulator> mean_;
  std::map<const void*, Tensor> masks_;  // the user's
  std::map<const void*, Tensor> seen_;   // where frozen second moments are not 0 (undefined: everywhere)
  int64_t steps_ = 0;
  Volume volume_;
};

}  // namespace lockstep::onebit
