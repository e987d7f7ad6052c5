#include "dist/executor.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "dist/plan.h"
#include "tensor/memory.h"
#include "tensor/ops.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t block_bytes = 64 << 10;  // ranks must agree on it: it orders the streams. A multiple of every element

/// Walks the transfers of one stream in the order of waves.
struct Cursor {
  std::span<const uint32_t> list;
  size_t low = 0, at = 0;  // list[low ..] may still have blocks; list[at] is next in this wave
  int64_t wave = 0;
  size_t block = 0;        // of list[at]

  /// Moves to the first block from (wave, at) on; false at the end. max_blocks: of the longest chunk.
  bool find(const std::vector<Plan::Item>& items, const std::vector<size_t>& size, int64_t max_blocks) {
    for (;;) {
      while (low < list.size() && wave - items[list[low]].step >= max_blocks) ++low;
      if (low == list.size()) return false;
      at = std::max(at, low);
      wave = std::max<int64_t>(wave, items[list[low]].step);
      for (; at < list.size() && items[list[at]].step <= wave; ++at) {
        block = size_t(wave - items[list[at]].step);
        if (block * block_bytes < size[list[at]]) return true;
      }
      ++wave;
      at = low;
    }
  }
};

/// One direction between this rank and a peer.
struct Stream {
  Cursor cursor;
  Header header;
  uint32_t crc = 0;
  size_t header_done = 0, trailer_done = 0;
  bool has_trailer = false, has_block = false, finished = true;
};

struct Link {
  Channel* channel = nullptr;
  int world_rank = -1;
  Stream out, in;       // in.header: what is expected
  Header theirs;        // as it arrives
  uint32_t their_crc = 0;
};

// Kept from call to call, so that a small collective allocates nothing.
struct Workspace {
  std::vector<size_t> done, size;          // bytes, by item
  std::vector<std::byte*> source, target;  // by item
  std::vector<std::byte*> memory;          // by place
  std::vector<size_t> length;              // by place
  std::vector<Link> links;                 // by peer
};

class Executor {
 public:
  Executor(const Execution& execution, const Plan& plan, Workspace& workspace) : e_(execution), plan_(plan), w_(workspace), element_(size_t(size_of(e_.dtype))) { prepare(); }

  Moved run() {
    for (int quiet = 0;;) {
      size_t moved = 0;
      bool open = false;
      for (Link& link : w_.links) {
        if (!link.out.finished) { moved += send(link); open = true; }
        if (!link.in.finished) { moved += receive(link); open = true; }
      }
      for (const uint32_t index : plan_.locals) {
        if (w_.done[index] == w_.size[index]) continue;
        moved += work_locally(index);
        open = true;
      }
      if (!open) return moved_;
      if (moved > 0) quiet = 0; else wait(quiet++);
    }
  }

  /// What the call is, for messages.
  std::string what() const { return e_.describe ? *e_.describe : std::string(name_of(Collective(e_.header.kind))); }

 private:
  void prepare() {
    const size_t items = plan_.items.size(), places = plan_.places.size();
    size_t longest = 0, scratch = 0;
    const auto aligned = [](size_t bytes) { return (bytes + 63) / 64 * 64; };
    w_.memory.assign(places, nullptr);
    w_.length.resize(places);
    for (size_t p = 0; p < places; ++p) {
      const Place& place = plan_.places[p];
      w_.length[p] = e_.chunk_bytes(place.chunk);
      longest = std::max(longest, w_.length[p]);
      LOCKSTEP_CHECK(w_.length[p] % element_ == 0, "[", what(), "] expected whole elements of ", element_, " bytes, got a chunk of ", w_.length[p], " bytes");
      if (place.slot > 0) { scratch += aligned(w_.length[p]); continue; }
      const auto memory = e_.memory(place.chunk);
      LOCKSTEP_CHECK(memory.size() == w_.length[p], "[", what(), "] expected ", w_.length[p], " bytes of memory for chunk ", place.chunk, ", got ", memory.size());
      w_.memory[p] = memory.data();
    }
    if (scratch > 0) {
      const MemoryScope scope(Memory::communication);
      scratch_ = empty({int64_t(scratch)}, {.dtype = u8, .device = cpu});
      std::byte* next = scratch_.storage()->data();
      for (size_t p = 0; p < places; ++p) if (plan_.places[p].slot > 0) { w_.memory[p] = next; next += aligned(w_.length[p]); }
    }
    max_blocks_ = int64_t((longest + block_bytes - 1) / block_bytes);

    w_.done.assign(items, 0);
    w_.size.resize(items);
    w_.source.assign(items, nullptr);
    w_.target.assign(items, nullptr);
    for (size_t i = 0; i < items; ++i) {
      const Plan::Item& item = plan_.items[i];
      if (item.source >= 0) { w_.source[i] = w_.memory[size_t(item.source)]; w_.size[i] = w_.length[size_t(item.source)]; }
      if (item.target < 0) continue;
      LOCKSTEP_CHECK(item.source < 0 || w_.length[size_t(item.target)] == w_.size[i], "[", what(), "] expected chunks of one length in a transfer, got ",
                     w_.size[i], " and ", w_.length[size_t(item.target)], " bytes");
      w_.target[i] = w_.memory[size_t(item.target)];
      w_.size[i] = w_.length[size_t(item.target)];
    }

    LOCKSTEP_CHECK(plan_.peers.empty() || e_.transport, "[", what(), "] expected a transport to reach other ranks, got none");
    w_.links.resize(plan_.peers.size());
    for (size_t p = 0; p < plan_.peers.size(); ++p) {
      const Plan::Peer& peer = plan_.peers[p];
      Link& link = w_.links[p];
      link.world_rank = size_t(peer.rank) < e_.world_ranks.size() ? e_.world_ranks[size_t(peer.rank)] : peer.rank;
      link.channel = &e_.transport->channel(peer.rank);
      open(link.out, peer.sends);
      open(link.in, peer.receives);
      link.out.has_trailer = e_.checksum;
      link.out.header.payload_crc = link.out.has_trailer;
      if (!link.out.finished) seal(link.out.header);
      moved_.messages += int64_t(peer.sends.size());
    }
  }

  void open(Stream& stream, const std::vector<uint32_t>& list) {
    stream = {.cursor = {.list = list}, .header = e_.header, .finished = list.empty()};
    stream.header.payload = 0;
    for (const uint32_t i : list) stream.header.payload += w_.size[i];
    stream.has_block = stream.cursor.find(plan_.items, w_.size, max_blocks_);
  }

  /// How far an item may go now, within a block.
  size_t limit(uint32_t index, size_t end) const {
    const Plan::Item& item = plan_.items[index];
    for (const uint32_t d : plan_.needs(item)) end = std::min(end, w_.done[d]);
    return item.action == Action::copy ? end : end - end % element_;
  }

  /// Counts n bytes of the item under the cursor as done; moves on at the end of the block.
  void advance(Stream& stream, uint32_t index, size_t n) {
    w_.done[index] += n;
    if (w_.done[index] == block_end(stream, index)) {
      ++stream.cursor.at;
      stream.has_block = stream.cursor.find(plan_.items, w_.size, max_blocks_);
    }
  }
  size_t block_end(const Stream& stream, uint32_t index) const { return std::min((stream.cursor.block + 1) * block_bytes, w_.size[index]); }

  /// One visit moves about a block, so that no peer waits for another.
  size_t send(Link& link) {
    Stream& out = link.out;
    size_t moved = 0;
    const auto send_all = [&](const void* from, size_t bytes, size_t& done, bool more) {
      const size_t n = link.channel->send(static_cast<const std::byte*>(from) + done, bytes - done, more);
      done += n;
      moved += n;
      return done == bytes;
    };
    if (out.header_done < sizeof(Header)) {
      const bool more = out.has_block && limit(out.cursor.list[out.cursor.at], w_.size[out.cursor.list[out.cursor.at]]) > 0;
      if (!send_all(&out.header, sizeof(Header), out.header_done, more)) return moved;
    }
    while (out.has_block && moved < block_bytes) {
      const uint32_t index = out.cursor.list[out.cursor.at];
      const size_t done = w_.done[index], end = limit(index, block_end(out, index));
      if (end <= done) return moved;
      const size_t n = link.channel->send(w_.source[index] + done, end - done);
      if (n == 0) return moved;
      if (out.has_trailer) out.crc = crc32c(w_.source[index] + done, n, out.crc);
      moved_.sent += int64_t(n);
      moved += n;
      advance(out, index, n);
    }
    if (out.has_block || (out.has_trailer && !send_all(&out.crc, sizeof out.crc, out.trailer_done, false))) return moved;
    out.finished = true;
    return moved;
  }

  size_t receive(Link& link) {
    Stream& in = link.in;
    size_t moved = 0;
    const auto receive_all = [&](void* to, size_t bytes, size_t& done) {
      const size_t n = link.channel->receive(static_cast<std::byte*>(to) + done, bytes - done);
      done += n;
      moved += n;
      return done == bytes;
    };
    if (in.header_done < sizeof(Header)) {
      if (!receive_all(&link.theirs, sizeof(Header), in.header_done)) return moved;
      check_sealed(link.theirs, link.world_rank);
      check_same(in.header, link.theirs, e_.group ? *e_.group : "");
      in.has_trailer = link.theirs.payload_crc != 0;
    }
    while (in.has_block && moved < block_bytes) {
      const uint32_t index = in.cursor.list[in.cursor.at];
      const size_t done = w_.done[index], end = limit(index, block_end(in, index));
      if (end <= done) return moved;
      std::byte* const target = w_.target[index] + done;
      size_t n = 0;
      if (plan_.items[index].action == Action::reduce) {
        const auto here = link.channel->arrived();
        n = std::min(here.size(), end - done);
        n -= n % element_;
        if (n == 0) {
          if (!here.empty() && link.channel->ended() && link.channel->arrived().size() < element_) truncated(link);
          return moved;
        }
        if (in.has_trailer) in.crc = crc32c(here.data(), n, in.crc);
        reduce_into(e_.dtype, e_.op, target, here.data(), int64_t(n / element_));
        link.channel->consume(n);
      } else {
        n = link.channel->receive(target, end - done);
        if (n == 0) return moved;
        if (in.has_trailer) in.crc = crc32c(target, n, in.crc);
      }
      moved_.received += int64_t(n);
      moved += n;
      advance(in, index, n);
    }
    if (in.has_block) return moved;
    if (in.has_trailer) {
      if (!receive_all(&link.their_crc, sizeof link.their_crc, in.trailer_done)) return moved;
      if (link.their_crc != in.crc) {
        throw DistError(Fault::protocol, link.world_rank, str("[", what(), "] damaged data from rank ", link.world_rank,
                        ": its checksum does not match. The link, or its memory, corrupts data"));
      }
    }
    in.finished = true;
    return moved;
  }

  [[noreturn]] void truncated(const Link& link) const {
    throw DistError(Fault::rank_failed, link.world_rank, str("[", what(), "] rank ", link.world_rank, " closed its side of the group in the middle of its data"));
  }

  size_t work_locally(uint32_t index) {
    const Plan::Item& item = plan_.items[index];
    const size_t done = w_.done[index], end = limit(index, std::min(done + block_bytes, w_.size[index])), n = end > done ? end - done : 0;
    if (n == 0) return 0;
    std::byte* const target = w_.target[index] + done;
    switch (item.action) {
      case Action::copy: std::memcpy(target, w_.source[index] + done, n); break;
      case Action::reduce: reduce_into(e_.dtype, e_.op, target, w_.source[index] + done, int64_t(n / element_)); break;
      case Action::scale: divide(e_.dtype, target, int64_t(n / element_), e_.ranks); break;
    }
    w_.done[index] = end;
    return n;
  }

  /// Nothing moved, `rounds` times in a row before this one.
  void wait(int rounds) {
    if (e_.control && e_.control->failed()) e_.control->raise();
    if (e_.transport) e_.transport->idle(rounds);
    const auto now = Clock::now();
    if (rounds == 0) {
      if (started_ == Clock::time_point()) started_ = now;
      told_ = now;
    }
    if (e_.control && now - told_ >= e_.control->place().heartbeat) {
      told_ = now;
      tell();
    }
    if (now - started_ >= e_.timeout) {
      if (e_.control) tell();
      throw DistError(Fault::timeout, -1, str("[", what(), "] not done after ", e_.timeout.count(), " s; ", whom().text,
                                              e_.control ? "; " + e_.control->explain(e_.world_ranks) : std::string()));
    }
  }

 public:
  struct Whom { int rank = -1; bool is_send = false; std::string text; };
  /// The first rank that this one waits for.
  Whom whom() const {
    for (const bool silent : {true, false}) for (const Link& link : w_.links) {  // those who have not said anything first
      if (!link.in.finished && (!silent || link.in.header_done == 0)) return {link.world_rank, false, str("this rank waits to hear from rank ", link.world_rank)};
    }
    for (const Link& link : w_.links) {
      if (!link.out.finished) return {link.world_rank, true, str("this rank waits for rank ", link.world_rank, " to take what it sends")};
    }
    return {-1, false, "this rank waits for nobody"};
  }
  void tell() const {
    const Whom w = whom();
    if (w.rank >= 0) e_.control->waits(w.rank, 0, w.is_send);
  }

 private:
  const Execution& e_;
  const Plan& plan_;
  Workspace& w_;
  const size_t element_;
  Tensor scratch_;
  int64_t max_blocks_ = 0;
  Moved moved_;
  Clock::time_point started_{}, told_{};
};

}  // namespace

bool checksum_wanted() {
  static const bool wanted = [] {
    const char* value = std::getenv("LOCKSTEP_COMM_CHECKSUM");
    return value && *value && std::string_view(value) != "0";
  }();
  return wanted;
}

void await_cause(Control& control, int rank) {
  const Seconds heartbeat = control.place().heartbeat;
  const auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(4 * heartbeat + Seconds(1));
  auto told = Clock::time_point();
  while (!control.failed() && Clock::now() < until) {
    if (Clock::now() - told >= heartbeat / 2) {  // who has left is found out when somebody waits for it
      control.waits(rank, 0, false);
      told = Clock::now();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Moved execute(const Execution& execution) {
  static thread_local Workspace workspace;
  const Plan& plan = Plan::cached(execution.program, execution.rank, execution.ranks);
  std::optional<Executor> executor;
  try {
    executor.emplace(execution, plan, workspace);
    return executor->run();
  } catch (const DistError& error) {
    if (!execution.control) throw;
    Control& control = *execution.control;
    if (error.fault == Fault::rank_failed) await_cause(control, error.rank);
    if (control.failed()) control.raise();
    throw control.report(error.fault, error.rank, error.what());
  }
}

}  // namespace lockstep::dist
