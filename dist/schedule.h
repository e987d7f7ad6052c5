#pragma once
// A collective as data: a list of transfers. The same list is executed (executor.h) and, in extensions, printed, drawn,
// verified and simulated.
//
// Vocabulary. Data is cut into chunks. A place is a chunk in the user's buffer (slot 0) or in a scratch copy of it
// (slot 1, 2, ...). A transfer moves a place of one rank into a place of another rank or, if from == to, works inside
// one rank. Steps order transfers: a step reads the results of earlier steps. Within one step, no place is both read
// and written, or written twice. Between two ranks, transfers keep the order of the list.
//
//   ring all-reduce, 3 ranks, step 0 of 4:    rank 0 ──chunk 0──▶ rank 1 ──chunk 1──▶ rank 2 ──chunk 2──▶ rank 0
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dist/collective.h"

namespace lockstep::dist {

enum class TransferAction : uint8_t { copy, reduce, scale };  ///< scale: local, divides by the number of ranks (mean)

std::string describe_replay(int64_t collectives);  ///< "replay of 2 collectives"

/// A chunk in the user's buffer (slot 0) or in a scratch copy (slot 1, 2, ...).
struct ChunkSlot {
  int32_t chunk = 0;
  int32_t slot = 0;
  friend bool operator==(const ChunkSlot&, const ChunkSlot&) = default;
};

/// Moves `source` of rank `from` into `target` of rank `to`, in step `step`.
struct Transfer {
  int32_t step = 0;
  int32_t from = 0;
  int32_t to = 0;
  ChunkSlot source;
  ChunkSlot target;
  TransferAction action = TransferAction::copy;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// Parameters of a schedule. shard_range() cuts the data into chunks. For n ranks, their number is:
///   reduce_scatter, all_gather, gather, scatter   n; chunk i belongs to rank i
///   all_reduce, broadcast, reduce                 n, or 1 if the algorithm moves the data as a whole
///   all_to_all                                    n·n; chunk i·n + j goes from rank i to rank j
struct CollectiveRequest {
  Collective collective = Collective::all_reduce;
  int ranks = 1;
  /// The root of broadcast, reduce, gather and scatter; for others the central rank of an algorithm that has one.
  int root = 0;
  bool mean = false;       ///< true: add the `scale` transfers that turn a sum into a mean
  std::vector<int> hosts;  ///< host number of each rank, if the algorithm uses_hosts(); empty: all on one host
};

/// Error when the request is invalid, or `algorithm` has no schedule for it.
void check_request(Algorithm algorithm, const CollectiveRequest& request);
/// True if `algorithm` has a schedule for this collective.
bool has_schedule(Algorithm algorithm, Collective collective);
/// Number of chunks that the data is cut into; see CollectiveRequest.
int64_t chunk_count(Algorithm algorithm, const CollectiveRequest& request);
bool is_reduction(Collective collective);  ///< true for all_reduce, reduce_scatter, reduce
bool has_root(Collective collective);      ///< true for broadcast, reduce, gather, scatter
/// True if the ranks' terms are added in the order of summation_tree.h. For `direct` this is always so, for other
/// algorithms it depends on the request. All such schedules give the same bits.
bool adds_in_tree_order(Algorithm algorithm, const CollectiveRequest& request);
/// True if the schedule depends on CollectiveRequest::hosts.
bool uses_hosts(Algorithm algorithm);

/// A function that visit_schedule() calls with each transfer.
using Emit = std::function<void(const Transfer&)>;
/// Emits the schedule's transfers by ascending step. They depend on the arguments only. Error if there is no schedule.
void visit_schedule(Algorithm algorithm, const CollectiveRequest& request, const Emit& emit);
/// The schedule as a list.
std::vector<Transfer> make_schedule(Algorithm algorithm, const CollectiveRequest& request);
/// The transfers of a schedule that `rank` sends or receives, in order.
std::vector<Transfer> program_of(Algorithm algorithm, const CollectiveRequest& request, int rank);

}  // namespace lockstep::dist
