#pragma once
// Where the ranks of a fake NCCL communicator meet: memory that threads of one process and processes on one machine
// share.
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fake {

constexpr int most_ranks = 8;
constexpr size_t most_collective = size_t(64) << 20, most_message = size_t(16) << 20;  // bytes of a rank

/// What a rank is about to do; all must say the same.
struct CallText {
  char text[112];
  uint64_t recorded;  // a number of its own on this rank when a graph repeats it; 0: it is made once
};

struct RankState {
  std::atomic<int> joined;
  std::atomic<int> device;  // and the process that it is of
  std::atomic<int> process;
  std::atomic<uint64_t> posted, consumed;  // collectives
  std::atomic<uint64_t> split_posted, split_consumed;
  CallText call;
  int color, key;
  char split_id[64];
  std::atomic<uint64_t> windows;  // that it has asked for
  uint64_t window_bytes[2];       // of the last two, by number
};
struct Mailbox {
  std::atomic<uint64_t> posted, consumed;
  std::atomic<uint64_t> bytes;
};
struct WorldHeader {
  std::atomic<int> size;  // 0: nobody came yet
  std::atomic<int> failed;
  char why[256];
  RankState ranks[most_ranks];
  Mailbox mail[most_ranks][most_ranks];  // [from][to]
};

/// One mapping of it. Nothing is left behind: the memory has no name, and is reached by way of its maker, while it
/// keeps it open.
class World {
 public:
  /// The text of an id for a new world, which this process keeps open until it closes the id.
  static std::string make();
  /// Everybody has come, or nobody will. Does nothing in other processes, and the second time.
  static void close(const std::string& id);
  /// nullptr when its maker is gone, or the text is none.
  static std::shared_ptr<World> open(const std::string& id);
  ~World();
  World(const World&) = delete;

  WorldHeader& header() const { return *reinterpret_cast<WorldHeader*>(base_); }
  RankState& rank(int r) const { return header().ranks[r]; }
  char* data(int r) const { return base_ + header_bytes + size_t(r) * most_collective; }
  char* mail(int from, int to) const {
    return base_ + header_bytes + most_ranks * most_collective + size_t(from * most_ranks + to) * most_message;
  }
  /// Makes every rank see that the world is of no more use, and why.
  void fail(const std::string& why);

 private:
  static constexpr size_t header_bytes = 1 << 20;
  static constexpr size_t bytes = header_bytes + most_ranks * most_collective + most_ranks * most_ranks * most_message;
  explicit World(char* base) : base_(base) {}
  char* base_;
};

/// Elements [first, first + count) of all parts, in order of ranks; each partial result is of the element's own type.
void reduce(ncclDataType_t type, const std::vector<const char*>& parts, size_t first, size_t count, ncclRedOp_t op,
            void* out);

}  // namespace fake
