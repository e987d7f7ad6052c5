#pragma once
// Paged attention: several sequences whose keys and values lie in blocks of one memory (Kwon et al., 2023).
#include <span>

#include "tensor/tensor.h"

namespace lockstep {

/// A sequence of `length` tokens, of which the last `queries` are queries; blocks[i] is the index of its i-th block.
struct PagedRows {
  int64_t queries, length;
  std::span<const int32_t> blocks;
};

/// Causal attention() of q (1, H, T, D), the queries of all sequences one after the other, to keys and values
/// (blocks, G, tokens per block, D); a block has 16, 32 or 64 tokens. window 0: no window. A sequence's result is
/// bit-identical to attention() on its keys alone. The CPU reads blocks in place; other devices gather them first.
Tensor paged_attention(const Tensor& q, const Tensor& keys, const Tensor& values, std::span<const PagedRows> rows,
                       int64_t window = 0);

/// Number of tokens at the start that attention may leave out, because the window hides them from the query at
/// `position` and all later ones. Rounded down so that attention still gives the same bits. 0 if there is no window.
int64_t before_window(int64_t position, int64_t window);

/// Copies a sequence's keys or values from their blocks into one contiguous tensor (1, G heads, length, D).
Tensor gather_blocks(const Tensor& memory, std::span<const int32_t> blocks, int64_t length);
/// Writes x (1, G, tokens, D) into a sequence's blocks, at its positions first to first + tokens - 1.
void scatter_blocks(const Tensor& x, Tensor memory, std::span<const int32_t> blocks, int64_t first);

namespace on_cpu {
/// The CPU kernel of paged_attention().
void paged_attention(const Tensor& q, const Tensor& keys, const Tensor& values, std::span<const PagedRows> rows,
                     double scale, int64_t window, Tensor& out);
}  // namespace on_cpu

}  // namespace lockstep
