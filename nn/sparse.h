#pragma once
// Which blocks of the scores a head attends to: the modes of DeepSpeed's sparse_attention, as data. A layout is a pure
// function of the numbers below, of the heads and of the length: it can be printed, drawn (`lockstep sparse`),
// compared. See docs/sparse-attention.md.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tensor/block_layout.h"

namespace lockstep::nn {

class Module;

/// Sizes count blocks. Each mode reads what is named with it, and block, different_layout_per_head and unidirectional.
struct SparsityConfig {
  enum class Mode { dense, fixed, variable, bigbird, bslongformer, local };
  Mode mode = Mode::fixed;
  int64_t block = 16;                      ///< tokens; multiples of 16 are fast
  bool different_layout_per_head = false;  ///< random blocks and patterns of each head's own
  std::optional<bool> unidirectional;      ///< not given: as causal as the model (and no, where there is none)
  /// fixed (Child et al., 2019): windows of this many; the last of each (or, by pattern, others) are seen by all rows.
  int64_t num_local_blocks = 4;
  int64_t num_global_blocks = 1;  ///< bigbird: the first ones
  int64_t num_different_global_patterns = 1;
  bool horizontal_global_attention = false;         ///< fixed, variable: global blocks also see all; only bidirectional
  int64_t num_random_blocks = 0;                    ///< variable, bigbird (Zaheer et al., 2020): in each row
  std::vector<int64_t> local_window_blocks = {4};   ///< variable: sizes of windows; the last one repeats
  std::vector<int64_t> global_block_indices = {0};  ///< variable, bslongformer (Beltagy et al., 2020)
  std::optional<std::vector<int64_t>> global_block_end_indices;  ///< the same: where these end; not given: one block
  int64_t num_sliding_window_blocks = 3;                         ///< bigbird, bslongformer, local: around each block
  uint64_t seed = 0;                                             ///< of random blocks, with `layer` and the head
  int64_t layer = 0;
};
std::string_view name_of(SparsityConfig::Mode mode);
std::optional<SparsityConfig::Mode> mode_of(std::string_view name);

/// Error for numbers that do not go together.
void check_sparsity(const SparsityConfig& config);
/// Blocks that are attended to, for ceil(tokens / block) rows and columns; the last block may be short. Unidirectional
/// layouts end at the diagonal; inside its blocks attention is causal. On the default device.
BlockLayout make_layout(const SparsityConfig& config, int64_t heads, int64_t tokens);
/// The same by token: bool (layout's heads, tokens, tokens).
Tensor mask_of(const BlockLayout& layout, int64_t tokens);

struct SparseCount {
  int64_t set = 0, all = 0;  ///< of the model's MultiHeadAttention
};
/// Sets it in every MultiHeadAttention of the model that has none; the layers are numbered from config.layer on.
SparseCount set_sparse_attention(Module& model, SparsityConfig config);

}  // namespace lockstep::nn
