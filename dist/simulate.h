#pragma once
// How long a schedule takes on a network that does not exist (yet): every transfer costs a latency and its bytes over
// the bandwidth, and occupies one port at either side (the alpha-beta model with one port in and one out per rank).
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dist/schedule.h"

namespace lockstep::dist {

struct Link {
  double latency = 5e-6;    ///< seconds per message
  double bandwidth = 25e9;  ///< bytes per second, each way
};

struct Network {
  Link between;                ///< between hosts, and everywhere when there is one kind only
  std::optional<Link> within;  ///< inside a host (Request::hosts)
};

struct Simulation {
  double seconds = 0;         ///< until the last rank is done
  int64_t steps = 0;          ///< in which something moves between ranks
  int64_t messages = 0;       ///< transfers of one step between the same two ranks are one message
  std::vector<int64_t> sent;  ///< bytes, by rank
  std::vector<int64_t> received;
};

/// Runs a schedule in the model. The data has `elements` of `element_size` bytes (all_to_all: at each rank), cut as
/// everywhere by shard_range(). Transfers start in the order of the list, when what they send is there and both ports
/// are free; adding takes no time; a transfer is not cut into segments (the executor does that: chains are faster
/// there).
///
/// Where every rank does the same, rounds are counted instead of transfers, for any number of ranks; the rest is
/// refused when it takes more than 1 GB to look at. The same result, but where chunks differ by an element and the
/// number of ranks is no power of two (a ring: where its links differ). Then rounds are used only for what is too large
/// otherwise, and it may seem slower by an element a chunk; halving_doubling by one chunk.
Simulation simulate(Algorithm algorithm, const Request& request, int64_t elements, int64_t element_size,
                    const Network& network);
/// Whether simulate() does.
bool can_simulate(Algorithm algorithm, const Request& request, const Network& network);

/// The two ways, for tests. By rounds: none when ranks do different things.
Simulation simulate_transfers(Algorithm algorithm, const Request& request, int64_t elements, int64_t element_size,
                              const Network& network);
std::optional<Simulation> simulate_rounds(Algorithm algorithm, const Request& request, int64_t elements,
                                          int64_t element_size, const Network& network);

/// What the textbook says for the same, one kind of link: a·latency + b·S/bandwidth. None when there is no simple one
/// (mostly: numbers of ranks that are no powers of two).
struct Formula {
  std::string text;  ///< "2(n-1)·α + 2(n-1)/n·S/β"
  double seconds = 0;
};
std::optional<Formula> formula(Algorithm algorithm, const Request& request, int64_t bytes, const Link& link);

}  // namespace lockstep::dist
