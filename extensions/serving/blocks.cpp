// Blocks of keys and values with a prefix cache. See blocks.h.
#include "extensions/serving/blocks.h"

#include "base/check.h"

namespace lockstep::serve {

Blocks::Blocks(int64_t count, int64_t tokens) : tokens_(tokens) {
  LOCKSTEP_CHECK(count > 0 && count <= INT32_MAX && tokens > 0,
                 "[Blocks] expected 1 to 2147483647 blocks of 1 token or more, got ", count, " of ", tokens, " tokens");
  blocks_.resize(size_t(count));
  for (int32_t b = 0; b < int32_t(count); ++b) free_.insert(eviction_order(b));
}

/// Returns a key that sorts free blocks by the order in which take() takes them: blocks without cached contents first,
/// then the least recently used.
std::tuple<bool, uint64_t, int32_t> Blocks::eviction_order(int32_t block) const {
  const Block& b = blocks_[size_t(block)];
  return {b.number != 0, b.freed, block};
}

void Blocks::use(int32_t block) {
  Block& b = blocks_[size_t(block)];
  if (b.users == 0) free_.erase(eviction_order(block));
  ++b.users;
}

int32_t Blocks::take() {
  LOCKSTEP_CHECK(!free_.empty(), "[Blocks] none of ", count(), " blocks is free; release one first");
  const int32_t block = std::get<2>(*free_.begin());
  use(block);
  Block& b = blocks_[size_t(block)];
  if (std::exchange(b.number, 0) != 0) known_.erase(b.contents);
  return block;
}

void Blocks::release(int32_t block) {
  Block& b = blocks_.at(size_t(block));
  LOCKSTEP_CHECK(b.users > 0, "[Blocks] block ", block, " is not in use; call release() only once for each user");
  if (--b.users > 0) return;
  b.freed = ++releases_;
  free_.insert(eviction_order(block));
}

std::vector<int32_t> Blocks::share(std::span<const int64_t> tokens, int64_t limit) {
  std::vector<int32_t> found;
  uint64_t before = 0;
  for (size_t at = 0; int64_t(found.size()) < limit && at + size_t(tokens_) <= tokens.size(); at += size_t(tokens_)) {
    const auto part = tokens.subspan(at, size_t(tokens_));
    const auto known = known_.find({before, {part.begin(), part.end()}});
    if (known == known_.end()) break;
    use(known->second);
    found.push_back(known->second);
    before = blocks_[size_t(known->second)].number;
  }
  return found;
}

int32_t Blocks::keep(int32_t block, int32_t before, std::span<const int64_t> tokens) {
  const uint64_t in_front = before < 0 ? 0 : blocks_.at(size_t(before)).number;
  LOCKSTEP_CHECK(int64_t(tokens.size()) == tokens_ && (before < 0 || in_front != 0), "[Blocks] expected ", tokens_,
                 " tokens after a cached block or none, got ", tokens.size(),
                 "; fill it, and keep() the block before first");
  Block& b = blocks_.at(size_t(block));
  const auto [known, fresh] = known_.try_emplace({in_front, {tokens.begin(), tokens.end()}}, block);
  if (fresh) {
    b.number = ++numbers_, b.contents = known->first;
    return block;
  }
  use(known->second);
  release(block);
  return known->second;
}

}  // namespace lockstep::serve
