#pragma once
// Rotary position embeddings (Su et al., 2021), and the methods that stretch them to longer sequences than a model was
// trained on. For a token at position p, each pair (x_i, x_{i + D/2}) of a head's D rotated features is rotated by the
// angle p f_i, with the frequency f_i = base^(-2i / D).
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "autograd/ops.h"

namespace lockstep::nn {

/// Options, with the names and meanings of Transformers' rope_parameters.
struct Rope {
  /// Method of stretching.
  enum class Scaling {
    none,
    linear,   ///< f / factor (position interpolation, Chen et al., 2023)
    dynamic,  ///< beyond original_context, a base that grows with the sequence (dynamic NTK)
    yarn,     ///< slow rotations f / factor, fast ones f, a linear ramp between (Peng et al., 2023)
    llama3,   ///< like yarn, with the ramp by wavelength
  };
  double base = 10000;
  Scaling scaling = Scaling::none;
  double factor = 1;
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3: ends of the ramp, in rotations within original_context
  double beta_fast = 32, beta_slow = 1;              ///< yarn: ends of the ramp, in rotations within original_context
  std::optional<double> attention_factor = {};       ///< yarn: see rope_attention_factor(); default 0.1 ln(factor) + 1
  int64_t original_context = 0;                      ///< context length in training; 0: the model's context
  bool truncate = true;                              ///< true: YaRN rounds both ends of its ramp to whole indices i
  double partial = 1;  ///< fraction of each head's features that are rotated, the first ones
  friend bool operator==(const Rope&, const Rope&) = default;
};

/// The frequencies f_i, in f64, for sequences of `context` tokens (Transformers' inv_freq).
std::vector<double> rope_frequencies(const Rope& rope, int64_t head_size, int64_t context);
/// Factor by which yarn multiplies cosines and sines; 1 for the other methods.
double rope_attention_factor(const Rope& rope);

/// Cosines and sines that all layers of a model share. They are computed on demand; thread-safe.
class RopeTable {
 public:
  /// A table for heads of head_size features. If rope.original_context is 0, it becomes `context`. Error for invalid
  /// options.
  RopeTable(const Rope& rope, int64_t head_size, int64_t context);

  /// Cosines and sines of some positions.
  struct Angles {
    Tensor cosine, sine;  ///< (T, D / 2), for rotary_packed(); D is the number of rotated features
  };
  /// The angles of positions first to first + tokens - 1, in a sequence of first + tokens tokens.
  Angles at(int64_t first, int64_t tokens, DType dtype, Device device);
  /// The angles of the given positions, i64, in a sequence of `length` tokens.
  Angles at(const Tensor& positions, int64_t length, DType dtype, Device device);
  /// The options; an original_context of 0 was replaced by the constructor's `context`.
  const Rope& rope() const { return rope_; }

 private:
  struct Rows {
    DType dtype;
    Device device;
    int64_t basis, first, end;  // basis: sequence length that determined the frequencies (dynamic), else 0
    Angles angles;
  };
  Rows rows(int64_t first, int64_t end, DType dtype, Device device);

  Rope rope_;
  int64_t head_size_;
  std::mutex mutex_;
  std::vector<Rows> made_;
};

}  // namespace lockstep::nn
