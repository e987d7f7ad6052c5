#pragma once
// Puts a model where a plan says, and makes its modules run there: what goes into a part is moved to its device, parts
// from host memory and disk come to the main device when they run and are dropped afterwards. The model itself is not
// changed.
//
//   auto dispatched = device_map::dispatch(model, plan, {.weights = "gpt2.safetensors"});
//   const NoGrad no_grad;
//   const Variable logits = model(tokens);   // on the device of what the model reads itself, else on the main one
//
// Training: with everything on devices, as with any model. Parts from host memory and disk are for inference: their
// weights would be gone when backward wants them (Error).
#include <memory>
#include <string>

#include "parallel/device_map/plan.h"

namespace lockstep::device_map {

struct DispatchOptions {
  /// A safetensors file that holds the model's parameters and buffers by name: they come from there.
  std::string weights = {};
  /// Without such a file: what lies on disk is written here first, to a file that has no name from then on.
  std::string offload_folder = {};
};

/// While it lives the model runs as planned. At its end parts from host memory are ordinary parameters there.
class Dispatched {
 public:
  Dispatched(Dispatched&&) noexcept;
  ~Dispatched();

  const Placement& plan() const;
  /// Loads what `module` reads itself, or a part of that name, for as long as the result lives: for calls that are no
  /// operator(), such as nn::generate(). Nothing to do for what is on a device.
  [[nodiscard]] std::shared_ptr<void> hold(const std::string& module = "");
  int64_t loads() const;  ///< how often a part came from host memory or disk
  int64_t bytes_loaded() const;

 private:
  struct Impl;
  explicit Dispatched(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
  friend Dispatched dispatch(nn::Module& model, const Placement& plan, const DispatchOptions& options);
};

/// The plan is one of this model. Errors, before anything is changed: a file that is missing, or lacks tensors, or has
/// other shapes.
Dispatched dispatch(nn::Module& model, const Placement& plan, const DispatchOptions& options = {});

}  // namespace lockstep::device_map
