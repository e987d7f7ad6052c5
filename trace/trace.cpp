// Starting and stopping traces, and the row of each thread. See trace.h.
#include "trace/trace.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <vector>

#include "base/check.h"
#include "tensor/memory.h"
#include "tensor/observer.h"
#include "trace/sink.h"

namespace lockstep::trace {
namespace {

using SinkPtr = std::shared_ptr<Sink>;

struct Sinks {
  std::mutex mutex;
  std::vector<SinkPtr> all;
  std::atomic<uint64_t> generation{1};  // incremented by every change
};
// Never destroyed: threads may still record while static objects are destroyed. stop() or the end of the process writes
// what is buffered.
Sinks& sinks() {
  static const Maker owner;
  static Sinks* const made = [] {
    std::atexit([] {
      if (owner.is_here()) flush();
    });  // a forked child does not flush, because it may have inherited a locked mutex
    return new Sinks;
  }();
  return *made;
}

std::atomic<uint64_t> next_row{1};

struct Thread {
  int rank = -1;
  std::string name;
  const uint64_t id = next_row.fetch_add(1, std::memory_order_relaxed);
  // Cached sink and row of this thread's rank and name. Valid while `generation` equals Sinks::generation.
  uint64_t generation = 0;
  SinkPtr sink;
  int row = 0;
  void become(int rank_, const std::string& name_) { rank = rank_, name = name_, generation = 0, sink.reset(); }
};
Thread& thread() {
  thread_local Thread mine;
  return mine;
}

/// The sink that writes the trace of a rank; for rank -1 the sink of the process if it has only one.
SinkPtr find(int rank) {
  Sinks& s = sinks();
  const std::lock_guard lock(s.mutex);
  if (rank < 0) return s.all.size() == 1 ? s.all[0] : nullptr;
  const auto found = std::find_if(s.all.begin(), s.all.end(), [&](const SinkPtr& one) { return one->rank() == rank; });
  return found == s.all.end() ? nullptr : *found;
}

/// The sink that this thread's records go to, or null if no trace of its rank is being written.
Sink* here() {
  Thread& t = thread();
  const uint64_t generation = sinks().generation.load(std::memory_order_acquire);
  if (t.generation != generation) {
    t.sink = find(t.rank);
    t.generation = generation;
    if (t.sink) t.row = t.name.empty() ? t.sink->thread_row(t.id) : t.sink->named_row(t.name);
  }
  return t.sink.get();
}

Sink* here_if_on() { return on() ? here() : nullptr; }

constexpr KernelObserver observer{.begin = []() noexcept { return now(); },
                                  .end =
                                      [](const char* kernel, int64_t begun) noexcept {
                                        try {
                                          record(kernel, Category::operation, begun, now());
                                        } catch (...) {}  // out of memory: the record is dropped
                                      }};

std::string file_of(const std::string& path, const TraceOptions& o) {
  if (!path.ends_with(".json")) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    LOCKSTEP_CHECK(!error && std::filesystem::is_directory(path), "[trace] cannot create the folder ", path, ": ",
                   error ? error.message() : "it is a file", "; choose another folder");
    return str(path, "/rank-", o.rank, ".json");
  }
  LOCKSTEP_CHECK(o.ranks == 1, "[trace] expected a folder for the traces of ", o.ranks, " ranks, got the file ", path,
                 "; `lockstep trace merge FOLDER` makes one file of them");
  return path;
}

}  // namespace

std::string_view name_of(Category category) {
  constexpr std::string_view names[] = {"step",     "forward",   "backward", "operation",  "collective", "wait",
                                        "pipeline", "optimizer", "data",     "checkpoint", "evaluation", "other"};
  static_assert(std::size(names) == categories);
  return names[size_t(category)];
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Track::Track(std::string name, int rank)
    : name_(std::move(name)), rank_(rank), id_(next_row.fetch_add(1, std::memory_order_relaxed)) {}

void start(const std::string& path, const TraceOptions& asked) {
  LOCKSTEP_CHECK(!path.empty(), "[trace] expected a folder or a file, got an empty path");
  LOCKSTEP_CHECK(asked.rank >= 0 && asked.rank < asked.ranks, "[trace] expected a rank from 0 to ", asked.ranks - 1,
                 ", got ", asked.rank);
  LOCKSTEP_CHECK(asked.limit_bytes >= 1 << 16, "[trace] expected a limit of ", 1 << 16, " bytes or more, got ",
                 asked.limit_bytes);
  LOCKSTEP_CHECK(!find(asked.rank), "[trace] rank ", asked.rank, " is already being traced; call stop() first");
  TraceOptions o = asked;
  if (o.zero_ns == 0) o.zero_ns = now() + o.offset_ns;
  if (o.run == 0)
    o.run = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
                .count();
  auto sink = std::make_shared<Sink>(file_of(path, o), o);
  thread().become(o.rank, "main");
  Sinks& s = sinks();
  {
    const std::lock_guard lock(s.mutex);
    s.all.push_back(std::move(sink));
    s.generation.fetch_add(1, std::memory_order_release);
    if (detail::active.fetch_add(1) == 0) kernel_observer = &observer;
  }
  here();  // gives this thread the first row
}

void stop() {
  Thread& t = thread();
  SinkPtr mine = find(t.rank);
  if (!mine) return;
  Sinks& s = sinks();
  {
    const std::lock_guard lock(s.mutex);
    if (std::erase(s.all, mine) == 0) return;
    s.generation.fetch_add(1, std::memory_order_release);
    if (detail::active.fetch_sub(1) == 1) kernel_observer = nullptr;
  }
  mine->close();  // other threads may still hold it; their records are dropped
  t.become(-1, "");
}

void Scope::begin(std::string_view name, Category category, Args args, int64_t number) {
  begun_ = now();
  number_ = number;
  name_ = name;
  category_ = category;
  count_ = uint8_t(std::min(args.size(), max_args));
  std::copy_n(args.begin(), count_, args_.begin());
}

void Scope::end() noexcept {
  try {
    if (Sink* const sink = here())
      sink->complete(name_, category_, number_, begun_, now(), args_.data(), count_, thread().row);
  } catch (...) {}  // out of memory: the record is dropped
}

void record(std::string_view name, Category category, int64_t begun, int64_t ended, Args args, const Track* row) {
  if (!on()) return;
  SinkPtr of_row = row ? find(row->rank()) : nullptr;
  if (row && !of_row) of_row = find(-1);  // start() was not told the row's rank: use the only trace
  if (Sink* const sink = row ? of_row.get() : here())
    sink->complete(name, category, -1, begun, ended, args.begin(), std::min(args.size(), max_args),
                   row ? sink->row(row->id(), row->name()) : thread().row);
}

void counter(std::string_view name, Args values) {
  if (Sink* const sink = here_if_on()) sink->counter(name, values.begin(), values.size());
}

void instant(std::string_view name, Args args) {
  if (Sink* const sink = here_if_on()) sink->instant(name, args.begin(), args.size(), thread().row);
}

void note(std::string_view name, std::string_view json) {
  if (Sink* const sink = here_if_on()) sink->note(name, json);
}

void memory(Device device) {
  Sink* const sink = here_if_on();
  if (!sink) return;
  const MemoryReport report = memory_report(device);
  std::array<Arg, memory_categories> held, peak;
  for (size_t i = 0; i < held.size(); ++i) {
    const char* const key = name_of(Memory(i)).data();  // a literal, so zero-terminated
    held[i] = {key, report.category[i].current}, peak[i] = {key, report.category[i].peak};
  }
  sink->counter("memory", held.data(), held.size());
  sink->counter("memory, most so far", peak.data(), peak.size());
}

void flush() {
  std::vector<SinkPtr> all;
  {
    Sinks& s = sinks();
    const std::lock_guard lock(s.mutex);
    all = s.all;
  }
  for (const SinkPtr& sink : all) sink->flush();
}

Step::~Step() {
  if (!on()) return;
  memory(device_);
  flush();
}

int rank_of_thread() { return thread().rank; }

ThreadScope::ThreadScope(int rank, const char* name) { thread().become(rank, name); }
ThreadScope::~ThreadScope() { thread().become(-1, ""); }

}  // namespace lockstep::trace
