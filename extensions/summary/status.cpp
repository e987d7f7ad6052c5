// Writes and reads the states of ranks. See status.h.
#include "extensions/summary/status.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "base/output_file.h"
#include "data/files.h"
#include "data/json.h"

namespace lockstep {

using data::Json;

std::string status_path(const std::string& folder, int rank) { return str(folder, "/.run/status-", rank, ".json"); }

bool write_status(const std::string& folder, const RankStatus& s) {
  namespace fs = std::filesystem;
  const std::string path = status_path(folder, s.rank), fresh = path + ".tmp";
  std::error_code error;
  if (!fs::is_directory(folder, error)) return false;
  fs::create_directory(folder + "/.run", error);
  const Json json(Json::Object{{"rank", s.rank},
                               {"ranks", s.ranks},
                               {"host", s.host},
                               {"pid", s.pid},
                               {"step", s.step},
                               {"steps", s.steps},
                               {"time", s.time},
                               {"steps_per_second", s.steps_per_second},
                               {"unit", s.unit},
                               {"units", s.units},
                               {"memory", s.memory},
                               {"peak", s.peak},
                               {"in_collectives", s.in_collectives},
                               {"ended", s.ended}});
  // Readers see the old or the new state. After a power cut the state is of no use, so nothing waits for the disk.
  bool good = false;
  try {
    good = OutputFile(fresh, true).add(json.dump() + "\n") && std::rename(fresh.c_str(), path.c_str()) == 0;
  } catch (const Error&) {}  // NOLINT: the folder cannot be written
  if (!good) fs::remove(fresh, error);
  return good;
}

std::optional<RankStatus> read_status(const std::string& folder, int rank) {
  const std::string path = status_path(folder, rank);
  try {
    const Json json = data::parse_json(data::read_file(path, 1 << 16), path);
    return RankStatus{.rank = int(json.at("rank").as_int()),
                      .ranks = int(json.at("ranks").as_int()),
                      .host = json.at("host").as_string(),
                      .pid = json.at("pid").as_int(),
                      .step = json.at("step").as_int(),
                      .steps = json.at("steps").as_int(),
                      .time = json.at("time").as_number(),
                      .steps_per_second = json.at("steps_per_second").as_number(),
                      .unit = json.at("unit").as_string(),
                      .units = json.at("units").as_number(),
                      .memory = json.at("memory").as_int(),
                      .peak = json.at("peak").as_int(),
                      .in_collectives = json.at("in_collectives").as_number(),
                      .ended = json.at("ended").as_bool()};
  } catch (const Error&) { return std::nullopt; }
}

double time_in_collectives(std::vector<dist::Flight::Entry> entries, int64_t begin, int64_t end) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.started_ns < b.started_ns; });
  if (int(entries.size()) >= dist::Flight::capacity) begin = std::max(begin, entries.front().started_ns);
  int64_t covered = 0, until = begin;  // collectives of several groups may overlap
  for (const dist::Flight::Entry& entry : entries) {
    const int64_t from = std::max(entry.started_ns, until),
                  to = std::min(entry.ended_ns == 0 ? end : entry.ended_ns, end);
    if (to <= from) continue;
    covered += to - from;
    until = to;
  }
  return end > begin ? double(covered) / double(end - begin) : 0;
}

}  // namespace lockstep
