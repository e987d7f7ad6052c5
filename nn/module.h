#pragma once
// Module: something with parameters. A module names its fields once, in fields(); parameters, state by name, moving,
// freezing, the summary and (later) ZeRO's order all walk that list.
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

/// What fields() fills: f("weight", weight) for parameters (Variable) and buffers (Tensor), f("head", head) for
/// modules. Undefined parameters and buffers (a layer without bias) are skipped. With a Cut: how ranks may share it.
class Fields {
 public:
  Fields& operator()(const std::string& name, Variable& parameter, const Cut& cut = {});
  Fields& operator()(const std::string& name, Tensor& buffer);
  Fields& operator()(const std::string& name, Module& module, const Cut& cut = {});
  /// A parameter that keeps its dtype, whatever the model's is.
  Fields& fixed(const std::string& name, Variable& parameter);

  struct Entry {
    std::string name;
    Variable* parameter = nullptr;
    Tensor* buffer = nullptr;
    Module* module = nullptr;
    Cut cut = {};
    bool is_table = false;     ///< found out by those who walk
    bool keeps_dtype = false;  ///< to(dtype) leaves it as it is
  };
  std::vector<Entry> entries;
};

struct NamedParameter {
  std::string name;
  Variable variable;
  bool is_table = false, keeps_dtype = false;
};
struct NamedBuffer {
  std::string name;
  Tensor tensor;
};
/// Tensors by dotted name, in the order of fields(). A parameter shared by two modules stands once, under its first
/// name.
using State = std::vector<std::pair<std::string, Tensor>>;

/// What load_state did not find in either place (only when not strict).
struct LoadReport {
  std::vector<std::string> missing, unexpected;
};

class Module {
 protected:
  struct Hooks;

 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;  // a module is not copied: std::move(it), or pass it by reference
  Module& operator=(const Module&) = delete;
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;

  /// Names every parameter, buffer and child once.
  virtual void fields(Fields&) {}
  /// "Linear", for summaries and errors.
  virtual std::string kind() const;
  /// One line of options: "in 784, out 512".
  virtual std::string options() const { return ""; }
  /// Parameters of modules below that forward() reads itself, instead of calling them, or wants to have all along (a
  /// tied table): ZeRO 3 must know.
  virtual std::vector<Variable> reads() { return {}; }
  /// Told once, after it was cut: what goes through it is part `index` of `count`, of features (dim -1) or of the
  /// sequence (dim -2).
  virtual void sliced(const PartOf&) {}
  /// From here on its tokens are a part of a sequence, or (null) all of it. Gives how many heads attend to other
  /// tokens; 0: none do.
  virtual int64_t share_sequence(const std::shared_ptr<SequencePart>&) { return 0; }
  /// Itself as a list of layers (nn/layer_list.h), for pipelines. Default: one layer, call().
  virtual LayerList layers();
  /// A loss that its last forward made, to be added to the model's (of experts); else undefined.
  virtual Variable own_loss() { return {}; }
  /// Where a block has a feed-forward layer, and what stands in for it when set (experts), under its name. Null: it has
  /// none.
  struct FeedForward {
    Mlp* mlp = nullptr;
    std::shared_ptr<Module>* other = nullptr;
  };
  virtual FeedForward feed_forward_place() { return {}; }
  /// Whether its own parameters are tables with a row for each token, whose rows it picks by index, or scores:
  /// optimizers and FLOPs want to know.
  enum class Table { none, picked, scored };
  virtual Table table() const { return Table::none; }
  /// Multiplications and additions for one token of a sequence of so many, beside products with parameters.
  virtual double flops_beside(int64_t) const { return 0; }
  /// Runs the module on one variable; Sequential and checkpoints use it. Without a forward() that takes one (or a
  /// tensor of tokens): its layers().
  virtual Variable call(const Variable& x);

  std::vector<Variable> parameters();  ///< each once, also when shared
  std::vector<NamedParameter> named_parameters();
  std::vector<NamedBuffer> named_buffers();
  std::vector<std::pair<std::string, Module*>> named_modules();  ///< itself first, as ""
  std::vector<std::pair<std::string, Module*>> children();
  int64_t parameter_count();

  State state();
  /// Copies by name into the parameters and buffers that are there. All names, shapes and kinds of dtype are checked
  /// first: an Error lists every missing and unexpected name and every wrong shape, and then nothing was changed.
  LoadReport load_state(const State& state, bool strict = true);

  /// In place; variables keep their identity, so an optimizer made before stays valid. Buffers of integers keep their
  /// dtype.
  Module& to(DType dtype);
  Module& to(Device device);
  Module& train(bool training = true);
  Module& eval() { return train(false); }
  bool is_training() const { return training_; }
  /// Freezes (false) or frees every parameter below.
  Module& requires_grad_(bool wanted = true);
  void zero_grad();
  void apply(const std::function<void(Module&)>& fn);

  /// Around every operator() call. `inputs` holds the Variables among the arguments.
  using ForwardHook = std::function<void(Module& module, const std::vector<Variable>& inputs)>;
  using OutputHook = std::function<void(Module& module, const std::vector<Variable>& inputs, const Variable& output)>;
  /// The same with all variables of a result that has several (nn/outputs.h); OutputHook gets the first.
  using OutputsHook =
      std::function<void(Module& module, const std::vector<Variable>& inputs, const std::vector<Variable>& outputs)>;
  /// In place of a call whose arguments and results are all variables: may run it, now or again later, and gives back
  /// what came out.
  using Variables = std::vector<Variable>;
  using CallHook =
      std::function<Variables(const Variables& inputs, const std::function<Variables(const Variables&)>& run)>;
  /// At most one; an empty one takes it away. Error at a call with other arguments while gradients are recorded.
  void wrap_call(CallHook hook);
  int before_forward(ForwardHook hook);
  int after_forward(OutputHook hook);
  /// `looks` false: it reads no values, so that layers may still be computed together.
  int after_forward_all(OutputsHook hook, bool looks = true);
  void remove_hook(int id) { calls().remove_hook(id); }
  /// Of before_forward(), after_forward() and after_forward_all(), and one for run_on().
  int hook_count() const {
    return hooks_ ? int(hooks_->before.size() + hooks_->after.size()) + hooks_->run_on.has_value() : 0;
  }
  bool is_wrapped() const { return hooks_ && hooks_->around; }
  /// How calls run when parts of a model are on different devices: tensors among the arguments are moved to `device`,
  /// what comes out to `output`, where given. `hold` is called before, and what it gives back kept until the call ends:
  /// parameters may come and go with it.
  struct RunOn {
    Device device;
    std::optional<Device> output;
    std::function<std::shared_ptr<void>()> hold;
  };
  void run_on(std::optional<RunOn> how);
  /// For who takes back later what was put on calls of this module: the module may have moved then, or be gone.
  class Calls {
   public:
    Calls() = default;
    void remove_hook(int id) const;
    void unwrap() const;    ///< wrap_call({})
    void run_here() const;  ///< run_on({})
    bool exist() const { return !hooks_.expired(); }

   private:
    friend class Module;
    std::weak_ptr<Hooks> hooks_;
  };
  Calls calls();
  /// Whether calls do more than forward(): who knows what a call computes may compute it in another way if not.
  bool has_hooks() const { return hook_count() > 0 || is_wrapped(); }
  /// Whether somebody may look at what a call gives, or change it.
  bool is_watched() const;
  /// Takes over the hooks of `other` in place of its own (not those of children).
  void copy_hooks(const Module& other);

 protected:
  /// A parameter of this shape, uninitialised, booked as parameter memory.
  static Variable parameter(const Shape& shape);
  static Variable parameter(const Shape& shape, double value);
  /// Called by train() after the flag of this module changed.
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
  std::shared_ptr<Hooks> hooks_;  // its own alone; calls() look at it

  // Parts of a call with hooks: those before, and what holds the parameters; tensors to where the call runs, and what
  // came out to where it is wanted; hooks after.
  std::shared_ptr<void> begin_call(const Variables& inputs);
  template <class T> T moved_here(const T& x) const {
    return x.defined() && !(x.device() == hooks_->run_on->device) ? x.to(hooks_->run_on->device) : x;
  }
  template <class T> void move_away(T& x) const {
    if (hooks_->run_on && hooks_->run_on->output && x.defined()) x = x.to(*hooks_->run_on->output);
  }
  void end_call(const Variables& inputs, const Variables& outputs);
  /// All of it for a variable, of which most layers make another: compiled once, not for each layer.
  Variable call_hooked(const Variable& x, Variable (*forward)(Module&, const Variable&));

 private:
  bool training_ = true;
};

/// Gives a module its operator(): hooks, then Derived::forward(args...), then hooks.
template <class Derived> class Layer : public Module {
 public:
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
                       "] its calls are wrapped (checkpointed): expected variables as arguments and as results");
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
        LOCKSTEP_CHECK(!all.empty(), "[", kind(), "] expected a result with variables, got none");
        return all[0];
      } else return Module::call(x);
    } else return Module::call(x);
  }

 private:
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
  /// Through the hook around it: as lists of variables, and back into what forward() gives.
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
    if constexpr (std::is_same_v<Plain, Variable> || std::is_same_v<Plain, Tensor>) return Plain(moved_here(arg));
    else return std::forward<T>(arg);
  }
  Derived& self() { return static_cast<Derived&>(*this); }
};

/// The sum of own_loss() of all modules below; undefined without any.
Variable own_loss(Module& model);

/// A table of the modules below `module`: name, kind, options, parameters, and how many of them are trained.
std::string summary(Module& module);

}  // namespace lockstep::nn
