// output.cpp: merges the output of the ranks. See output.h.
#include "extensions/launcher/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>

#include "base/classic_text.h"
#include "base/clock.h"
#include "base/output_file.h"
#include "base/suggest.h"

namespace lockstep::dist {
namespace {

constexpr size_t kept = 4096;     // bytes kept of the end of each stream
constexpr double last_words = 2;  // seconds that drain() waits for a slow reader after hurry()

}  // namespace

OutputStreams OutputStreams::parse(const std::string& text, int ranks, const char* option) {
  const auto number = [&](const std::string& part, int max) {
    const int n = read_number<int>(part).value_or(-1);
    LOCKSTEP_CHECK(n >= 0 && n <= max, "[run] expected ", option,
                   " to be 0 (none), 1 (stdout), 2 (stderr), 3 (both), or RANK:VALUE,..., got '", text, "'");
    return n;
  };
  if (text.find(':') == std::string::npos) return number(text, 3);
  OutputStreams streams;
  for (const std::string& item : split(text, ',')) {
    const size_t colon = std::min(item.find(':'), item.size());
    const int rank = number(item.substr(0, colon), INT_MAX),
              value = number(item.substr(std::min(colon + 1, item.size())), 3);
    LOCKSTEP_CHECK(rank < ranks, "[run] ", option, " names local rank ", rank, "; there are ranks 0 to ", ranks - 1,
                   " here, name one of these");
    LOCKSTEP_CHECK(streams.some_.emplace(rank, value).second, "[run] ", option, " names local rank ", rank,
                   " twice; name it once");
  }
  return streams;
}

bool OutputStreams::covers(int local_rank, int stream) const {
  const auto own = some_.find(local_rank);
  return (own == some_.end() ? all_ : own->second) & stream;
}

std::string line_prefix(const std::string& pattern, int rank, int local_rank, const std::string& role) {
  const std::map<std::string, std::string> values = {
      {"rank", std::to_string(rank)}, {"local_rank", std::to_string(local_rank)}, {"role_name", role}};
  std::string text;
  for (size_t at = 0; at < pattern.size(); ++at) {
    const size_t end = pattern.compare(at, 2, "${") == 0 ? pattern.find('}', at) : std::string::npos;
    if (end == std::string::npos) {
      text += pattern[at];
      continue;
    }
    const std::string name = pattern.substr(at + 2, end - at - 2);
    const auto found = values.find(name);
    LOCKSTEP_CHECK(found != values.end(),
                   "[run] expected ${rank}, ${local_rank} or ${role_name} in --log-line-prefix-template, got '${", name,
                   "}'");
    text += found->second;
    at = end;
  }
  return text;
}

Console::Console() {
  for (const int fd : {1, 2}) terminal_[fd - 1] = isatty(fd);
}

void Console::put(int fd, std::string_view text) {
  if (text.empty() || (fd == 1 && lost_)) return;
  bytes_ += text.size();
  // Merges small pieces, so that one write() prints many lines.
  if (queue_.size() > 1 && queue_.back().fd == fd && queue_.back().text.size() + text.size() < 65536)
    queue_.back().text += text;
  else queue_.push_back({fd, std::string(text)});
}

void Console::put_line(int fd, const void* owner, std::string_view text) {
  if (open_ && open_ != owner) put(open_fd_, terminal(open_fd_) ? "\r\033[K" : "\n");
  open_ = nullptr;
  put(fd, text);
}

void Console::put_part(int fd, const void* owner, std::string_view text) {
  put_line(fd, owner, text);
  open_ = owner, open_fd_ = fd;
}

void Console::pump() {
  while (!queue_.empty()) {
    Item& item = queue_.front();
    pollfd ready{item.fd, POLLOUT, 0};
    if (poll(&ready, 1, 0) == 0) return;  // no room now: the terminal is stopped, or a pager waits
    // For a pipe, POLLOUT guarantees room for PIPE_BUF bytes only.
    const size_t size = std::min<size_t>(item.text.size() - item.done, PIPE_BUF);
    const ssize_t written = write(item.fd, item.text.data() + item.done, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) return;
    if (written < 0) {  // the reader is gone, or the disk is full
      if (item.fd == 1) lost_ = errno;
      const int fd = item.fd;
      for (const Item& other : queue_)
        if (other.fd == fd) bytes_ -= other.text.size() - other.done;
      std::erase_if(queue_, [&](const Item& other) { return other.fd == fd; });
      continue;
    }
    item.done += size_t(written), bytes_ -= size_t(written);
    if (item.done == item.text.size()) queue_.pop_front();
  }
}

std::string Console::why_lost() const {
  return lost_ == EPIPE ? "the reader of standard output has closed it"
                        : str("standard output cannot be written (", std::strerror(lost_),
                              "); free space there: the rest of the output is lost");
}

int Console::lost_code() const { return lost_ == EPIPE ? 128 + SIGPIPE : 1; }

void Console::drain(int stop) {
  const double until = steady_seconds() + last_words;
  for (pump(); !queue_.empty() && !(hurries_ && steady_seconds() > until); pump()) {
    pollfd wait[2] = {{queue_.front().fd, POLLOUT, 0}, {stop, POLLIN, 0}};
    if (poll(wait, 2, 200) > 0 && wait[1].revents) return;
  }
}

Relay::Relay(Console* console, int fd, std::string prefix, bool printed, const std::string& file)
    : console_(console), fd_(fd), prefix_(std::move(prefix)), path_(file), printed_(printed) {
  if (file.empty()) return;
  file_ = Fd(open_output(file, O_TRUNC, "[run] "));
}

void Relay::keep(std::string_view bytes) {
  tail_ += bytes.substr(bytes.size() - std::min(bytes.size(), kept));
  if (tail_.size() > 2 * kept) tail_.erase(0, tail_.size() - kept);
  while (file_ && !bytes.empty()) {
    const ssize_t written = write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      console_->say("cannot write ", path_, ": ", std::strerror(errno), "; the file ends here, free space there");
      file_.close();
      return;
    }
    bytes.remove_prefix(size_t(written));
  }
}

void Relay::show(std::string_view line, bool full) {
  // A carriage return moves back to the start of the line, so the prefix is printed after it.
  std::string text;
  while (!begun_ && line.starts_with("\r") && line != "\r\n") text += "\r", line.remove_prefix(1);
  if (!begun_) text += prefix_;
  text += line;
  if (full) console_->put_line(fd_, this, text);
  else console_->put_part(fd_, this, text);
  begun_ = !full;
}

void Relay::take(std::string_view bytes) {
  keep(bytes);
  if (!printed_ || console_->loses()) return;
  if (prefix_.empty()) return console_->put(fd_, bytes);
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) {
      line_ += bytes;
      break;
    }
    line_ += bytes.substr(0, end + 1);
    bytes.remove_prefix(end + 1);
    show(line_, true);
    line_.clear();
  }
  for (; line_.size() > longest_line; line_.erase(0, longest_line)) show(line_.substr(0, longest_line) + "\n", true);
  // A progress bar redraws its line: on a terminal, partial lines are shown at once.
  if (console_->terminal(fd_) && (begun_ || line_.starts_with('\r'))) {
    const size_t last = line_.rfind('\r');
    if (last != std::string::npos) line_.erase(0, last), begun_ = false;
    if (!line_.empty()) show(line_, false);
    line_.clear();
  }
}

void Relay::finish() {
  if (!line_.empty() || begun_) show(line_ + "\n", true);
  line_.clear();
  file_.close();
}

std::string Relay::tail(int lines) const {
  std::string_view end = tail_;
  end = end.substr(end.size() - std::min(end.size(), kept));
  while (!end.empty() && (end.back() == '\n' || end.back() == '\r')) end.remove_suffix(1);
  size_t start = end.size();
  for (int i = 0; i < lines && start != std::string_view::npos; ++i)
    start = start == 0 ? std::string_view::npos : end.rfind('\n', start - 1);
  return std::string(start == std::string_view::npos ? end : end.substr(start + 1));
}

}  // namespace lockstep::dist
