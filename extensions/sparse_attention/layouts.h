#pragma once
// Block-sparse attention: the blocks of scores that each head computes, in the modes of DeepSpeed's sparse_attention. A
// layout depends only on the configuration, the number of heads and the length, so it can be printed, drawn (`lockstep
// sparse`) and compared. See README.md.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "nn/attention.h"
#include "tensor/block_layout.h"

namespace lockstep::nn {

/// DeepSpeed's options. Sizes are in blocks. All modes read block, different_layout_per_head and unidirectional. The
/// comment of each other field names the modes that read the field.
struct SparsityConfig {
  /// Patterns of attended blocks. `local` has a sliding window and nothing else.
  enum class Mode { dense, fixed, variable, bigbird, bslongformer, local };
  Mode mode = Mode::fixed;
  int64_t block = 16;  ///< block size in tokens; multiples of 16 are fast
  /// True: each head draws its own random blocks and pattern; false: all heads share them.
  bool different_layout_per_head = false;
  std::optional<bool> unidirectional = {};  ///< default: true in a causal model; false if there is no model
  /// Mode fixed (Child et al., 2019): number of blocks in a window. All rows attend to the last num_global_blocks of
  /// each window. With num_different_global_patterns > 1, some heads attend to earlier blocks of the window instead.
  int64_t num_local_blocks = 4;
  int64_t num_global_blocks = 1;  ///< fixed: see above; bigbird: number of first blocks that are global
  /// Mode fixed: number of different choices of global blocks, which the heads use in turn.
  int64_t num_different_global_patterns = 1;
  /// Modes fixed and variable: if true, global blocks also attend to all blocks. Only for bidirectional attention.
  bool horizontal_global_attention = false;
  int64_t num_random_blocks = 0;                    ///< variable, bigbird (Zaheer et al., 2020): random blocks per row
  std::vector<int64_t> local_window_blocks = {4};   ///< variable: window sizes; the last one repeats
  std::vector<int64_t> global_block_indices = {0};  ///< variable, bslongformer (Beltagy et al., 2020)
  /// Modes variable and bslongformer: the end of each range of global blocks. Default: each range has one block.
  std::optional<std::vector<int64_t>> global_block_end_indices = {};
  int64_t num_sliding_window_blocks = 3;  ///< bigbird, bslongformer, local: width of the window around each block
  uint64_t seed = 0;                      ///< random blocks depend on seed, layer and head
  int64_t layer = 0;
};
/// The names of the modes in configuration files, in the order of Mode.
inline constexpr std::string_view mode_names[] = {"dense", "fixed", "variable", "bigbird", "bslongformer", "local"};
/// The name of a mode, as in configuration files.
inline std::string_view name_of(SparsityConfig::Mode mode) { return mode_names[size_t(mode)]; }

/// Error for values out of range or combinations that contradict each other.
void check_sparsity(const SparsityConfig& config);
/// The attended blocks, for ceil(tokens / block) rows and columns; the last block may be short. Unidirectional layouts
/// end at the diagonal; within the blocks on the diagonal, attention is causal by token. The result is on the default
/// device.
BlockLayout make_layout(const SparsityConfig& config, int64_t heads, int64_t tokens);

/// These options as MultiHeadAttention::Options::sparse takes them.
class SparsePattern : public BlockPattern {
 public:
  /// causal: the value of config.unidirectional if config leaves it unset. Throws the errors of check_sparsity().
  SparsePattern(SparsityConfig config, bool causal);
  std::string name() const override { return std::string(name_of(config.mode)); }
  int64_t block() const override { return config.block; }
  bool is_causal() const override { return *config.unidirectional; }
  BlockLayout layout(int64_t heads, int64_t tokens) const override { return make_layout(config, heads, tokens); }

  SparsityConfig config;  ///< its option unidirectional is always set
};
/// Replaces the sparse layout of a layer. Error if the layer has a window, or is causal and the layout is not.
void set_sparsity(MultiHeadAttention& attention, const SparsityConfig& config);

/// Result of set_sparse_attention().
struct SparseCount {
  int64_t set = 0, all = 0;  ///< set: number of MultiHeadAttention layers that were changed; all: number of all
};
/// Gives a sparse layout to every MultiHeadAttention without one. Layers are numbered consecutively from config.layer.
SparseCount set_sparse_attention(Module& model, SparsityConfig config);

}  // namespace lockstep::nn
