#pragma once
// Optimizer: the base class of all optimizers. An update rule is a function update(parameter, gradient, state) on one
// tensor. Master weights, ZeRO and offload can therefore wrap any rule. The base class handles parameters, groups and
// state by name. The end of this header declares norms of gradients, and clipping.
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lockstep::optim {

/// The tensors that an optimizer keeps for one parameter ("exp_avg", ...), and the number of its updates.
struct ParameterState {
  int64_t step = 0;
  std::map<std::string, Tensor> tensors;
  std::map<std::string, double> numbers;  ///< further scalars of the state ("step" is reserved)
  int64_t full = 0;                       ///< for a shard: elements of the whole parameter; 0: not a shard
  uint32_t known_version = 0;  ///< version of a 16-bit parameter when its master copy was last in sync; 0: unknown
  /// True if the rule has to initialise this tensor: it does not exist, or a first step made it and was then skipped.
  bool is_new(const std::string& name) const { return step == 1 || tensors.count(name) == 0; }
  /// The tensor of this name; created as zeros like `like` if missing.
  Tensor& zeros(const std::string& name, const Tensor& like);
};

/// State of an optimizer: tensors "state.<parameter>.<tensor>", step counters, and all options of all groups.
struct OptimizerState {
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::map<std::string, double> numbers;
};

/// Records a write: gives the storage a version number that no other storage has. Code that remembers the
/// number of a tensor's storage can detect later writes, and can detect that the tensor was given another storage.
void stamp(Storage& storage, const char* writer);
/// Updates `copy`, a parameter's copy in higher precision, after other code has written the parameter. An element of
/// the copy stays as it is if it still rounds to the parameter's element.
void follow(const Tensor& copy, const Tensor& parameter);

/// True for state tensors with one number per block of elements (Optimizer::block()).
inline bool is_per_block(const std::string& name) { return name.ends_with("_absmax"); }

/// Preprocessing of gradients in clipped_step().
struct ClippedStep {
  double grad_scale = 1;        ///< factor on the gradients: 1 / loss scale
  double max_norm = 0;          ///< clips to this norm; infinity: only computes the norm; 0: does not clip
  bool skip_nonfinite = false;  ///< true: skip the step if a gradient is NaN or infinite
};
/// Result of clipped_step().
struct StepOutcome {
  double norm = NAN;  ///< norm after scaling and before clipping; NaN: not computed
  bool skipped = false;
};

/// Base class of all optimizers; see OptimizerOf for groups with typed options.
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;

  /// Updates all parameters that have a gradient; gradients are multiplied by grad_scale (loss scaling, clipping). f16
  /// and bf16 parameters have f32 master copies in the state. If other code has written such a parameter since the last
  /// step, its copy is updated first. On a CUDA device, rules with is_one_kernel() update all parameters of a dtype in
  /// one launch, and the step may be captured in a Graph: see before_replay().
  virtual void step(double grad_scale = 1);
  /// Makes a step with scaled and clipped gradients: same bits as unscale_(), clip_grad_norm() and step(). On a CUDA
  /// device the gradients are not modified and the host does not wait.
  void clipped_step(const ClippedStep& request);
  /// Result of the last clipped_step(), or of its last replay. Waits for the device.
  StepOutcome last_step();
  /// Counts the step, and copies the current options (learning rate, ...) and `request` to where the graph reads them.
  /// To be called before each replay of a graph that captured step() or clipped_step(). Does nothing on the CPU, where
  /// a replay calls the captured function again.
  void before_replay(const ClippedStep& request = {});
  /// Drops all gradients, or fills them with zeros if `keep` is set.
  void zero_grad(bool keep = false);

  /// Applies the rule to one contiguous f32 or f64 tensor, in the parameter's shape. `low`, if defined, gets a rounded
  /// copy of the result.
  virtual void update(int group, Tensor& parameter, const Tensor& grad, ParameterState& state, Tensor& low,
                      double grad_scale) = 0;
  /// Calls update(), then updates the moving average if there is one. To make a step, call advance(), not update().
  void advance(int group, Tensor& parameter, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale);
  /// Keeps an exponential moving average of the parameters (or their f32 copies) in the state, as "ema": after every
  /// step average += (1 - decay) (parameter - average). The first such step sets average = parameter instead. With
  /// decay 0, keeps no average. Error for rules that keep an average of their own, unless decay is 0.
  void keep_average(double decay);
  /// True if the state contains an average of the parameters.
  virtual bool keeps_average() const { return average_decay_ > 0; }
  /// True if update() is a single device kernel, which a StepBatch (optim/step_batch.h) can collect.
  virtual bool is_one_kernel() const { return false; }
  /// True if one kernel can update many parameters on a device, and a graph can capture the step.
  bool can_be_collected() const { return is_one_kernel() && average_decay_ == 0; }
  /// False for rules that need the whole parameter (LAMB, Muon) and therefore cannot run on a shard.
  virtual bool is_elementwise() const { return true; }
  /// Size of a block: is_per_block() tensors have one number for each `block()` consecutive elements of the parameter.
  /// A shard must begin at a multiple of this size.
  virtual int64_t block() const { return 1; }
  /// Shape of the state tensor `key` for a parameter of this shape. `key`: "exp_avg" or "state.<parameter>.exp_avg".
  virtual Shape state_shape(const std::string& key, const Shape& parameter) const;
  /// True if step() itself reduces gradients over ranks (engine/exchange.h); no wrapper may then reduce gradients.
  virtual bool communicates() const { return false; }
  /// The class name, for errors.
  virtual const char* name() const = 0;

  /// Number of groups.
  int group_count() const { return int(groups_.size()); }
  /// Parameters of one group.
  const std::vector<Variable>& parameters(int group) const { return groups_[group]; }
  /// Parameters of all groups, in order.
  std::vector<Variable> parameters() const;
  /// State of a parameter. If the device may have skipped steps, waits for the device and corrects the count.
  ParameterState& state_of(const Variable& parameter);

  // Options of a group by name ("lr", "momentum", "beta1", ...); schedules set them.
  double get(int group, const std::string& option) const;
  /// Sets an option. Error for an unknown option, or a learning rate that is negative, NaN or infinite.
  void set(int group, const std::string& option, double value);
  /// Learning rate of a group.
  double lr(int group = 0) const { return get(group, "lr"); }
  /// Sets the learning rate of all groups.
  void set_lr(double lr) {
    for (int g = 0; g < group_count(); ++g) set(g, "lr", lr);
  }
  /// True if the rule has this option.
  bool has(const std::string& option) const;
  /// Base rate of schedules: the group's rate when the first schedule was made. Saved with the state.
  double initial_lr(int group);

  /// Sets the names that state() uses; the default is 0, 1, ... in order. Error if `names` lacks a parameter.
  void name_parameters(const std::vector<std::pair<std::string, Variable>>& names);
  /// The state by parameter name, for saving; its tensors share memory with the optimizer.
  virtual OptimizerState state() const;
  /// Loads what state() returned. Error, with nothing changed, for an entry that is unknown or has the wrong shape.
  virtual void load_state(const OptimizerState& state);

 protected:
  Optimizer();
  /// Adds a group. Error if it is empty (unless may_be_empty), or for a parameter that is undefined, not a leaf, or
  /// already in a group.
  void add_group_of(std::vector<Variable> parameters, bool may_be_empty = false);
  /// Addresses of a group's options by name.
  virtual std::map<std::string, double*> options(int group) = 0;

  /// The arguments of update(). For a 16-bit parameter, `parameter` is the f32 master copy and `low` is the parameter.
  struct Prepared {
    Tensor parameter, grad, low;
    ParameterState& state;
  };
  /// Prepares update()'s arguments. any_gradient: true keeps a 16-bit gradient; false converts it to f32.
  Prepared prepare(Variable& parameter, bool any_gradient = false);
  /// Must be called after a rule has written to a parameter, so that later writes by other code are detected.
  void written(const Variable& parameter);
  /// Name of a parameter in errors and states. index: its index among all groups' parameters, the default name.
  std::string name_of(const Variable& parameter, int index) const;

 private:
  Tensor& master_of(const Tensor& parameter, ParameterState& state);
  // Steps on CUDA devices; see device_step.cpp.
  struct OnDevice;
  struct Taking {  // a parameter that takes part in a step
    int group;
    Variable* parameter;
  };
  std::vector<Taking> taking_part();
  void written(const std::vector<Taking>& all);
  void check_capture(const std::vector<Taking>& all) const;
  void step_on_device(const std::vector<Taking>& all, const ClippedStep& request, bool clips);
  void collect(OnDevice& at, const std::vector<Taking>& all, double grad_scale, bool numbers_only);
  void count_steps();
  void forget_recorded();

  std::vector<std::vector<Variable>> groups_;
  std::map<const void*, ParameterState> states_;
  std::map<int, std::unique_ptr<OnDevice>> on_device_;  // keyed by device index
  StepOutcome last_;
  std::map<const void*, std::string> names_;
  std::vector<double> initial_lr_;  // one rate per group; NaN: no schedule has asked yet
  double average_decay_ = 0;
};

/// A numeric option, and its range [low, high).
struct OptionRange {
  const char* name;
  double* value;
  double low = 0, high = INFINITY;
};
inline constexpr double unchecked = -INFINITY;  ///< `low` of an option without a range

/// Error for the first option out of range.
void check_ranges(const char* op, const std::vector<OptionRange>& table);
/// Error for the first option out of range, and if Options has a check() that rejects the options.
template <class Options> void check_options(const char* op, Options o) {
  check_ranges(op, o.table());
  if constexpr (requires { o.check(op); }) o.check(op);
}
/// Addresses of the options by name.
std::map<std::string, double*> by_name(const std::vector<OptionRange>& table);

/// The table of Lion-like options (lr, betas, weight_decay), followed by `more`.
template <class Options> std::vector<OptionRange> lion_table(Options& o, const std::vector<OptionRange>& more = {}) {
  std::vector<OptionRange> all{
      {"lr", &o.lr}, {"beta1", &o.beta1, 0, 1}, {"beta2", &o.beta2, 0, 1}, {"weight_decay", &o.weight_decay}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// The table of Adam-like options: those of lion_table(), then eps, then `more`.
template <class Options> std::vector<OptionRange> adam_table(Options& o, std::vector<OptionRange> more = {}) {
  more.insert(more.begin(), {"eps", &o.eps});
  return lion_table(o, more);
}

/// An optimizer whose groups have typed options. Options has `std::vector<OptionRange> table()` and, for conditions
/// between options, `void check(const char* op) const`.
template <class Options, class Base = Optimizer> class OptimizerOf : public Base {
 public:
  /// Parameters and their options.
  struct Group {
    std::vector<Variable> parameters;
    Options options;
  };
  /// Adds parameters with their own options.
  void add_group(std::vector<Variable> parameters, const Options& options) {
    add_groups({{std::move(parameters), options}});
  }
  /// Adds several groups. A group may be empty, as in a pipeline stage without its parameters. Error if all are empty.
  void add_groups(const std::vector<Group>& groups) {
    LOCKSTEP_CHECK(!groups.empty(), "[", this->name(),
                   "] expected at least one group of parameters, got none; "
                   "pass one such as {net.parameters(), options}");
    bool any = false;
    for (const Group& g : groups) any |= !g.parameters.empty();
    for (const Group& g : groups) {
      check_options(this->name(), g.options);
      this->add_group_of(g.parameters, any);
      options_.push_back(g.options);
    }
  }
  /// Current options of a group.
  const Options& group_options(int group) const { return options_[group]; }

 protected:
  using Base::Base;
  std::map<std::string, double*> options(int group) override { return by_name(options_[group].table()); }
  std::vector<Options> options_;
};

/// Declares the constructors (defined by LOCKSTEP_OPTIMIZER_CONSTRUCTORS, optim/rules.h) and overrides that every
/// optimizer has. Members that follow the macro are public.
#define LOCKSTEP_OPTIMIZER(Class)                                                       \
 public:                                                                                \
  Class(std::vector<::lockstep::Variable> parameters, const Class##Options& options);   \
  explicit Class(const std::vector<Group>& groups);                                     \
  const char* name() const override { return #Class; }                                  \
  void update(int group, ::lockstep::Tensor& parameter, const ::lockstep::Tensor& grad, \
              ::lockstep::optim::ParameterState& state, ::lockstep::Tensor& low, double grad_scale) override

// --- norms of gradients, and clipping (clip.cpp) ---
/// Norm of all gradients together: Euclidean (norm_type 2), maximum (infinity) or p-norm. Parameters without a gradient
/// are skipped.
double grad_norm(const std::vector<Variable>& parameters, double norm_type = 2);

/// Returns the norm of one gradient from the f64 sum of its squares. Rounds the norm to f32 unless the gradient is f64,
/// so that the norm of a gradient that ranks hold in shards equals that of the whole gradient. The norm of several
/// gradients is the root of the sum of their squared norms, added in the order of the model's parameters.
double norm_of_squares(double sum, DType dtype);

/// clip_grad_norm() if the gradients' norm is known already: scales all gradients by max_norm / (norm + 1e-6) if this
/// factor is below 1. Returns `norm`.
double clip_to_norm(const std::vector<Variable>& parameters, double norm, double max_norm);

/// Scales all gradients by max_norm / (norm + 1e-6) if this factor is below 1. Returns the norm before clipping. A norm
/// that is infinite or NaN makes the gradients 0 or NaN, as in PyTorch: check the result, or set error_if_nonfinite.
double clip_grad_norm(const std::vector<Variable>& parameters, double max_norm, double norm_type = 2,
                      bool error_if_nonfinite = false);

/// Clamps every element of every gradient to [-clip_value, clip_value].
void clip_grad_value(const std::vector<Variable>& parameters, double clip_value);

}  // namespace lockstep::optim
