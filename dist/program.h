#pragma once
// One rank's part of a schedule, prepared for the executor: the rank's transfers by peer, the places (chunks and
// scratch copies) that they use, and for each transfer the transfers of earlier steps that it depends on. It follows
// from the schedule and the rank alone, so it is built once and used for every call.
#include <cstdint>
#include <span>
#include <vector>

#include "dist/schedule.h"

namespace lockstep::dist {

/// A rank's transfers with their dependencies.
struct Program {
  /// A transfer, as seen from this rank.
  struct Item {
    int32_t step = 0;
    int32_t peer = -1;    ///< index into `peers`; -1: local
    int32_t source = -1;  ///< index into `places` of the place that is read; -1: at the peer
    int32_t target = -1;  ///< index into `places` of the place that is written; -1: at the peer
    int32_t chunk = 0;    ///< chunk number, which determines the length
    TransferAction action = TransferAction::copy;
    uint32_t first = 0, count = 0;  ///< range in `dependencies`
  };
  /// The transfers with one peer.
  struct Peer {
    int rank = 0;
    std::vector<uint32_t> sends, receives;  ///< item indices, in program order
  };

  /// Error when a transfer does not involve this rank, or violates a rule of schedule.h.
  Program(std::span<const Transfer> program, int rank, int ranks);

  /// The items that `item` depends on.
  std::span<const uint32_t> needs(const Item& item) const {
    return std::span(dependencies).subspan(item.first, item.count);
  }

  int rank = 0, ranks = 1;
  std::vector<Item> items;  ///< all items, in the order of the program
  /// For each item in turn, the indices of the earlier items that it depends on. An item may start before these have
  /// ended, but must never have moved more bytes than any of them.
  std::vector<uint32_t> dependencies;
  std::vector<ChunkSlot> places;
  std::vector<Peer> peers;       ///< sorted by rank
  std::vector<uint32_t> locals;  ///< items that work inside this rank
};

}  // namespace lockstep::dist
