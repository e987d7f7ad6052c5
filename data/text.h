#pragma once
// Text for language models: the bytes of a file, and windows of a long token list with the next tokens as targets.
#include <string>

#include "data/dataset.h"
#include "data/tokens.h"

namespace lockstep::data {

/// A file as u8 tokens (vocabulary 256). Error if it is empty or larger than `max_bytes`.
Tensor read_bytes(const std::string& path, int64_t max_bytes = int64_t(1) << 32);

/// Options of TextDataset.
struct TextOptions {
  int64_t context = 256;  ///< tokens of a sample
  /// Tokens between the starts of samples. Set it to `context` for evaluation, so that each token counts once.
  int64_t stride = 1;
};

/// Sample i is (tokens[a .. a+T-1], tokens[a+1 .. a+T]) as i64, with a = i * stride and T = context.
class TextDataset : public Dataset<Example> {
 public:
  /// Error unless there are more tokens than `context`.
  TextDataset(Tokens tokens, TextOptions options = {});
  /// Takes the tokens of a 1-d tensor: u8, i32 or i64.
  TextDataset(const Tensor& tokens, TextOptions options = {}) : TextDataset(Tokens(tokens, "TextDataset"), options) {}
  int64_t size() const override { return (tokens_.size() - options_.context - 1) / options_.stride + 1; }
  Example get(int64_t index) const override;
  std::optional<Example> get_batch(std::span<const int64_t> indices) const override;

 private:
  Tokens tokens_;
  TextOptions options_;
};

/// Splits tokens for training and validation: the last fraction `part` (0: none) is for validation. Error if one of the
/// two lists is too short for a sample of `context` tokens; `name` is the text's name in the Error.
std::pair<Tokens, Tokens> split_text(const Tokens& tokens, double part, int64_t context, const std::string& name);
/// The sources and docs of this repository as one text, in a fixed order. Looks for the repository at `folder`, then in
/// the current folder and in those above it.
std::string read_sources(const std::string& folder);

/// Random windows for training. The start of row r of micro-batch m in step s depends only on (seed, s, m, r): any rank
/// can make any micro-batch, and a resumed run needs only its step.
class TokenBatches {
 public:
  /// The windows are drawn from `tokens`.
  explicit TokenBatches(Tokens tokens, uint64_t seed = 0) : tokens_(std::move(tokens)), seed_(seed) {}
  explicit TokenBatches(const Tensor& tokens, uint64_t seed = 0) : TokenBatches(Tokens(tokens, "TokenBatches"), seed) {}
  /// Input and target, both i64 (batch, context). Error unless there are more tokens than `context`.
  Example sample(int64_t step, int64_t micro_batch, int64_t batch, int64_t context) const;

 private:
  Tokens tokens_;
  uint64_t seed_;
};

}  // namespace lockstep::data
