#pragma once
// Batches of texts of different lengths in one tensor, padded on the left or on the right, with Hugging Face's
// attention_mask. A GPT is causal: padding behind a text changes nothing, and padding before it is moved behind it.
#include <vector>

#include "extensions/generation/generate.h"

namespace lockstep::nn {

/// The texts of padded tokens i64 (B, T). attention_mask (B, T), of integers or bools, is 1 at tokens and 0 at padding.
/// Error if a row has no tokens, or padding between its tokens.
std::vector<std::vector<int64_t>> without_padding(const Tensor& tokens, const Tensor& attention_mask);
/// Logits (B, T, vocab) of padded tokens, as the model gives them to each text alone: padding is not attended to, and
/// positions count from a text's first token. Logits at padding have no meaning; give those targets -100.
Variable padded_forward(GPT& model, const Tensor& tokens, const Tensor& attention_mask);
/// Continues the texts of padded tokens. See generate().
std::vector<Generated> generate(GPT& model, const Tensor& tokens, const Tensor& attention_mask,
                                const Generation& generation = {});

}  // namespace lockstep::nn
