#pragma once
// The file of a rank's trace, and how records are written into it. Not for users.
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "tensor/maker.h"
#include "trace/trace.h"

namespace lockstep::trace {

/// Chrome's trace format: an array of objects, one a line. Any thread may write.
class Sink {
 public:
  /// Error when the file cannot be made.
  Sink(std::string path, const Options& options);
  ~Sink();
  Sink(const Sink&) = delete;

  int rank() const { return options_.rank; }
  /// The number of a thread's or row's line; new ones are named.
  int row(uint64_t id, std::string_view name);
  /// Of threads of this name, one after another: a loader makes new ones every epoch.
  int named_row(const std::string& name);
  /// Of a thread that nobody named.
  int thread_row(uint64_t id);
  void complete(std::string_view name, Category category, int64_t number, int64_t begun, int64_t ended, const Arg* args,
                size_t count, int row);
  void counter(std::string_view name, const Arg* args, size_t count);
  void instant(std::string_view name, const Arg* args, size_t count, int row);
  void note(std::string_view name, std::string_view json);
  void flush();
  /// Ends the array. Nothing is taken after it.
  void close();

 private:
  void put(std::string_view record);  // without the comma
  void write_out();                   // under mutex_
  std::string time(int64_t ns) const;
  std::string fact(std::string_view name, int row, const std::string& args) const;

  const std::string path_;
  const Options options_;
  const Maker maker_;  // what a fork inherits is not written twice
  std::mutex mutex_;
  int file_ = -1;
  std::string held_;
  int64_t bytes_ = 0, written_at_ = 0;
  bool over_ = false;
  std::map<uint64_t, int> rows_;
  std::map<std::string, uint64_t> names_;
  int threads_ = 0;
};

/// With quotes; what is not UTF-8 becomes U+FFFD.
void append_quoted(std::string& out, std::string_view text);

}  // namespace lockstep::trace
