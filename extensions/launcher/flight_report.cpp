// Finds the late ranks in the flight records of all ranks.
#include "extensions/launcher/launcher.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/classic_text.h"
#include "base/output_file.h"
#include "base/printable.h"
#include "dist/flight.h"
#include "dist/net.h"
#include "extensions/figures/quantity.h"

namespace lockstep::dist {
namespace {

using Json = nlohmann::json;

// The flight record of one rank, as read from its file: the part that is needed to find the late ranks.
struct Record {
  int rank = 0;
  std::string why;
  std::vector<Flight::Entry> entries;

  bool waits(const Flight::Entry& e) const { return e.ended_ns == 0 || !e.error.empty(); }
  /// The call that the rank is stuck in: its last one, if that is unfinished or failed; else nullptr.
  const Flight::Entry* stuck() const { return !entries.empty() && waits(entries.back()) ? &entries.back() : nullptr; }
  const Flight::Entry* last(const std::string& group) const {
    for (auto e = entries.rbegin(); e != entries.rend(); ++e)
      if (e->group == group && e->sequence > 0) return &*e;
    return nullptr;
  }
};

std::string where(const Flight::Entry& e) {
  return e.sequence > 0 ? str("seq ", e.sequence, " (", e.call, ")") : e.call;
}

constexpr size_t max_bytes = 16 << 20;  // limit of a record's size

Record read_record(const std::filesystem::path& path, int& world) {
  const auto refuse = [&](const std::string& what) {
    fail(str("[flight] expected a flight record in ", path.string(), ", got ", what,
             "; remove the file to read the others"));
  };
  const std::string text = read_start(path, max_bytes + 1);
  if (text.size() > max_bytes) refuse(str("more than ", max_bytes, " bytes"));
  const ClassicLocale classic;
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) refuse("damaged JSON");
  // nlohmann converts any number to an integer without a check of its range.
  const auto integer = [&](const Json& object, const char* field, int64_t max = INT64_MAX) -> int64_t {
    const Json& value = object.at(field);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t(max))
      refuse(str("one with ", field, " = ", value.is_number() ? value.dump() : value.type_name(),
                 " where an integer from 0 to ", max, " is expected"));
    return value.get<int64_t>();
  };
  Record record;
  try {
    record.rank = int(integer(json, "rank", 1 << 20));
    world = std::max(world, int(integer(json, "world", 1 << 20)));
    record.why = json.at("why").get<std::string>();
    for (const Json& e : json.at("entries")) {
      record.entries.push_back({e.at("group").get<std::string>(), uint64_t(integer(e, "sequence")),
                                e.at("call").get<std::string>(), uint64_t(integer(e, "step")), integer(e, "started_ns"),
                                integer(e, "ended_ns"), e.at("error").get<std::string>()});
    }
  } catch (const Json::exception& e) { refuse(str("one with a missing or wrong field: ", e.what())); }
  return record;
}

// Returns a sentence that names the late ranks of a group: those that have not reached the newest call in which some
// rank is stuck. Returns nothing when no rank is stuck in this group.
std::optional<std::string> verdict_of(const std::string& group, const std::vector<Record>& records, bool& root_cause) {
  uint64_t newest = 0;
  for (const Record& r : records)
    if (const auto* e = r.stuck(); e && e->group == group) newest = std::max(newest, e->sequence);
  if (newest == 0) return {};
  std::map<std::string, std::vector<int>> calls;  // the ranks by what they called as call number `newest`
  std::string late;
  for (const Record& r : records) {
    const Flight::Entry* e = r.last(group);
    if (!e) continue;  // not in this group, or its calls were overwritten
    if (e->sequence >= newest) {
      calls[e->sequence == newest ? e->call : ""].push_back(r.rank);
      continue;
    }
    const Flight::Entry* stuck = r.stuck();
    late += str(late.empty() ? "" : "; ", "rank ", r.rank, " is late: it ");
    if (stuck == e) late += "is in " + where(*e);
    else if (stuck) late += str("left ", where(*e), " and is in ", where(*stuck), " of group ", stuck->group);
    else late += "left " + where(*e) + " and is in no collective";
    root_cause |= !stuck || stuck == e;
  }
  const std::string in_group = group == "world" ? "" : " of group " + group;
  if (calls.size() > 1 && late.empty()) {
    root_cause = true;
    std::string text;
    for (const auto& [call, ranks] : calls)
      text += str(text.empty() ? ": " : "; ", named(ranks), ranks.size() == 1 ? " calls " : " call ",
                  call.empty() ? "something later" : call);
    return str("ranks disagree in seq ", newest, in_group, text);
  }
  const auto& [call, waiting] = *calls.begin();
  const std::string wait =
      str(named(waiting), waiting.size() == 1 ? " waits" : " wait", " in seq ", newest, " (", call, ")", in_group);
  return late.empty() ? wait : late + "; " + wait;
}

}  // namespace

std::string explain_flight(const std::string& folder) {
  std::vector<Record> records;
  int world = 0;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = file.path().filename().string();
    if (name.starts_with("flight-") && name.ends_with(".json")) records.push_back(read_record(file.path(), world));
  }
  LOCKSTEP_CHECK(!records.empty(), "[flight] expected files flight-RANK.json in ", folder,
                 error ? str(", got ", error.message()) : std::string(", got none"),
                 "; set LOCKSTEP_FLIGHT_DIR (lockstep run --log-dir does) before the run");
  std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) { return a.rank < b.rank; });

  std::vector<std::string> groups, causes, effects;
  for (const Record& r : records)
    for (const auto& e : r.entries)
      if (std::ranges::count(groups, e.group) == 0) groups.push_back(e.group);
  for (const std::string& group : groups) {
    bool root_cause = false;
    if (const auto text = verdict_of(group, records, root_cause)) (root_cause ? causes : effects).push_back(*text);
  }
  for (const Record& r : records)  // messages have no number in the order of a group
    if (const auto* e = r.stuck(); e && e->sequence == 0)
      effects.push_back(str("rank ", r.rank, " waits in ", e->call));
  std::vector<int> silent(static_cast<size_t>(world));
  std::iota(silent.begin(), silent.end(), 0);
  for (const Record& r : records) std::erase(silent, r.rank);

  std::string text;
  if (!silent.empty())
    text += str(named(silent), " left no record: killed, or lost before it could write one; see dmesg\n");
  causes.insert(causes.end(), effects.begin(), effects.end());
  for (const std::string& line : causes) text += line + "\n";
  if (!causes.empty()) text += "look at the rank named first: every rank must make the same calls in the same order\n";
  if (causes.empty() && silent.empty()) text += "no rank waits for another\n";
  for (const Record& r : records) {
    text += str("  rank ", r.rank, ": ");
    if (r.entries.empty()) text += "no collective";
    else {
      const Flight::Entry& e = r.entries.back();
      const double seconds = e.ended_ns ? double(e.ended_ns - e.started_ns) * 1e-9 : 0;
      text += str(r.waits(e) ? "in " : "after ", where(e), " of group ", e.group, ", step ", e.step,
                  e.ended_ns ? ", for " + lockstep::seconds_text(seconds) : std::string());
    }
    text += r.why.empty() ? "\n" : "; " + r.why + "\n";
  }
  return printable(text);
}

}  // namespace lockstep::dist
