#pragma once
// Text for language models: bytes of a file, and windows of a long list of tokens with the next tokens as targets.
#include <string>

#include "data/dataset.h"
#include "data/tokens.h"

namespace lockstep::data {

/// A file as u8 tokens (vocabulary 256). Error when it is larger than `max_bytes`.
Tensor read_bytes(const std::string& path, int64_t max_bytes = int64_t(1) << 32);

struct TextOptions {
  int64_t context = 256;  ///< tokens of a sample
  int64_t stride = 1;  ///< from the start of a sample to the next; the context's length for evaluation: each token once
};

/// Sample i is (tokens[a .. a+T], tokens[a+1 .. a+T+1]) as i64, a = i * stride.
class TextDataset : public Dataset<Example> {
 public:
  TextDataset(Tokens tokens, TextOptions options = {});
  /// tokens: 1-d, u8, i32 or i64.
  TextDataset(const Tensor& tokens, TextOptions options = {}) : TextDataset(Tokens(tokens, "TextDataset"), options) {}
  int64_t size() const override { return (tokens_.size() - options_.context - 1) / options_.stride + 1; }
  Example get(int64_t index) const override;
  std::optional<Example> get_batch(std::span<const int64_t> indices) const override;

 private:
  Tokens tokens_;
  TextOptions options_;
};

/// The first part of the tokens, and the last `part` of them (0: none), kept for validation. Error when one of them is
/// too short for a sample of `context` tokens; `name` is of the text.
std::pair<Tokens, Tokens> split_text(const Tokens& tokens, double part, int64_t context, const std::string& name);
/// This repository's own sources and docs as one text, in a fixed order: from `folder`, or a folder above this one.
std::string read_sources(const std::string& folder);

/// Random windows for training. Row r of micro-batch m in step s starts at a place that depends on (seed, s, m, r)
/// only, so any rank can make any micro-batch, and a resumed run needs no state but its step.
class TokenBatches {
 public:
  explicit TokenBatches(Tokens tokens, uint64_t seed = 0) : tokens_(std::move(tokens)), seed_(seed) {}
  explicit TokenBatches(const Tensor& tokens, uint64_t seed = 0) : TokenBatches(Tokens(tokens, "TokenBatches"), seed) {}
  /// Both (batch, context), i64.
  Example sample(int64_t step, int64_t micro_batch, int64_t batch, int64_t context) const;

 private:
  Tokens tokens_;
  uint64_t seed_;
};

}  // namespace lockstep::data
