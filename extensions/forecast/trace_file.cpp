// Reads and merges trace files. See trace_file.h.
#include "extensions/forecast/trace_file.h"

#include <filesystem>
#include <functional>
#include <set>

#include "base/check.h"
#include "base/suggest.h"
#include "data/file_calls.h"
#include "extensions/figures/svg.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;
using data::Json;
using trace::Category;

constexpr size_t longest_line = size_t(16) << 20;
constexpr size_t max_named = 16;  // ranks in a warning

/// A record of a trace file. The Errors that its functions throw name the file.
struct Record {
  const Json& json;
  const std::string& path;
  int64_t integer(const char* key) const { return json.at(key, path).as_int(path); }
  double number(const char* key) const { return json.at(key, path).as_number(path); }
  const std::string& text(const char* key) const { return json.at(key, path).as_string(path); }
};

Category category_of(const std::string& name) {
  for (int c = 0; c < trace::categories; ++c)
    if (name == trace::name_of(Category(c))) return Category(c);
  return Category::other;
}

void take(RankTrace& t, const Record& record, Json args) {
  const std::string &name = record.text("name"), &kind = record.text("ph");
  if (kind == "M" && !args.is_null()) {
    t.notes[name] = std::move(args);
  } else if (kind == "C" && !args.is_null()) {
    t.counters[name].push_back({record.number("ts") * 1e-6, std::move(args)});
  } else if (kind == "X") {
    const Category category = category_of(record.text("cat"));
    const double seconds = record.number("dur") * 1e-6;
    if (category == Category::operation) {
      RankTrace::Total& total = t.operations[name];
      ++total.calls;
      total.seconds += seconds;
    } else if (category != Category::backward || name == "backward") {  // skips nodes of the tape
      t.events.push_back(
          {category, name, record.number("ts") * 1e-6, seconds, int(record.integer("tid")), std::move(args)});
    }
  }
}

/// Calls visit() with the text of each record. Returns true if the trace ends with a line "]".
bool visit_trace(const std::string& path, const std::function<void(const std::string&)>& visit) {
  const auto file = data::MappedFile::open(path);
  std::string_view rest(reinterpret_cast<const char*>(file->data()), size_t(file->size()));
  LOCKSTEP_CHECK(rest == "[" || rest.starts_with("[\n"), path,
                 ": expected a trace that Lockstep wrote, which begins with a line \"[\"; check the path");
  rest.remove_prefix(std::min<size_t>(rest.size(), 2));
  bool ended = false;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    if (end == rest.npos && line != "]") break;  // no newline: the line was cut short
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    LOCKSTEP_CHECK(line.size() < longest_line, path, ": expected lines of less than ", longest_line, " bytes, got ",
                   line.size(), "; pass a trace that Lockstep wrote");
    if (line == "]") {
      ended = true;
      break;
    }
    const bool is_last = line.ends_with('}');
    LOCKSTEP_CHECK(line.starts_with('{') && (is_last || line.ends_with("},")), path,
                   ": expected a record on every line, got \"", line.substr(0, 80), "\"; trace the run again");
    if (!is_last) line.remove_suffix(1);
    visit(std::string(line));
  }
  return ended;
}

/// Reads the first record and the clock of a trace; with `records`, reads all records.
RankTrace read(const std::string& path, bool records) {
  RankTrace t{.path = path};
  bool known = false;
  int64_t error = 0;
  t.ended = visit_trace(path, [&](const std::string& line) {
    const bool is_head = !known && line.starts_with("{\"name\":\"trace\",\"ph\":\"M\""),
               is_clock = line.starts_with("{\"name\":\"clock at the end\"");
    if (!is_head && (!known || !(records || is_clock))) return;  // the head comes first
    Json json = data::parse_json(line, path);
    if (is_head || is_clock) {
      const Record facts{json.at("args", path), path};
      if (is_head) {
        t.rank = int(facts.integer("rank")), t.ranks = int(facts.integer("ranks")), t.run = facts.integer("run");
        LOCKSTEP_CHECK(t.ranks >= 1 && t.ranks <= 1 << 20, path, ": expected 1 to ", 1 << 20, " ranks, got ", t.ranks,
                       "; trace the run again");
        LOCKSTEP_CHECK(t.rank >= 0 && t.rank < t.ranks, path, ": expected a rank from 0 to ", t.ranks - 1, ", got ",
                       t.rank, "; trace the run again");
        t.drift.first_ns = facts.integer("offset_ns");
        known = true;
      } else {
        t.drift.last_at = Record{json, path}.number("ts") * 1e-6;
      }
      t.drift.last_ns = facts.integer("offset_ns"), error = std::max(error, facts.integer("error_ns"));
      return;
    }
    Json args = json.find("args") ? std::move(json["args"]) : Json();
    take(t, {json, path}, std::move(args));
  });
  LOCKSTEP_CHECK(known, path, ": expected a trace that Lockstep wrote, found no record that says so; check the path");
  t.clock_error = double(error) * 1e-9;
  for (TraceEvent& e : t.events) e.begin += t.drift.at(e.begin);
  for (auto& [name, samples] : t.counters)
    for (CounterSample& sample : samples) sample.at += t.drift.at(sample.at);
  std::ranges::stable_sort(t.events, {}, [](const TraceEvent& e) { return std::pair(e.begin, -e.seconds); });
  return t;
}

/// Reads the first record and the clock of each trace of the newest run. Returns them by rank.
std::vector<RankTrace> read_heads(const std::string& folder, std::vector<std::string>& warnings) {
  std::vector<RankTrace> heads;
  fs::file_time_type newest = fs::file_time_type::min();
  int64_t run = 0;
  for (const std::string& path : find_traces(folder)) {
    heads.push_back(read(path, false));
    const auto written = fs::last_write_time(path);
    if (written >= newest) newest = written, run = heads.back().run;
  }
  std::erase_if(heads, [&](const RankTrace& head) {
    if (head.run == run) return false;
    warnings.push_back(head.path + " belongs to another run and was left out; delete it, or move it away");
    return true;
  });
  std::ranges::sort(heads, {}, &RankTrace::rank);
  for (size_t i = 1; i < heads.size(); ++i)
    LOCKSTEP_CHECK(heads[i].rank != heads[i - 1].rank, heads[i].path, " and ", heads[i - 1].path,
                   ": expected one trace of each rank, got two of rank ", heads[i].rank, "; delete one of them");
  std::vector<std::string> missing;
  for (int rank = 0; !heads.empty() && rank < heads[0].ranks; ++rank)
    if (!std::ranges::binary_search(heads, rank, {}, &RankTrace::rank)) missing.push_back(str(rank));
  if (!missing.empty())
    warnings.push_back(str("no trace of rank ", list_names(missing, max_named), " (of 0 to ", heads[0].ranks - 1,
                           ") is in ", folder, "; copy it there"));
  for (const RankTrace& head : heads)
    if (!head.ended)
      warnings.push_back(str("the trace of rank ", head.rank, " has no end: wait for that rank, or see why it died"));
  return heads;
}

}  // namespace

double number_of(const Json& json, const char* key, double otherwise) {
  const Json* value = json.find(key);
  return value && value->is_number() ? value->as_number() : otherwise;
}
std::string text_of(const Json& json, const char* key) {
  const Json* value = json.find(key);
  return value && value->is_string() ? value->as_string() : "";
}
int64_t TraceEvent::integer(const char* key, int64_t limit) const {
  const double value = number(key);
  return value > 0 ? int64_t(std::min(value, double(limit))) : 0;
}

const Json* RankTrace::note(const std::string& name) const {
  const auto found = notes.find(name);
  return found == notes.end() ? nullptr : &found->second;
}
const std::vector<CounterSample>& RankTrace::samples(const std::string& counter) const {
  static const std::vector<CounterSample> none;
  const auto found = counters.find(counter);
  return found == counters.end() ? none : found->second;
}

RankTrace read_trace(const std::string& path) { return read(path, true); }

std::vector<std::string> find_traces(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  const auto look = [&](const fs::path& place) {
    for (const auto& file : fs::directory_iterator(place, error)) {
      const std::string name = file.path().filename().string();
      const bool numbered = name.starts_with("rank-") && name.ends_with(".json") && name.size() > 10 &&
                            name.substr(5, name.size() - 10).find_first_not_of("0123456789") == std::string::npos;
      if (numbered && file.is_regular_file(error)) found.push_back(file.path().string());
    }
  };
  look(folder);
  std::set<fs::path> below;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.is_directory(error)) below.insert(entry.path());
  for (const fs::path& place : below)
    if (found.empty()) look(place);
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<RankTrace> read_traces(const std::string& folder, std::vector<std::string>& warnings) {
  std::vector<RankTrace> all;
  for (const RankTrace& head : read_heads(folder, warnings)) all.push_back(read_trace(head.path));
  return all;
}

std::vector<int> merge_traces(const std::string& folder, const std::string& out_path,
                              std::vector<std::string>& warnings) {
  const std::vector<RankTrace> heads = read_heads(folder, warnings);
  LOCKSTEP_CHECK(!heads.empty(), "[trace] expected files rank-N.json in ", folder, ", which a run with --trace ",
                 folder, " writes, found none; check the path");
  std::vector<int> ranks;
  data::write_atomically(out_path, [&](data::NewFile& file) {
    constexpr size_t piece = size_t(1) << 20;
    std::string text = "[\n";
    bool first = true;
    for (const RankTrace& head : heads) {
      ranks.push_back(head.rank);
      visit_trace(head.path, [&](const std::string& line) {
        if (text.size() > piece) file.append(data::as_bytes(std::exchange(text, {})));
        text += std::exchange(first, false) ? "" : ",\n";
        const size_t at = line.find(",\"ts\":");  // inside a name the quotes would be escaped
        if (at == line.npos || !head.drift.any()) return void(text += line);
        const size_t begin = at + 6, end = std::min(line.find_first_of(",}", begin), line.size());
        const auto given = read_number<double>(line.substr(begin, end - begin));
        LOCKSTEP_CHECK(given, "[trace] ", head.path, ": expected a number after \"ts\":, got ", line.substr(0, 200),
                       "; trace the run again");
        const double time = *given * 1e-6;
        text += line.substr(0, begin) + format("%.3f", (time + head.drift.at(time)) * 1e6) + line.substr(end);
      });
    }
    file.append(data::as_bytes(text + "\n]\n"));
  });
  return ranks;
}

}  // namespace lockstep::report
