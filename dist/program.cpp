// program.cpp: finds out which transfers of a rank must wait for which earlier ones. See program.h.
#include "dist/program.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace lockstep::dist {
namespace {

// The last transfers that wrote or read a place (a chunk, or a scratch copy). A later transfer need only wait for
// these, since they wait for the earlier ones.
struct History {
  int64_t writer = -1;            // the last writer
  std::vector<uint32_t> readers;  // readers since the last write
};

}  // namespace

Program::Program(std::span<const Transfer> list, int my_rank, int rank_count) : rank(my_rank), ranks(rank_count) {
  std::map<std::pair<int32_t, int32_t>, int32_t> place_numbers;
  std::map<int, std::pair<std::vector<uint32_t>, std::vector<uint32_t>>> by_peer;
  std::vector<History> history;
  const auto number_of = [&](const ChunkSlot& place) {
    LOCKSTEP_CHECK(place.chunk >= 0 && place.slot >= 0,
                   "[execute] expected a chunk and a slot of at least 0, got chunk ", place.chunk, " slot ", place.slot,
                   "; this is a bug in Lockstep, please report it");
    const auto [it, fresh] = place_numbers.try_emplace({place.chunk, place.slot}, int32_t(places.size()));
    if (fresh) {
      places.push_back(place);
      history.emplace_back();
    }
    return it->second;
  };
  items.reserve(list.size());
  for (uint32_t index = 0; index < list.size(); ++index) {
    const Transfer& t = list[index];
    const int peer = t.from == rank ? t.to : t.from;
    LOCKSTEP_CHECK(t.from == rank || t.to == rank, "[execute] expected transfers of rank ", rank,
                   " only, got one from rank ", t.from, " to ", t.to, "; this is a bug in Lockstep, please report it");
    LOCKSTEP_CHECK(peer >= 0 && peer < ranks, "[execute] expected ranks from 0 to ", ranks - 1,
                   ", got a transfer with rank ", peer, "; this is a bug in Lockstep, please report it");
    LOCKSTEP_CHECK(items.empty() || t.step >= items.back().step, "[execute] expected ascending steps, got step ",
                   t.step, " after step ", items.back().step, "; this is a bug in Lockstep, please report it");
    LOCKSTEP_CHECK(
        t.action != TransferAction::scale || (t.from == t.to && t.source == t.target),
        "[execute] expected scale to work on one place, got two; this is a bug in Lockstep, please report it");
    LOCKSTEP_CHECK(t.from != t.to || t.action == TransferAction::scale || !(t.source == t.target),
                   "[execute] expected two places, got a local transfer from chunk ", t.source.chunk, " slot ",
                   t.source.slot, " to itself; this is a bug in Lockstep, please report it");
    Item item{.step = t.step, .action = t.action};
    if (t.from == rank) item.source = number_of(t.source);
    if (t.to == rank) item.target = number_of(t.target);
    item.chunk = t.to == rank ? t.target.chunk : t.source.chunk;
    if (t.from != t.to) {
      auto& [sends, receives] = by_peer[peer];
      (t.from == rank ? sends : receives).push_back(index);
      item.peer = peer;  // replaced by an index below
    } else {
      locals.push_back(index);
    }
    item.first = uint32_t(dependencies.size());
    const auto wait_for = [&](uint32_t earlier, const ChunkSlot& place) {
      LOCKSTEP_CHECK(items[earlier].step < t.step,
                     "[execute] expected a place to be used in one way in a step, got chunk ", place.chunk, " slot ",
                     place.slot, " read and written, or written twice, in step ", t.step,
                     "; this is a bug in Lockstep, please report it");
      dependencies.push_back(earlier);
    };
    if (item.source >= 0) {
      const History& h = history[size_t(item.source)];
      if (h.writer >= 0) wait_for(uint32_t(h.writer), t.source);
    }
    if (item.target >= 0) {
      const History& h = history[size_t(item.target)];
      for (const uint32_t reader : h.readers) wait_for(reader, t.target);
      if (h.readers.empty() && h.writer >= 0) wait_for(uint32_t(h.writer), t.target);
    }
    if (item.source >= 0) history[size_t(item.source)].readers.push_back(index);
    if (item.target >= 0) history[size_t(item.target)] = {index, {}};
    std::sort(dependencies.begin() + item.first, dependencies.end());
    dependencies.erase(std::unique(dependencies.begin() + item.first, dependencies.end()), dependencies.end());
    item.count = uint32_t(dependencies.size()) - item.first;
    items.push_back(item);
  }
  for (auto& [peer, lists] : by_peer) {
    for (const auto* side : {&lists.first, &lists.second})
      for (const uint32_t i : *side) items[i].peer = int32_t(peers.size());
    peers.push_back({peer, std::move(lists.first), std::move(lists.second)});
  }
}

}  // namespace lockstep::dist
