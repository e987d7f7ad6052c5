// Reads the files of a run, in Lockstep's layout or in that of Hugging Face's Trainer. See run.h.
#include <filesystem>

#include "base/check.h"
#include "base/classic_text.h"
#include "base/suggest.h"
#include "data/files.h"
#include "extensions/forecast/run.h"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;
using data::Json;

/// Python writes NaN into trainer_state.json, and the log of a long run is long.
constexpr data::JsonLimits state_limits{.bytes = int64_t(1) << 30, .python = true};

/// Reads a .jsonl file. A last line without newline, cut short by a kill, gives a warning; other bad lines an Error.
std::vector<Json> read_lines(const std::string& path, std::vector<std::string>& warnings) {
  std::vector<Json> all;
  const auto file = data::MappedFile::open(path);
  std::string_view rest(reinterpret_cast<const char*>(file->data()), size_t(file->size()));
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    const bool torn = end == rest.npos;
    const std::string line(rest.substr(0, end));
    rest.remove_prefix(torn ? rest.size() : end + 1);
    try {
      if (!line.empty()) all.push_back(data::parse_json(line, str(path, ":", number)));
    } catch (const Error&) {
      if (!torn) throw;
      warnings.push_back(path + ": the last line was cut short and left out; report again if the run still writes it");
    }
  }
  return all;
}

/// The folder's path, absolute and without a slash at its end.
fs::path full_path(const std::string& folder) {
  const fs::path path = fs::absolute(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

/// Returns N for a folder named checkpoint-N, or checkpoint-N~2 if it was saved again; nullopt for other names.
std::optional<int64_t> checkpoint_step(const fs::path& folder) {
  constexpr std::string_view begin = "checkpoint-";
  const std::string name = folder.filename().string();
  if (!name.starts_with(begin)) return std::nullopt;
  return read_number<int64_t>(std::string_view(name).substr(begin.size(), name.find('~') - begin.size()));
}

/// Finds the file with the run's settings; "" if there is none. Beside run.json, config.json describes a model only.
std::string settings_file(const std::string& folder) {
  std::vector<fs::path> places{folder + "/run.json"};
  if (const fs::path path = full_path(folder); checkpoint_step(path)) places.push_back(path.parent_path() / "run.json");
  places.emplace_back(folder + "/config.json");
  const auto found = std::ranges::find_if(places, [](const fs::path& path) { return fs::exists(path); });
  return found == places.end() ? "" : found->string();
}

/// Finds trainer_state.json: the run's, or that of its last checkpoint; "" if there is none.
std::string state_file(const std::string& folder) {
  constexpr const char* name = "trainer_state.json";
  if (const fs::path own = fs::path(folder) / name; fs::exists(own)) return own.string();
  std::string found;
  int64_t last = -1;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto step = checkpoint_step(entry.path());
    if (step && *step > last && fs::exists(entry.path() / name)) last = *step, found = (entry.path() / name).string();
  }
  return found;
}

/// The entries of a state's log, without the last one, which sums up the run.
std::vector<Json> log_of(const Json& state) {
  std::vector<Json> lines;
  if (const Json* const log = state.find("log_history"); log && log->is_array())
    for (const Json& entry : log->as_array())
      if (!entry.find("train_runtime")) lines.push_back(entry);
  return lines;
}

}  // namespace

const Json* RunFiles::note(const char* name) const {
  for (const RankTrace& t : traces)
    if (const Json* found = t.note(name)) return found;
  return nullptr;
}

std::string RunFiles::program() const {
  const Json* const facts = note("run");
  for (const std::string& name : {facts ? text_of(*facts, "program") : std::string(), text_of(settings, "program"),
                                  text_of(settings, "model"), full_path(folder).filename().string()})
    if (!name.empty()) return name;
  return "run";
}

RunFiles read_run(const std::string& folder) {
  LOCKSTEP_CHECK(fs::is_directory(folder),
                 "[report] expected the folder of a run (--out or --trace of a training program), got ", folder,
                 fs::exists(folder) ? ", a file" : ", which does not exist", "; check the path");
  RunFiles run{.folder = folder};
  run.traces = read_traces(folder, run.warnings);
  if (const std::string file = settings_file(folder); !file.empty())
    run.settings = data::read_json(file, data::python_json);
  else if (const Json* settings = run.note("settings")) run.settings = *settings;
  if (const std::string file = state_file(folder); !file.empty()) run.state = data::read_json(file, state_limits);
  if (fs::exists(folder + "/metrics.jsonl")) run.metrics = read_lines(folder + "/metrics.jsonl", run.warnings);
  if (run.metrics.empty()) run.metrics = log_of(run.state);
  if (run.traces.empty() && run.metrics.empty()) {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder))
      if (found.size() < 6) found.push_back(found.size() < 5 ? entry.path().filename().string() : "...");
    fail(str("[report] expected a run in ", folder,
             ": metrics.jsonl (a training program writes it with --out, TrainingArguments into output_dir), "
             "trainer_state.json with a log, or rank-N.json (with --trace), found ",
             found.empty() ? "an empty folder" : list_names(found), "; check the path"));
  }
  return run;
}

}  // namespace lockstep::report
