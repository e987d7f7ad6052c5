#pragma once
// A pipeline as data: for each rank a list of actions. One list is checked (schedule_check.h), simulated (simulate.h),
// printed and drawn (there, too), and executed (engine.h).
//
// Vocabulary. p ranks ("stages") share the layers; a batch is m micro-batches. A rank holds v chunks of layers; all p·v
// chunks in the order of the model are the virtual stages. Backward may be split: the gradient of a stage's input,
// which the stage before waits for, and that of its weights, which nobody waits for.
//
//   1F1B, 4 ranks, 4 micro-batches (a column is the time of a forward; a backward takes two):
//
//   rank 0   F0 F1 F2 F3 .  .  .  .  .  .  B0 B0 .  B1 B1 .  B2 B2 .  B3 B3       activations kept: 4
//   rank 1   .  F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3 .  .        3
//   rank 2   .  .  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3 .  .  .  .        2
//   rank 3   .  .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .  .  .  .  .        1
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::pipeline {

/// gpipe: all forwards, then all backwards. one_f_one_b: a backward as soon as one can be. interleaved: that with v
/// chunks a rank. zb_h1: split backwards fill the bubble. dualpipe_v: two chunks a rank, in a V.
enum class Kind : uint8_t {
#define KIND(x) x,
#include "pipeline/schedules/kinds.def"
#undef KIND
};
std::vector<std::string> names_of_kinds();
std::string_view name_of(Kind kind);  ///< "gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe-v"
bool is_kind(std::string_view name);
Kind parse_kind(std::string_view name);  ///< Error with the known names and the nearest one

enum class What : uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  send_activation,
  receive_activation,
  send_gradient,
  receive_gradient
};
std::string_view name_of(What what);
inline bool is_compute(What what) { return what <= What::backward_weight; }
inline bool is_send(What what) { return what == What::send_activation || what == What::send_gradient; }

struct Action {
  What what = What::forward;
  int32_t micro_batch = 0;
  int32_t chunk = 0;  ///< of this rank; of a transfer: the chunk that makes or takes it
  friend bool operator==(const Action&, const Action&) = default;
};
std::string to_string(const Action& action);  ///< "forward of micro-batch 3, chunk 1"

struct Request {
  Kind kind = Kind::one_f_one_b;
  int stages = 1;
  int micro_batches = 1;
  int chunks = 0;  ///< a rank; 0: as the kind has it (1, or 2 for interleaved and dualpipe-v)
};

/// The list for each rank, and where the virtual stages lie.
struct Schedule {
  Request request;  ///< chunks filled in
  std::vector<std::vector<Action>> ranks;

  struct Position {
    int rank, chunk;
  };
  int virtual_stages() const { return request.stages * request.chunks; }
  int virtual_stage(int rank, int chunk) const;  ///< round and round, or in a V
  Position place(int virtual_stage) const;
  /// Whether another rank has this virtual stage; nobody has those before the first and behind the last.
  bool is_remote(int virtual_stage, int rank) const {
    return virtual_stage >= 0 && virtual_stage < virtual_stages() && place(virtual_stage).rank != rank;
  }
};

int chunks_of(const Request& request);  ///< a rank, also where none are asked
/// Why there is no schedule for these numbers, with the nearest that there is: "interleaved: expected ..., got ...; use
/// ..."; or nothing.
std::string refusal_of(const Request& request);
/// Error when there is none for these numbers, with the nearest that there is. Pure: depends on its arguments only.
Schedule make_schedule(const Request& request);

/// The forwards alone of so many micro-batches, in the same stages: for evaluation.
std::vector<std::vector<Action>> forwards_of(const Schedule& schedule, int micro_batches);

}  // namespace lockstep::pipeline
