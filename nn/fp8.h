#pragma once
// Linears in 8-bit floats with delayed scaling, as NVIDIA's Transformer Engine has it (docs/mixed-precision.md). The
// scales of a step come from the largest numbers of the steps before it:
//
//   nn::Fp8Scaling fp8(model);             // its Linears multiply in fp8 from here on
//   { const Autocast scope(bf16); loss = model(x); }
//   loss.backward(); optimizer.step();
//   fp8.update();                          // after each step, not after each micro-batch
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autograd/fp8.h"
#include "nn/module.h"

namespace lockstep::nn {

struct Linear;

struct Fp8Options {
  enum class Amax { max, most_recent };
  bool hybrid = true;               ///< gradients in e5m2; else in e4m3, as all else
  int64_t margin = 0;               ///< powers of two that are left between the largest number and the format's
  int64_t amax_history_len = 1024;  ///< steps
  Amax amax_compute_algo = Amax::max;
};

class Fp8Scaling {
 public:
  /// Of the Linears below whose inputs and outputs are multiples of 16, the others stay as they are. They multiply in
  /// fp8 while it lives. Error when one of them does already.
  explicit Fp8Scaling(Module& model, const Fp8Options& options = {});
  Fp8Scaling(const Fp8Scaling&) = delete;

  /// New scales: largest of the format / largest number in the history / 2^margin. Where that number is 0 a scale
  /// stays; a step's infinities do not enter the history. maximum: makes the largest numbers of this step, f32, those
  /// of all ranks.
  void update(const std::function<void(const Tensor& amax)>& maximum = {});

  /// What a checkpoint has of a Linear: parts of the state, to be read and written.
  struct Piece {
    std::string name;       ///< of the Linear
    Tensor scale, history;  ///< (3): input, weight, gradient; (3, amax_history_len), the newest first
  };
  std::vector<Piece> state() const;
  /// Another state was written into the pieces.
  void loaded();
  int64_t size() const { return int64_t(linears_.size()); }
  /// "fp8: 24 Linears (e4m3, gradients e5m2); 1 in 16 bits: head (10 outputs)".
  std::string text() const;

 private:
  Fp8Options o_;
  std::vector<std::pair<std::string, std::shared_ptr<Fp8Scales>>> linears_;
  std::vector<std::string> others_;
  Tensor scale_, scale_inv_, amax_, history_, largest_;  // (Linears, 3), and (Linears, 3, steps)
};

}  // namespace lockstep::nn
