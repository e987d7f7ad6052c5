#include "report/trace_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "tensor/check.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;
using data::Json;
using trace::Category;

constexpr size_t longest_line = size_t(16) << 20;
constexpr int most_named = 16;  // ranks in a warning

/// What a file says of itself, and what its clock turned out to be.
struct Head {
  std::string path;
  int rank = 0, ranks = 1;
  int64_t run = 0, offset = 0, error = 0, last_offset = 0;
  double last_at = 0;  // microseconds
  bool whole = false;
  /// To be added to a time of the file, in microseconds: its clock went on evenly from the first measurement to the
  /// last.
  double correction(double at) const {
    return last_at > 0 ? double(last_offset - offset) * 1e-3 * std::min(at / last_at, 1.) : 0;
  }
};

Head read_head(const std::string& path) {
  Head head{.path = path};
  bool known = false;
  head.whole = visit_trace(path, [&](const std::string& line) {
    if (!known && line.starts_with("{\"name\":\"trace\",\"ph\":\"M\"")) {
      const Json facts = data::parse_json(line, path).at("args", path);
      head.rank = int(facts.at("rank", path).as_int(path)), head.ranks = int(facts.at("ranks", path).as_int(path));
      head.run = facts.at("run", path).as_int(path),
      head.offset = head.last_offset = facts.at("offset_ns", path).as_int(path),
      head.error = facts.at("error_ns", path).as_int(path);
      LOCKSTEP_CHECK(head.ranks >= 1 && head.ranks <= 1 << 20, path, ": expected 1 to ", 1 << 20, " ranks, got ",
                     head.ranks);
      LOCKSTEP_CHECK(head.rank >= 0 && head.rank < head.ranks, path, ": expected a rank from 0 to ", head.ranks - 1,
                     ", got ", head.rank);
      known = true;
    } else if (line.starts_with("{\"name\":\"clock at the end\"")) {
      const Json record = data::parse_json(line, path);
      head.last_at = record.at("ts", path).as_number(path);
      head.last_offset = record.at("args", path).at("offset_ns", path).as_int(path);
      head.error = std::max(head.error, record.at("args", path).at("error_ns", path).as_int(path));
    }
  });
  LOCKSTEP_CHECK(known, path, ": expected a trace that Lockstep wrote, found no record that says so");
  return head;
}

/// Those of the newest run.
std::vector<Head> read_heads(const std::string& folder, std::vector<std::string>& warnings) {
  std::vector<Head> heads;
  fs::file_time_type newest = fs::file_time_type::min();
  int64_t run = 0;
  for (const std::string& path : find_traces(folder)) {
    heads.push_back(read_head(path));
    const auto written = fs::last_write_time(path);
    if (written >= newest) newest = written, run = heads.back().run;
  }
  std::erase_if(heads, [&](const Head& head) {
    if (head.run == run) return false;
    warnings.push_back(head.path + " is of another run and was left out");
    return true;
  });
  std::sort(heads.begin(), heads.end(), [](const Head& a, const Head& b) { return a.rank < b.rank; });
  for (size_t i = 1; i < heads.size(); ++i)
    LOCKSTEP_CHECK(heads[i].rank != heads[i - 1].rank, heads[i].path, " and ", heads[i - 1].path,
                   ": expected one trace of each rank, got two of rank ", heads[i].rank);
  std::string missing;
  int count = 0;
  for (int rank = 0, i = 0; !heads.empty() && rank < heads[0].ranks; ++rank) {
    if (i < int(heads.size()) && heads[size_t(i)].rank == rank) ++i;
    else if (++count <= most_named) missing += str(missing.empty() ? "" : ", ", rank);
  }
  if (count > most_named) missing += str(" and ", count - most_named, " more");
  if (!missing.empty())
    warnings.push_back(str("no trace of rank ", missing, " (of 0 to ", heads[0].ranks - 1, ") is in ", folder));
  for (const Head& head : heads)
    if (!head.whole)
      warnings.push_back(str("the trace of rank ", head.rank, " has no end: its process was killed, or still runs"));
  return heads;
}

Category category_of(const std::string& name) {
  for (int c = 0; c < trace::categories; ++c)
    if (name == trace::name_of(Category(c))) return Category(c);
  return Category::other;
}

RankTrace read(const Head& head) {
  RankTrace t{.path = head.path,
              .rank = head.rank,
              .ranks = head.ranks,
              .run = head.run,
              .clock_error = double(head.error) * 1e-9,
              .whole = head.whole};
  const auto seconds = [&](const Json& at) {
    return (at.as_number(head.path) + head.correction(at.as_number(head.path))) * 1e-6;
  };
  visit_trace(head.path, [&](const std::string& line) {
    Json record = data::parse_json(line, head.path);
    const std::string name = record.at("name", head.path).as_string(head.path),
                      kind = record.at("ph", head.path).as_string(head.path);
    Json* args = record.find("args") ? &record["args"] : nullptr;
    if (kind == "M") {
      if (name == "thread_name" && args)
        t.rows[int(record.at("tid", head.path).as_int(head.path))] = args->at("name", head.path).as_string(head.path);
      else if (args) t.notes[name] = std::move(*args);
    } else if (kind == "C") {
      if (args) t.counters[name].push_back({seconds(record.at("ts", head.path)), std::move(*args)});
    } else if (kind == "X") {
      const Category category = category_of(record.at("cat", head.path).as_string(head.path));
      const double length = record.at("dur", head.path).as_number(head.path) * 1e-6;
      if (category == Category::operation) {
        RankTrace::Total& total = t.operations[name];
        ++total.calls;
        total.seconds += length;
        return;
      }
      if (category == Category::backward && name != "backward") return;  // a node of the tape
      t.events.push_back({category, name, seconds(record.at("ts", head.path)), length,
                          int(record.at("tid", head.path).as_int(head.path)), args ? std::move(*args) : Json()});
    }
  });
  std::stable_sort(t.events.begin(), t.events.end(), [](const Event& a, const Event& b) {
    return a.begin < b.begin || (a.begin == b.begin && a.seconds > b.seconds);
  });
  return t;
}

}  // namespace

double Event::number(const char* key) const {
  const Json* value = args.find(key);
  return value && value->is_number() ? value->as_number() : 0;
}
int64_t Event::whole(const char* key, int64_t most) const {
  const double value = number(key);
  return value > 0 ? int64_t(std::min(value, double(most))) : 0;
}
std::string Event::text(const char* key) const {
  const Json* value = args.find(key);
  return value && value->is_string() ? value->as_string() : "";
}

bool visit_trace(const std::string& path, const std::function<void(const std::string&)>& visit) {
  std::ifstream in(path, std::ios::binary);
  LOCKSTEP_CHECK(in, path, ": cannot be read");
  std::string line;
  LOCKSTEP_CHECK(std::getline(in, line) && line == "[", path,
                 ": expected a trace that Lockstep wrote, which begins with a line \"[\"");
  bool whole = false;
  while (std::getline(in, line)) {
    if (in.eof() && line != "]") break;  // no end of line: cut short
    LOCKSTEP_CHECK(line.size() < longest_line, path, ": expected lines of less than ", longest_line, " bytes, got ",
                   line.size());
    if (line == "]") {
      whole = true;
      break;
    }
    const bool is_last = line.ends_with('}');
    LOCKSTEP_CHECK(line.starts_with('{') && (is_last || line.ends_with("},")), path,
                   ": expected a record on every line, got \"", line.substr(0, 80), "\"");
    if (!is_last) line.pop_back();
    visit(line);
  }
  return whole;
}

RankTrace read_trace(const std::string& path) { return read(read_head(path)); }

std::vector<std::string> find_traces(const std::string& folder) {
  std::vector<std::string> found;
  const auto look = [&](const fs::path& place) {
    std::error_code error;
    for (const auto& file : fs::directory_iterator(place, error)) {
      const std::string name = file.path().filename().string();
      const bool numbered = name.starts_with("rank-") && name.ends_with(".json") && name.size() > 10 &&
                            name.substr(5, name.size() - 10).find_first_not_of("0123456789") == std::string::npos;
      if (numbered && file.is_regular_file(error)) found.push_back(file.path().string());
    }
  };
  look(folder);
  if (found.empty()) {
    std::error_code error;
    std::set<fs::path> below;
    for (const auto& entry : fs::directory_iterator(folder, error))
      if (entry.is_directory(error)) below.insert(entry.path());
    for (const fs::path& place : below)
      if (found.empty()) look(place);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<RankTrace> read_traces(const std::string& folder, std::vector<std::string>& warnings) {
  std::vector<RankTrace> all;
  for (const Head& head : read_heads(folder, warnings)) all.push_back(read(head));
  return all;
}

std::vector<int> merge_traces(const std::string& folder, const std::string& out_path,
                              std::vector<std::string>& warnings) {
  const std::vector<Head> heads = read_heads(folder, warnings);
  LOCKSTEP_CHECK(!heads.empty(), "[trace] expected files rank-N.json in ", folder, ", which a run with --trace ",
                 folder, " writes, found none");
  const std::string fresh = out_path + ".tmp";
  std::ofstream out(fresh, std::ios::binary | std::ios::trunc);
  out << "[\n";
  std::vector<int> ranks;
  bool first = true;
  for (const Head& head : heads) {
    ranks.push_back(head.rank);
    visit_trace(head.path, [&](const std::string& line) {
      out << (std::exchange(first, false) ? "" : ",\n");
      const size_t at = head.last_offset == head.offset
                            ? line.npos
                            : line.find(",\"ts\":");  // inside a name its quotes would be escaped
      if (at == line.npos) {
        out << line;
        return;
      }
      const size_t begin = at + 6, end = std::min(line.find_first_of(",}", begin), line.size());
      const double time = std::stod(line.substr(begin, end - begin));
      char text[40];
      std::snprintf(text, sizeof text, "%.3f", time + head.correction(time));
      out << line.substr(0, begin) << text << line.substr(end);
    });
  }
  out << "\n]\n";
  out.close();
  std::error_code error;
  if (out.good()) fs::rename(fresh, out_path, error);
  if (!out.good() || error) {
    fs::remove(fresh, error);
    fail(str("[trace] cannot write ", out_path));
  }
  return ranks;
}

}  // namespace lockstep::report
