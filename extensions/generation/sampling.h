#pragma once
// Choice of the next token: from logits to a distribution, and a draw from it. Pure functions, independent of models.
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::nn {

/// Options of text generation, with Hugging Face's names. logit_bias and the fields after it change the logits, in the
/// order of the fields.
struct Generation {
  int64_t max_new_tokens = 256, min_new_tokens = 0;  ///< no end token before min_new_tokens
  bool do_sample = false;        ///< true: sample; false: take the most likely token (the lowest id among equals)
  std::optional<uint64_t> seed;  ///< seed of the draws; none: taken from this thread's generator
  int64_t num_return_sequences = 1;
  int64_t num_beams = 1;      ///< beam width; 1: no beam search
  double length_penalty = 1;  ///< a beam's score is the sum of its log probabilities / length ^ length_penalty
  /// True: stop as soon as num_beams beams have ended; false: when no running beam can still improve the result.
  bool early_stopping = false;
  std::vector<int64_t> eos_token_id;
  std::vector<std::string> stop;             ///< the answer ends where one of them appears; needs `text`
  std::function<std::string(int64_t)> text;  ///< bytes of a token
  bool logprobs = false;                     ///< true: record each token's log probability under the model
  std::optional<DType> cache_dtype;          ///< dtype of cached keys and values; f16 and bf16 halve the memory
  /// Action when the context is full. error: end the sequence; slide: continue with the last half of the tokens.
  enum class Overflow { error, slide } overflow = Overflow::error;

  std::map<int64_t, double> logit_bias;  ///< added to the logits
  double repetition_penalty = 1;         ///< tokens in prompt or answer: s < 0 ? s * penalty : s / penalty
  double presence_penalty = 0, frequency_penalty = 0;  ///< tokens in the answer: subtracted once, or per occurrence
  int64_t no_repeat_ngram_size = 0;                    ///< no n-gram of this size occurs twice; 0: off
  std::vector<int64_t> suppress_tokens;                ///< tokens that are never chosen
  double temperature = 1;                              ///< divides the logits; below 1e-5 decoding is greedy
  int64_t top_k = 50;                                  ///< keep the k most likely, and ties with the last; 0: all
  /// Keep the most likely tokens until their probabilities add up to top_p (Holtzman et al., 2020), at least one token.
  double top_p = 1;
  double min_p = 0;  ///< keep tokens with at least min_p times the probability of the most likely token

  /// True if no random numbers are drawn.
  bool greedy() const { return !do_sample || temperature < 1e-5; }
  /// Error for numbers out of range (wrong_option()) and for options that contradict each other.
  void check() const;
  /// Like check(); also an Error for token ids outside [0, vocab), and for the option `stop` without the option `text`.
  void check(int64_t vocab) const;
};

/// Checks one numeric option of Generation; programs and servers use it for the options that they read. Returns "" or
/// an explanation such as "expected top_p in (0, 1], got 2".
std::string wrong_option(std::string_view name, double value);
/// The largest value of an option that wrong_option() accepts.
double max_of_option(std::string_view name);

/// A token and its probability after filtering.
struct Candidate {
  int64_t id;
  double probability;
};

/// Applies logit_bias, penalties, no_repeat_ngram_size, min_new_tokens and suppress_tokens to the logits, given the
/// tokens so far. A logit of infinity counts as the largest f32, so its token is drawn unless several logits are
/// infinite. Error if a logit is NaN, or for a token id that is not in [0, number of logits).
std::vector<double> process_logits(std::span<const float> logits, std::span<const int64_t> prompt,
                                   std::span<const int64_t> answer, const Generation& generation);
/// The scores filtered by temperature, top_k, top_p and min_p: most likely first, ties by lower id. Error if no token
/// is left; the same holds for next_token() and likeliest().
std::vector<Candidate> distribution(std::span<const double> scores, const Generation& generation);
/// The most likely token if greedy(); else the first token of distribution() at which the cumulative probability is
/// greater than u, a number in [0, 1). Avoids a full sort.
int64_t next_token(std::span<const double> scores, const Generation& generation, double u);
/// Uniform number in [0, 1) for a token; depends only on seed, sequence number and position.
double draw(uint64_t seed, uint64_t sequence, uint64_t position);
/// The id of the highest score; ties go to the lowest id.
int64_t likeliest(std::span<const double> scores);
/// Returns `scores` (rows, vocabulary) as f32 in host memory; `scores` may be on any device. Padded rows
/// (tensor/padded.h) are copied with their padding, so they need not be packed first.
Tensor scores_on_host(const Tensor& scores);
/// One row of the scores that scores_on_host() returned, without padding.
std::span<const float> row_of(const Tensor& scores, size_t row);
/// log(softmax(logits)) in f64. Error if a logit is NaN.
std::vector<double> log_probabilities(std::span<const float> logits);

}  // namespace lockstep::nn
