#pragma once
// One rank's program, prepared for the executor: its transfers by peer, its places, and for every transfer those of
// earlier steps that it must not overtake. Depends on the program alone, so it is made once and used for every call.
#include <cstdint>
#include <span>
#include <vector>

#include "dist/schedule.h"

namespace lockstep::dist {

struct Program {
  struct Item {
    int32_t step = 0;
    int32_t peer = -1;    ///< index into `peers`, -1: local
    int32_t source = -1;  ///< place here that is read, -1 when it lies at the peer
    int32_t target = -1;  ///< place here that is written
    int32_t chunk = 0;    ///< says how long it is
    Action action = Action::copy;
    uint32_t first = 0, count = 0;  ///< part of `dependencies`
  };
  struct Peer {
    int rank = 0;
    std::vector<uint32_t> sends, receives;  ///< items, in the order of the list
  };

  /// Error when the program is not one of this rank, or breaks a rule of schedule.h.
  Program(std::span<const Transfer> program, int rank, int ranks);

  std::span<const uint32_t> needs(const Item& item) const {
    return std::span(dependencies).subspan(item.first, item.count);
  }

  int rank = 0, ranks = 1;
  std::vector<Item> items;             ///< as in the program
  std::vector<uint32_t> dependencies;  ///< items of earlier steps: this one has done no more bytes than each of them
  std::vector<Place> places;
  std::vector<Peer> peers;  ///< ascending
  std::vector<uint32_t> locals;
};

}  // namespace lockstep::dist
