#pragma once
// The shared memory through which the ranks of a fake NCCL communicator communicate; ranks are threads of one process
// or processes on one machine.
#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fake {

/// Limits: ranks of a communicator, bytes per rank in a collective, bytes of a message.
constexpr int max_ranks = 8;
constexpr size_t max_collective = size_t(64) << 20, max_message = size_t(16) << 20;

/// A rank's description of its next call, which must agree on all ranks.
struct CallText {
  char text[112];
  uint64_t recorded;  // if a graph repeats the call, its number on this rank; 0: called once
};

/// The state that a rank shows to the others.
struct RankState {
  std::atomic<int> joined;
  std::atomic<int> device;  // with `process`, identifies the GPU
  std::atomic<int> process;
  std::atomic<uint64_t> posted, consumed;  // collectives started and finished
  CallText call;
};
/// Messages from one rank to another.
struct Mailbox {
  std::atomic<uint64_t> posted, consumed;
  std::atomic<uint64_t> bytes;
};
/// The first part of the shared memory.
struct WorldHeader {
  std::atomic<int> size;  // 0 until the first rank joins
  std::atomic<int> failed;
  char why[256];
  RankState ranks[max_ranks];
  Mailbox mail[max_ranks][max_ranks];  // [from][to]
};

/// A mapping of the shared memory. It has no name and is opened through the file descriptor of the process that made
/// it, so nothing is left behind.
class World {
 public:
  /// Makes a new world and returns its id; this process keeps it open until close().
  static std::string make();
  /// Closes the descriptor, once all ranks have joined or none will. Does nothing in other processes, or if called
  /// again.
  static void close(const std::string& id);
  /// Opens a world; nullptr if its maker is gone or the id is invalid.
  static std::shared_ptr<World> open(const std::string& id);
  ~World();
  World(const World&) = delete;

  /// Parts of the memory: the header, a rank's state, its data in a collective, and the data of a message.
  WorldHeader& header() const { return *reinterpret_cast<WorldHeader*>(base_); }
  RankState& rank(int r) const { return header().ranks[r]; }
  char* data(int r) const { return base_ + header_bytes + size_t(r) * max_collective; }
  char* mail(int from, int to) const {
    return base_ + header_bytes + max_ranks * max_collective + size_t(from * max_ranks + to) * max_message;
  }
  /// Marks the world as failed, so that every rank sees it and the reason.
  void fail(const std::string& why);

 private:
  static constexpr size_t header_bytes = 1 << 20;
  static constexpr size_t bytes = header_bytes + max_ranks * max_collective + max_ranks * max_ranks * max_message;
  explicit World(char* base) : base_(base) {}
  char* base_;
};

/// Reduces elements [first, first + count) of all parts, in the order of ranks; partial results have the elements'
/// type.
void reduce(ncclDataType_t type, const std::vector<const char*>& parts, size_t first, size_t count, ncclRedOp_t op,
            void* out);

}  // namespace fake
