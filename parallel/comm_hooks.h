#pragma once
// Communication hooks for DDP: what is sent in place of a bucket's gradients.
//
//   DistributedDataParallel ddp(model, {.hook = parallel::bf16_compress_hook()});
//
//   fp16, bf16    half the bytes of f32; each rank's gradients are rounded once, sums in f32 per addition
//   PowerSgd      a matrix (n, m) as P Q^T of rank r: r (n + m) numbers for n m (Vogels et al., NeurIPS 2019)
//   PostLocalSgd  no gradients after the first steps, parameters are averaged now and then (Lin et al., ICLR 2020)
//
// They trade promise 1 for bytes: results depend on the number of ranks.
#include <memory>
#include <string>

#include "parallel/ddp.h"

namespace lockstep::parallel {

/// Divides by the number of ranks, rounds, sums. fp16 overflows above 65504: scale the loss.
CommHook fp16_compress_hook();
CommHook bf16_compress_hook();

struct PowerSgdOptions {
  int64_t rank = 1;            ///< of the approximation
  int64_t start_step = 2;      ///< steps reduced exactly before compression starts
  double min_compression = 2;  ///< a matrix that would not shrink by this factor is sent as it is
  bool error_feedback = true;  ///< what was lost is added to the next gradient
  bool warm_start = true;      ///< Q of the last step; off: a random one each time
  uint64_t seed = 0;
};

/// One power iteration a step on M = gradient + error: P = mean(M Q), made orthonormal; Q = mean(M^T P); result P Q^T;
/// error = M - P (M^T P)^T, this rank's own. Keeps state by name of the parameter: one object for one model.
class PowerSgd {
 public:
  using Options = PowerSgdOptions;
  explicit PowerSgd(const Options& options = {});
  CommHook hook() const;
  /// What this rank still owes to the sum of a parameter's gradients; undefined where nothing was compressed.
  Tensor error(const std::string& parameter) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

struct PostLocalSgdOptions {
  int64_t start_step = 100;  ///< plain DDP until then
  int64_t period = 4;        ///< steps between two averagings
  /// Gradients are still averaged here (the ranks of one host, say); null: not at all.
  dist::ProcessGroup* subgroup = nullptr;
};

/// Give hook() to DDP, and call step() after each optimizer step.
class PostLocalSgd {
 public:
  using Options = PostLocalSgdOptions;
  explicit PostLocalSgd(const Options& options = {});
  CommHook hook() const;
  /// Averages the parameters over `group` when it is time; tells whether it was.
  bool step(nn::Module& module, dist::ProcessGroup& group);

 private:
  Options o_;
  std::shared_ptr<int64_t> step_ = std::make_shared<int64_t>(-1);  // of hook()
  int64_t taken_ = 0;
};

}  // namespace lockstep::parallel
