#pragma once
// Attention of several sequences whose keys and values lie in blocks of one memory (Kwon et al., PagedAttention, 2023).
#include <span>

#include "tensor/tensor.h"

namespace lockstep {

/// A sequence: its last `queries` of `length` tokens ask, and its i-th block of tokens is number blocks[i].
struct PagedRows {
  int64_t queries, length;
  std::span<const int32_t> blocks;
};

/// Causal attention(), with a window or (0) without, of q (1, H, T, D), the queries of one sequence behind those of
/// another, to keys and values (blocks, G, tokens of a block, D); a block has 16, 32 or 64 tokens. Every sequence has
/// the bits that it has alone with its keys in one piece. The CPU reads the blocks where they are, other devices gather
/// them first.
Tensor paged_attention(const Tensor& q, const Tensor& keys, const Tensor& values, std::span<const PagedRows> rows,
                       int64_t window = 0);

/// Tokens that no query from `position` on sees through the window (0: there is none): so many that attention has the
/// bits without them that it has with them.
int64_t before_window(int64_t position, int64_t window);

/// Keys or values of a sequence in one piece, (1, G, length, D).
Tensor gather_blocks(const Tensor& memory, std::span<const int32_t> blocks, int64_t length);
/// Writes x (1, G, tokens, D) as the tokens from `first` on.
void scatter_blocks(const Tensor& x, Tensor memory, std::span<const int32_t> blocks, int64_t first);

namespace on_cpu {
void paged_attention(const Tensor& q, const Tensor& keys, const Tensor& values, std::span<const PagedRows> rows,
                     double scale, int64_t window, Tensor& out);
}

}  // namespace lockstep
