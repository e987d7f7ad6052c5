#pragma once
// Reads the flight records that ranks of a failed job left.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/check.h"

namespace testing {

/// The call in which a rank was stuck when it wrote its record: "world 2: all_reduce f32 x 8, step 3"; "" if its last
/// call ended well.
inline std::string stuck_in(const std::filesystem::path& folder, int rank) {
  std::ifstream in(folder / lockstep::str("flight-", rank, ".json"));
  const nlohmann::json last = nlohmann::json::parse(in).at("entries").back();
  if (last.at("ended_ns") != 0 && last.at("error") == "") return "";
  return lockstep::str(last.at("group").get<std::string>(), " ", last.at("sequence").get<int>(), ": ",
                       last.at("call").get<std::string>(), ", step ", last.at("step").get<int>());
}

}  // namespace testing
