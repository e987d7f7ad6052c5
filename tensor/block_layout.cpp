// Builds block-sparse attention layouts and counts their work. See block_layout.h.
#include "tensor/block_layout.h"

#include <algorithm>

namespace lockstep {

BlockLayout BlockLayout::of_rows(int64_t block, int64_t heads, const std::vector<std::vector<int32_t>>& rows) {
  LOCKSTEP_CHECK(
      block >= 1 && heads >= 1 && int64_t(rows.size()) % heads == 0,
      "[BlockLayout] expected the same number of rows for each of 1 head or more, and 1 token or more per block, got ",
      rows.size(), " rows, ", heads, " heads and ", block, " tokens");
  const int64_t blocks = int64_t(rows.size()) / heads;
  std::vector<int32_t> starts, all;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < rows[r].size(); ++i)
      LOCKSTEP_CHECK(rows[r][i] >= 0 && rows[r][i] < blocks && (i == 0 || rows[r][i - 1] < rows[r][i]),
                     "[BlockLayout] expected ascending blocks in [0, ", blocks, ") in row ", r, ", got ", rows[r][i]);
    starts.push_back(int32_t(all.size()));
    all.insert(all.end(), rows[r].begin(), rows[r].end());
    if (int64_t(r + 1) % blocks == 0) starts.push_back(int32_t(all.size()));
  }
  LOCKSTEP_CHECK(all.size() < size_t(1) << 31, "[BlockLayout] expected less than 2^31 blocks, got ", all.size(),
                 "; use larger blocks");
  if (blocks == 0) starts.assign(size_t(heads), 0);
  return {block, blocks, heads, Tensor::from(starts, {heads, blocks + 1}), Tensor::from(all, {int64_t(all.size())})};
}

double attended_pairs(const BlockLayout& layout, int64_t queries, int64_t keys, bool causal) {
  const Tensor row_start = layout.row_start.to(cpu), columns = layout.columns.to(cpu);
  const int32_t *const starts = row_start.data<int32_t>(), *const all = columns.data<int32_t>();
  int64_t pairs = 0;
  for (int64_t head = 0; head < layout.heads; ++head) {
    for (int64_t i = keys - queries; i < keys; ++i) {
      const int32_t* const ends = starts + head * (layout.blocks + 1) + i / layout.block;
      const int64_t limit = causal ? i + 1 : keys;
      for (int32_t at = ends[0]; at < ends[1]; ++at)
        pairs += std::clamp<int64_t>(limit - all[at] * layout.block, 0, layout.block);
    }
  }
  return double(pairs) / double(layout.heads);
}

}  // namespace lockstep
