#pragma once
// Writes records to the trace file of a rank. Not for users.
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "tensor/maker.h"
#include "trace/trace.h"

namespace lockstep::trace {

/// A file in Chrome's trace format: an array of objects, one per line. Thread-safe.
class Sink {
 public:
  /// Creates the file and writes its head. Error if it cannot be created.
  Sink(std::string path, const TraceOptions& options);
  ~Sink();
  Sink(const Sink&) = delete;

  int rank() const { return options_.rank; }  ///< the rank whose trace this is
  /// Number of the timeline row of a thread or trace::Track, given its id. Names the row `name` on its first use.
  int row(uint64_t id, std::string_view name);
  /// Row shared by all threads with this name, such as those that a data loader starts anew in every epoch.
  int named_row(const std::string& name);
  /// Row of a thread without a name.
  int thread_row(uint64_t id);
  /// Writes a span from `begun` to `ended` (ns). `number` >= 0 is appended to the name.
  void complete(std::string_view name, Category category, int64_t number, int64_t begun, int64_t ended, const Arg* args,
                size_t count, int row);
  void counter(std::string_view name, const Arg* args, size_t count);  ///< writes a point of each curve in `args`
  void instant(std::string_view name, const Arg* args, size_t count, int row);  ///< writes an event at this moment
  void note(std::string_view name, std::string_view json);  ///< writes a metadata record; `json` is an object
  void flush();                                             ///< writes the buffer to the file
  /// Ends the array and closes the file. Later records are dropped.
  void close();

 private:
  void put(std::string_view record);  // buffers a record and adds the comma after it
  void write_out();                   // writes the buffer to the file; the caller holds mutex_
  std::string time(int64_t ns) const;
  std::string fact(std::string_view name, int row, const std::string& args) const;

  const std::string path_;
  const TraceOptions options_;
  const Maker maker_;  // a forked child must not write the buffer that it inherited
  std::mutex mutex_;
  int file_ = -1;
  std::string held_;
  int64_t bytes_ = 0, written_at_ = 0;
  bool over_ = false;
  std::map<uint64_t, int> rows_;
  std::map<std::string, uint64_t> names_;
  int threads_ = 0;
};

/// Appends `text` as a JSON string with quotes. Bytes that are not UTF-8 become U+FFFD.
void append_quoted(std::string& out, std::string_view text);

}  // namespace lockstep::trace
