// Choice of the next token. See sampling.h.
#include "extensions/generation/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "base/check.h"
#include "tensor/padded.h"
#include "tensor/random.h"

namespace lockstep::nn {

namespace {

constexpr double never = -std::numeric_limits<double>::infinity(), highest_score = std::numeric_limits<double>::max();

template <auto member> double number_of(const Generation& g) { return double(g.*member); }

// Ranges of numeric options. Within them, no sum or quotient of scores overflows.
constexpr double many = double(int64_t(1) << 31);
constexpr struct OptionRange {
  const char* name;
  double (*of)(const Generation&);
  double least, greatest;
  bool open = false;  // true: `least` itself is not allowed
  bool has(double value) const { return value >= least && value <= greatest && !(open && value == least); }
} option_ranges[] = {
    {"max_new_tokens", number_of<&Generation::max_new_tokens>, 0, many},
    {"min_new_tokens", number_of<&Generation::min_new_tokens>, 0, many},
    {"num_return_sequences", number_of<&Generation::num_return_sequences>, 1, 1 << 16},
    {"num_beams", number_of<&Generation::num_beams>, 1, 1024},
    {"length_penalty", number_of<&Generation::length_penalty>, -10, 10},
    {"repetition_penalty", number_of<&Generation::repetition_penalty>, 1e-3, 1e3},
    {"presence_penalty", number_of<&Generation::presence_penalty>, -100, 100},
    {"frequency_penalty", number_of<&Generation::frequency_penalty>, -100, 100},
    {"no_repeat_ngram_size", number_of<&Generation::no_repeat_ngram_size>, 0, many},
    {"temperature", number_of<&Generation::temperature>, 0, 1e6},
    {"top_k", number_of<&Generation::top_k>, 0, many},
    {"top_p", number_of<&Generation::top_p>, 0, 1, true},
    {"min_p", number_of<&Generation::min_p>, 0, 1},
};

const OptionRange& range_of(std::string_view name) {
  for (const OptionRange& r : option_ranges)
    if (name == r.name) return r;
  fail(str("[generate] there is no numeric option ", name, "; use one that Generation has, such as top_p"));
}

void check_numbers(const Generation& g) {
  for (const OptionRange& r : option_ranges)
    LOCKSTEP_CHECK(r.has(r.of(g)), "[generate] ", wrong_option(r.name, r.of(g)));
}

/// exp(x) for x <= 0, accurate to an ulp or two; 0 for x < -690. Branch-free, so that loops vectorise.
inline double exp_below_zero(double x) {
  // Split x into n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^52 rounds to an integer: n is in the low bits of t.
  const double t = std::max(x, -690.0) * 1.4426950408889634 + 6755399441055744.0, n = t - 6755399441055744.0,
               r = (std::max(x, -690.0) - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
  double p = 1.6059043836821613e-10;  // 1 / 13!
  for (const double c : {2.08767569878681e-09, 2.505210838544172e-08, 2.755731922398589e-07, 2.7557319223985893e-06,
                         2.48015873015873e-05, 1.984126984126984e-04, 1.3888888888888889e-03, 8.333333333333333e-03,
                         4.1666666666666664e-02, 1.6666666666666666e-01, 0.5, 1.0, 1.0})
    p = p * r + c;
  const double power = std::bit_cast<double>((std::bit_cast<uint64_t>(t) << 52) + 0x3ff0000000000000u);
  return x < -690 ? 0 : p * power;
}

constexpr int buckets = 4096;

/// Scores in buckets by their distance from the highest score `top`, with 64 buckets for a distance of `temperature`.
class Buckets {
 public:
  Buckets(std::span<const double> scores, double top, double temperature)
      : scores_(scores), top_(top), scale_(64 / temperature) {}
  /// The bucket of a score. The last bucket also holds all scores beyond it, the first bucket also holds NaN.
  int32_t of(double score) const { return int32_t(std::max(0.0, std::min((top_ - score) * scale_, buckets - 1.0))); }
  /// Appends the ids in buckets [from, to), in descending order of score; of equal scores the lower id comes first.
  void append_sorted(int from, int to, std::vector<int64_t>& ids) const {
    const auto begin = std::ptrdiff_t(ids.size());
    // This cheap comparison skips most ids. For the others, of() decides whether they are in the wanted buckets.
    const double near = from > 0 ? (from - 0.01) / scale_ : never, far = to < buckets ? (to + 0.01) / scale_ : -never;
    for (size_t i = 0; i < scores_.size(); ++i)
      if (const double below = top_ - scores_[i]; below < far && below >= near) [[unlikely]] {
        const int32_t b = of(scores_[i]);
        if (b >= from && b < to) ids.push_back(int64_t(i));
      }
    std::sort(ids.begin() + begin, ids.end(), [&](int64_t i, int64_t j) {
      const double x = scores_[size_t(i)], y = scores_[size_t(j)];
      return x != y ? x > y : i < j;
    });
  }

 private:
  std::span<const double> scores_;
  double top_, scale_;
};

/// Ids in descending order of score, produced on demand: only the buckets needed are sorted.
class Ranked {
 public:
  Ranked(std::span<const double> scores, double top, double temperature) : buckets_(scores, top, temperature) {
    for (const double x : scores) ++counts_[size_t(buckets_.of(x))];
  }

  /// True if at least i + 1 ids can be drawn; sorts more buckets if needed.
  bool has(size_t i) {
    if (i >= order_.size() && next_ < buckets) extend(std::max({i + 1, size_t(256), 4 * order_.size()}));
    return i < order_.size();
  }
  int64_t operator[](size_t i) const { return order_[i]; }

 private:
  void extend(size_t count) {
    const int from = next_;
    for (size_t found = order_.size(); next_ < buckets && found < count;) found += size_t(counts_[size_t(next_++)]);
    buckets_.append_sorted(from, next_, order_);
  }

  Buckets buckets_;
  std::vector<int32_t> counts_ = std::vector<int32_t>(size_t(buckets));
  std::vector<int64_t> order_;
  int next_ = 0;
};

/// Finds the id at which the cumulative weight, from the most likely id on (ties by lower id), reaches a given value.
/// weight = exp((score - highest score) / temperature). Instead of sorting all ids, sums the weights of each bucket of
/// scores: the sums tell which bucket contains the id, and only this bucket is sorted.
class Weights {
 public:
  /// Sums the weights of all scores. kept() and at() leave out weights below `least`.
  Weights(std::span<const double> scores, double top, double temperature, double least)
      : scores_(scores), buckets_(scores, top, temperature), top_(top), scale_(1 / temperature), least_(least) {
    constexpr size_t block = 256;
    double weights[block];
    int32_t places[block];
    for (size_t begin = 0; begin < scores.size(); begin += block) {
      const size_t n = std::min(block, scores.size() - begin);
      const double* const x = scores.data() + begin;
      for (size_t i = 0; i < n; ++i) weights[i] = weight(x[i]), places[i] = buckets_.of(x[i]);
      for (size_t i = 0; i < n; ++i) sums_[size_t(places[i])] += weights[i];
      if (least > 0)
        for (size_t i = 0; i < n; ++i) left_out_ += weights[i] < least ? weights[i] : 0;
    }
    for (const double s : sums_) full_ += s;
  }
  double full() const { return full_; }
  double kept() const { return full_ - left_out_; }

  /// Returns the first id at which the cumulative weight reaches `wanted` (exceeds it if `passes` is true), or the last
  /// id if none does. Also returns the cumulative weight at that id.
  std::pair<int64_t, double> at(double wanted, bool passes) const {
    const auto enough = [&](double sum) { return passes ? sum > wanted : sum >= wanted; };
    size_t filled = sums_.size();
    while (filled > 1 && sums_[filled - 1] == 0) --filled;
    std::pair<int64_t, double> last{-1, 0};
    double before = 0;
    for (size_t b = 0; b < filled; before += sums_[b++]) {
      if (b + 1 < filled && !enough((before + sums_[b]) * (1 + 1e-12))) continue;
      std::vector<int64_t> ids;
      buckets_.append_sorted(int(b), int(b + 1), ids);
      double sum = before;
      for (const int64_t id : ids) {
        const double w = weight(scores_[size_t(id)]);
        if (w < least_ || w == 0) return last.first >= 0 ? last : std::pair(id, sum);
        last = {id, sum += w};
        if (enough(sum)) return last;
      }
    }
    return last;
  }

 private:
  double weight(double x) const { return exp_below_zero(std::min(x - top_, 0.0) * scale_); }

  std::span<const double> scores_;
  Buckets buckets_;
  double top_, scale_, least_, full_ = 0, left_out_ = 0;
  std::array<double, buckets> sums_{};
};

/// Forbids each token that would complete an n-gram that has already occurred.
void forbid_repeats(std::span<const int64_t> prompt, std::span<const int64_t> answer, int64_t n, const auto& score_of) {
  std::vector<int64_t> all(prompt.begin(), prompt.end());
  all.insert(all.end(), answer.begin(), answer.end());
  const size_t head = size_t(n - 1);
  if (all.size() < head + 1) return;
  for (size_t i = 0; i + head < all.size(); ++i)
    if (std::equal(all.end() - std::ptrdiff_t(head), all.end(), all.begin() + std::ptrdiff_t(i)))
      score_of(all[i + head]) = never;
}

/// Logits as doubles, with infinity replaced by the largest f32, so that options can be applied to all logits.
std::vector<double> numbers_of(std::span<const float> logits) {
  constexpr float greatest = std::numeric_limits<float>::max();
  std::vector<double> s(logits.size());
  bool numbers = true;
  for (size_t i = 0; i < s.size(); ++i) numbers &= logits[i] == logits[i], s[i] = std::min(logits[i], greatest);
  if (!numbers)
    for (size_t i = 0; i < s.size(); ++i)
      LOCKSTEP_CHECK(logits[i] == logits[i], "[generate] logits of token ", i,
                     " are not numbers; look for a NaN in the weights");
  return s;
}

}  // namespace

std::string wrong_option(std::string_view name, double value) {
  const OptionRange& r = range_of(name);
  if (r.has(value)) return "";
  const auto printed = [](double x) { return std::abs(x) < 1e15 && x == std::floor(x) ? str(int64_t(x)) : str(x); };
  return str("expected ", name, " in ", r.open ? "(" : "[", printed(r.least), ", ", printed(r.greatest), "], got ",
             printed(value));
}

double max_of_option(std::string_view name) { return range_of(name).greatest; }

void Generation::check() const {
  check_numbers(*this);
  for (const auto& [id, bias] : logit_bias)
    LOCKSTEP_CHECK(bias <= 1e9, "[generate] expected logit_bias up to 1e9, got ", bias, " for token ", id);
  LOCKSTEP_CHECK(num_beams == 1 || !do_sample, "[generate] num_beams ", num_beams,
                 " with do_sample is not supported: beams take the likeliest tokens; leave one of them out");
  LOCKSTEP_CHECK(num_beams == 1 || stop.empty(), "[generate] stop strings with num_beams ", num_beams,
                 " are not supported; leave one of them out");
  LOCKSTEP_CHECK(num_beams == 1 || overflow == Overflow::error, "[generate] num_beams ", num_beams,
                 " cannot slide over a full context; set overflow to error");
  LOCKSTEP_CHECK(do_sample || num_return_sequences <= num_beams,
                 "[generate] expected num_return_sequences from 1 to num_beams without do_sample, got ",
                 num_return_sequences, " with num_beams ", num_beams, "; raise num_beams, or set do_sample");
  for (const std::string& s : stop)
    LOCKSTEP_CHECK(!s.empty(), "[generate] expected stop strings of at least one byte, got an empty one");
}

void Generation::check(int64_t vocab) const {
  check();
  LOCKSTEP_CHECK(stop.empty() || text,
                 "[generate] stop strings need `text`: set it to a function that returns a token's bytes");
  const auto known = [&](const char* what, int64_t id) {
    LOCKSTEP_CHECK(id >= 0 && id < vocab, "[generate] ", what, " names token ", id, ", the vocabulary has ", vocab,
                   "; take ids of this model's tokenizer");
  };
  for (const auto& [id, bias] : logit_bias) known("logit_bias", id);
  for (const int64_t id : suppress_tokens) known("suppress_tokens", id);
  for (const int64_t id : eos_token_id) known("eos_token_id", id);
}

std::vector<double> process_logits(std::span<const float> logits, std::span<const int64_t> prompt,
                                   std::span<const int64_t> answer, const Generation& g) {
  std::vector<double> s = numbers_of(logits);
  const auto score_of = [&s](int64_t id) -> double& {
    LOCKSTEP_CHECK(id >= 0 && size_t(id) < s.size(), "[generate] expected token ids in [0, ", s.size(),
                   "), one for each logit, got ", id, "; use ids of the model's vocabulary");
    return s[size_t(id)];
  };
  for (const auto& [id, bias] : g.logit_bias) score_of(id) += bias;
  if (g.repetition_penalty != 1) {
    std::vector<int64_t> previous(prompt.begin(), prompt.end());
    previous.insert(previous.end(), answer.begin(), answer.end());
    std::sort(previous.begin(), previous.end());
    previous.erase(std::unique(previous.begin(), previous.end()), previous.end());
    for (const int64_t id : previous) {
      double& x = score_of(id);
      x = x < 0 ? x * g.repetition_penalty : x / g.repetition_penalty;
    }
  }
  if (g.presence_penalty != 0 || g.frequency_penalty != 0) {
    std::unordered_map<int64_t, int64_t> counts;
    for (const int64_t id : answer) ++counts[id];
    for (const auto& [id, count] : counts) score_of(id) -= g.presence_penalty + g.frequency_penalty * double(count);
  }
  if (g.no_repeat_ngram_size > 0) forbid_repeats(prompt, answer, g.no_repeat_ngram_size, score_of);
  if (int64_t(answer.size()) < g.min_new_tokens)
    for (const int64_t id : g.eos_token_id) score_of(id) = never;
  for (const int64_t id : g.suppress_tokens) score_of(id) = never;
  return s;
}

int64_t likeliest(std::span<const double> scores) {
  constexpr size_t wide = 8;  // independent maxima, which vectorise
  double greatest[wide];
  std::fill_n(greatest, wide, never);
  size_t i = 0;
  for (; i + wide <= scores.size(); i += wide)
    for (size_t l = 0; l < wide; ++l) greatest[l] = scores[i + l] > greatest[l] ? scores[i + l] : greatest[l];
  for (; i < scores.size(); ++i) greatest[0] = std::max(greatest[0], scores[i]);
  const double best = *std::max_element(greatest, greatest + wide);
  LOCKSTEP_CHECK(best > never,
                 "[generate] no token is left: all are suppressed (suppress_tokens, logit_bias, no_repeat_ngram_size); "
                 "suppress fewer");
  return std::find(scores.begin(), scores.end(), best) - scores.begin();
}

std::vector<Candidate> distribution(std::span<const double> scores, const Generation& g) {
  check_numbers(g);
  const double top = std::min(scores[size_t(likeliest(scores))], highest_score);
  const double temperature = std::max(g.temperature, 1e-5);
  const auto weight = [&](double score) { return exp_below_zero(std::min(score - top, 0.0) / temperature); };
  Ranked ranked(scores, top, temperature);
  const auto at = [&](size_t i) { return weight(scores[size_t(ranked[i])]); };
  size_t kept = scores.size();
  double mass = 0;
  if (g.top_k > 0) {
    const auto equal = [&](size_t i) { return scores[size_t(ranked[i])] == scores[size_t(ranked[i - 1])]; };
    size_t n = 0;
    while (ranked.has(n) && (n < size_t(g.top_k) || equal(n))) mass += at(n++);
    kept = n;
  } else {
    for (const double x : scores) mass += weight(x);
  }
  const auto keep_while = [&](const auto& wanted) {
    double sum = 0;
    size_t n = 0;
    while (n < kept && ranked.has(n) && wanted(n, sum)) sum += at(n++);
    kept = n, mass = sum;
  };
  if (g.top_p < 1) keep_while([&, full = mass](size_t n, double sum) { return n == 0 || sum < g.top_p * full; });
  if (g.min_p > 0) keep_while([&](size_t n, double) { return at(n) >= g.min_p; });
  std::vector<Candidate> out;
  for (size_t i = 0; i < kept && ranked.has(i); ++i) {
    const double p = at(i);
    if (p == 0) break;
    out.push_back({ranked[i], p / mass});
  }
  return out;
}

int64_t next_token(std::span<const double> scores, const Generation& g, double u) {
  check_numbers(g);
  const int64_t best = likeliest(scores);
  if (g.greedy()) return best;
  if (g.top_k > 0) {
    int64_t id = best;
    double sum = 0;
    for (const Candidate& c : distribution(scores, g)) {
      if (sum > u) break;
      id = c.id, sum += c.probability;
    }
    return id;
  }
  const Weights weights(scores, std::min(scores[size_t(best)], highest_score), g.temperature, g.min_p);
  double kept = weights.kept();
  if (g.top_p < 1) kept = std::min(kept, weights.at(g.top_p * weights.full(), false).second);
  return weights.at(u * kept, true).first;
}

double draw(uint64_t seed, uint64_t sequence, uint64_t position) {
  const auto words = philox({seed, sequence}, position);
  return double((uint64_t(words[0]) << 32 | words[1]) >> 11) * 0x1p-53;
}

Tensor scores_on_host(const Tensor& scores) {
  if (!is_padded(scores)) return scores.to(cpu).to(f32).contiguous();
  const int64_t rows = scores.size(0), step = row_step(scores);
  const Tensor with_padding = scores.as_strided({rows, step}, {step, 1}, scores.offset());
  return with_padding.to(cpu).narrow(1, 0, scores.size(1)).to(f32);
}

std::span<const float> row_of(const Tensor& scores, size_t row) {
  return {scores.data<float>() + int64_t(row) * row_step(scores), size_t(scores.size(1))};
}

std::vector<double> log_probabilities(std::span<const float> logits) {
  std::vector<double> s = numbers_of(logits);
  const double top = s.empty() ? never : *std::max_element(s.begin(), s.end());
  if (top == never) return s;
  double sum = 0;
  for (const double x : s) sum += exp_below_zero(x - top);
  const double rest = std::log(sum);
  for (double& x : s) x = x - top - rest;  // two steps: top may be too large to keep the digits of rest
  return s;
}

}  // namespace lockstep::nn
