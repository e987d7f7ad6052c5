#pragma once
// A timeline of a run: what every thread of every rank did and when, in Chrome's trace format, which
// https://ui.perfetto.dev shows.
//
//   trace::start("traces");                                    // traces/rank-0.json; a run of several ranks:
//   dist::start_trace() { const trace::Scope scope("load"); ... }                  // on top of what Lockstep itself
//   notes: operations, collectives, steps, ... trace::counter("queue", {{"batches", 3}}); trace::stop();
//
// While no trace is written a scope costs one relaxed load. Records are written as they end, so memory does not grow,
// and a file whose process was killed is whole but for the last second: Chrome's format needs no end.
#include <array>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "tensor/device.h"

namespace lockstep::trace {

/// What a record is about; readers of traces group by it.
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
  other
};
inline constexpr int categories = int(Category::other) + 1;
std::string_view name_of(Category category);

/// A value beside a record. Keys live for ever, texts as long as the scope; what is not UTF-8 becomes U+FFFD.
struct Arg {
  Arg(const char* key, std::integral auto value) : key(key), value(int64_t(value)) {}
  Arg(const char* key, double value) : key(key), value(value) {}
  Arg(const char* key, std::string_view value) : key(key), value(value) {}
  Arg(const char* key, const char* value) : key(key), value(std::string_view(value)) {}
  Arg() = default;
  const char* key = "";
  std::variant<int64_t, double, std::string_view> value;
};
using Args = std::initializer_list<Arg>;
inline constexpr size_t most_args = 6;  ///< more are dropped

/// A row of its own for what is not the work of one thread: the collectives of a group. Cheap; shown when something is
/// on it.
class Row {
 public:
  /// `rank`: of the job, for a process with several.
  explicit Row(std::string name, int rank = -1);
  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  uint64_t id() const { return id_; }

 private:
  std::string name_;
  int rank_;
  uint64_t id_;
};

struct Options {
  int rank = 0, ranks = 1;
  int64_t offset_ns = 0;                   ///< what makes this machine's monotonic clock that of rank 0
  int64_t error_ns = 0;                    ///< how wrong that may be
  int64_t zero_ns = 0;                     ///< time 0 of the trace, on rank 0's clock; 0: now
  int64_t run = 0;                         ///< a number that the files of one run share; 0: made up
  int64_t limit_bytes = int64_t(1) << 30;  ///< of the file: then recording ends, with a notice
};

/// Starts the trace of a rank, and makes this thread its main one. `path`: a folder, made if need be, that gets
/// rank-N.json; or, of a run of one rank, a file that ends in .json. Error when that cannot be written, or the rank has
/// a trace already.
void start(const std::string& path, const Options& options = {});
/// Ends the trace of this thread's rank. Nothing if there is none. A disk that was full was said when it happened.
void stop();

namespace detail {
inline constinit std::atomic<int> active{0};  // ranks of this process that are traced
}
/// Whether anything is recorded.
inline bool on() { return detail::active.load(std::memory_order_relaxed) > 0; }
/// Nanoseconds of this machine's monotonic clock.
int64_t now();

/// A record from here to the end of the scope, on this thread's row. `number` (0 or more) becomes a part of the name:
/// "forward 3".
class Scope {
 public:
  explicit Scope(std::string_view name, Category category = Category::other, Args args = {}, int64_t number = -1) {
    if (on()) [[unlikely]]
      begin(name, category, args, number);
  }
  ~Scope() {
    if (begun_ >= 0) [[unlikely]]
      end();
  }
  Scope(const Scope&) = delete;
  /// One more value, known only now.
  void add(const Arg& arg) {
    if (begun_ >= 0 && count_ < most_args) args_[count_++] = arg;
  }

 private:
  void begin(std::string_view name, Category category, Args args, int64_t number);
  void end() noexcept;
  int64_t begun_ = -1, number_;
  std::string_view name_;
  Category category_;
  uint8_t count_;
  std::array<Arg, most_args> args_;
};

/// One step of training. At its end it notes the memory ledger of `device`, and writes what is held back.
class Step {
 public:
  explicit Step(int64_t number, Device device = cpu)
      : device_(device), scope_("step", Category::step, {{"step", number}}, number) {}
  ~Step();

 private:
  const Device device_;
  Scope scope_;
};

/// A record that is over. `row`: null for this thread's.
void record(std::string_view name, Category category, int64_t begun_ns, int64_t ended_ns, Args args = {},
            const Row* row = nullptr);
/// Curves over time: every value is one.
void counter(std::string_view name, Args values);
/// A moment.
void instant(std::string_view name, Args args = {});
/// Facts about the run: `json` is an object; `name` says which, as "settings". Readers of traces find them.
void note(std::string_view name, std::string_view json);
/// Curves of the memory ledger: bytes held, and the most that were.
void memory(Device device = cpu);
/// Writes what is held back.
void flush();

/// Whose work a thread does; -1: nobody said, then it is that of the only rank of the process.
int rank_of_thread();
/// For a thread that a rank starts: `rank` is rank_of_thread() of who starts it. Threads of one name, which may not run
/// at the same time, share a row;
/// "" gives one to each.
class ThreadScope {
 public:
  ThreadScope(int rank, const char* name);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
};

}  // namespace lockstep::trace
