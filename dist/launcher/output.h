#pragma once
// What ranks print, brought together: whole lines with the rank before them, stdout and stderr apart, nothing lost.
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "dist/launcher/process.h"

namespace lockstep::dist {

/// Which of stdout (1) and stderr (2) something is meant for, one value for all local ranks or one each.
class Streams {
 public:
  Streams(int all = 0) : all_(all) {}
  /// "3", or "0:1,1:2" (the others 0). Error naming `option` for anything else, and for a rank that is not there.
  static Streams parse(const std::string& text, int ranks, const char* option);
  bool covers(int local_rank, int stream) const;
  bool any() const { return all_ != 0 || !some_.empty(); }

 private:
  int all_;
  std::map<int, int> some_;
};

/// Fills ${rank}, ${local_rank} and ${role_name} in. Error naming an unknown variable.
std::string line_prefix(const std::string& pattern, int rank, int local_rank, const std::string& role);

/// The launcher's own stdout and stderr. What is put in comes out in that order and never blocks the caller; a line is
/// written in one go, so lines of two ranks do not mix.
class Console {
 public:
  Console();
  /// `fd` is 1 or 2.
  void put(int fd, std::string_view text);
  /// A message of the launcher itself, to stderr.
  void say(const std::string& line) { put_line(2, nullptr, "lockstep run: " + line + "\n"); }
  void put_line(int fd, const void* owner, std::string_view text);
  /// A part of a line, of which `owner` writes more; another's line ends it first.
  void put_part(int fd, const void* owner, std::string_view text);

  bool terminal(int fd) const { return terminal_[fd - 1]; }
  /// The fd to wait for, -1 when all is written.
  int pending() const { return queue_.empty() ? -1 : queue_.front().fd; }
  bool full() const { return bytes_ > (size_t(1) << 20); }
  /// The job is to end, whether somebody reads or not: from here on what ranks say while it is full() is lost.
  void hurry() { hurries_ = true; }
  bool loses() const { return hurries_ && full(); }
  /// Writes what can be written without waiting.
  void pump();
  /// stdout could not be written.
  bool lost() const { return lost_ != 0; }
  std::string why_lost() const;
  /// The launcher's exit code then: as if SIGPIPE had ended it, or 1.
  int lost_code() const;
  /// Waits until all is written, or `stop` (a file descriptor) becomes readable; 2 s at most after hurry().
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
  int lost_ = 0;                // errno of stdout
  const void* open_ = nullptr;  ///< whose line is not finished
  int open_fd_ = 2;
};

/// One stream of one process on its way: to the console by lines, to a file as it is, and its end kept for the report.
class Relay {
 public:
  static constexpr size_t longest_line = size_t(1) << 20;  ///< longer ones are cut in pieces

  Relay() = default;
  /// Without a prefix bytes pass as they come. `shown` false: not to the console. An empty file name: no file.
  Relay(Console* console, int fd, std::string prefix, bool shown, const std::string& file);
  void take(std::string_view bytes);
  void finish();  ///< the last line may lack its end
  /// The last lines, at most `lines` and 4 KiB.
  std::string tail(int lines) const;

 private:
  void show(std::string_view line, bool whole);
  void keep(std::string_view bytes);

  Console* console_ = nullptr;
  int fd_ = 1;
  std::string prefix_, line_, tail_, path_;
  bool shown_ = true, begun_ = false;
  Fd file_;
};

}  // namespace lockstep::dist
