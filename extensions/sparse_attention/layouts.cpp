// Layouts of block-sparse attention: the blocks that each row of blocks attends to. See layouts.h.
#include "extensions/sparse_attention/layouts.h"

#include <algorithm>

#include "tensor/block_layout.h"
#include "tensor/random.h"

namespace lockstep::nn {

using Mode = SparsityConfig::Mode;

namespace {

/// Computes which blocks of keys (columns) one block of queries (a row) attends to.
class Row {
 public:
  Row(const SparsityConfig& config, int64_t head, int64_t row, int64_t blocks)
      : c_(config),
        head_(head),
        row_(row),
        blocks_(blocks),
        end_(config.unidirectional.value_or(false) ? row + 1 : blocks) {}

  std::vector<int32_t> columns() {
    switch (c_.mode) {
      case Mode::dense: add(0, blocks_); break;
      case Mode::local: slide(); break;
      case Mode::fixed: fixed(); break;
      case Mode::variable:
        window();
        globals(c_.horizontal_global_attention);
        random();
        break;
      case Mode::bigbird:
        slide();
        global(0, c_.num_global_blocks, true);
        random();
        break;
      case Mode::bslongformer:
        slide();
        globals(true);
        break;
    }
    std::ranges::sort(columns_);
    columns_.erase(std::unique(columns_.begin(), columns_.end()), columns_.end());
    return std::move(columns_);
  }

 private:
  void add(int64_t begin, int64_t end) {
    for (int64_t c = std::max<int64_t>(begin, 0); c < std::min(end, end_); ++c) columns_.push_back(int32_t(c));
  }
  void slide() {
    const int64_t half = c_.num_sliding_window_blocks / 2;
    add(row_ - half, row_ + half + 1);
  }
  /// Adds the global columns [begin, end), which all rows see. With `rows`, rows [begin, end) also see all columns.
  void global(int64_t begin, int64_t end, bool rows) {
    add(begin, end);
    if (rows && row_ >= begin && row_ < end) add(0, blocks_);
  }
  void globals(bool rows) {
    for (size_t i = 0; i < c_.global_block_indices.size(); ++i) {
      const int64_t begin = c_.global_block_indices[i];
      global(begin, c_.global_block_end_indices ? (*c_.global_block_end_indices)[i] : begin + 1, rows);
    }
  }
  void fixed() {
    const int64_t local = c_.num_local_blocks, count = c_.num_global_blocks;
    const int64_t first = local - (1 + head_ % c_.num_different_global_patterns) * count;
    add(row_ / local * local, row_ / local * local + local);
    // If the last window is cut short, its global blocks move to the left so that the last one is not after the end.
    for (int64_t at = 0; at < blocks_; at += local) {
      const int64_t begin =
          at + local <= blocks_ ? at + first : std::max<int64_t>(0, std::min(at + first, blocks_ - count));
      global(begin, begin + count, c_.horizontal_global_attention);
    }
  }
  void window() {
    int64_t begin = 0;
    for (size_t i = 0;; ++i) {
      const auto& sizes = c_.local_window_blocks;
      const int64_t size = sizes[std::min(i, sizes.size() - 1)];
      if (i + 1 >= sizes.size()) begin += (row_ - begin) / size * size;  // the last size repeats
      if (row_ < begin + size) return add(begin, begin + size);
      begin += size;
    }
  }
  /// Adds random columns, each at most once (Floyd's algorithm). A unidirectional row draws no columns after the
  /// diagonal, so its columns do not depend on the length of the sequence.
  void random() {
    const PhiloxKey key{c_.seed, uint64_t(c_.layer) << 32 | uint64_t(head_)};
    const int64_t from = end_ - std::min(c_.num_random_blocks, end_);
    std::vector<int32_t> sampled;
    for (int64_t j = from; j < end_; ++j) {
      const uint64_t word = philox(key, uint64_t(row_) << 32 | uint64_t(j - from))[0];
      const auto c = int32_t(word * uint64_t(j + 1) >> 32);
      sampled.push_back(std::ranges::count(sampled, c) ? int32_t(j) : c);
    }
    columns_.insert(columns_.end(), sampled.begin(), sampled.end());
  }

  const SparsityConfig& c_;
  const int64_t head_, row_, blocks_, end_;
  std::vector<int32_t> columns_;
};

}  // namespace

void check_sparsity(const SparsityConfig& c) {
  const auto positive = [](const char* name, int64_t value, int64_t least = 1) {
    LOCKSTEP_CHECK(value >= least && value <= 1 << 30, "[sparse attention] expected ", name, " from ", least,
                   " to 1073741824, got ", value);
  };
  positive("block", c.block);
  positive("num_local_blocks", c.num_local_blocks);
  positive("num_global_blocks", c.num_global_blocks, c.mode == Mode::bigbird ? 0 : 1);
  positive("num_different_global_patterns", c.num_different_global_patterns);
  positive("num_random_blocks", c.num_random_blocks, 0);
  positive("num_sliding_window_blocks", c.num_sliding_window_blocks);
  positive("layer", c.layer, 0);
  LOCKSTEP_CHECK(!c.local_window_blocks.empty(), "[sparse attention] expected local_window_blocks, got an empty list");
  for (const int64_t size : c.local_window_blocks) positive("local_window_blocks", size);
  for (const int64_t index : c.global_block_indices) positive("global_block_indices", index, 0);
  LOCKSTEP_CHECK(!c.horizontal_global_attention || !c.unidirectional.value_or(false),
                 "[sparse attention] horizontal_global_attention needs bidirectional attention, got unidirectional: "
                 "global blocks attend to all; leave horizontal_global_attention out");
  if (c.global_block_end_indices) {
    const auto &begins = c.global_block_indices, &ends = *c.global_block_end_indices;
    LOCKSTEP_CHECK(begins.size() == ends.size(), "[sparse attention] expected as many global_block_end_indices as ",
                   "global_block_indices, ", begins.size(), ", got ", ends.size());
    for (size_t i = 0; i < ends.size(); ++i)
      LOCKSTEP_CHECK(begins[i] < ends[i] && ends[i] <= 1 << 30,
                     "[sparse attention] expected global_block_end_indices greater than their global_block_indices, "
                     "and at most 1073741824, got the range ",
                     begins[i], " to ", ends[i]);
  }
  if (c.mode != Mode::fixed) return;
  const int64_t patterns = c.num_different_global_patterns, greatest = c.num_local_blocks / c.num_global_blocks;
  LOCKSTEP_CHECK(c.num_local_blocks % c.num_global_blocks == 0,
                 "[sparse attention] expected num_global_blocks that divides num_local_blocks ", c.num_local_blocks,
                 ", got ", c.num_global_blocks);
  LOCKSTEP_CHECK(patterns == 1 || c.different_layout_per_head, "[sparse attention] num_different_global_patterns ",
                 patterns, " needs different_layout_per_head, got false; set it to true");
  LOCKSTEP_CHECK(patterns <= greatest,
                 "[sparse attention] expected at most num_local_blocks / num_global_blocks = ", greatest,
                 " num_different_global_patterns, got ", patterns);
}

BlockLayout make_layout(const SparsityConfig& config, int64_t heads, int64_t tokens) {
  check_sparsity(config);
  LOCKSTEP_CHECK(heads >= 1 && tokens >= 0, "[sparse attention] expected heads >= 1 and tokens >= 0, got ", heads,
                 " and ", tokens);
  const bool random = (config.mode == Mode::variable || config.mode == Mode::bigbird) && config.num_random_blocks > 0;
  const bool patterns = config.mode == Mode::fixed && config.num_different_global_patterns > 1;
  const int64_t own = config.different_layout_per_head && (random || patterns) ? heads : 1;
  const int64_t blocks = (tokens + config.block - 1) / config.block;
  std::vector<std::vector<int32_t>> rows;
  for (int64_t head = 0; head < own; ++head)
    for (int64_t row = 0; row < blocks; ++row) rows.push_back(Row(config, head, row, blocks).columns());
  return BlockLayout::of_rows(config.block, own, rows);
}

SparsePattern::SparsePattern(SparsityConfig from, bool causal) : config(std::move(from)) {
  config.unidirectional = config.unidirectional.value_or(causal);
  check_sparsity(config);
}

void set_sparsity(MultiHeadAttention& attention, const SparsityConfig& config) {
  attention.set_sparsity(std::make_shared<SparsePattern>(config, attention.o.causal));
}

SparseCount set_sparse_attention(Module& model, SparsityConfig config) {
  SparseCount count;
  for (const auto& [name, module] : model.named_modules()) {
    auto* const attention = dynamic_cast<MultiHeadAttention*>(module);
    if (!attention) continue;
    ++count.all;
    if (!attention->o.sparse) {
      try {
        set_sparsity(*attention, config);
      } catch (const Error& error) { fail(str(name.empty() ? "" : name + ": ", error.what())); }
      ++count.set;
    }
    ++config.layer;
  }
  return count;
}

}  // namespace lockstep::nn
