// Blocks of keys and values with a prefix cache. See blocks.h.
#include "extensions/serving/blocks.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::serve {

namespace {

uint64_t hash_of(uint64_t before, std::span<const int64_t> tokens) {
  uint64_t h = 0xcbf29ce484222325u ^ before;
  for (const int64_t t : tokens) h = (h ^ uint64_t(t)) * 0x100000001b3u, h ^= h >> 29;
  return h;
}

}  // namespace

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
  return {b.content != 0, b.freed, block};
}

int32_t Blocks::find(uint64_t before, std::span<const int64_t> tokens) const {
  const auto [begin, end] = known_.equal_range(hash_of(before, tokens));
  for (auto it = begin; it != end; ++it) {
    const Block& b = blocks_[size_t(it->second)];
    if (b.before == before && std::equal(tokens.begin(), tokens.end(), b.tokens.begin(), b.tokens.end()))
      return it->second;
  }
  return -1;
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
  if (b.content != 0) {
    const auto [begin, end] = known_.equal_range(b.hash);
    known_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == block; }));
    b.content = b.before = 0;
    b.tokens.clear();
  }
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
    const int32_t block = find(before, tokens.subspan(at, size_t(tokens_)));
    if (block < 0) break;
    use(block);
    found.push_back(block);
    before = blocks_[size_t(block)].content;
  }
  return found;
}

int32_t Blocks::keep(int32_t block, int32_t before, std::span<const int64_t> tokens) {
  const uint64_t in_front = before < 0 ? 0 : blocks_.at(size_t(before)).content;
  LOCKSTEP_CHECK(int64_t(tokens.size()) == tokens_ && (before < 0 || in_front != 0), "[Blocks] expected ", tokens_,
                 " tokens after a cached block or none, got ", tokens.size(),
                 "; fill it, and keep() the block before first");
  if (const int32_t same = find(in_front, tokens); same >= 0) {
    use(same);
    release(block);
    return same;
  }
  Block& b = blocks_.at(size_t(block));
  b.content = ++contents_, b.before = in_front, b.hash = hash_of(in_front, tokens);
  b.tokens.assign(tokens.begin(), tokens.end());
  known_.emplace(b.hash, block);
  return block;
}

}  // namespace lockstep::serve
