#pragma once
// Communication hooks for DDP that send fewer bytes than the gradients of a bucket have.
//
//   DistributedDataParallel ddp(model, {.hook = parallel::bf16_compress_hook()});
//
//   fp16, bf16     half the bytes of f32; gradients are rounded once on each rank, each addition is made in f32
//   PowerSgd       a matrix (n, m) is sent as P Qᵀ of rank r: r (n + m) numbers in place of n m (Vogels et al., 2019)
//   PostLocalSgd   sends no gradients after the first steps, but averages parameters now and then (Lin et al., 2020)
//
// With any of them, results are no longer bit-identical for different numbers of ranks.
#include <memory>
#include <string>

#include "parallel/ddp.h"

namespace lockstep::parallel {

/// Divides gradients by the number of ranks, rounds them to f16, and sums them over the ranks. f16 overflows above
/// 65504: use a loss scale.
CommHook fp16_compress_hook();
/// The hook of fp16_compress_hook(), but in bf16, which has the range of f32.
CommHook bf16_compress_hook();

/// Options of PowerSgd.
struct PowerSgdOptions {
  int64_t rank = 1;            ///< rank r of the approximation
  int64_t start_step = 2;      ///< steps that are all-reduced exactly before compression starts
  double min_compression = 2;  ///< a matrix that would not shrink by this factor is sent uncompressed
  bool error_feedback = true;  ///< true: add the approximation error to the next gradient
  bool warm_start = true;      ///< true: start from the Q of the last step; false: from a new random Q
  uint64_t seed = 0;           ///< seed of the random Q; all ranks need the same seed
};

/// PowerSGD (Vogels et al., NeurIPS 2019). One power iteration per step on M = gradient + error: P = mean(M Q),
/// orthonormalised; Q = mean(Mᵀ P); the result is P Qᵀ, and the new error M - P (Mᵀ P)ᵀ stays on its rank. State is
/// kept by parameter name: use one object per model.
class PowerSgd {
 public:
  using Options = PowerSgdOptions;
  /// Error for options out of range.
  explicit PowerSgd(const Options& options = {});
  CommHook hook() const;  ///< the hook to give to DDP; it shares this object's state
  /// Returns this rank's approximation error for a parameter, which is added to the parameter's next gradient.
  /// Undefined if no gradient of this parameter has been compressed yet.
  Tensor error(const std::string& parameter) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// Options of PostLocalSgd.
struct PostLocalSgdOptions {
  int64_t start_step = 100;  ///< plain DDP in the steps before this one
  int64_t period = 4;        ///< steps between two averagings
  /// The group over which gradients are averaged from start_step on, such as the ranks of a host; null: no averaging.
  dist::ProcessGroup* subgroup = nullptr;
};

/// Post-local SGD (Lin et al., ICLR 2020). Give hook() to DDP, and call step() after each optimizer step.
class PostLocalSgd {
 public:
  using Options = PostLocalSgdOptions;
  /// Error for options out of range.
  explicit PostLocalSgd(const Options& options = {});
  CommHook hook() const;  ///< the hook to give to DDP
  /// Counts a step. If an averaging is due, averages the parameters over `group` and returns true. Collective.
  bool step(nn::Module& module, dist::ProcessGroup& group);

 private:
  Options o_;
  std::shared_ptr<int64_t> step_ = std::make_shared<int64_t>(-1);  // step counted by hook()
  int64_t taken_ = 0;
};

}  // namespace lockstep::parallel
