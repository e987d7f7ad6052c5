// executor.cpp: the loop that moves the blocks of all streams. See executor.h.
#include "dist/executor.h"

#include <cstring>
#include <optional>

#include "base/environment.h"
#include "dist/call_memory.h"
#include "dist/links.h"
#include "dist/wait_policy.h"

namespace lockstep::dist {
namespace {

// Memory that is reused from call to call, so that a small collective allocates nothing.
struct Workspace {
  std::vector<size_t> done;  // bytes done of each item
  CallMemory memory;
  std::vector<PeerLink> links;  // a link for each peer
};

class Executor {
 public:
  Executor(const Execution& execution, const Program& program, Workspace& workspace)
      : e_(execution), program_(program), w_(workspace), element_(size_t(size_of(e_.dtype))) {
    prepare();
  }

  CallTraffic run() {
    if (holds_payload_) {
      if (const auto moved = run_in_place(e_, program_, w_.links, wait_policy_)) return *moved;
    }
    const Tensor scratch = w_.memory.lay_out(program_);
    wait_policy_.until_done([&](bool& open) {
      size_t moved = 0;
      for (PeerLink& link : w_.links) {
        if (!link.out.finished) {
          moved += send(link);
          open = true;
        }
        if (!link.in.finished) {
          moved += receive(link);
          open = true;
        }
      }
      for (const uint32_t index : program_.locals) {
        if (w_.done[index] == w_.memory.size[index]) continue;
        moved += work_locally(index);
        open = true;
      }
      return moved;
    });
    return moved_;
  }

  /// Called after a peer closed its channel. Throws DistError mismatch if the peer had made a different call.
  void check_peers() const {
    for (const PeerLink& link : w_.links)
      check_what_is_left(*link.channel, link.in.header, e_.group ? *e_.group : "",
                         !link.in.finished && link.in.header_done == 0);
  }

 private:
  void prepare() {
    w_.memory.measure(e_);
    w_.done.assign(program_.items.size(), 0);
    max_blocks_ = int64_t((w_.memory.longest + block_bytes - 1) / block_bytes);
    LOCKSTEP_CHECK(program_.peers.empty() || e_.transport, "[", what(e_),
                   "] expected a transport to reach other ranks, ",
                   "got none; this is a bug in Lockstep, please report it");
    w_.links.resize(program_.peers.size());
    bool near = e_.in_place && !e_.checksum;  // true: in-place is possible; a checksum needs the channels
    for (size_t p = 0; p < program_.peers.size(); ++p) {
      const Program::Peer& peer = program_.peers[p];
      PeerLink& link = w_.links[p];
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
    holds_payload_ = near && (e_.in_place->placement || !e_.in_place->needs(program_.rank));
    for (PeerLink& link : w_.links) {
      if (link.out.finished) continue;
      if (holds_payload_ && e_.in_place->needs(program_.rank)) {
        link.out.header.in_place = 1;
        link.out.placement = e_.in_place->placement;
      }
      seal(link.out.header);
    }
  }

  void open(LinkStream& stream, const std::vector<uint32_t>& list) {
    stream = {};
    stream.cursor.list = list;
    stream.header = e_.header;
    stream.finished = list.empty();
    stream.header.payload = 0;
    for (const uint32_t i : list) stream.header.payload += w_.memory.size[i];
    stream.has_block = stream.cursor.find(program_.items, w_.memory.size, max_blocks_);
  }

  /// Returns the byte up to which transfer `index` may go: `end`, or less if a transfer that it depends on is behind.
  size_t limit(uint32_t index, size_t end) const {
    const Program::Item& item = program_.items[index];
    for (const uint32_t d : program_.needs(item)) end = std::min(end, w_.done[d]);
    return item.action == TransferAction::copy ? end : end - end % element_;
  }

  /// Counts n more bytes of transfer `index` as done. If they complete a block, moves the stream on to its next block.
  void advance(LinkStream& stream, uint32_t index, size_t n) {
    w_.done[index] += n;
    if (w_.done[index] == block_end(stream, index)) {
      ++stream.cursor.at;
      stream.has_block = stream.cursor.find(program_.items, w_.memory.size, max_blocks_);
    }
  }
  size_t block_end(const LinkStream& stream, uint32_t index) const {
    return std::min((stream.cursor.block + 1) * block_bytes, w_.memory.size[index]);
  }

  /// Sends about one block at most, so that other peers get their turn.
  size_t send(PeerLink& link) {
    LinkStream& out = link.out;
    size_t moved = 0;
    if (!link.is_sent_open()) {
      const bool more =
          out.has_block && limit(out.cursor.list[out.cursor.at], w_.memory.size[out.cursor.list[out.cursor.at]]) > 0;
      moved = link.send_opening(more);
      if (!link.is_sent_open()) return moved;
    }
    while (out.has_block && moved < block_bytes) {
      const uint32_t index = out.cursor.list[out.cursor.at];
      const size_t done = w_.done[index], end = limit(index, block_end(out, index));
      if (end <= done) return moved;
      const size_t n = link.channel->send(w_.memory.source[index] + done, end - done);
      if (n == 0) return moved;
      if (out.has_trailer) out.crc = crc32c(w_.memory.source[index] + done, n, out.crc);
      moved_.sent += int64_t(n);
      moved += n;
      advance(out, index, n);
    }
    if (out.has_block) return moved;
    if (out.has_trailer) moved += send_rest(*link.channel, &out.crc, sizeof out.crc, out.trailer_done);
    out.finished = !out.has_trailer || out.trailer_done == sizeof out.crc;
    return moved;
  }

  size_t receive(PeerLink& link) {
    LinkStream& in = link.in;
    size_t moved = 0;
    if (!link.is_received_open()) {
      moved = link.receive_opening(e_.group ? *e_.group : "");
      if (!link.is_received_open()) return moved;
    }
    while (in.has_block && moved < block_bytes) {
      const uint32_t index = in.cursor.list[in.cursor.at];
      const size_t done = w_.done[index], end = limit(index, block_end(in, index));
      if (end <= done) return moved;
      std::byte* const target = w_.memory.target[index] + done;
      size_t n = 0;
      if (program_.items[index].action == TransferAction::reduce) {
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
      moved += receive_rest(*link.channel, &link.their_crc, sizeof link.their_crc, in.trailer_done);
      if (in.trailer_done < sizeof link.their_crc) return moved;
      if (link.their_crc != in.crc) {
        throw DistError(Fault::protocol, link.world_rank,
                        str("[", what(e_), "] damaged data from rank ", link.world_rank,
                            ": its checksum does not match. The link, or its memory, corrupts data: test both"));
      }
    }
    in.finished = true;
    return moved;
  }

  [[noreturn]] void truncated(const PeerLink& link) const {
    throw DistError(Fault::rank_failed, link.world_rank,
                    str("[", what(e_), "] rank ", link.world_rank,
                        " closed its side of the group in the middle of its data; see the output of that rank"));
  }

  size_t work_locally(uint32_t index) {
    const Program::Item& item = program_.items[index];
    const size_t done = w_.done[index], end = limit(index, std::min(done + block_bytes, w_.memory.size[index])),
                 n = end > done ? end - done : 0;
    if (n == 0) return 0;
    std::byte* const target = w_.memory.target[index] + done;
    switch (item.action) {
      case TransferAction::copy: std::memcpy(target, w_.memory.source[index] + done, n); break;
      case TransferAction::reduce:
        reduce_into(e_.dtype, e_.op, target, w_.memory.source[index] + done, int64_t(n / element_));
        break;
      case TransferAction::scale: divide(e_.dtype, target, int64_t(n / element_), program_.ranks); break;
    }
    w_.done[index] = end;
    return n;
  }

  const Execution& e_;
  const Program& program_;
  Workspace& w_;
  const size_t element_;
  bool holds_payload_ = false;  // true: send no payload until the headers say whether the tensors are in shared memory
  int64_t max_blocks_ = 0;
  CallTraffic moved_;
  WaitPolicy wait_policy_{e_, w_.links};
};

}  // namespace

bool checksum_wanted() {
  static const bool wanted = environment_flag("LOCKSTEP_COMM_CHECKSUM");
  return wanted;
}

CallTraffic execute(const Execution& execution) {
  static thread_local Workspace workspace;
  LOCKSTEP_CHECK(execution.program, "[execute] expected a program, got none",
                 "; this is a bug in Lockstep, please report it");
  std::optional<Executor> executor;
  try {
    executor.emplace(execution, *execution.program, workspace);
    return executor->run();
  } catch (const DistError& error) {
    if (!execution.control) throw;
    Control& control = *execution.control;
    DistError cause = error;
    try {
      if (error.fault == Fault::rank_failed && executor) executor->check_peers();
    } catch (const DistError& found) { cause = found; }
    if (cause.fault == Fault::rank_failed) await_cause(control, cause.rank);
    if (control.failed()) control.raise();
    throw control.report(cause.fault, cause.rank, cause.what());
  }
}

}  // namespace lockstep::dist
