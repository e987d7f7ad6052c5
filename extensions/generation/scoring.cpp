// Scores texts token by token: log-likelihoods, and the loss over overlapping windows. See scoring.h.
#include "extensions/generation/scoring.h"

#include <algorithm>
#include <numbers>

#include "extensions/generation/sampling.h"

namespace lockstep::train {

namespace {

constexpr int64_t max_rows = 1024;  // tokens per forward pass

void score_group(nn::GPT& model, std::span<const ToScore> group, std::vector<Scored>& out) {
  std::vector<std::vector<nn::KvCache>> caches(group.size(), std::vector<nn::KvCache>(model.blocks.size()));
  std::vector<std::vector<nn::KvCache>*> given;
  std::vector<std::span<const int64_t>> tokens;
  std::vector<int64_t> rows;
  int64_t first = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    const auto length = int64_t(group[i].ids.size());
    LOCKSTEP_CHECK(group[i].from >= 1 && group[i].from < length && length - 1 <= model.o.context,
                   "[score] expected at most ", model.o.context + 1, " tokens, and 1 <= from < their number, got from ",
                   group[i].from, " and ", length, " tokens; shorten the text, or change from");
    given.push_back(&caches[i]);
    tokens.push_back(std::span(group[i].ids).first(size_t(length - 1)));
    for (int64_t t = group[i].from; t < length; ++t) rows.push_back(first + t - 1);
    first += length - 1;
  }
  const Tensor scores = nn::scores_on_host(model.scores_behind(rows, tokens, given).tensor());
  const auto vocab = size_t(scores.size(1));
  size_t at = 0;
  for (const ToScore& s : group) {
    Scored& sum = out.emplace_back();
    for (int64_t t = s.from; t < int64_t(s.ids.size()); ++t) {
      const std::span<const float> row = nn::row_of(scores, at++);
      const std::vector<double> logprobs = nn::log_probabilities(row);
      const int64_t id = s.ids[size_t(t)];
      LOCKSTEP_CHECK(id >= 0 && id < int64_t(vocab), "[score] expected tokens from 0 to ", vocab - 1, ", got ", id,
                     "; use the tokenizer that the model was trained with");
      sum.logprob += logprobs[size_t(id)];
      sum.greedy &= std::max_element(row.begin(), row.end()) - row.begin() == id;
      ++sum.tokens;
    }
  }
}

}  // namespace

std::vector<Scored> score(nn::GPT& model, std::span<const ToScore> all) {
  model.eval();
  std::vector<Scored> out;
  for (size_t begin = 0; begin < all.size();) {
    size_t end = begin;
    for (int64_t rows = 0; end < all.size(); ++end) {
      rows += int64_t(all[end].ids.size());
      if (rows > max_rows && end > begin) break;
    }
    score_group(model, all.subspan(begin, end - begin), out);
    begin = end;
  }
  return out;
}

StridedLoss loss_in_strides(nn::GPT& model, const data::Tokenizer& tokenizer, const std::vector<int64_t>& ids,
                            int64_t stride) {
  const auto length = int64_t(ids.size()), context = model.o.context;
  LOCKSTEP_CHECK(stride >= 1 && stride <= context, "--stride: expected 1 to ", context, " (the model's context), got ",
                 stride);
  LOCKSTEP_CHECK(length >= 2, "expected a text of at least 2 tokens, got ", length, "; give more text");
  StridedLoss out;
  double nats = 0;
  for (int64_t begin = 0, counted = 1; counted < length; begin += stride) {  // the first token has no context
    const int64_t end = std::min(begin + context + 1, length);               // a window scores `context` tokens
    const ToScore window{{ids.begin() + begin, ids.begin() + end}, counted - begin};
    nats -= score(model, {&window, 1})[0].logprob;
    for (; counted < end; ++counted) out.bytes += int64_t(tokenizer.token_bytes(int32_t(ids[size_t(counted)])).size());
  }
  out.tokens = length - 1;
  out.nats = nats / double(out.tokens);
  out.bits_per_byte = nats / std::numbers::ln2 / double(std::max<int64_t>(out.bytes, 1));
  return out;
}

ToScore to_score(const data::Tokenizer& tokenizer, std::string context, std::string continuation, int64_t limit) {
  const size_t blanks = context.size() - (context.find_last_not_of(" \t\n\r") + 1);
  continuation = context.substr(context.size() - blanks) + continuation;
  context.resize(context.size() - blanks);
  const std::vector<int32_t> ids = tokenizer.encode(context + continuation);
  std::vector<int64_t> all(ids.begin(), ids.end());
  auto from = int64_t(tokenizer.encode(context).size());
  if (from == 0 || context.empty()) {
    const auto begins = tokenizer.bos() ? tokenizer.bos() : tokenizer.eos();
    if (begins && (all.empty() || all[0] != *begins)) all.insert(all.begin(), *begins);
    from = begins ? 1 : 0;
  }
  LOCKSTEP_CHECK(from >= 1,
                 "[score] expected a context of more than white space: this tokenizer has no token that begins a text; "
                 "begin it with a word");
  LOCKSTEP_CHECK(from < int64_t(all.size()),
                 "[score] expected a continuation of at least one token, got none; give a longer one");
  const int64_t cut = std::max<int64_t>(0, int64_t(all.size()) - limit);
  LOCKSTEP_CHECK(cut < from, "[score] expected a continuation of at most ", limit - 1, " tokens, got ",
                 int64_t(all.size()) - from, "; shorten it");
  all.erase(all.begin(), all.begin() + cut);
  return {std::move(all), from - cut};
}

}  // namespace lockstep::train
