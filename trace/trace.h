#pragma once
// A timeline of a run: what every thread of every rank did and when, in Chrome's trace format. View it with
// https://ui.perfetto.dev.
//
//   trace::start("traces");                    // writes traces/rank-0.json; with several ranks: dist::start_trace()
//   { const trace::Scope scope("load"); ... }  // in addition to Lockstep's own operations, collectives, steps, ...
//   trace::counter("queue", {{"batches", 3}});
//   trace::stop();
//
// While no trace is written, a scope costs one relaxed atomic load. Records go to the file during the run, so memory
// does not grow. The file of a killed process lacks at most its last second: Chrome's format needs no end.
#include <array>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "tensor/device.h"

namespace lockstep::trace {

/// The subject of a record. Readers of traces group records by it.
enum class Category : uint8_t {
  step,
  forward,
  backward,
  operation,
  collective,
  wait,
  pipeline,
  optimizer,
  data,
  checkpoint,
  evaluation,
  other
};
inline constexpr int categories = int(Category::other) + 1;  ///< number of categories
std::string_view name_of(Category category);                 ///< name of the category in the file

/// A value attached to a record. The key must be a literal; a text must live as long as the scope. Bytes that are not
/// UTF-8 become U+FFFD.
struct Arg {
  /// An integer.
  Arg(const char* key, std::integral auto value) : key(key), value(int64_t(value)) {}
  /// A number.
  Arg(const char* key, double value) : key(key), value(value) {}
  /// A text.
  Arg(const char* key, std::string_view value) : key(key), value(value) {}
  Arg(const char* key, const char* value) : key(key), value(std::string_view(value)) {}  ///< a text
  Arg() = default;
  const char* key = "";
  std::variant<int64_t, double, std::string_view> value;
};
using Args = std::initializer_list<Arg>;  ///< values attached to a record
inline constexpr size_t max_args = 6;     ///< most values of a record; further values are dropped

/// A row for work that does not belong to one thread, such as the collectives of a group. A row on which nothing is
/// recorded is not shown.
class Track {
 public:
  /// `rank`: the rank that the row belongs to, needed in processes that run several ranks.
  explicit Track(std::string name, int rank = -1);
  const std::string& name() const { return name_; }  ///< label of the row
  int rank() const { return rank_; }                 ///< -1 if not given
  uint64_t id() const { return id_; }                ///< unique in the process

 private:
  std::string name_;
  int rank_;
  uint64_t id_;
};

/// Options of start().
struct TraceOptions {
  /// This rank, and the number of ranks of the job.
  int rank = 0, ranks = 1;
  int64_t offset_ns = 0;                   ///< add it to this machine's monotonic clock to get rank 0's
  int64_t error_ns = 0;                    ///< error bound of offset_ns
  int64_t zero_ns = 0;                     ///< time 0 of the trace, on rank 0's clock; 0: now
  int64_t run = 0;                         ///< id common to the files of one run; 0: derived from the time
  int64_t limit_bytes = int64_t(1) << 30;  ///< file size after which recording ends, with a warning
};

/// Starts the trace of a rank, with this thread as the main thread. `path`: a folder for rank-N.json, created if
/// needed; with one rank also a file name ending in .json. Error if the file cannot be written, or if the rank already
/// has a trace.
void start(const std::string& path, const TraceOptions& options = {});
/// Ends the trace of this thread's rank, if there is one. Write errors were reported when they occurred.
void stop();

namespace detail {
inline constinit std::atomic<int> active{0};  // number of traced ranks in this process
}
/// True while some rank of this process is traced.
inline bool on() { return detail::active.load(std::memory_order_relaxed) > 0; }
/// Nanoseconds of this machine's monotonic clock.
int64_t now();

/// Records the time from here to the end of the scope, on this thread's row. A `number` >= 0 is appended to the name:
/// "forward 3".
class Scope {
 public:
  /// Begins the record, if tracing is on.
  explicit Scope(std::string_view name, Category category = Category::other, Args args = {}, int64_t number = -1) {
    if (on()) [[unlikely]]
      begin(name, category, args, number);
  }
  ~Scope() {
    if (begun_ >= 0) [[unlikely]]
      end();
  }
  Scope(const Scope&) = delete;
  /// Attaches a value that was not known at the beginning.
  void add(const Arg& arg) {
    if (begun_ >= 0 && count_ < max_args) args_[count_++] = arg;
  }

 private:
  void begin(std::string_view name, Category category, Args args, int64_t number);
  void end() noexcept;
  int64_t begun_ = -1, number_;
  std::string_view name_;
  Category category_;
  uint8_t count_;
  std::array<Arg, max_args> args_;
};

/// One training step. At its end it records the memory ledger of `device` and flushes the buffers.
class Step {
 public:
  /// Begins the record of step `number`.
  explicit Step(int64_t number, Device device = cpu)
      : device_(device), scope_("step", Category::step, {{"step", number}}, number) {}
  ~Step();

 private:
  const Device device_;
  Scope scope_;
};

/// Records a finished span. `row`: null for this thread's row.
void record(std::string_view name, Category category, int64_t begun_ns, int64_t ended_ns, Args args = {},
            const Track* row = nullptr);
/// Adds a point, at this moment, to the curve of each value.
void counter(std::string_view name, Args values);
/// Records an event at this moment.
void instant(std::string_view name, Args args = {});
/// Records facts about the run that readers of traces look up: `name` is the key (e.g. "settings"), `json` an object.
void note(std::string_view name, std::string_view json);
/// Records a point of each curve of the memory ledger: bytes allocated, and their peak, per category.
void memory(Device device = cpu);
/// Writes all buffers to the files.
void flush();

/// The rank that this thread works for; -1: not set. Records of a thread without a rank go to the process's trace if it
/// has only one.
int rank_of_thread();
/// For threads started by a rank: pass rank_of_thread() of the starting thread. Threads with the same name share a row
/// and must not run at the same time. With the name "" each thread has its own row.
class ThreadScope {
 public:
  ThreadScope(int rank, const char* name);  ///< sets rank and name until the destructor
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
};

}  // namespace lockstep::trace
