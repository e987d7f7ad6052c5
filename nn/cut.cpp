// Functions of a Cut: its text, the dim that it shards, the sizes of its blocks. See cut.h.
#include "nn/cut.h"

#include "base/check.h"

namespace lockstep::nn {

using Kind = Cut::Kind;

std::string to_string(const Cut& cut) {
  constexpr const char* names[] = {"none", "whole", "columns", "rows", "vocabulary", "features", "tokens", "experts"};
  std::string text = names[int(cut.kind)];
  for (const Cut::Block& block : cut.blocks)
    text += str(&block == &cut.blocks[0] ? " of " : " and ", block.count ? str(block.count, " ") : "", block.unit);
  return text + (cut.from_full ? " from full" : "") + (cut.to_full ? " to full" : "");
}

int dim_of(const Cut& cut, const Shape& parameter) {
  switch (cut.kind) {
    case Kind::columns:
    case Kind::vocabulary: return 0;
    case Kind::rows: return parameter.rank() > 1 ? 1 : -1;  // the bias is replicated, and added once after the sum
    case Kind::features: return parameter.rank() - 1;
    default: return -1;
  }
}

std::vector<int64_t> blocks_of(const Cut& cut, int64_t size, const std::string& field) {
  if (cut.kind != Kind::columns || cut.blocks.empty()) return {size};
  int64_t units = 0;
  for (const Cut::Block& block : cut.blocks) units += block.count;
  const int64_t parts = units > 0 ? units : int64_t(cut.blocks.size());
  LOCKSTEP_CHECK(size % parts == 0, "[cut] ", field, ": expected outputs divisible by ", parts,
                 units > 0 ? " units" : " parts", ", got ", size, "; change the size, or the cut in fields()");
  std::vector<int64_t> blocks;
  for (const Cut::Block& block : cut.blocks) blocks.push_back(units > 0 ? block.count * (size / units) : size / parts);
  return blocks;
}

}  // namespace lockstep::nn
