#pragma once
// Which blocks of a square of scores attention computes (block-sparse attention; Child et al., 2019). Rows are blocks
// of queries, columns blocks of keys; the last of them may be short. The rest counts as masked, and costs nothing.
#include <cstdint>
#include <vector>

#include "tensor/host_device.h"
#include "tensor/tensor.h"

namespace lockstep {

struct BlockLayout {
  int64_t block = 1;   ///< tokens of a block
  int64_t blocks = 0;  ///< of a row, and of a column
  int64_t heads = 1;   ///< 1: all heads have the same
  Tensor row_start;    ///< i32 (heads, blocks + 1): where in `columns` each row begins and ends
  Tensor columns;      ///< i32: the attended blocks of the rows, ascending in each

  /// rows: the attended blocks of each row of each head, ascending; as many rows as heads times blocks.
  static BlockLayout of_rows(int64_t block, int64_t heads, const std::vector<std::vector<int32_t>>& rows);
  BlockLayout to(Device device) const { return {block, blocks, heads, row_start.to(device), columns.to(device)}; }
};

/// Pairs of a query and a key that a head scores, when the queries are the last of `keys` tokens: the mean over the
/// layout's heads.
double attended_pairs(const BlockLayout& layout, int64_t queries, int64_t keys, bool causal);

/// The same, as kernels read it.
struct BlockRows {
  int64_t block = 0, blocks = 0;  ///< block 0: there is no layout
  bool shared = true;             ///< by all heads
  const int32_t *row_start = nullptr, *columns = nullptr;

  BlockRows() = default;
  explicit BlockRows(const BlockLayout* layout) {
    if (!layout) return;
    block = layout->block, blocks = layout->blocks, shared = layout->heads == 1;
    row_start = static_cast<const int32_t*>(layout->row_start.raw_data());
    columns = static_cast<const int32_t*>(layout->columns.raw_data());
  }

  /// Which of the keys from `first` on the queries of block `row` attend to: bit k is key first + k, for count <= 64.
  LOCKSTEP_HD uint64_t attended(int64_t head, int64_t row, int64_t first, int64_t count) const {
    const int32_t* const ends = row_start + (shared ? 0 : head * (blocks + 1)) + row;
    int32_t at = ends[0], end = ends[1];
    const int32_t from = int32_t(first / block);
    for (int32_t last = end; at < last;) {  // the first column that is not before the keys
      const int32_t middle = at + (last - at) / 2;
      if (columns[middle] < from) at = middle + 1;
      else last = middle;
    }
    uint64_t bits = 0;
    for (; at < end; ++at) {
      const int64_t begin = columns[at] * block - first;
      if (begin >= count) break;
      bits |= ones(begin + block < count ? begin + block : count) & ~ones(begin < 0 ? 0 : begin);
    }
    return bits;
  }
  /// The lowest n bits.
  LOCKSTEP_HD static uint64_t ones(int64_t n) { return n >= 64 ? ~uint64_t(0) : (uint64_t(1) << n) - 1; }
};

}  // namespace lockstep
