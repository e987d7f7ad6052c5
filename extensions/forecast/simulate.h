#pragma once
// Predicts the time of a schedule on a hypothetical network. Every transfer costs a latency plus its bytes over the
// bandwidth, and occupies one port at each end (the alpha-beta model, with one input and one output port per rank).
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dist/schedule.h"

namespace lockstep::dist {

/// A network link.
struct NetworkLink {
  double latency = 5e-6;    ///< seconds per message
  double bandwidth = 25e9;  ///< bytes per second, each way
};

/// The links of a network.
struct Network {
  NetworkLink between;                ///< between hosts; everywhere if `within` is unset
  std::optional<NetworkLink> within;  ///< inside a host (CollectiveRequest::hosts)
};

/// The result of a simulation.
struct NetworkSimulation {
  double seconds = 0;         ///< time until the last rank is done
  int64_t steps = 0;          ///< steps in which data moves between ranks
  int64_t messages = 0;       ///< all transfers of one step between the same two ranks are one message
  std::vector<int64_t> sent;  ///< bytes sent by each rank
  std::vector<int64_t> received;
};

/// Simulates a schedule on a network. The data (of one rank, for all_to_all) has `elements` elements of `element_size`
/// bytes, cut by shard_range(). Transfers start in the order of the list, as soon as their data and both ports are
/// free. Additions take no time. Transfers are not cut into blocks; real ones are, so chains of real transfers are
/// faster.
///
/// If all ranks do the same, simulates rounds of equal transfers, for any number of ranks. Other schedules are an
/// Error if they would take more than 1 GB of memory. Rounds are exact if all chunks have the same size or the number
/// of ranks is a power of two. Two exceptions: with chunks of different sizes, `ring` is exact only if all links are
/// equal; halving_doubling is exact only for a power of two. Inexact rounds are used only when transfers would take too
/// much memory; the predicted time may then include one element per chunk too many (halving_doubling: one chunk).
NetworkSimulation simulate(Algorithm algorithm, const CollectiveRequest& request, int64_t elements,
                           int64_t element_size, const Network& network);
/// True if simulate() accepts this schedule.
bool can_simulate(Algorithm algorithm, const CollectiveRequest& request, const Network& network);

/// The first method of simulate(), for tests: simulates every transfer.
NetworkSimulation simulate_transfers(Algorithm algorithm, const CollectiveRequest& request, int64_t elements,
                                     int64_t element_size, const Network& network);
/// The second method of simulate(), for tests: adds up rounds of equal transfers. Returns nothing when ranks do
/// different things.
std::optional<NetworkSimulation> simulate_rounds(Algorithm algorithm, const CollectiveRequest& request,
                                                 int64_t elements, int64_t element_size, const Network& network);

/// The textbook cost of a schedule if all links are the same: as a formula, and in seconds.
struct CostFormula {
  std::string text;  ///< "2(n-1)·α + 2(n-1)/n·S/β"
  double seconds = 0;
};
/// The cost of a schedule for `bytes` bytes of data over `link`. Nothing if there is no simple formula (mostly for
/// numbers of ranks that are not powers of two).
std::optional<CostFormula> formula(Algorithm algorithm, const CollectiveRequest& request, int64_t bytes,
                                   const NetworkLink& link);

}  // namespace lockstep::dist
