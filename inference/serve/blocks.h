#pragma once
// The memory for keys and values as numbered blocks of tokens: which are in use, by how many sequences, and which hold
// the beginning of a text that others may begin with, too.
#include <cstdint>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace lockstep::serve {

class Blocks {
 public:
  explicit Blocks(int64_t count, int64_t tokens = 32);
  int64_t count() const { return int64_t(blocks_.size()); }
  int64_t tokens() const { return tokens_; }                ///< of a block
  int64_t free() const { return int64_t(free_.size()); }    ///< not in use; some may still know what they hold
  int64_t known() const { return int64_t(known_.size()); }  ///< in use or not
  int64_t users(int32_t block) const { return blocks_[size_t(block)].users; }
  int64_t of(int64_t length) const { return (length + tokens_ - 1) / tokens_; }

  /// A block for new content, of those that are free the one that was used last of all. Error when none is.
  int32_t take();
  /// By one sequence. The block goes on knowing what it holds until it is taken.
  void release(int32_t block);
  /// The blocks that hold the beginning of these tokens, as far as whole blocks of it are there, at most so many. They
  /// are found by a hash, compared token by token, and used by one sequence more.
  std::vector<int32_t> share(std::span<const int64_t> tokens, int64_t most);
  /// `block` now holds all of these tokens, which follow those of block `before` (-1: none). The block to use from here
  /// on: another, when that holds the same already; then this one is free again.
  int32_t keep(int32_t block, int32_t before, std::span<const int64_t> tokens);

 private:
  struct Block {
    int64_t users = 0;
    uint64_t content = 0, before = 0;  // a number that no other content ever has; that of the block in front. 0: none
    uint64_t hash = 0, freed = 0;
    std::vector<int64_t> tokens;
  };
  int32_t find(uint64_t before, std::span<const int64_t> tokens) const;  // -1: none
  void use(int32_t block);
  std::tuple<bool, uint64_t, int32_t> turn(int32_t block) const;

  int64_t tokens_;
  std::vector<Block> blocks_;
  std::set<std::tuple<bool, uint64_t, int32_t>> free_;  // in the order in which they are taken
  std::unordered_multimap<uint64_t, int32_t> known_;    // by hash
  uint64_t contents_ = 0, releases_ = 0;
};

}  // namespace lockstep::serve
