#pragma once
// The flight records that ranks of a failed job leave.
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/check.h"
#include "tests/environment.h"
#include "tests/temp_dir.h"

namespace testing {

/// While it lives, the ranks of jobs write their flight records into this folder.
struct FlightFolder : TempDir {
  const EnvironmentVariable variable{"LOCKSTEP_FLIGHT_DIR", str()};

  /// The call in which a rank was stuck when it wrote its record: "world 2: all_reduce f32 x 8, step 3"; "" if its last
  /// call ended well.
  std::string stuck_in(int rank) const {
    std::ifstream in(path / lockstep::str("flight-", rank, ".json"));
    const nlohmann::json last = nlohmann::json::parse(in).at("entries").back();
    if (last.at("ended_ns") != 0 && last.at("error") == "") return "";
    return lockstep::str(last.at("group").get<std::string>(), " ", last.at("sequence").get<int>(), ": ",
                         last.at("call").get<std::string>(), ", step ", last.at("step").get<int>());
  }
};

}  // namespace testing
