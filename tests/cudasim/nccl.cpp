// A fake NCCL for ranks that are threads or processes on one machine. Unlike the real one, it compares the calls of the
// ranks and reports differences. Like the real one, its calls return at once, errors appear in ncclCommGetAsyncError,
// and a rank whose peers do not come waits until it is aborted. All communicators are non-blocking. They put some calls
// on their stream only after ncclCommGetAsyncError was called, as the real one does when it makes connections. Graphs
// that were recorded together must be replayed together (the real one may keep addresses of other ranks in them), and a
// communicator does not end while such a graph exists.
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/cudasim/nccl_world.h"
#include "tests/cudasim/runtime.h"

/// A communicator. Never freed, because work on a stream may still refer to it.
struct ncclComm {
  std::shared_ptr<fake::World> world;
  int rank = 0, size = 0, device = 0;
  std::atomic<uint64_t> done{0};  // collectives completed
  std::atomic<bool> is_inside{false};
  std::atomic<uint64_t> recorded{0};
  std::atomic<int> in_graphs{0};  // recorded calls whose graphs still exist
  uint64_t sent[fake::max_ranks] = {}, received[fake::max_ranks] = {};
  std::atomic<bool> aborted{false};
  std::atomic<int> error{ncclSuccess};
  std::string id;
  std::function<bool()> begin;    // returns true once all ranks have joined; then reset
  std::function<void()> pending;  // calls to be put on the stream after some queries
  int asked = 0;                  // queries since then
  uint64_t begun = 0;
  // Messages live as long as the communicator. ThreadSanitizer does not see a shared pointer count in these files, and
  // would take the end of one that a stream shares for a race.
  std::vector<std::shared_ptr<void>> kept;
};

namespace {

using namespace fake;

/// The text of ncclGetLastError(); refuse() sets it.
thread_local std::string last_error;
ncclResult_t refuse(ncclResult_t code, const std::string& why) { return last_error = why, code; }
/// True if the communicator was aborted or has failed.
bool is_over(const ncclComm* c) { return c->aborted || c->error != ncclSuccess || c->world->header().failed == 2; }
/// True once all ranks have joined.
bool is_there(ncclComm* c) {
  if (!c->begin) return true;
  const std::function<bool()> begin = c->begin;  // another thread may reset it
  if (!begin()) return false;
  c->begin = nullptr;
  return true;
}
/// True if the communicator is over, or if this holds for all its ranks.
template <class Fn> bool holds_for_all(const ncclComm* c, Fn holds) {
  for (int r = 0; r < c->size && !is_over(c); ++r)
    if (!holds(c->world->rank(r))) return false;
  return true;
}

std::atomic<int> injected{ncclSuccess};
std::atomic<int64_t> calls_until_failure{-1};  // -1: environment not read yet
std::atomic<bool> abort_hangs{false};

size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    default: return 8;
  }
}

/// A failure of the world makes the communicator fail on all ranks.
void note_failure(ncclComm* c) {
  if (c->world->header().failed == 2 && c->error == ncclSuccess) c->error = ncclRemoteError;
}
/// A call recorded in a graph.
struct Recorded {
  explicit Recorded(ncclComm* c) : comm(c), number(++c->recorded) { ++c->in_graphs; }
  ~Recorded() { --comm->in_graphs; }
  Recorded(const Recorded&) = delete;
  ncclComm* const comm;
  const uint64_t number;
  uint64_t others[max_ranks] = {};  // the numbers of the other ranks' calls, known from the first replay
};
/// A record of the call if the stream captures; nullptr if the call runs once.
std::shared_ptr<Recorded> recorded_on(cudaStream_t stream, ncclComm* c) {
  return find_stream(stream)->capture ? std::make_shared<Recorded>(c) : nullptr;
}
void until_graphs_are_gone(const ncclComm* c) {
  while (c->in_graphs > 0) {
    push_device(c->device);
    usleep(100);
  }
}

/// Blocks the stream of a failed communicator until it is aborted.
void hold(ncclComm* c, cudaStream_t stream) {
  enqueue(
      stream, [=] { note_failure(c); }, [=] { return c->aborted || !is_over(c); });
}

// --- groups: calls made inside are put on their streams at the end, in order; sends and receives of a communicator and
// stream form one step ---

struct Message {
  ncclComm* comm;
  cudaStream_t stream;
  bool sends;
  char* data;
  size_t bytes;
  int peer;
  uint64_t number;  // counts the messages with this peer and direction; assigned when the message starts
  int left;         // remaining steps; a send has two: it is posted, then consumed
};
thread_local int depth = 0;
thread_local std::vector<std::pair<ncclComm*, std::function<void()>>> begun;
thread_local std::vector<Message> messages;

// Puts messages on a stream. They run concurrently, but in order per peer and direction. A send ends when it has been
// received: two ranks that both send first and then receive deadlock, as with the real one.
void put_messages(std::vector<Message> some) {
  ncclComm* const c = some[0].comm;
  const cudaStream_t stream = some[0].stream;
  const auto owner = std::make_shared<std::vector<Message>>(std::move(some));
  std::vector<Message>* const all = owner.get();
  c->kept.push_back(owner);
  const auto box = [c](const Message& m) -> Mailbox& {
    return m.sends ? c->world->header().mail[c->rank][m.peer] : c->world->header().mail[m.peer][c->rank];
  };
  const auto may_go = [=](const Message& m) {
    if (m.left == 0) return false;
    const uint64_t posted = box(m).posted, consumed = box(m).consumed;
    return m.sends ? m.left == 2 ? consumed == m.number - 1 : consumed >= m.number
                   : posted >= m.number && consumed == m.number - 1;
  };
  const auto go = [=](Message& m) {
    --m.left;
    if (m.sends && m.left == 1) {
      std::memcpy(c->world->mail(c->rank, m.peer), m.data, m.bytes);
      box(m).bytes = m.bytes;
      simt::release(&box(m));
      box(m).posted = m.number;
    } else if (!m.sends) {
      simt::acquire(&box(m));
      if (box(m).bytes != m.bytes)
        c->world->fail("rank " + std::to_string(m.peer) + " sends " + std::to_string(box(m).bytes) + " bytes, rank " +
                       std::to_string(c->rank) + " receives " + std::to_string(m.bytes));
      else std::memcpy(m.data, c->world->mail(m.peer, c->rank), m.bytes);
      box(m).consumed = m.number;
    }
  };
  const auto is_done = [](const Message& m) { return m.left == 0; };
  size_t steps = 0;
  for (const Message& m : *all) steps += m.sends ? 2 : 1;
  enqueue(stream, [=, graph = recorded_on(stream, c)] {
    for (Message& m : *all) {
      m.number = ++(m.sends ? c->sent : c->received)[m.peer];
      m.left = m.sends ? 2 : 1;
    }
  });
  for (; steps > 0; --steps) {
    enqueue(
        stream,
        [=] {
          for (Message& m : *all)
            if (!is_over(c) && may_go(m)) go(m);
        },
        [=] {
          return is_over(c) || std::all_of(all->begin(), all->end(), is_done) ||
                 std::any_of(all->begin(), all->end(), may_go);
        });
  }
  hold(c, stream);
}

ncclResult_t check_comm(ncclComm* c, cudaStream_t stream) {
  if (!c) return refuse(ncclInvalidArgument, "the communicator is null");
  if (!is_there(c)) return refuse(ncclInProgress, "the communicator is still being made");
  if (c->error != ncclSuccess) return refuse(ncclResult_t(c->error.load()), "the communicator has failed");
  if (c->pending) return refuse(ncclInvalidArgument, "the communicator is still busy with its last call");
  if (!find_stream(stream) || find_stream(stream)->device != c->device)
    return refuse(ncclInvalidUsage, "the stream is not of the communicator's device");
  if (sticky() != cudaSuccess) return refuse(ncclUnhandledCudaError, "the device has failed");
  return ncclSuccess;
}

/// Puts a call on its stream; every fourth call is delayed.
ncclResult_t start(ncclComm* c, std::function<void()> fn) {
  if (c->begun++ % 4 != 0) {
    fn();
    return ncclSuccess;
  }
  c->pending = std::move(fn);
  c->asked = 0;
  return ncclInProgress;
}
/// Starts a call now, or at the end of the group.
ncclResult_t submit(ncclComm* c, std::function<void()> fn) {
  if (depth == 0) return start(c, std::move(fn));
  begun.emplace_back(c, std::move(fn));
  return ncclSuccess;
}
/// True if this is the collective that LOCKSTEP_FAKE_NCCL_FAIL lets fail.
bool fails_now() {
  if (calls_until_failure < 0) {
    const char* text = std::getenv("LOCKSTEP_FAKE_NCCL_FAIL");
    int64_t unknown = -1;
    calls_until_failure.compare_exchange_strong(unknown, text ? std::atol(text) : 0);
  }
  return calls_until_failure > 0 && --calls_until_failure == 0;
}

/// True if input and output are disjoint or in place: identical, or the smaller one at this rank's part of the larger
/// one. With any other overlap the real NCCL computes wrong results.
bool is_apart_or_in_place(const ncclComm& c, const char* in, size_t in_bytes, const char* out, size_t out_bytes) {
  if (in_bytes == 0 || out_bytes == 0 || in + in_bytes <= out || out + out_bytes <= in) return true;
  if (in_bytes == out_bytes) return in == out;
  return in_bytes < out_bytes ? in == out + size_t(c.rank) * in_bytes : out == in + size_t(c.rank) * out_bytes;
}

// A collective: each rank posts its data, waits until all have posted, and takes its result.
using Take = std::function<void(const std::vector<const char*>& parts)>;
ncclResult_t collective(const char* name, ncclComm* c, const void* in, size_t in_bytes, void* out, size_t out_bytes,
                        const std::string& what, cudaStream_t stream, Take take) {
  if (const ncclResult_t code = check_comm(c, stream); code != ncclSuccess) return code;
  if ((in_bytes > 0 && !is_inside(in, in_bytes)) || (out_bytes > 0 && !is_inside(out, out_bytes)))
    return refuse(ncclInvalidArgument, std::string(name) + ": expected memory of the device that is large enough");
  if (!is_apart_or_in_place(*c, static_cast<const char*>(in), in_bytes, static_cast<const char*>(out), out_bytes))
    return refuse(ncclInvalidArgument, std::string(name) + ": the input overlaps the output without being in place");
  if (in_bytes > max_collective) return refuse(ncclInternalError, "the fake NCCL supports at most 64 MiB per rank");
  const auto next_failure = [] { return fails_now() ? int(ncclInternalError) : injected.exchange(ncclSuccess); };
  const int failure = find_stream(stream)->capture ? int(ncclSuccess) : next_failure();
  CallText call{};
  std::snprintf(call.text, sizeof call.text, "%s %s", name, what.c_str());
  return submit(c, [=] {
    const std::shared_ptr<Recorded> graph = recorded_on(stream, c);
    enqueue(
        stream,
        [=] {
          if (const int now = graph ? next_failure() : failure; now != ncclSuccess) c->error = now;
          if (is_over(c)) return;
          if (c->is_inside.exchange(true))
            return c->world->fail("collectives of a communicator on two streams at once");
          RankState& own = c->world->rank(c->rank);
          own.call = call;
          own.call.recorded = graph ? graph->number : 0;
          if (in_bytes > 0) std::memcpy(c->world->data(c->rank), in, in_bytes);
          simt::release(&own.posted);
          own.posted = c->done + 1;
        },
        // waits until all ranks have consumed the previous data
        [=] { return holds_for_all(c, [&](const RankState& rank) { return rank.consumed >= c->done; }); });
    enqueue(
        stream,
        [=] {
          const uint64_t number = c->done + 1;
          std::vector<const char*> parts;
          for (int r = 0; r < c->size && !is_over(c); ++r) {
            simt::acquire(&c->world->rank(r).posted);
            const CallText& theirs = c->world->rank(r).call;
            const auto differ = [&](const std::string& own, const std::string& other) {
              c->world->fail("call " + std::to_string(number) + ": rank " + std::to_string(c->rank) + own + ", rank " +
                             std::to_string(r) + other);
            };
            if (std::strcmp(theirs.text, call.text) != 0)
              differ(std::string(" asks for ") + call.text, std::string(" for ") + theirs.text);
            else if ((theirs.recorded != 0) != bool(graph))
              differ(graph ? " replays a graph" : " calls", graph ? " calls" : " replays a graph");
            else if (graph && graph->others[r] != 0 && graph->others[r] != theirs.recorded)
              differ(" replays a graph", " one that was recorded with another");
            if (graph) graph->others[r] = theirs.recorded;
            parts.push_back(c->world->data(r));
          }
          if (!is_over(c)) take(parts);
          c->world->rank(c->rank).consumed = number;
          c->done = number;
          c->is_inside = false;
        },
        [=] { return holds_for_all(c, [&](const RankState& rank) { return rank.posted > c->done; }); });
    hold(c, stream);
  });
}

std::string printed(size_t count, ncclDataType_t type, const std::string& rest = "") {
  return std::to_string(count) + " of type " + std::to_string(int(type)) + rest;
}

// --- communicators ---

ncclComm* make() {
  static auto& all = *new std::vector<ncclComm*>;
  static SpinLock lock;
  const std::lock_guard guard(lock);
  return all.emplace_back(new ncclComm);
}

/// Joins the world; the communicator is ready when all ranks have joined.
void join(ncclComm* c) {
  RankState& own = c->world->rank(c->rank);
  own.device = c->device;
  own.process = getpid();
  if (own.joined.exchange(1) != 0) c->world->fail("rank " + std::to_string(c->rank) + " joined twice");
  c->begin = [c] {
    if (c->aborted || c->error != ncclSuccess) return true;
    for (int r = 0; r < c->size; ++r)
      if (!c->world->rank(r).joined) return false;
    World::close(c->id);
    for (int a = 0; a < c->size; ++a)
      for (int b = 0; b < a; ++b)
        if (c->world->rank(a).device == c->world->rank(b).device) {
          last_error = "Duplicate GPU detected: rank " + std::to_string(b) + " and rank " + std::to_string(a) +
                       " both on device " + std::to_string(c->world->rank(a).device);
          c->error = ncclInvalidUsage;
        }
    if (c->world->header().failed == 2) c->error = ncclInvalidUsage;
    return true;
  };
}

}  // namespace

namespace fake {
void inject_nccl_error(int code) { injected = code; }
void hang_nccl_abort(bool hangs) { abort_hangs = hangs; }
}  // namespace fake

extern "C" {

ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "NCCL operation in progress";
  }
}
const char* ncclGetLastError(ncclComm_t c) {
  if (c && c->world && c->world->header().failed == 2) return c->world->header().why;
  return last_error.c_str();
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  const std::string text = World::make();
  std::snprintf(id->internal, sizeof id->internal, "%s", text.c_str());
  return text.empty() ? ncclSystemError : ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  *comm = nullptr;
  if (size < 1 || size > max_ranks || rank < 0 || rank >= size)
    return refuse(ncclInvalidArgument, "expected a rank below the size, and at most 8 ranks");
  if (capturing) return refuse(ncclInvalidUsage, "a communicator cannot be made while the thread captures");
  if (!config || config->blocking != 0) return refuse(ncclInvalidArgument, "expected a non-blocking communicator");
  const auto world = World::open(id.internal);
  if (!world) return refuse(ncclSystemError, "the process that created the id has ended");
  int nobody = 0;
  if (!world->header().size.compare_exchange_strong(nobody, size) && nobody != size)
    return refuse(ncclInvalidArgument, "the ranks disagree on the size");
  ncclComm* c = make();
  c->world = world;
  c->id = id.internal;
  c->rank = rank;
  c->size = size;
  c->device = current_device();
  join(c);
  *comm = c;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t* code) {
  if (!c) return ncclInvalidArgument;
  if (!is_there(c) || (c->pending && ++c->asked < 3 && !is_over(c))) {
    *code = ncclInProgress;
    return ncclSuccess;
  }
  if (const auto fn = std::exchange(c->pending, nullptr); fn && !is_over(c)) fn();
  if (!is_there(c)) return *code = ncclInProgress, ncclSuccess;
  if (c->world) note_failure(c);
  *code = ncclResult_t(c->error.load());
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t c) { return c ? ncclSuccess : ncclInvalidArgument; }
ncclResult_t ncclCommDestroy(ncclComm_t c) {
  if (!c) return ncclInvalidArgument;
  if (c->begin || (c->world && is_over(c))) return ncclCommAbort(c);
  finish_device(c->device);
  until_graphs_are_gone(c);
  c->world.reset();
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t c) {
  if (!c) return ncclInvalidArgument;
  while (abort_hangs) usleep(1000);
  c->aborted = true;  // the communicator's work on streams gives up
  World::close(c->id);
  until_graphs_are_gone(c);
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() { return ++depth, ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  if (depth == 0) return refuse(ncclInvalidUsage, "no group was started");
  if (--depth > 0) return ncclSuccess;
  auto calls = std::exchange(begun, {});
  for (std::vector<Message> left = std::exchange(messages, {}); !left.empty();) {
    const auto same = [first = left[0]](const Message& m) { return m.comm == first.comm && m.stream == first.stream; };
    std::vector<Message> some;
    std::copy_if(left.begin(), left.end(), std::back_inserter(some), same);
    calls.emplace_back(some[0].comm, [some] { put_messages(some); });
    std::erase_if(left, same);
  }
  ncclResult_t result = ncclSuccess;
  while (!calls.empty()) {  // start the calls of one communicator together
    const auto others = std::stable_partition(calls.begin(), calls.end(),
                                              [c = calls[0].first](const auto& call) { return call.first == c; });
    const decltype(calls) own(calls.begin(), others);
    calls.erase(calls.begin(), others);
    if (start(own[0].first, [own] {
          for (const auto& [c, fn] : own) fn();
        }) != ncclSuccess)
      result = ncclInProgress;
  }
  return result;
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c,
                           cudaStream_t stream) {
  const size_t bytes = count * size_of(type);
  return collective("all_reduce", c, in, bytes, out, bytes, printed(count, type, " by " + std::to_string(int(op))),
                    stream, [=](const auto& parts) { reduce(type, parts, 0, count, op, out); });
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t c, cudaStream_t stream) {
  const size_t bytes = count * size_of(type);
  const bool takes = c && c->rank == root;
  return collective("reduce", c, in, bytes, out, takes ? bytes : 0,
                    printed(count, type, " by " + std::to_string(int(op)) + " to " + std::to_string(root)), stream,
                    [=](const auto& parts) {
                      if (takes) reduce(type, parts, 0, count, op, out);
                    });
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t c, cudaStream_t stream) {
  if (!c) return ncclInvalidArgument;
  const size_t bytes = count * size_of(type);
  return collective("reduce_scatter", c, in, bytes * size_t(c->size), out, bytes,
                    printed(count, type, " by " + std::to_string(int(op))), stream,
                    [=](const auto& parts) { reduce(type, parts, size_t(c->rank) * count, count, op, out); });
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t c,
                           cudaStream_t stream) {
  const size_t bytes = count * size_of(type);
  return collective("broadcast", c, in, c && c->rank == root ? bytes : 0, out, bytes,
                    printed(count, type, " from " + std::to_string(root)), stream,
                    [=](const auto& parts) { std::memcpy(out, parts[size_t(root)], bytes); });
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t stream) {
  if (!c) return ncclInvalidArgument;
  const size_t bytes = count * size_of(type);
  return collective("all_gather", c, in, bytes, out, bytes * size_t(c->size), printed(count, type), stream,
                    [=](const auto& parts) {
                      for (size_t r = 0; r < parts.size(); ++r)
                        std::memcpy(static_cast<char*>(out) + r * bytes, parts[r], bytes);
                    });
}

static ncclResult_t message(ncclComm* c, bool sends, void* data, size_t bytes, int peer, cudaStream_t stream) {
  if (const ncclResult_t code = check_comm(c, stream); code != ncclSuccess) return code;
  if (peer < 0 || peer >= c->size) return refuse(ncclInvalidArgument, "expected a peer below the size");
  if (bytes > max_message || (bytes > 0 && !is_inside(data, bytes)))
    return refuse(ncclInvalidArgument, "expected memory of the device that is large enough");
  const Message m{c, stream, sends, static_cast<char*>(data), bytes, peer, 0, 0};
  if (depth == 0) return start(c, [m] { put_messages({m}); });
  messages.push_back(m);
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t c,
                      cudaStream_t stream) {
  return message(c, true, const_cast<void*>(data), count * size_of(type), peer, stream);
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream) {
  return message(c, false, data, count * size_of(type), peer, stream);
}

}  // extern "C"
