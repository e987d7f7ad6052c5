#pragma once
// The kinds of call that process groups make, their algorithms and reduction operators, and the names of all these.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::dist {

/// Kinds of call. `barrier` and the kinds after it have no schedule.
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
};
/// The name of each kind of call, in their order.
inline constexpr std::string_view collective_names[] = {
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter",
    "all_to_all", "barrier",        "send",       "receive",   "batch",  "replay"};
/// Number of collectives that have schedules. These are the first enumerators of Collective.
inline constexpr int scheduled_collectives = 8;
/// Algorithms of collectives; `automatic` lets the engine choose. The enumerators are the core's (algorithms.def).
/// Algorithms of extensions have the numbers that follow, which depend on the build: parse_algorithm() gives them.
enum class Algorithm : uint8_t {
  automatic,
#define ALGORITHM(x) x,
#include "dist/schedules/algorithms.def"
#undef ALGORITHM
};
/// Reduction operators. For bool: sum and max are "or", product and min are "and". A mean of integers is truncated; a
/// mean of bool is an Error.
enum class ReduceOp : uint8_t { sum, mean, product, min, max };

/// All algorithms except `automatic`.
std::vector<Algorithm> all_algorithms();
std::vector<std::string> names_of_algorithms();  ///< names of all_algorithms()
/// The name of a collective, such as "all_reduce". A number that is no Collective gives "something unknown".
std::string_view name_of(Collective collective);
/// The name of an algorithm, such as "ring". A number that is no Algorithm gives "an unknown algorithm".
std::string_view name_of(Algorithm algorithm);
const char* name_of(ReduceOp op);  ///< "sum", "mean", "product", "min", "max"
/// The collective of this name. Error if the name is unknown; it lists the known names and suggests the nearest one.
Collective parse_collective(std::string_view name);
/// The algorithm of this name. Error if the name is unknown, as in parse_collective(). `what`: names the option or
/// variable in the Error.
Algorithm parse_algorithm(std::string_view name, const char* what = "algorithm");

}  // namespace lockstep::dist
