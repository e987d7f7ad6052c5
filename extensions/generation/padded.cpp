// Padded batches: each row is rotated so that its padding lies behind its text, and its logits are rotated back. See
// padded.h.
//
//   mask     0 0 1 1 1      tokens   . . a b c      the model gets   a b c 0 0      logits   - - A B C
#include "extensions/generation/padded.h"

#include <algorithm>

#include "autograd/ops.h"

namespace lockstep::nn {

namespace {

/// Where the text of a row begins, and its number of tokens.
struct Span {
  int64_t first = 0, count = 0;
};

std::vector<Span> spans_of(const Tensor& tokens, const Tensor& mask) {
  LOCKSTEP_CHECK(tokens.dim() == 2 && tokens.dtype() == i64, "[padded] expected tokens i64 (B, T), got ",
                 tokens.shape(), " of ", tokens.dtype(), "; unsqueeze(0) a single text");
  LOCKSTEP_CHECK(mask.shape() == tokens.shape(), "[padded] expected an attention_mask of the tokens' shape ",
                 tokens.shape(), ", got ", mask.shape());
  LOCKSTEP_CHECK(!is_floating(mask.dtype()), "[padded] expected an attention_mask of integers or bools, got ",
                 mask.dtype(), "; convert it with .to(i64)");
  const std::vector<int64_t> ones = mask.to(cpu).to(i64).to_vector<int64_t>();
  const int64_t length = tokens.size(1);
  std::vector<Span> spans;
  for (int64_t row = 0; row < tokens.size(0); ++row) {
    const auto begin = ones.begin() + row * length, end = begin + length;
    for (auto at = begin; at != end; ++at)
      LOCKSTEP_CHECK(*at == 0 || *at == 1, "[padded] expected 0 and 1 in the attention_mask, got ", *at, " in row ",
                     row);
    const auto first = std::find(begin, end, 1), last = std::find(first, end, 0);
    LOCKSTEP_CHECK(first != end, "[padded] expected a token in each row, row ", row,
                   " of the attention_mask is all padding; leave that row out");
    LOCKSTEP_CHECK(std::find(last, end, 1) == end, "[padded] expected padding before or behind a text, row ", row,
                   " of the attention_mask has padding between tokens; pad on one side");
    spans.push_back({first - begin, last - first});
  }
  return spans;
}

}  // namespace

std::vector<std::vector<int64_t>> without_padding(const Tensor& tokens, const Tensor& attention_mask) {
  const std::vector<Span> spans = spans_of(tokens, attention_mask);
  const std::vector<int64_t> ids = tokens.to(cpu).to_vector<int64_t>();
  std::vector<std::vector<int64_t>> texts;
  for (size_t row = 0; row < spans.size(); ++row) {
    const auto first = ids.begin() + int64_t(row) * tokens.size(1) + spans[row].first;
    texts.emplace_back(first, first + spans[row].count);
  }
  return texts;
}

Variable padded_forward(GPT& model, const Tensor& tokens, const Tensor& attention_mask) {
  const std::vector<Span> spans = spans_of(tokens, attention_mask);
  const int64_t rows = tokens.size(0), length = tokens.size(1);
  const std::vector<int64_t> ids = tokens.to(cpu).to_vector<int64_t>();
  std::vector<int64_t> rotated(ids.size());  // id 0 at padding: any id will do, also where the padding's is in no table
  std::vector<int64_t> back;                 // the row of the rotated logits for each place
  for (int64_t row = 0; row < rows; ++row) {
    const Span& span = spans[size_t(row)];
    std::copy_n(ids.begin() + row * length + span.first, span.count, rotated.begin() + row * length);
    for (int64_t t = 0; t < length; ++t) back.push_back(row * length + (t - span.first + length) % length);
  }
  const Variable logits = model(Tensor::from(rotated, tokens.shape()).to(tokens.device()));
  if (std::ranges::all_of(spans, [](const Span& span) { return span.first == 0; })) return logits;
  const Tensor index = Tensor::from(back, {rows * length}).to(logits.device());
  return index_select(logits.reshape({rows * length, logits.size(2)}), 0, index).reshape(logits.shape());
}

std::vector<Generated> generate(GPT& model, const Tensor& tokens, const Tensor& attention_mask,
                                const Generation& generation) {
  return generate(model, without_padding(tokens, attention_mask), generation);
}

}  // namespace lockstep::nn
