#pragma once
// Merges the output of the ranks: whole lines, each with its rank in front, stdout and stderr separate, without loss.
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "base/check.h"
#include "extensions/launcher/process.h"

namespace lockstep::dist {

/// Selects none, one or both of stdout and stderr: the same for all local ranks, or separately for each.
class OutputStreams {
 public:
  /// Selects the same streams for all ranks: 0 (none), 1 (stdout), 2 (stderr) or 3 (both).
  OutputStreams(int all = 0) : all_(all) {}
  /// Parses "3" (all ranks) or a list RANK:VALUE such as "0:1,1:2", in which a missing rank gets 0. Error naming
  /// `option` for invalid text and for an unknown rank.
  static OutputStreams parse(const std::string& text, int ranks, const char* option);
  bool covers(int local_rank, int stream) const;            ///< true if selected; `stream`: 1 (stdout) or 2 (stderr)
  bool any() const { return all_ != 0 || !some_.empty(); }  ///< false if nothing is selected

 private:
  int all_;
  std::map<int, int> some_;
};

/// Replaces ${rank}, ${local_rank} and ${role_name}. Error naming an unknown variable.
std::string line_prefix(const std::string& pattern, int rank, int local_rank, const std::string& role);

/// The launcher's own stdout and stderr. Output is queued in order and never blocks the caller. A line is queued as a
/// whole, so lines of two ranks do not mix.
class Console {
 public:
  Console();
  /// Queues text for stdout or stderr (`fd` 1 or 2).
  void put(int fd, std::string_view text);
  /// Prints a message of the launcher itself to stderr: its parts, joined by str().
  void say(const auto&... parts) { put_line(2, nullptr, str("lockstep run: ", parts..., "\n")); }
  /// Queues a whole line of the stream `owner`. If another stream has an unfinished line, ends that line first.
  void put_line(int fd, const void* owner, std::string_view text);
  /// Queues the beginning of a line, which the stream `owner` will continue.
  void put_part(int fd, const void* owner, std::string_view text);

  bool terminal(int fd) const { return terminal_[fd - 1]; }  ///< true if it was a terminal at the start
  /// The descriptor to poll for writing; -1 when everything is written.
  int pending() const { return queue_.empty() ? -1 : queue_.front().fd; }
  bool full() const { return bytes_ > (size_t(1) << 20); }  ///< true if more than 1 MiB is queued
  /// Call when the job is about to end: from then on, output of ranks is dropped while full(), in case nobody reads it.
  void hurry() { hurries_ = true; }
  bool loses() const { return hurries_ && full(); }  ///< true while output is dropped
  /// Writes as much as possible without blocking.
  void pump();
  /// True once a write to stdout has failed.
  bool lost() const { return lost_ != 0; }
  std::string why_lost() const;  ///< why stdout could not be written, for the user
  /// The launcher's exit code if stdout could not be written: 128 + SIGPIPE if its reader is gone, else 1.
  int lost_code() const;
  /// Waits until everything is written or descriptor `stop` is readable. After hurry(), waits for at most 2 s.
  void drain(int stop);

 private:
  struct Item {
    int fd;
    std::string text;
    size_t done = 0;
  };
  std::deque<Item> queue_;
  size_t bytes_ = 0;
  bool terminal_[2], hurries_ = false;
  int lost_ = 0;                // errno of a failed write to stdout
  const void* open_ = nullptr;  ///< owner of the unfinished line
  int open_fd_ = 2;
};

/// Forwards stdout or stderr of a process line by line to the console, and unchanged to a file. Keeps the last lines.
class Relay {
 public:
  static constexpr size_t longest_line = size_t(1) << 20;  ///< longer lines are split

  Relay() = default;
  /// Without a prefix, bytes are forwarded as they come. `printed` false: nothing goes to the console. Empty `file`: no
  /// file.
  Relay(Console* console, int fd, std::string prefix, bool printed, const std::string& file);
  void take(std::string_view bytes);  ///< handles received bytes
  void finish();                      ///< call at the end of the stream; the last line may be incomplete
  /// The last lines of the stream: at most `lines`, and at most 4 KiB.
  std::string tail(int lines) const;

 private:
  void show(std::string_view line, bool full);
  void keep(std::string_view bytes);

  Console* console_ = nullptr;
  int fd_ = 1;
  std::string prefix_, line_, tail_, path_;
  bool printed_ = true, begun_ = false;
  Fd file_;
};

}  // namespace lockstep::dist
