#pragma once
// Optimizers with 8-bit moments (block_codes.h; Dettmers et al., 2022): 1.02 bytes per moment and element instead of 4.
//
//   optim::AdamW8bit opt(net.parameters(), {.lr = 3e-4});
#include "extensions/quantization/block_codes.h"
#include "optim/optimizer.h"

namespace lockstep::optim {

/// Parameters with fewer than min_8bit_size elements have f32 moments. Give f32 moments to embedding tables, too, as
/// most of their rows usually get no gradient: put them into a group with min_8bit_size = INT64_MAX.
struct Adam8bitOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t min_8bit_size = 4096;
  bool maximize = false, bias_correction = true;
  /// Names and ranges of the options.
  std::vector<OptionRange> table() { return adam_table(*this); }
  /// Error unless min_8bit_size >= 0.
  void check(const char* op) const;
};
/// Adam with 8-bit moments.
class Adam8bit : public OptimizerOf<Adam8bitOptions> {
  LOCKSTEP_OPTIMIZER(Adam8bit);
  int64_t block() const override { return code_block; }
};

/// The options of Adam8bit, with a different default for weight_decay.
struct AdamW8bitOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  int64_t min_8bit_size = 4096;
  bool maximize = false, bias_correction = true;
  /// Names and ranges of the options.
  std::vector<OptionRange> table() { return adam_table(*this); }
  /// Error unless min_8bit_size >= 0.
  void check(const char* op) const;
};
/// AdamW with 8-bit moments; see Adam8bitOptions.
class AdamW8bit : public OptimizerOf<AdamW8bitOptions> {
  LOCKSTEP_OPTIMIZER(AdamW8bit);
  int64_t block() const override { return code_block; }
};

/// The options of Lion, and min_8bit_size as Adam8bitOptions explains it.
struct Lion8bitOptions {
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  int64_t min_8bit_size = 4096;
  bool maximize = false;
  /// Names and ranges of the options.
  std::vector<OptionRange> table() { return lion_table(*this); }
  /// Error unless min_8bit_size >= 0.
  void check(const char* op) const;
};
/// Lion with 8-bit momentum; see Adam8bitOptions.
class Lion8bit : public OptimizerOf<Lion8bitOptions> {
  LOCKSTEP_OPTIMIZER(Lion8bit);
  int64_t block() const override { return code_block; }
};

}  // namespace lockstep::optim
