#include "dist/executor.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "dist/streams.h"
#include "tensor/memory.h"
#include "tensor/ops.h"

namespace lockstep::dist {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t small_scratch = 32 << 10;
// Kept from call to call, so that a small collective allocates nothing.
struct Workspace {
  std::vector<size_t> done, size;          // bytes, by item
  std::vector<std::byte*> source, target;  // by item
  std::vector<std::byte*> memory;          // by place
  std::vector<size_t> length;              // by place
  std::vector<Link> links;                 // by peer
  std::vector<std::byte> scratch;          // small scratch copies
};

class Executor {
 public:
  Executor(const Execution& execution, const Plan& plan, Workspace& workspace) : e_(execution), plan_(plan), w_(workspace), element_(size_t(size_of(e_.dtype))) { prepare(); }

  Moved run() {
    if (holds_payload_) {
      until_done([&](bool& open) {
        size_t moved = 0;
        for (Link& link : w_.links) {
          if (!link.out.finished && link.out.header_done < opening_bytes(link.out.header)) { moved += send_opening(link, false); open = true; }
          if (!link.in.finished && link.in.header_done < opening_bytes(link.theirs)) { moved += receive_opening(link); open = true; }
        }
        return moved;
      });
      if (all_in_place()) return work_in_place();
    }
    lay_out();
    until_done([&](bool& open) {
      size_t moved = 0;
      for (Link& link : w_.links) {
        if (!link.out.finished) { moved += send(link); open = true; }
        if (!link.in.finished) { moved += receive(link); open = true; }
      }
      for (const uint32_t index : plan_.locals) {
        if (w_.done[index] == w_.size[index]) continue;
        moved += work_locally(index);
        open = true;
      }
      return moved;
    });
    return moved_;
  }

  /// What the call is, for messages.
  std::string what() const { return e_.describe ? *e_.describe : std::string(name_of(Collective(e_.header.kind))); }

 private:
  void prepare() {
    const size_t items = plan_.items.size(), places = plan_.places.size();
    size_t longest = 0;
    w_.memory.assign(places, nullptr);
    w_.length.resize(places);
    for (size_t p = 0; p < places; ++p) {
      const Place& place = plan_.places[p];
      w_.length[p] = e_.chunk_bytes(place.chunk);
      longest = std::max(longest, w_.length[p]);
      LOCKSTEP_CHECK(w_.length[p] % element_ == 0, "[", what(), "] expected whole elements of ", element_, " bytes, got a chunk of ", w_.length[p], " bytes");
      if (place.slot > 0) { scratch_bytes_ += aligned(w_.length[p]); continue; }
      const auto memory = e_.memory(place.chunk);
      LOCKSTEP_CHECK(memory.size() == w_.length[p], "[", what(), "] expected ", w_.length[p], " bytes of memory for chunk ", place.chunk, ", got ", memory.size());
      w_.memory[p] = memory.data();
    }
    max_blocks_ = int64_t((longest + block_bytes - 1) / block_bytes);

    w_.done.assign(items, 0);
    w_.size.resize(items);
    for (size_t i = 0; i < items; ++i) {
      const Plan::Item& item = plan_.items[i];
      if (item.source >= 0) w_.size[i] = w_.length[size_t(item.source)];
      if (item.target < 0) continue;
      LOCKSTEP_CHECK(item.source < 0 || w_.length[size_t(item.target)] == w_.size[i], "[", what(), "] expected chunks of one length in a transfer, got ",
                     w_.size[i], " and ", w_.length[size_t(item.target)], " bytes");
      w_.size[i] = w_.length[size_t(item.target)];
    }

    LOCKSTEP_CHECK(plan_.peers.empty() || e_.transport, "[", what(), "] expected a transport to reach other ranks, got none");
    w_.links.resize(plan_.peers.size());
    bool near = e_.in_place && !e_.checksum;  // a checksum that is asked for is made
    for (size_t p = 0; p < plan_.peers.size(); ++p) {
      const Plan::Peer& peer = plan_.peers[p];
      Link& link = w_.links[p];
      link.rank = peer.rank;
      link.world_rank = size_t(peer.rank) < e_.world_ranks.size() ? e_.world_ranks[size_t(peer.rank)] : peer.rank;
      link.channel = &e_.transport->channel(peer.rank);
      near = near && link.channel->shares_memory();
      open(link.out, peer.sends);
      open(link.in, peer.receives);
      link.theirs.in_place = 0;
      link.out.has_trailer = e_.checksum;
      link.out.header.payload_crc = link.out.has_trailer;
      moved_.messages += int64_t(peer.sends.size());
    }
    holds_payload_ = near && (e_.in_place->placement || !e_.in_place->needs(plan_.rank));
    for (Link& link : w_.links) {
      if (link.out.finished) continue;
      if (holds_payload_ && e_.in_place->needs(plan_.rank)) {
        link.out.header.in_place = 1;
        link.out.placement = e_.in_place->placement;
      }
      seal(link.out.header);
    }
  }

  static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }
  /// Memory of every transfer; what lies in scratch copies gets it now.
  void lay_out() {
    if (scratch_bytes_ > 0) {
      std::byte* next = nullptr;
      if (scratch_bytes_ <= small_scratch) {
        w_.scratch.resize(small_scratch);
        next = w_.scratch.data();
      } else {
        const MemoryScope scope(Memory::communication);
        scratch_ = empty({int64_t(scratch_bytes_)}, {.dtype = u8, .device = cpu});
        next = scratch_.storage()->data();
      }
      for (size_t p = 0; p < plan_.places.size(); ++p) if (plan_.places[p].slot > 0) { w_.memory[p] = next; next += aligned(w_.length[p]); }
    }
    w_.source.assign(plan_.items.size(), nullptr);
    w_.target.assign(plan_.items.size(), nullptr);
    for (size_t i = 0; i < plan_.items.size(); ++i) {
      const Plan::Item& item = plan_.items[i];
      if (item.source >= 0) w_.source[i] = w_.memory[size_t(item.source)];
      if (item.target >= 0) w_.target[i] = w_.memory[size_t(item.target)];
    }
  }

  void open(Stream& stream, const std::vector<uint32_t>& list) {
    stream = {};
    stream.cursor.list = list;
    stream.header = e_.header;
    stream.finished = list.empty();
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

  // What opens a stream: the header and, if it says so, a placement. Both functions give back the bytes moved.
  static size_t opening_bytes(const Header& header) { return sizeof(Header) + (header.in_place ? sizeof(Placement) : 0); }

  size_t send_opening(Link& link, bool more) {
    Stream& out = link.out;
    size_t moved = 0;
    if (out.header_done < sizeof(Header)) moved = send_some(link, &out.header, sizeof(Header), out.header_done, more || out.header.in_place);
    if (out.header_done >= sizeof(Header) && out.header.in_place) {
      size_t done = out.header_done - sizeof(Header);
      moved += send_some(link, &out.placement, sizeof(Placement), done, more);
      out.header_done = sizeof(Header) + done;
    }
    return moved;
  }

  size_t receive_opening(Link& link) {
    Stream& in = link.in;
    size_t moved = 0;
    if (in.header_done < sizeof(Header)) {
      moved = receive_some(link, &link.theirs, sizeof(Header), in.header_done);
      if (in.header_done < sizeof(Header)) return moved;
      check_sealed(link.theirs, link.world_rank);
      check_same(in.header, link.theirs, e_.group ? *e_.group : "");
      in.has_trailer = link.theirs.payload_crc != 0;
    }
    if (link.theirs.in_place) {
      size_t done = in.header_done - sizeof(Header);
      moved += receive_some(link, &link.placement, sizeof(Placement), done);
      in.header_done = sizeof(Header) + done;
    }
    return moved;
  }

  size_t send_some(Link& link, const void* from, size_t bytes, size_t& done, bool more) {
    const size_t n = done < bytes ? link.channel->send(static_cast<const std::byte*>(from) + done, bytes - done, more) : 0;
    done += n;
    return n;
  }
  size_t receive_some(Link& link, void* to, size_t bytes, size_t& done) {
    const size_t n = done < bytes ? link.channel->receive(static_cast<std::byte*>(to) + done, bytes - done) : 0;
    done += n;
    return n;
  }

  /// All headers are there: whether every tensor that matters lies in shared memory. All ranks come to the same answer.
  bool all_in_place() const {
    for (const Link& link : w_.links) if (!link.in.finished && e_.in_place->needs(link.rank) && !link.theirs.in_place) return false;
    return true;
  }

  Moved work_in_place() {
    const size_t bytes = e_.in_place->bytes();
    std::vector<std::byte*> wholes(size_t(plan_.ranks), nullptr);
    wholes[size_t(plan_.rank)] = e_.in_place->whole;
    for (Link& link : w_.links) if (!link.in.finished && e_.in_place->needs(link.rank)) wholes[size_t(link.rank)] = link.channel->reach(link.placement, bytes);
    dist::work_in_place(*e_.in_place, wholes);
    moved_.in_place = 1;
    // Nobody goes on before all are done with its tensor.
    const auto mark = uint32_t(e_.header.sequence);
    for (Link& link : w_.links) {
      if (!link.out.finished) moved_.sent += int64_t(link.out.header.payload);
      if (!link.in.finished) moved_.received += int64_t(link.in.header.payload);
      link.out.crc = mark;
      link.out.finished = link.in.finished = false;
    }
    until_done([&](bool& open) {
      size_t moved = 0;
      for (Link& link : w_.links) {
        if (!link.out.finished) {
          moved += send_some(link, &link.out.crc, sizeof mark, link.out.trailer_done, false);
          link.out.finished = link.out.trailer_done == sizeof mark;
        }
        if (!link.in.finished) {
          moved += receive_some(link, &link.their_crc, sizeof mark, link.in.trailer_done);
          link.in.finished = link.in.trailer_done == sizeof mark;
          if (link.in.finished && link.their_crc != mark) {
            throw DistError(Fault::protocol, link.world_rank, str("[", what(), "] expected the mark ", mark, " of rank ", link.world_rank, ", got ", link.their_crc));
          }
        }
        open |= !link.out.finished || !link.in.finished;
      }
      return moved;
    });
    return moved_;
  }

  /// One visit moves about a block, so that no peer waits for another.
  size_t send(Link& link) {
    Stream& out = link.out;
    size_t moved = 0;
    if (out.header_done < opening_bytes(out.header)) {
      const bool more = out.has_block && limit(out.cursor.list[out.cursor.at], w_.size[out.cursor.list[out.cursor.at]]) > 0;
      moved = send_opening(link, more);
      if (out.header_done < opening_bytes(out.header)) return moved;
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
    if (out.has_block) return moved;
    if (out.has_trailer) moved += send_some(link, &out.crc, sizeof out.crc, out.trailer_done, false);
    out.finished = !out.has_trailer || out.trailer_done == sizeof out.crc;
    return moved;
  }

  size_t receive(Link& link) {
    Stream& in = link.in;
    size_t moved = 0;
    if (in.header_done < opening_bytes(link.theirs)) {
      moved = receive_opening(link);
      if (in.header_done < opening_bytes(link.theirs)) return moved;
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
      moved += receive_some(link, &link.their_crc, sizeof link.their_crc, in.trailer_done);
      if (in.trailer_done < sizeof link.their_crc) return moved;
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
      case Action::scale: divide(e_.dtype, target, int64_t(n / element_), plan_.ranks); break;
    }
    w_.done[index] = end;
    return n;
  }

  /// Calls visit(open), which gives back the bytes it moved, until it leaves `open` false.
  template <class Visit>
  void until_done(Visit&& visit) {
    for (int quiet = 0;;) {
      bool open = false;
      const size_t moved = visit(open);
      if (!open) return;
      if (moved > 0) quiet = 0; else wait(quiet++);
    }
  }

  /// Nothing moved, `rounds` times in a row before this one.
  void wait(int rounds) {
    if (e_.control && e_.control->failed()) e_.control->raise();
    if (e_.transport) e_.transport->idle(rounds);
    if (rounds % 8 != 0) return;  // the clock takes as long as the peer may need
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
                                              e_.control ? "; " + e_.control->explain({e_.world_ranks.begin(), e_.world_ranks.end()}) : std::string()));
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
  size_t scratch_bytes_ = 0;
  Tensor scratch_;
  bool holds_payload_ = false;  // until the headers say whether the tensors are in shared memory
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
  LOCKSTEP_CHECK(execution.plan, "[execute] expected a plan, got none");
  std::optional<Executor> executor;
  try {
    executor.emplace(execution, *execution.plan, workspace);
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
