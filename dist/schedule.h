#pragma once
// A collective as data: a list of transfers. One list is printed and drawn (draw.h), proved right (schedule_check.h),
// simulated (simulate.h) and executed (executor.h).
//
// Vocabulary. Data is cut into chunks. A place is a chunk in the user's buffer (slot 0) or in a scratch copy of it
// (slot 1, 2, ...). A transfer moves one place at one rank into one place at another, or, when from == to, works inside
// one rank. Steps order transfers: what a step reads is what earlier steps left; inside one step no place is both read
// and written, or written twice. Between two ranks, transfers keep the order of the list.
//
//   ring all-reduce, 3 ranks, step 0 of 4:    rank 0 ──chunk 0──▶ rank 1 ──chunk 1──▶ rank 2 ──chunk 2──▶ rank 0
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::dist {

enum class Collective : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  barrier,
  send,
  receive,
  batch,
  replay
};  // from barrier on: not made of schedules
inline constexpr int scheduled_collectives = 8;
enum class Algorithm : uint8_t {
  automatic,
#define ALGORITHM(x) x,
#include "dist/schedules/algorithms.def"
#undef ALGORITHM
};
/// All but automatic, which is none but a choice among them.
std::vector<Algorithm> all_algorithms();
std::vector<std::string> names_of_algorithms();
enum class Action : uint8_t { copy, reduce, scale };  ///< scale: local; divides by the number of ranks (mean)

std::string_view name_of(Collective collective);
std::string describe_replay(int64_t collectives);  ///< "replay of 2 collectives"
std::string_view name_of(Algorithm algorithm);
/// Error with the known names and the nearest one.
Collective parse_collective(std::string_view name);
Algorithm parse_algorithm(std::string_view name, const char* what = "algorithm");

struct Place {
  int32_t chunk = 0;
  int32_t slot = 0;
  friend bool operator==(const Place&, const Place&) = default;
};

struct Transfer {
  int32_t step = 0;
  int32_t from = 0;
  int32_t to = 0;
  Place source;
  Place target;
  Action action = Action::copy;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// What is asked for. chunk_count() says into how many chunks the data is cut, by shard_range(); for n ranks:
///   reduce_scatter, all_gather, gather, scatter   n; chunk i belongs to rank i
///   all_reduce, broadcast, reduce                 n, or 1 when the algorithm moves the data as a whole
///   all_to_all                                    n·n; chunk i·n + j goes from rank i to rank j
struct Request {
  Collective collective = Collective::all_reduce;
  int ranks = 1;
  int root = 0;            ///< broadcast, reduce, gather, scatter; where `tree` and `server` meet in the others
  bool mean = false;       ///< adds the scale transfers of a mean
  std::vector<int> hosts;  ///< hierarchical: host of each rank; empty: one host
};

/// Error when this cannot be asked of `algorithm`.
void check_request(Algorithm algorithm, const Request& request);
/// Whether `algorithm` has a schedule for this collective.
bool has_schedule(Algorithm algorithm, Collective collective);
int64_t chunk_count(Algorithm algorithm, const Request& request);
bool is_reduction(Collective collective);  ///< all_reduce, reduce_scatter, reduce
bool has_root(Collective collective);      ///< broadcast, reduce, gather, scatter
/// Whether the ranks' terms are added in the order of summation_tree.h: `direct` always, others for shapes that are
/// easy to tell. All that do give the same bits.
bool adds_in_tree_order(Algorithm algorithm, const Request& request);

using Emit = std::function<void(const Transfer&)>;
/// The schedule as a stream, steps ascending. Error when there is none. Pure: depends on its arguments only.
void visit_schedule(Algorithm algorithm, const Request& request, const Emit& emit);
/// The same as a list.
std::vector<Transfer> make_schedule(Algorithm algorithm, const Request& request);
/// The part of a schedule that concerns one rank (as sender or receiver), in order.
std::vector<Transfer> program_of(Algorithm algorithm, const Request& request, int rank);

}  // namespace lockstep::dist
