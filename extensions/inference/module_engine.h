#pragma once
// init_inference() for any module, not only for a GPT: dtype, codes of 8 or 4 bits, a checkpoint, and slices of its
// Linears on several ranks.
//
//   auto engine = inference::init_inference(net, R"({"dtype": "bf16", "checkpoint": "runs"})");
//   const Variable scores = engine(images);                       // like net(images), without gradients
//
// With tensor_parallel.tp_size > 1, either the module's fields() say how it is cut (nn/cut.h), or injection_policy
// names, for a kind of block, the Linears whose outputs are summed over ranks: they are cut by rows, and the other
// Linears of such a block by columns.
#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/tape.h"
#include "extensions/inference/engine.h"
#include "nn/models/gpt.h"

namespace lockstep::inference {

/// A ModuleEngine without the module's type.
class ModuleEngineBase {
 public:
  /// Prepares the module in place; see init_inference(). Collective.
  ModuleEngineBase(nn::Module& module, const InferenceConfigSource& config, const InitArgs& args);
  ModuleEngineBase(ModuleEngineBase&&) noexcept;
  ~ModuleEngineBase();

  /// The checked configuration.
  const InferenceConfig& config() const;
  /// Starts to time each call.
  void profile_model_time();
  /// Seconds of each call since the last call of model_times(). Error before profile_model_time().
  std::vector<double> model_times();
  /// Releases the process groups. Later calls are Errors. If ranks have shared the module, each keeps only its slices,
  /// so the module must not be used any more.
  void destroy();

 protected:
  struct Impl;
  /// Lives during a call: nothing is recorded, and arguments go to the module's device, and to config().dtype if they
  /// are floating.
  class Call {
   public:
    explicit Call(const ModuleEngineBase& engine);
    ~Call();
    Tensor take(const Tensor& input) const;
    Variable take(const Variable& input) const;
    template <class T> T&& take(T&& other) const requires(!std::is_convertible_v<T, Variable>) {
      return std::forward<T>(other);
    }

   private:
    Impl& m_;
    const NoGrad no_grad_;
    const double begun_;
  };

 private:
  Impl& open(const char* call) const;
  std::unique_ptr<Impl> impl_;
};

/// Any module, prepared for inference, and called like the module. All tp_size ranks that share it must make the same
/// calls with the same arguments. A backward from its results is an Error, as they have no gradient.
template <class M> class ModuleEngine : public ModuleEngineBase {
 public:
  ModuleEngine(M& module, const InferenceConfigSource& config, const InitArgs& args)
      : ModuleEngineBase(module, config, args), module_(&module) {}
  template <class... Args> auto operator()(Args&&... args) {
    const Call call(*this);
    if constexpr (requires(M & m) { m(call.take(std::forward<Args>(args))...); })
      return (*module_)(call.take(std::forward<Args>(args))...);
    else return module_->call(call.take(std::forward<Args>(args))...);
  }
  M& module() const { return *module_; }  ///< the module that runs; with several ranks, this rank's slices of it

 private:
  M* module_;
};

/// Prepares any module in place: sets eval mode and dtype, loads `checkpoint`, quantizes, and gives each rank its
/// slices. Collective. `module` must outlive the engine. Error for keys that only a GPT has, such as max_out_tokens.
template <class M>
requires(std::derived_from<M, nn::Module> && !std::derived_from<M, nn::GPT>)
    ModuleEngine<M> init_inference(M& module, const InferenceConfigSource& config = {}, const InitArgs& args = {}) {
  return ModuleEngine<M>(module, config, args);
}

}  // namespace lockstep::inference
