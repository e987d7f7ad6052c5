#pragma once
// Optimizers. Each is a function update(parameter, gradient, state) on one tensor, so master weights, ZeRO and offload
// can wrap any of them; the base class walks parameters, groups and state by name.
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/variable.h"

namespace lockstep::optim {

/// The tensors an optimizer keeps for one parameter ("exp_avg", ...), and how often it was updated.
struct ParameterState {
  int64_t step = 0;
  std::map<std::string, Tensor> tensors;
  std::map<std::string, double> numbers;  ///< what else it keeps ("step" is taken)
  int64_t whole = 0;                      ///< elements of the whole parameter, where this is of a part; 0: it is whole
  uint32_t seen = 0;                      ///< stamp of a 16-bit parameter when its master copy was the same; 0: none
  /// Whether a rule begins with the tensor of that name: it is not there, or was left by a step that did not count.
  bool is_new(const std::string& name) const { return step == 1 || tensors.count(name) == 0; }
  /// The tensor of that name, made of zeros shaped like `like` at the first call.
  Tensor& zeros(const std::string& name, const Tensor& like);
};

/// State of a whole optimizer by name: "state.<parameter>.<tensor>", counters and every option of every group.
struct OptimizerState {
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::map<std::string, double> numbers;
};

/// Counts a write, with a version that no other storage has: who keeps it sees later writes, and another tensor in this
/// one's place.
void stamp(Storage& storage, const char* writer);
/// Where somebody has written to a parameter of which `copy` is a wider copy, the copy takes that; what is still the
/// copy's, rounded, leaves it its bits.
void follow(const Tensor& copy, const Tensor& parameter);

/// A tensor of a state that has a number for each block of elements (Optimizer::block()), not for each element.
inline bool is_per_block(const std::string& name) { return name.ends_with("_absmax"); }

/// What clipped_step() does with gradients first.
struct ClippedStep {
  double grad_scale = 1;        ///< they are multiplied by it: 1 / loss scale
  double max_norm = 0;          ///< and clipped to this norm; infinity: the norm is found, 0: it is not
  bool skip_nonfinite = false;  ///< nothing is changed when one is NaN or infinite
};
/// How it went.
struct StepOutcome {
  double norm = NAN;  ///< before clipping, of scaled gradients
  bool skipped = false;
};

class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient; gradients are multiplied by `grad_scale` on the way in (loss scaling,
  /// clipping). f16 and bf16 parameters get an f32 master copy in their state, which takes over what others have
  /// written to them since. On a CUDA device rules of one kernel update all parameters of one dtype by one launch, and
  /// such a step may be captured in a Graph: see before_replay().
  virtual void step(double grad_scale = 1);
  /// As unscale_(), clip_grad_norm() and step() after each other, with the same bits. On a CUDA device gradients stay
  /// as they are, and the host waits for nothing.
  void clipped_step(const ClippedStep& request);
  /// How the last clipped_step() went, or the last replay of one: waits for the device.
  StepOutcome last_step();
  /// To be called before each replay of a graph that captured step() or clipped_step(): counts the step, and puts the
  /// options as they are now (learning rate, ...) and what `request` says where the graph reads them. Nothing on the
  /// CPU, where a replay runs the function again.
  void before_replay(const ClippedStep& request = {});
  /// The one place that clears gradients: drops them, or fills them with zeros when `keep` is set.
  void zero_grad(bool keep = false);

  /// The rule itself: one parameter, contiguous, f32 or f64, in its own shape. `low`, when defined, gets a rounded
  /// copy.
  virtual void update(int group, Tensor& parameter, const Tensor& grad, ParameterState& state, Tensor& low,
                      double grad_scale) = 0;
  /// update(), and the average when one is kept: what all who make steps call.
  void advance(int group, Tensor& parameter, const Tensor& grad, ParameterState& state, Tensor& low, double grad_scale);
  /// Keeps an exponential moving average of the parameters (of their f32 copies) in the state, as "ema": average +=
  /// (1 - decay) (parameter - average) after every step, from the parameters of the first step with it on. 0: none, and
  /// all that rules take which keep one of their own.
  void keep_average(double decay);
  virtual bool keeps_average() const { return average_decay_ > 0; }
  /// Whether update() is one of a device's kernels and no more, which a StepBatch (tensor/step_batch.h) can collect.
  virtual bool is_one_kernel() const { return false; }
  bool can_be_collected() const { return is_one_kernel() && average_decay_ == 0; }
  /// False for rules that look at a whole parameter (LAMB, Muon): these cannot run on a shard of one.
  virtual bool is_elementwise() const { return true; }
  /// Elements that share numbers of the state, which are in tensors of is_per_block(): parts begin at multiples of it.
  virtual int64_t block() const { return 1; }
  /// The shape of the state's tensor of that name (it may have a prefix) for a parameter of this shape.
  virtual Shape state_shape(const std::string& key, const Shape& parameter) const;
  /// True for optimizers whose step() moves gradients between ranks itself (parallel/onebit/): no wrapper may have
  /// reduced them before.
  virtual bool communicates() const { return false; }
  virtual const char* name() const = 0;

  int group_count() const { return int(groups_.size()); }
  const std::vector<Variable>& parameters(int group) const { return groups_[group]; }
  std::vector<Variable> parameters() const;
  ParameterState& state_of(const Variable& parameter);

  // Options of a group by name ("lr", "momentum", "beta1", ...): schedules turn them.
  double get(int group, const std::string& option) const;
  /// Error for a rate that is negative, NaN or infinite.
  void set(int group, const std::string& option, double value);
  double lr(int group = 0) const { return get(group, "lr"); }
  void set_lr(double lr) {
    for (int g = 0; g < group_count(); ++g) set(g, "lr", lr);
  }
  bool has(const std::string& option) const;
  /// What schedules count from: the group's rate when the first of them asked, and what a loaded state says. Saved with
  /// the state.
  double initial_lr(int group);

  /// Names for state(); without them parameters are called 0, 1, ... in order. Error when a parameter is not named.
  void name_parameters(const std::vector<std::pair<std::string, Variable>>& names);
  virtual OptimizerState state() const;
  /// Error listing what is missing, unexpected or of the wrong shape; then nothing was changed.
  virtual void load_state(const OptimizerState& state);

 protected:
  Optimizer();
  /// Error for an empty list (unless it may be), a parameter that is undefined, not a leaf, or in two groups.
  void add_group_of(std::vector<Variable> parameters, bool may_be_empty = false);
  /// The addresses of a group's options by name.
  virtual std::map<std::string, double*> options(int group) = 0;

  /// A parameter as the rule sees it: its master copy where it has 16 bits, which is then `low`.
  struct Prepared {
    Tensor parameter, grad, low;
    ParameterState& state;
  };
  /// any_gradient: one of 16 bits stays so.
  Prepared prepare(Variable& parameter, bool any_gradient = false);
  /// After a rule has written to a parameter: gives it a version by which later writes of others are seen.
  void written(const Variable& parameter);
  /// What errors call the index-th parameter.
  std::string name_of(const Variable& parameter, int index) const;

 private:
  Tensor& master_of(const Tensor& parameter, ParameterState& state);
  // device_step.cpp
  struct OnDevice;
  struct Taking {  // part in a step
    int group;
    Variable* parameter;
  };
  std::vector<Taking> taking_part();
  void written(const std::vector<Taking>& all);
  void check_capture(const std::vector<Taking>& all) const;
  void step_on_device(const std::vector<Taking>& all, const ClippedStep& request, bool clips);
  void collect(OnDevice& at, const std::vector<Taking>& all, double grad_scale, bool numbers_only);
  void settle();
  void forget_recorded();

  std::vector<std::vector<Variable>> groups_;
  std::map<const void*, ParameterState> states_;
  std::map<int, std::unique_ptr<OnDevice>> on_device_;  // by its index
  StepOutcome last_;
  std::map<const void*, std::string> names_;
  std::vector<double> initial_lr_;  // by group; NaN, and none: nobody has asked
  double average_decay_ = 0;
};

/// A number among the options of a group, which must be in [low, high).
struct OptionRange {
  const char* name;
  double* value;
  double low = 0, high = INFINITY;
};
inline constexpr double unchecked = -INFINITY;  ///< low of what is not checked

/// Error for the first that is out of its range.
void check_ranges(const char* op, const std::vector<OptionRange>& table);
template <class Options> void check_options(const char* op, Options o) {
  check_ranges(op, o.table());
  if constexpr (requires { o.check(op); }) o.check(op);
}
/// Where they are.
std::map<std::string, double*> by_name(const std::vector<OptionRange>& table);

/// Lion's options, or Adam's, and `more`.
template <class Options> std::vector<OptionRange> lion_table(Options& o, const std::vector<OptionRange>& more = {}) {
  std::vector<OptionRange> all{
      {"lr", &o.lr}, {"beta1", &o.beta1, 0, 1}, {"beta2", &o.beta2, 0, 1}, {"weight_decay", &o.weight_decay}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

template <class Options> std::vector<OptionRange> adam_table(Options& o, std::vector<OptionRange> more = {}) {
  more.insert(more.begin(), {"eps", &o.eps});
  return lion_table(o, more);
}

/// Groups with typed options. Options has `std::vector<OptionRange> table()`, and `void check(const char*) const` where
/// they must go together, too.
template <class Options, class Base = Optimizer> class OptimizerOf : public Base {
 public:
  struct Group {
    std::vector<Variable> parameters;
    Options options;
  };
  /// Adds parameters with options of their own.
  void add_group(std::vector<Variable> parameters, const Options& options) {
    add_groups({{std::move(parameters), options}});
  }
  /// Several at once, of which some may be empty: a stage of a pipeline then has the groups of the whole model.
  void add_groups(const std::vector<Group>& groups) {
    LOCKSTEP_CHECK(!groups.empty(), "[", this->name(), "] expected at least one group of parameters, got none");
    bool any = false;
    for (const Group& g : groups) any |= !g.parameters.empty();
    for (const Group& g : groups) {
      check_options(this->name(), g.options);
      this->add_group_of(g.parameters, any);
      options_.push_back(g.options);
    }
  }
  const Options& group_options(int group) const { return options_[group]; }

 protected:
  using Base::Base;
  std::map<std::string, double*> options(int group) override { return by_name(options_[group].table()); }
  std::vector<Options> options_;
};

}  // namespace lockstep::optim
