#pragma once
// The flight record: the last 1,024 collectives of a rank, in a ring buffer, written to a file when the job fails.
// `lockstep flight DIR` (extensions/launcher) merges the files of all ranks and names the late rank and the call.
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::dist {

/// The flight record of one rank. All methods may be called from any thread.
class Flight {
 public:
  static constexpr int capacity = 1024;
  /// One collective or message.
  struct Entry {
    std::string group;
    uint64_t sequence = 0;   ///< number of the call in its group; 0 for messages
    std::string call;        ///< "all_reduce f32 x 8, tag w1"
    uint64_t step = 0;       ///< training step
    int64_t started_ns = 0;  ///< nanoseconds of the monotonic clock
    int64_t ended_ns = 0;    ///< nanoseconds of the same clock; 0: still running
    std::string error;
  };
  /// Records the start of a call; returns a ticket for finish().
  uint64_t start(std::string_view group, uint64_t sequence, std::string_view call, uint64_t step);
  /// Records the end of a call, and its error if it failed. Ignored when the entry has been overwritten.
  void finish(uint64_t ticket, std::string_view error = {});
  std::vector<Entry> entries() const;  ///< all entries, oldest first
  /// Calls `listener` with every entry that ends from now on, on the thread that ends it. An empty function removes the
  /// listener.
  void listen(std::function<void(const Entry&)> listener);
  /// Writes DIR/flight-RANK.json, replacing it atomically. Never throws: it runs while another error is propagating.
  void write(const std::string& folder, int rank, int world, const std::string& why) const noexcept;

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> ring_;
  uint64_t next_ = 0;
  std::shared_ptr<const std::function<void(const Entry&)>> listener_;
};

}  // namespace lockstep::dist
