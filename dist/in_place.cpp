// Runs one rank's part of a collective on tensors in shared memory, in blocks that stay in the cache. See in_place.h.
#include "dist/in_place.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "dist/links.h"
#include "dist/shard.h"
#include "dist/wait_policy.h"

namespace lockstep::dist {
namespace {

constexpr int64_t block_bytes = 16 << 10;  // bytes of a block; the blocks of a few ranks together fit into the L2 cache

/// Executes this rank's transfers, call.share. tensors[r]: the address of rank r's tensor; null if it is not needed.
void work(const InPlace& call, std::span<std::byte* const> tensors) {
  const Share& share = *call.share;
  const int64_t size = size_of(call.dtype);
  std::vector<std::byte> scratch(size_t(share.slots * block_bytes));
  for (size_t first = 0, last = 0; first < share.transfers.size(); first = last) {  // one chunk after another
    const int32_t chunk = share.transfers[first].target.chunk;
    while (last < share.transfers.size() && share.transfers[last].target.chunk == chunk) ++last;
    const Range range = shard_range(call.count, share.chunks, chunk);
    // Blocks keep the data in the cache from one transfer to the next. A single transfer gains nothing from blocks.
    const int64_t all = range.size() * size, longest = last - first == 1 ? all : block_bytes;
    for (int64_t at = 0; at < all; at += longest) {
      const int64_t bytes = std::min(longest, all - at);
      // The address of this block: in scratch memory, in this rank's result of a reduce_scatter, or in a rank's tensor.
      const auto memory = [&](int rank, const ChunkSlot& place) {
        if (place.slot > 0) return scratch.data() + (place.slot - 1) * block_bytes;
        if (call.part && rank == call.rank && chunk == rank) return call.part + at;
        return tensors[size_t(rank)] + range.begin * size + at;
      };
      for (size_t i = first; i < last; ++i) {
        const Transfer& t = share.transfers[i];
        std::byte* const target = memory(t.to, t.target);
        switch (t.action) {
          case TransferAction::copy: std::memcpy(target, memory(t.from, t.source), size_t(bytes)); break;
          case TransferAction::reduce:
            reduce_into(call.dtype, call.op, target, memory(t.from, t.source), bytes / size);
            break;
          case TransferAction::scale: divide(call.dtype, target, bytes / size, call.ranks); break;
        }
      }
    }
  }
}

}  // namespace

bool can_work_in_place(Collective c, Algorithm algorithm) {
  // All ranks must make the same choice between shared memory and messages, so each rank needs a header from every
  // other rank. `direct` sends all of these headers. In a broadcast by `in_place`, the root receives none.
  const bool all_hear =
      algorithm == Algorithm::direct || (algorithm == Algorithm::in_place && c != Collective::broadcast);
  return all_hear && has_schedule(Algorithm::in_place, c);
}

Share share_in_place(const CollectiveRequest& request, int rank) {
  Share share{.chunks = chunk_count(Algorithm::in_place, request)};
  visit_schedule(Algorithm::in_place, request, [&](const Transfer& t) {
    if ((request.collective == Collective::all_reduce ? t.target.chunk : t.to) != rank) return;
    share.transfers.push_back(t);
    share.slots = std::max(share.slots, t.target.slot);
  });
  return share;
}

std::optional<CallTraffic> run_in_place(const Execution& e, const Program& program, std::vector<PeerLink>& links,
                                        WaitPolicy& wait_policy) {
  const InPlace& call = *e.in_place;
  wait_policy.until_done([&](bool& open) {
    size_t moved = 0;
    for (PeerLink& link : links) {
      if (!link.out.finished && !link.is_sent_open()) {
        moved += link.send_opening(false);
        open = true;
      }
      if (!link.in.finished && !link.is_received_open()) {
        moved += link.receive_opening(e.group ? *e.group : "");
        open = true;
      }
    }
    return moved;
  });
  std::vector<std::byte*> tensors(size_t(program.ranks), nullptr);
  tensors[size_t(program.rank)] = call.full;
  for (const PeerLink& link : links)
    if (!link.in.finished && call.needs(link.rank) && !link.theirs.in_place) return {};
  for (PeerLink& link : links)
    if (!link.in.finished && call.needs(link.rank))
      tensors[size_t(link.rank)] = link.channel->reach(link.placement, call.bytes());
  work(call, tensors);

  // Every rank sends all others a mark: no rank may return while another one still reads or writes its tensor.
  CallTraffic moved_by{.in_place = 1};
  const auto mark = uint32_t(e.header.sequence);
  for (PeerLink& link : links) {
    if (!link.out.finished) moved_by.sent += int64_t(link.out.header.payload);
    if (!link.in.finished) moved_by.received += int64_t(link.in.header.payload);
    moved_by.messages += int64_t(link.out.cursor.list.size());
    link.out.crc = mark;
    link.out.finished = link.in.finished = false;
  }
  wait_policy.until_done([&](bool& open) {
    size_t moved = 0;
    for (PeerLink& link : links) {
      if (!link.out.finished) {
        moved += send_rest(*link.channel, &link.out.crc, sizeof mark, link.out.trailer_done);
        link.out.finished = link.out.trailer_done == sizeof mark;
      }
      if (!link.in.finished) {
        moved += receive_rest(*link.channel, &link.their_crc, sizeof mark, link.in.trailer_done);
        link.in.finished = link.in.trailer_done == sizeof mark;
        if (link.in.finished && link.their_crc != mark) {
          throw DistError(Fault::protocol, link.world_rank,
                          str("[", what(e), "] expected the mark ", mark, " of rank ", link.world_rank, ", got ",
                              link.their_crc, "; this is a bug in Lockstep, please report it"));
        }
      }
      open |= !link.out.finished || !link.in.finished;
    }
    return moved;
  });
  return moved_by;
}

}  // namespace lockstep::dist
