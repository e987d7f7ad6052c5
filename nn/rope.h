#pragma once
// Rotary positions (Su et al., 2021), and the ways to stretch them over longer sequences than a model was trained on. A
// token at position p has its pairs (x_i, x_{i + D/2}) turned by the angle p f_i, f_i = base^(-2i / D).
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "autograd/ops.h"

namespace lockstep::nn {

/// Names and meanings are those of Transformers' rope_parameters.
struct Rope {
  enum class Scaling {
    none,
    linear,   ///< f / factor (Chen et al., 2023)
    dynamic,  ///< a larger base for sequences longer than original_context, as long as they are (NTK)
    yarn,     ///< f / factor for the slow ones, f for the fast ones, a ramp between (Peng et al., 2023)
    llama3,   ///< the same by wave length
  };
  double base = 10000;
  Scaling scaling = Scaling::none;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;              ///< yarn: turns within original_context
  std::optional<double> attention_factor = {};       ///< yarn; default 0.1 ln(factor) + 1
  int64_t original_context = 0;                      ///< that the model was trained on; 0: its context
  bool truncate = true;                              ///< yarn: the ramp begins and ends at whole i
  double partial = 1;                                ///< of a head's features are turned, the first ones
  friend bool operator==(const Rope&, const Rope&) = default;
};

/// The angles f of one position, for sequences of `context` tokens, in f64 (Transformers' inv_freq).
std::vector<double> rope_frequencies(const Rope& rope, int64_t head_size, int64_t context);
/// By which cosine and sine are multiplied.
double rope_attention_factor(const Rope& rope);

/// Cosines and sines, which all layers of a model share. Made when first needed, as far as they are needed; any number
/// of threads may ask.
class RopeTable {
 public:
  /// For heads of this size in a model of so many tokens.
  RopeTable(const Rope& rope, int64_t head_size, int64_t context);

  struct Angles {
    Tensor cosine, sine;  ///< (T, D / 2), for rotary_packed(); D is less than the head size with Rope::partial
  };
  /// Of the positions [first, first + tokens), in a sequence that ends there.
  Angles at(int64_t first, int64_t tokens, DType dtype, Device device);
  /// Of these positions, i64, in a sequence of `length` tokens.
  Angles at(const Tensor& positions, int64_t length, DType dtype, Device device);
  const Rope& rope() const { return rope_; }

 private:
  struct Rows {
    DType dtype;
    Device device;
    int64_t basis, first, end;  // basis: the length on which the frequencies depend
    Angles angles;
  };
  Rows rows(int64_t first, int64_t end, DType dtype, Device device);

  Rope rope_;
  int64_t head_size_;
  std::mutex mutex_;
  std::vector<Rows> made_;
};

}  // namespace lockstep::nn
