#pragma once
// Places a model as a plan says, and makes its modules run there: inputs of a part are moved to its device; parts in
// host memory or on disk are copied to the main device when they run, and dropped afterwards. The model's code is not
// changed.
//
//   auto dispatched = device_map::dispatch(model, plan, {.weights = "gpt2.safetensors"});
//   const NoGrad no_grad;
//   const Variable logits = model(tokens);   // on the device of the model's own tensors, else the main one
//
// A model that lies entirely on devices can be trained. Parts in host memory or on disk are for inference: their
// weights are gone when backward needs them (Error).
#include <memory>
#include <string>

#include "extensions/device_map/plan.h"

namespace lockstep::device_map {

/// Options of dispatch().
struct DispatchOptions {
  /// A safetensors file from which all of the model's parameters and buffers take their values, by name.
  std::string weights = {};
  /// If `weights` is empty: a folder for a temporary file of the tensors placed on disk. The file is unlinked at once.
  std::string offload_folder = {};
};

/// While a Dispatched lives, the model runs as planned. The destructor turns parts in host memory into ordinary
/// parameters on the CPU. Parts on disk stay without values.
class Dispatched {
 public:
  Dispatched(Dispatched&&) noexcept;
  ~Dispatched();

  const Placement& plan() const;  ///< the plan that was given to dispatch()
  /// Loads the part named `module` for calls other than operator(), such as nn::generate(). It stays loaded while the
  /// result lives. Returns null if there is nothing to load: the part lies on a device, or only the module's children
  /// have parts. Error for an unknown name.
  [[nodiscard]] std::shared_ptr<void> hold(const std::string& module = "");
  int64_t loads() const;         ///< number of times a part was loaded from host memory or disk
  int64_t bytes_loaded() const;  ///< bytes loaded so far

 private:
  struct Impl;
  explicit Dispatched(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
  friend Dispatched dispatch(nn::Module& model, const Placement& plan, const DispatchOptions& options);
};

/// Carries out a plan made for this model. Errors, before anything is changed: the file is missing, lacks tensors or
/// has other shapes; tensors go to disk, but neither `weights` nor `offload_folder` is given; the plan is for another
/// model.
Dispatched dispatch(nn::Module& model, const Placement& plan, const DispatchOptions& options = {});

}  // namespace lockstep::device_map
