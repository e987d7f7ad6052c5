#pragma once
// Module: the base class of everything with parameters. A module names its fields once, in fields(); parameter lists,
// state by name, to(), freezing, summary() and the parameter order of ZeRO are all derived from that list.
//
//   struct Net : nn::Layer<Net> {
//     nn::Linear hidden{{.in = 784, .out = 512}}, head{{.in = 512, .out = 10}};
//     Variable forward(const Variable& x) { return head(relu(hidden(x))); }
//     void fields(nn::Fields& f) override { f("hidden", hidden)("head", head); }
//   };
#include <concepts>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/ops.h"
#include "nn/cut.h"
#include "nn/outputs.h"

namespace lockstep::nn {

class LayerList;
struct Mlp;
struct SequencePart;
class Module;

/// The list that Module::fields() fills: f("weight", weight) for a parameter (Variable) or buffer (Tensor), f("head",
/// head) for a child module. Undefined parameters and buffers (a layer without bias) are skipped. A Cut says how ranks
/// may shard the field (nn/cut.h).
class Fields {
 public:
  /// Adds a parameter, a buffer or a child module under `name`; returns *this for chaining.
  Fields& operator()(const std::string& name, Variable& parameter, const Cut& cut = {});
  Fields& operator()(const std::string& name, Tensor& buffer);
  Fields& operator()(const std::string& name, Module& module, const Cut& cut = {});
  /// Adds a buffer of sums over many batches, which Module::to(dtype) never rounds to 16 bits.
  Fields& statistic(const std::string& name, Tensor& buffer);
  /// Adds a parameter that Module::to(dtype) leaves in its own dtype.
  Fields& fixed(const std::string& name, Variable& parameter);

  /// One field; exactly one of the three pointers is set.
  struct Entry {
    std::string name;
    Variable* parameter = nullptr;
    Tensor* buffer = nullptr;
    Module* module = nullptr;
    Cut cut = {};
    bool is_table = false;      ///< true: the parameter has one row per token (embedding or output head); set by Module
    bool keeps_dtype = false;   ///< true: to(dtype) leaves the parameter's dtype alone; set by fixed()
    bool is_statistic = false;  ///< true: to(dtype) keeps the buffer at f32 or wider; set by statistic()
  };
  std::vector<Entry> entries;
};

/// A parameter with its dotted name. The flags have the meaning of Fields::Entry.
struct NamedParameter {
  std::string name;
  Variable variable;
  bool is_table = false, keeps_dtype = false;
};
/// A buffer with its dotted name.
struct NamedBuffer {
  std::string name;
  Tensor tensor;
};
/// Tensors by dotted name, in the order of fields(). A parameter shared by several modules appears once, under its
/// first name.
using State = std::vector<std::pair<std::string, Tensor>>;

/// Names of the model that the state lacks (missing), and names of the state that the model lacks (unexpected).
struct LoadReport {
  std::vector<std::string> missing, unexpected;
};

/// Base class of layers and models. Derive from Layer<Derived> below, which adds operator().
class Module {
 protected:
  struct Hooks;

 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;  // not copyable: move it, or pass it by reference
  Module& operator=(const Module&) = delete;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;

  /// Adds every parameter, buffer and child to the list, each once. Override it in every module that has any.
  virtual void fields(Fields&) {}
  /// The class name without namespaces, e.g. "Linear"; used in summaries and errors.
  virtual std::string kind() const;
  /// The options in one line, e.g. "in 784, out 512"; used in summaries.
  virtual std::string options() const { return ""; }
  /// Parameters of child modules that forward() reads directly (a tied table) rather than by calling the child. ZeRO 3
  /// gathers them for the whole call.
  virtual std::vector<Variable> reads() { return {}; }
  /// Called once after the module was sharded. From now on its input is one of PartOf::count parts, the one with number
  /// PartOf::index, of a tensor that is divided along features (dim -1) or along the sequence (dim -2).
  virtual void sharded(const PartOf&) {}
  /// For context parallelism: from now on the input holds this rank's part of the sequence; with null, the whole one
  /// again. Returns the number of heads if this module is an attention layer, else 0.
  virtual int64_t share_sequence(const std::shared_ptr<SequencePart>&) { return 0; }
  /// This module as a list of layers (nn/layer_list.h), for pipelines. Default: a single layer that runs call().
  virtual LayerList layers();
  /// Auxiliary loss of the last forward (mixture of experts), to be added to the model's loss; undefined by default.
  virtual Variable own_loss() { return {}; }
  /// The feed-forward layer of a transformer block, and the slot for a module that replaces it under the same name
  /// (mixture of experts). Both are null in other modules.
  struct FeedForward {
    Mlp* mlp = nullptr;
    std::shared_ptr<Module>* other = nullptr;
  };
  /// This module's FeedForward; empty if it has none.
  virtual FeedForward feed_forward_place() { return {}; }
  /// Kind of table that the module's own parameters form: none, rows selected by token index (picked: embeddings), or
  /// rows multiplied with the input (scored: output heads). Optimizers and FLOP counts depend on it.
  enum class Table { none, picked, scored };
  /// This module's kind of table.
  virtual Table table() const { return Table::none; }
  /// Forward FLOPs per token that are not products with parameters (attention scores); takes the sequence length.
  virtual double flops_beside(int64_t) const { return 0; }
  /// Runs the module on one variable; Sequential and checkpoints use it. A module whose forward() takes neither one
  /// variable nor one tensor of tokens runs its layers() instead.
  virtual Variable call(const Variable& x);
  /// Runs forward() on 2 to 4 inputs, as variables or tensors. If it takes no such or is overloaded or a template (a
  /// GPT's second argument are targets), runs layers() on them. Error if neither takes so many.
  virtual Variable call_many(const std::vector<Variable>& inputs);

  std::vector<Variable> parameters();  ///< every parameter once, shared ones too
  /// All parameters with dotted names; a shared parameter appears once, under its first name.
  std::vector<NamedParameter> named_parameters();
  /// All buffers with dotted names, in the order of fields().
  std::vector<NamedBuffer> named_buffers();
  std::vector<std::pair<std::string, Module*>> named_modules();  ///< depth first; the module itself comes first, as ""
  /// Only the direct children, with their names.
  std::vector<std::pair<std::string, Module*>> children();
  /// Number of parameter elements; shared parameters count once.
  int64_t parameter_count();

  /// All parameters and buffers. The tensors share memory with the module.
  State state();
  /// Copies values by name into the module's parameters and buffers. Names, shapes and kinds of dtype (floating or not)
  /// are checked first: an Error lists all missing and unexpected names and all wrong shapes, and nothing is changed.
  /// With strict = false, missing and unexpected names are returned instead. A shared parameter may come under any of
  /// its names.
  LoadReport load_state(const State& state, bool strict = true);

  /// Converts or moves all parameters and buffers in place. Variables keep their identity, so existing optimizers stay
  /// valid. Integer buffers keep their dtype, and running statistics (Fields::statistic) stay f32 or wider. Error for a
  /// dtype that is not floating.
  Module& to(DType dtype);
  Module& to(Device device);
  /// Sets training mode for this module and all below it (Dropout, BatchNorm).
  Module& train(bool training = true);
  /// train(false).
  Module& eval() { return train(false); }
  /// True after construction, until eval().
  bool is_training() const { return training_; }
  /// Unfreezes (true) or freezes (false) all parameters.
  Module& requires_grad_(bool wanted = true);
  /// Drops the gradients of all parameters.
  void zero_grad();
  /// Calls fn for this module and all below it, parents first.
  void apply(const std::function<void(Module&)>& fn);

  /// Runs before forward() in every operator() call. `inputs` are the Variables among the arguments.
  using ForwardHook = std::function<void(Module& module, const std::vector<Variable>& inputs)>;
  /// Runs after forward(); `output` is the first variable of the result.
  using OutputHook = std::function<void(Module& module, const std::vector<Variable>& inputs, const Variable& output)>;
  /// An OutputHook that gets all variables of the result (nn/outputs.h).
  using OutputsHook =
      std::function<void(Module& module, const std::vector<Variable>& inputs, const std::vector<Variable>& outputs)>;
  /// Arguments or results of a call.
  using Variables = std::vector<Variable>;
  /// Replaces a call whose arguments and results are all variables. The hook may call `run` now, again later, or not at
  /// all, and returns the results (activation checkpointing).
  using CallHook =
      std::function<Variables(const Variables& inputs, const std::function<Variables(const Variables&)>& run)>;
  /// Installs `hook`; an empty hook removes the installed one. Error if one is installed already. While a hook is
  /// installed and gradients are recorded, a call is an Error if an argument or a result is not a Variable.
  void wrap_call(CallHook hook);
  /// Adds a hook; returns its id for remove_hook(). Hooks run in the order in which they were added.
  int before_forward(ForwardHook hook);
  /// Adds a hook that runs after forward(); returns its id.
  int after_forward(OutputHook hook);
  /// Adds a hook that gets all variables of the result; returns its id. `looks` false promises that the hook reads no
  /// values, so that layers may still be fused (is_watched()).
  int after_forward_all(OutputsHook hook, bool looks = true);
  /// Removes the hook with this id; unknown ids are ignored.
  void remove_hook(int id) { calls().remove_hook(id); }
  /// Number of hooks added by before_forward(), after_forward() and after_forward_all(), plus one for run_on().
  int hook_count() const {
    return hooks_ ? int(hooks_->before.size() + hooks_->after.size()) + hooks_->run_on.has_value() : 0;
  }
  /// True while a CallHook is installed.
  bool is_wrapped() const { return hooks_ && hooks_->around; }
  /// How calls run when the parts of a model are on different devices: tensor arguments are moved to `device`, and
  /// results to `output` if it is set. `hold` runs before forward(); its result is kept alive until the call ends.
  /// `hold` may therefore load parameters for the duration of the call.
  struct RunOn {
    Device device;
    std::optional<Device> output;
    std::function<std::shared_ptr<void>()> hold;  ///< may be empty
  };
  /// Sets the device on which calls run; nullopt removes the setting. Error if a device is set already.
  void run_on(std::optional<RunOn> placement);
  /// A handle that removes hooks later. It stays valid after the module was moved, and does nothing after the module
  /// was destroyed.
  class Calls {
   public:
    Calls() = default;
    /// Removes a hook of the module that this handle refers to.
    void remove_hook(int id) const;
    void unwrap() const;    ///< same as wrap_call({})
    void run_here() const;  ///< same as run_on({})
    /// False once the module is gone.
    bool exist() const { return !hooks_.expired(); }

   private:
    friend class Module;
    std::weak_ptr<Hooks> hooks_;
  };
  /// A handle to this module's hooks.
  Calls calls();
  /// True if calls do more than forward(). Otherwise a caller may fuse the computation and skip the call.
  bool has_hooks() const { return hook_count() > 0 || is_wrapped(); }
  /// True if a hook may read or replace the result of a call.
  bool is_watched() const;
  /// Replaces this module's hooks by the hooks of `other`. Children keep their own hooks.
  void copy_hooks(const Module& other);

 protected:
  /// A new uninitialised parameter of this shape, counted as parameter memory.
  static Variable parameter(const Shape& shape);
  static Variable parameter(const Shape& shape, double value);
  /// Called by train() after this module's flag has changed.
  virtual void on_train(bool) {}

  struct Hooks {
    std::vector<std::pair<int, ForwardHook>> before;
    struct After {
      int id;
      OutputsHook call;
      bool looks;
    };
    std::vector<After> after;
    CallHook around;
    std::optional<RunOn> run_on;
    int last_id = 0;
  };
  Hooks& hooks();
  std::shared_ptr<Hooks> hooks_;  // not shared between modules; a Calls refers to it weakly

  // A call with hooks, in order: begin_call() runs "before" hooks and RunOn::hold; moved_here() moves an argument to
  // the call's device; move_away() moves a result to the output device; end_call() runs "after" hooks.
  std::shared_ptr<void> begin_call(const Variables& inputs);
  template <class T> T moved_here(const T& x) const {
    return x.defined() && !(x.device() == hooks_->run_on->device) ? x.to(hooks_->run_on->device) : x;
  }
  template <class T> void move_away(T& x) const {
    if (hooks_->run_on && hooks_->run_on->output && x.defined()) x = x.to(*hooks_->run_on->output);
  }
  void end_call(const Variables& inputs, const Variables& outputs);
  /// Runs a whole call with hooks, for layers whose forward() takes and returns one Variable. No template, so that
  /// it is compiled once instead of once for each layer.
  Variable call_hooked(const Variable& x, Variable (*forward)(Module&, const Variable&));

 private:
  bool training_ = true;
};

/// Adds operator() to a module: "before" hooks, Derived::forward(args...), "after" hooks. A struct that derives from
/// Derived replaces forward() only if Derived declares it virtual.
template <class Derived> class Layer : public Module {
 public:
  /// Calls forward() with the hooks around it. Without hooks it is a plain call.
  template <class... Args> auto operator()(Args&&... args) {
    static_assert(
        requires(Derived & d) { d.forward(std::forward<Args>(args)...); },
        "a layer is called with what its forward() takes, and forward() is public");
    if (!hooks_) [[likely]]
      return self().forward(std::forward<Args>(args)...);
    if constexpr (is_plain<Args...>()) {
      return Module::call_hooked(args...,
                                 [](Module& m, const Variable& x) { return static_cast<Derived&>(m).forward(x); });
    } else {
      if constexpr (takes_variables<Args...>()) {
        if (hooks_->around) return wrapped(Variables{Variable(args)...}, std::index_sequence_for<Args...>());
      } else {
        LOCKSTEP_CHECK(!hooks_->around || !NoGrad::grad_enabled(), "[", kind(),
                       "] its calls are wrapped (checkpointed): expected variables as arguments and as results; use "
                       "variables only, or unwrap the module: wrap_call({})");
      }
      return call_hooked(std::forward<Args>(args)...);
    }
  }

  Variable call(const Variable& x) override {
    if constexpr (requires(Derived & d) {
                    { d.forward(x) } -> std::convertible_to<Variable>;
                  })
      return (*this)(x);
    else if constexpr (requires(Derived & d) {
                         { d.forward(x.tensor()) } -> std::convertible_to<Variable>;
                       })
      return (*this)(x.tensor());  // tokens
    else if constexpr (requires(Derived & d) { d.forward(x); }) {
      auto result = (*this)(x);
      if constexpr (may_hold_variables<decltype(result)>) {
        const Variables all = variables_of(result);
        LOCKSTEP_CHECK(!all.empty(), "[", kind(), "] expected a result with variables, got none; return one");
        return all[0];
      } else return Module::call(x);
    } else return Module::call(x);
  }
  Variable call_many(const Variables& inputs) override {
    if constexpr (requires { sizeof(&Derived::forward); }) return call_with<0, 1>(inputs);
    else return Module::call_many(inputs);
  }

 private:
  template <size_t... i> Variable call_with(const Variables& inputs) {
    if constexpr (sizeof...(i) > 4) return Module::call_many(inputs);
    else if (inputs.size() != sizeof...(i)) return call_with<i..., sizeof...(i)>(inputs);
    else if constexpr (requires(Derived & d) { Variable(d.forward(AnyInput(inputs[i])...)); })
      return (*this)(AnyInput(inputs[i])...);
    else return Module::call_many(inputs);
  }
  template <class> using AsVariable = const Variable&;
  template <class... Args> static constexpr bool is_plain() {
    if constexpr ((std::is_same_v<std::remove_cvref_t<Args>, Variable> && ...) && sizeof...(Args) == 1)
      if constexpr (requires(Derived & d, const Variable& x) { d.forward(x); })
        return std::is_same_v<decltype(std::declval<Derived&>().forward(std::declval<const Variable&>())), Variable>;
    return false;
  }
  template <class... Args> static constexpr bool takes_variables() {
    if constexpr (sizeof...(Args) > 0 && (std::is_convertible_v<Args, Variable> && ...)) {
      if constexpr (requires(Derived & d, AsVariable<Args>... x) { d.forward(x...); })
        return is_variables<decltype(std::declval<Derived&>().forward(std::declval<AsVariable<Args>>()...))>;
    }
    return false;
  }
  /// Runs a call through the CallHook: passes the arguments as a list of variables, and converts the list of results
  /// to forward()'s result type.
  template <size_t... i> auto wrapped(const Variables& inputs, std::index_sequence<i...>) {
    decltype(self().forward(inputs[i]...)) result;
    const Variables made = hooks_->around(inputs, [this](const Variables& in) {
      auto now = call_hooked(in[i]...);
      return variables_of(now);
    });
    size_t at = 0;
    each_variable(result, [&](Variable& v) { v = made.at(at++); });
    return result;
  }

  template <class... Args> auto call_hooked(Args&&... args) {
    Variables inputs;
    const auto note = [&](const auto& arg) {
      if constexpr (std::is_convertible_v<decltype(arg), Variable>) inputs.push_back(arg);
    };
    (note(args), ...);
    const std::shared_ptr<void> held = begin_call(inputs);
    auto output = forward_moved(std::forward<Args>(args)...);
    using Output = decltype(output);
    if constexpr (std::is_same_v<Output, Variable> || std::is_same_v<Output, Tensor>) move_away(output);
    else if (hooks_->run_on && hooks_->run_on->output) each_variable(output, [&](Variable& v) { move_away(v); });
    if constexpr (may_hold_variables<Output>) end_call(inputs, variables_of(output));
    else if constexpr (std::is_convertible_v<Output, Variable>) end_call(inputs, {Variable(output)});
    return output;
  }
  template <class... Args> auto forward_moved(Args&&... args) {
    if constexpr (requires(Derived & d) { d.forward(moved(std::forward<Args>(args))...); }) {
      if (hooks_->run_on) return self().forward(moved(std::forward<Args>(args))...);
    } else {
      LOCKSTEP_CHECK(
          !hooks_->run_on, "[", kind(),
          "] its calls run on one device: expected a forward() that takes tensors by const reference or by value");
    }
    return self().forward(std::forward<Args>(args)...);
  }
  template <class T> decltype(auto) moved(T&& arg) {
    using Plain = std::remove_cvref_t<T>;
    if constexpr (std::is_same_v<Plain, AnyInput>) return AnyInput(moved_here<Variable>(arg));
    else if constexpr (std::is_same_v<Plain, Variable> || std::is_same_v<Plain, Tensor>) return Plain(moved_here(arg));
    else return std::forward<T>(arg);
  }
  Derived& self() { return static_cast<Derived&>(*this); }
};

/// Sum of own_loss() over all modules below `model`; undefined if there is none.
Variable own_loss(Module& model);

/// A table of the modules below `module`: name, kind, options, parameter count, frozen or not; then the totals.
std::string summary(Module& module);

}  // namespace lockstep::nn
