#pragma once
// Layouts of block-sparse attention (Child et al., 2019): the blocks of the score matrix that are computed. Rows are
// blocks of queries, columns blocks of keys; the last of each may be shorter. All other scores count as masked and cost
// nothing.
#include <cstdint>
#include <vector>

#include "tensor/host_device.h"
#include "tensor/tensor.h"

namespace lockstep {

/// A block-sparse layout in compressed rows (CSR).
struct BlockLayout {
  int64_t block = 1;   ///< tokens per block
  int64_t blocks = 0;  ///< blocks per row and per column
  int64_t heads = 1;   ///< 1: shared by all heads
  Tensor row_start;    ///< i32 (heads, blocks + 1): begin and end of each row in `columns`
  Tensor columns;      ///< i32: the attended blocks of each row, in ascending order

  /// A layout from heads * blocks rows, head by head. Error unless each row lists its blocks in ascending order.
  static BlockLayout of_rows(int64_t block, int64_t heads, const std::vector<std::vector<int32_t>>& rows);
  /// A copy on another device.
  BlockLayout to(Device device) const { return {block, blocks, heads, row_start.to(device), columns.to(device)}; }
};

/// Number of (query, key) pairs for which a head computes a score, as the mean over the layout's heads. The queries are
/// the last `queries` of `keys` tokens.
double attended_pairs(const BlockLayout& layout, int64_t queries, int64_t keys, bool causal);

/// A layout as kernels read it.
struct BlockRows {
  int64_t block = 0, blocks = 0;  ///< block 0: no layout
  bool shared = true;             ///< true if all heads share one layout
  const int32_t *row_start = nullptr, *columns = nullptr;

  BlockRows() = default;
  explicit BlockRows(const BlockLayout* layout) {
    if (!layout) return;
    block = layout->block, blocks = layout->blocks, shared = layout->heads == 1;
    row_start = static_cast<const int32_t*>(layout->row_start.raw_data());
    columns = static_cast<const int32_t*>(layout->columns.raw_data());
  }

  /// A bit mask of the keys that queries of block `row` attend to, among keys first ... first + count - 1. Bit k stands
  /// for key first + k; count <= 64.
  LOCKSTEP_HD uint64_t attended(int64_t head, int64_t row, int64_t first, int64_t count) const {
    const int32_t* const ends = row_start + (shared ? 0 : head * (blocks + 1)) + row;
    int32_t at = ends[0], end = ends[1];
    const int32_t from = int32_t(first / block);
    for (int32_t last = end; at < last;) {  // binary search for the first column not before these keys
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
  /// A mask of the lowest n bits.
  LOCKSTEP_HD static uint64_t ones(int64_t n) { return n >= 64 ? ~uint64_t(0) : (uint64_t(1) << n) - 1; }
};

}  // namespace lockstep
