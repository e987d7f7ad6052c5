#pragma once
// Linears in 8-bit floating point with delayed scaling, as in NVIDIA's Transformer Engine (README.md).
// The scales of a step are computed from the largest magnitudes (amax) of earlier steps:
//
//   nn::Fp8Scaling fp8(model);             // its Linears multiply in fp8 from here on
//   { const Autocast scope(bf16); loss = model(x); }
//   loss.backward(); optimizer.step();
//   fp8.update();                          // after each step, not after each micro-batch
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "extensions/fp8/linear.h"
#include "nn/module.h"

namespace lockstep::nn {

struct Linear;

/// The options of Transformer Engine's DelayedScaling.
struct Fp8Options {
  /// The amax that determines the scale: the maximum of the history, or the amax of the last step.
  enum class Amax { max, most_recent };
  /// True: gradients in e5m2 (wider range), all other operands in e4m3; false: all in e4m3.
  bool hybrid = true;
  int64_t margin = 0;               ///< headroom: scales are divided by 2^margin
  int64_t amax_history_len = 1024;  ///< number of steps that the history covers
  Amax amax_compute_algo = Amax::max;
};

/// While an Fp8Scaling exists, its Linears multiply in fp8. update() updates the scales of these Linears.
class Fp8Scaling {
 public:
  /// Puts into fp8 the Linears below `model` whose input and output sizes are multiples of 16. Other Linears keep their
  /// dtype. Error if a chosen Linear is in fp8 already, or if the chosen Linears are on different devices.
  explicit Fp8Scaling(Module& model, const Fp8Options& options = {});
  Fp8Scaling(const Fp8Scaling&) = delete;

  /// Computes new scales: largest number of the format / amax / 2^margin. An amax of 0 leaves the scale as it is;
  /// non-finite values of a step do not enter the history. maximum: reduces this step's amax values, f32, to the
  /// maximum over all ranks.
  void update(const std::function<void(const Tensor& amax)>& maximum = {});

  /// The state of one Linear in a checkpoint; its tensors may be read and written.
  struct Piece {
    std::string name;       ///< the Linear's name
    Tensor scale, history;  ///< scale (3): input, weight, gradient; history (3, amax_history_len), newest first
  };
  /// One piece per Linear in fp8.
  std::vector<Piece> state() const;
  /// Call it after writing to the pieces of state().
  void loaded();
  /// Number of Linears in fp8.
  int64_t size() const { return int64_t(linears_.size()); }
  /// Summary, e.g. "fp8: 24 Linears (e4m3, gradients e5m2); 1 in 16 bits: head (768 inputs, 10 outputs)".
  std::string text() const;

 private:
  Fp8Options o_;
  std::vector<std::pair<std::string, std::shared_ptr<Fp8Scales>>> linears_;
  std::vector<std::string> others_;
  Tensor scale_, scale_inv_, amax_, history_, largest_;  // (Linears, 3); scale_inv_ (.., 4), history_ (.., steps)
};

}  // namespace lockstep::nn
