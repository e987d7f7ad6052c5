#pragma once
// How the next token is chosen: from logits to a distribution, and a draw from it. Pure functions, without a model.
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace lockstep::nn {

/// What a text is continued by. The names are Hugging Face's; what changes logits does so in this order of fields, from
/// logit_bias on.
struct Generation {
  int64_t max_new_tokens = 256, min_new_tokens = 0;
  bool do_sample = false;        ///< false: the likeliest token, among equals the lowest id
  std::optional<uint64_t> seed;  ///< of the draws; none: from the generator of this thread
  int64_t num_return_sequences = 1;
  int64_t num_beams = 1;        ///< beam search keeps so many
  double length_penalty = 1;    ///< a beam's score is the sum of its log probabilities / length ^ this
  bool early_stopping = false;  ///< stop when num_beams have ended; else when none can become better
  std::vector<int64_t> eos_token_id;
  std::vector<std::string> stop;             ///< ends where one of these appears; needs `text`
  std::function<std::string(int64_t)> text;  ///< the bytes of a token
  bool logprobs = false;                     ///< keep the log probability that the model gave each token
  std::optional<DType> cache_dtype;          ///< of keys and values: f16 and bf16 take half of the memory
  enum class Overflow { error, slide } overflow = Overflow::error;  ///< context full: slide begins again with its half

  std::map<int64_t, double> logit_bias;                ///< added
  double repetition_penalty = 1;                       ///< of tokens in prompt or answer: s < 0 ? s * this : s / this
  double presence_penalty = 0, frequency_penalty = 0;  ///< subtracted for tokens of the answer: once; a time
  int64_t no_repeat_ngram_size = 0;                    ///< no so many tokens in a row twice; 0: any
  std::vector<int64_t> suppress_tokens;                ///< never (min_new_tokens: eos not before)
  double temperature = 1;  ///< logits are divided by it; below 1e-5 the likeliest token is taken
  int64_t top_k = 50;      ///< the k likeliest, and all that are equal to the last; 0: all
  double top_p = 1;        ///< the likeliest that make up this much (Holtzman et al., 2020), at least one
  double min_p = 0;        ///< those at least this much as likely as the likeliest

  bool greedy() const { return !do_sample || temperature < 1e-5; }
  /// Throws on numbers out of range (wrong_option()) and on options that do not go together.
  void check() const;
  /// Also on ids that a model of `vocab` tokens does not have, and on stop strings without `text`.
  void check(int64_t vocab) const;
};

/// What a number of Generation's may be: the library, programs and servers ask this when they read one.
/// "", or such as "expected top_p in (0, 1], got 2".
std::string wrong_option(std::string_view name, double value);
/// The largest that wrong_option() lets pass.
double most_of_option(std::string_view name);

/// A token, and its probability among those that are kept.
struct Candidate {
  int64_t id;
  double probability;
};

/// The scores after logit_bias, penalties, n-grams, min_new_tokens and suppress_tokens, given what was said so far. An
/// infinite logit counts as the largest f32: it is drawn unless others are infinite, too. Error when a logit is not a
/// number, or when an id has no logit.
std::vector<double> process_logits(std::span<const float> logits, std::span<const int64_t> prompt,
                                   std::span<const int64_t> answer, const Generation& generation);
/// What temperature, top_k, top_p and min_p leave of these scores, likeliest first, lower ids first among equals. Error
/// when nothing is left, as for the two below.
std::vector<Candidate> distribution(std::span<const double> scores, const Generation& generation);
/// The likeliest, or the one of distribution() where the sum of probabilities passes u in [0, 1); without a sort.
int64_t next_token(std::span<const double> scores, const Generation& generation, double u);
/// The number in [0, 1) for a token: from the seed, the sequence's number and the place in it alone.
double draw(uint64_t seed, uint64_t sequence, uint64_t position);
/// The id of the highest score, the lowest among equals.
int64_t likeliest(std::span<const double> scores);
/// log(softmax), in f64. Error when a logit is not a number.
std::vector<double> log_probabilities(std::span<const float> logits);

}  // namespace lockstep::nn
