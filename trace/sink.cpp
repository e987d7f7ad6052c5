// Writes records in Chrome's trace format. See sink.h.
#include "trace/sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/output_file.h"
#include "base/printable.h"

namespace lockstep::trace {
namespace {

// The buffer is written to the file when it holds this many bytes, or after longest_held.
constexpr size_t max_held = 64 << 10;
constexpr int64_t longest_held = 1'000'000'000;  // nanoseconds
constexpr int64_t kept_free = 4 << 10;           // bytes of the limit, reserved for the last record and the file's end

void append(std::string& out, auto number) {
  char text[40];
  out.append(text, std::to_chars(text, text + sizeof text, number).ptr);
}

/// Appends a time in microseconds, the unit of the format.
void append_time(std::string& out, int64_t ns) {
  append(out, ns / 1000);
  out += {'.', char('0' + ns % 1000 / 100), char('0' + ns % 100 / 10), char('0' + ns % 10)};
}

std::string quoted(std::string_view text) {
  std::string out;
  append_quoted(out, text);
  return out;
}

void append_args(std::string& out, const Arg* args, size_t count) {
  if (count == 0) return;
  out += ",\"args\":{";
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out += ',';
    append_quoted(out, args[i].key);
    out += ':';
    if (const auto* number = std::get_if<int64_t>(&args[i].value)) append(out, *number);
    else if (const auto* real = std::get_if<double>(&args[i].value))
      std::isfinite(*real) ? append(out, *real) : void(out += "null");
    else append_quoted(out, std::get<std::string_view>(args[i].value));
  }
  out += '}';
}

}  // namespace

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    const char c = text[at];
    if (length == 0) {
      out += "\\ufffd";
      ++at;
      continue;
    }
    if (c == '"' || c == '\\') (out += '\\') += c;
    else if (length == 1 && (uint8_t(c) < 0x20 || c == 0x7f)) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", unsigned(uint8_t(c)));
      out += code;
    } else {
      out.append(text.substr(at, length));
    }
    at += length;
  }
  out += '"';
}

std::string Sink::time(int64_t ns) const {
  const int64_t at = ns + options_.offset_ns - options_.zero_ns;
  std::string text = at < 0 ? "-" : "";
  append_time(text, std::abs(at));
  return text;
}

/// A metadata record of Chrome's trace format, such as the name of a row.
std::string Sink::fact(std::string_view name, int row, const std::string& args) const {
  return str("{\"name\":\"", name, "\",\"ph\":\"M\",\"pid\":", rank(), ",\"tid\":", row, ",\"args\":{", args, "}}");
}

Sink::Sink(std::string path, const TraceOptions& options) : path_(std::move(path)), options_(options) {
  file_ = open_output(path_, O_TRUNC, "[trace] ");
  held_ = "[\n";
  put(fact("process_name", 0, str("\"name\":\"rank ", rank(), "\"")));
  put(fact("process_sort_index", 0, str("\"sort_index\":", rank())));
  put(fact(
      "trace", 0,
      str("\"format\":\"lockstep-trace-1\",\"rank\":", rank(), ",\"ranks\":", options_.ranks, ",\"run\":", options_.run,
          ",\"process\":", int(getpid()), ",\"offset_ns\":", options_.offset_ns, ",\"error_ns\":", options_.error_ns)));
  flush();
}

Sink::~Sink() { close(); }

int Sink::row(uint64_t id, std::string_view name) {
  int number = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto [found, fresh] = rows_.try_emplace(id, int(rows_.size()));
    number = found->second;
    if (!fresh) return number;
  }
  put(fact("thread_name", number, "\"name\":" + quoted(name)));
  put(fact("thread_sort_index", number, str("\"sort_index\":", number)));
  return number;
}

int Sink::named_row(const std::string& name) {
  uint64_t id;
  {
    const std::lock_guard lock(mutex_);
    id = names_.try_emplace(name, uint64_t(-1) - names_.size()).first->second;  // counts down: thread ids count up
  }
  return row(id, name);
}

int Sink::thread_row(uint64_t id) {
  int count;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = rows_.find(id); found != rows_.end()) return found->second;
    count = ++threads_;
  }
  return row(id, str("thread ", count));
}

void Sink::complete(std::string_view name, Category category, int64_t number, int64_t begun, int64_t ended,
                    const Arg* args, size_t count, int row) {
  thread_local std::string record;  // keeps its capacity between calls
  record.assign("{\"name\":");
  append_quoted(record, name);
  if (number >= 0) {
    record.back() = ' ';
    append(record, number);
    record += '"';
  }
  record += ",\"cat\":\"";
  record += name_of(category);
  record += "\",\"ph\":\"X\",\"ts\":";
  record += time(begun);
  record += ",\"dur\":";
  append_time(record, std::max<int64_t>(0, ended - begun));
  record += ",\"pid\":";
  append(record, rank());
  record += ",\"tid\":";
  append(record, row);
  append_args(record, args, count);
  record += '}';
  put(record);
}

void Sink::counter(std::string_view name, const Arg* args, size_t count) {
  std::string record =
      str("{\"name\":", quoted(name), ",\"ph\":\"C\",\"ts\":", time(now()), ",\"pid\":", rank(), ",\"tid\":0");
  append_args(record, args, count);
  put(record + "}");
}

void Sink::instant(std::string_view name, const Arg* args, size_t count, int row) {
  std::string record = str("{\"name\":", quoted(name), ",\"ph\":\"i\",\"s\":\"t\",\"ts\":", time(now()),
                           ",\"pid\":", rank(), ",\"tid\":", row);
  append_args(record, args, count);
  put(record + "}");
}

void Sink::note(std::string_view name, std::string_view json) {
  std::string record = str("{\"name\":", quoted(name), ",\"ph\":\"M\",\"pid\":", rank(),
                           ",\"tid\":0,\"ts\":", time(now()), ",\"args\":");
  (record += json) += '}';
  for (char& c : record)
    if (c == '\n') c = ' ';  // one line per record
  put(record);
  flush();
}

void Sink::put(std::string_view record) {
  const std::lock_guard lock(mutex_);
  if (over_) return;
  if (bytes_ + int64_t(record.size()) > options_.limit_bytes - kept_free) {
    over_ = true;
    held_ +=
        str("{\"name\":\"trace limit of ", options_.limit_bytes,
            " bytes reached\",\"ph\":\"i\",\"s\":\"g\",\"ts\":", time(now()), ",\"pid\":", rank(), ",\"tid\":0},\n");
    write_out();
    std::fprintf(stderr, "[trace] %s reached its limit of %lld bytes; the run continues without tracing\n",
                 path_.c_str(), static_cast<long long>(options_.limit_bytes));
    return;
  }
  bytes_ += int64_t(record.size()) + 2;
  held_ += record;
  held_ += ",\n";
  if (held_.size() >= max_held || now() - written_at_ > longest_held) write_out();
}

void Sink::write_out() {
  written_at_ = now();
  const char* data = held_.data();
  size_t left = file_ >= 0 && maker_.is_here() ? held_.size() : 0;
  while (left > 0) {
    const ssize_t done = write(file_, data, left);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) {
      over_ = true;
      std::fprintf(stderr, "[trace] cannot write %s: %s; the run continues without tracing\n", path_.c_str(),
                   std::strerror(errno));
      break;
    }
    data += done;
    left -= size_t(done);
  }
  held_.clear();
}

void Sink::flush() {
  const std::lock_guard lock(mutex_);
  if (!over_) write_out();
}

void Sink::close() {
  const std::lock_guard lock(mutex_);
  if (file_ < 0) return;
  if (!over_) held_ += fact("trace ends", 0, "\"whole\":true") + "\n]\n", write_out();
  over_ = true;
  ::close(file_);
  file_ = -1;
}

}  // namespace lockstep::trace
