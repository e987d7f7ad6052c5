#pragma once
// Manages the memory for keys and values as numbered blocks of tokens: tracks the users of each block, and finds blocks
// that hold a prefix which several sequences share.
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace lockstep::serve {

/// A pool of blocks with reference counts and a prefix cache.
class Blocks {
 public:
  /// A pool of `count` blocks of `tokens` tokens each.
  explicit Blocks(int64_t count, int64_t tokens = 32);
  int64_t count() const { return int64_t(blocks_.size()); }  ///< number of blocks
  int64_t tokens() const { return tokens_; }                 ///< tokens per block
  int64_t free() const { return int64_t(free_.size()); }     ///< blocks without users; some still hold cached contents
  int64_t known() const { return int64_t(known_.size()); }   ///< blocks with cached contents
  int64_t users(int32_t block) const { return blocks_[size_t(block)].users; }    ///< sequences that use the block
  int64_t of(int64_t length) const { return (length + tokens_ - 1) / tokens_; }  ///< blocks needed for `length` tokens

  /// Takes a free block for new contents: an uncached one, or else the least recently used. Error if none is free.
  int32_t take();
  /// Removes one user. The contents remain cached until the block is taken.
  void release(int32_t block);
  /// Returns the cached blocks that hold the beginning of `tokens`, at most `limit` blocks, and adds a user to each.
  std::vector<int32_t> share(std::span<const int64_t> tokens, int64_t limit);
  /// Caches `block`, which now holds `tokens`, as the successor of block `before` (-1: none). Returns the block to use
  /// from now on. If another block already holds the same contents, that block is returned, and `block` is released.
  int32_t keep(int32_t block, int32_t before, std::span<const int64_t> tokens);

 private:
  // Identifies contents: `number` of the block that precedes in the sequence (0: none), and the tokens.
  using Contents = std::pair<uint64_t, std::vector<int64_t>>;
  struct Block {
    int64_t users = 0;
    uint64_t number = 0, freed = 0;  // number: unique number of this block's cached contents; 0: not cached
    Contents contents;
  };
  void use(int32_t block);
  std::tuple<bool, uint64_t, int32_t> eviction_order(int32_t block) const;

  int64_t tokens_;
  std::vector<Block> blocks_;
  std::set<std::tuple<bool, uint64_t, int32_t>> free_;  // sorted: the first block is taken first
  std::map<Contents, int32_t> known_;                   // cached blocks
  uint64_t numbers_ = 0, releases_ = 0;
};

}  // namespace lockstep::serve
