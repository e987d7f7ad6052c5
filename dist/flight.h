#pragma once
// The flight record: the last 1,024 collectives of a rank, kept in a ring, written to a file when something goes wrong.
// `lockstep flight DIR` merges the files of all ranks and says in one sentence who is late, and where.
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::dist {

class Flight {
 public:
  static constexpr int capacity = 1024;
  struct Entry {
    std::string group;
    uint64_t sequence = 0;
    std::string call;  ///< "all_reduce f32 x 8, tag w1"
    uint64_t step = 0;
    int64_t started_ns = 0;  ///< monotonic
    int64_t ended_ns = 0;    ///< 0: still running
    std::string error;
  };
  /// Gives back a ticket for finish().
  uint64_t start(std::string_view group, uint64_t sequence, std::string_view call, uint64_t step);
  void finish(uint64_t ticket, std::string_view error = {});
  std::vector<Entry> entries() const;  ///< oldest first
  /// Called with every entry that ends from here on, on the thread where it ends; empty: nobody.
  void listen(std::function<void(const Entry&)> listener);
  /// DIR/flight-RANK.json, replaced atomically. Never throws: it runs while another error is on its way.
  void write(const std::string& folder, int rank, int world, const std::string& why) const noexcept;

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> ring_;
  uint64_t next_ = 0;
  std::shared_ptr<const std::function<void(const Entry&)>> listener_;
};

/// Reads DIR/flight-*.json; text for a person: a verdict, then one line per rank. Error when there is none, or it is
/// damaged.
std::string explain_flight(const std::string& folder);

}  // namespace lockstep::dist
