#pragma once
// The state that each rank of a running job writes once a second into its run's folder, for `lockstep top`.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dist/flight.h"

namespace lockstep {

/// A rank's state.
struct RankStatus {
  int rank = 0, ranks = 1;
  std::string host = {};
  int64_t pid = 0;
  int64_t step = 0, steps = 0;   ///< steps done, and steps of the run
  double time = 0;               ///< when this was written, in seconds since 1970
  double steps_per_second = 0;   ///< since the state before; 0: not known yet
  std::string unit = {};         ///< the unit of the speed ("tokens")
  double units = 0;              ///< units in a step
  int64_t memory = 0, peak = 0;  ///< bytes of tensors, now and at most; of all ranks in the process
  double in_collectives = 0;     ///< the part of the time in which a collective ran, from 0 to 1
  bool ended = false;            ///< true: the run has ended
};

/// FOLDER/.run/status-N.json.
std::string status_path(const std::string& folder, int rank);
/// Replaces a rank's file. Returns false if that fails, or if the run's folder does not exist on this host.
bool write_status(const std::string& folder, const RankStatus& status);
/// Reads a rank's file. nullopt if there is none, or if it is not one.
std::optional<RankStatus> read_status(const std::string& folder, int rank);

/// The part of the time from `begin` to `end` (ns of the monotonic clock) in which a collective ran. If the record
/// begins later, because it keeps the last 1,024 collectives only, the part since then.
double time_in_collectives(std::vector<dist::Flight::Entry> entries, int64_t begin, int64_t end);

}  // namespace lockstep
