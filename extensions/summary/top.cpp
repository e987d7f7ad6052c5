// Reads and prints the state of a run. See top.h.
#include "extensions/summary/top.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/check.h"
#include "base/printable.h"
#include "data/files.h"
#include "dist/net.h"
#include "extensions/figures/quantity.h"

namespace lockstep {

using data::Json;

namespace {

constexpr int64_t tail_bytes = int64_t(4) << 20;  // of a long metrics.jsonl only the end is read

/// Values of a step's line that training has at every step. All others are taken for results of evaluations.
constexpr std::string_view of_each_step[] = {"lr", "grad_norm", "loss_scale", "aux_loss", "dropped"};

double number_of(const Json& json, const char* key, double otherwise) {
  const Json* const found = json.find(key);
  return found && found->is_number() ? found->as_number() : otherwise;
}
std::string text_of_key(const Json& json, const char* key) {
  const Json* const found = json.find(key);
  return found && found->is_string() ? one_line(found->as_string()) : "";
}

/// A JSON file that a run replaces atomically; an empty object if it is missing.
Json read_if_there(const std::string& path) {
  return std::filesystem::exists(path) ? data::read_json(path) : Json(Json::Object());
}

}  // namespace

std::string clock_text(int64_t s) {
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

RunView::RunView(std::string folder) : folder_(std::move(folder)) {
  const auto has = [&](const char* name) { return std::filesystem::exists(folder_ + "/" + name); };
  LOCKSTEP_CHECK(has("config.json") || has("run.json") || has("metrics.jsonl"), folder_,
                 ": expected the folder of a run (--out), which has config.json and metrics.jsonl, got ",
                 std::filesystem::exists(folder_) ? "a folder without them" : "no such folder",
                 "; check the path, or wait until the run has begun");
  refresh();
}

void RunView::refresh() {
  read_lock();  // first: what a run wrote before it released the lock is read below
  config_ = read_if_there(folder_ + "/config.json");
  if (config_.as_object().empty()) config_ = read_if_there(folder_ + "/run.json");  // of Hugging Face's layout
  read_metrics();
  const auto first = read_status(folder_, 0);
  ranks_.assign(size_t(std::clamp(first ? first->ranks : 0, 0, 1 << 20)), std::nullopt);
  for (size_t i = 0; i < ranks_.size(); ++i) ranks_[i] = i == 0 ? first : read_status(folder_, int(i));
}

/// Reads which process holds the folder's lock, and whether it lives.
void RunView::read_lock() {
  running_ = false;
  for (const char* name : {"/lock", "/.run/lock"}) {
    const std::string path = folder_ + name;
    try {
      const Json lock = data::parse_json(data::read_file(path, 1 << 12), path);
      const int64_t pid = lock.at("pid").as_int();
      const std::string host = lock.at("host").as_string();
      holder_ = str("pid ", pid, " on ", one_line(host), " since ", text_of_key(lock, "since"));
      running_ = host != dist::host_name() || ::kill(pid_t(pid), 0) == 0 || errno == EPERM;
    } catch (const Error&) { continue; }  // there is none, or the process is just writing it
    if (running_) return;
  }
}

void RunView::read_metrics() {
  const std::string path = folder_ + "/metrics.jsonl";
  struct stat there {};
  if (::stat(path.c_str(), &there) != 0) return;
  if (uint64_t(there.st_ino) != file_ || there.st_size < read_) {
    file_ = uint64_t(there.st_ino);
    read_ = line_ = step_ = 0;
    smoothed_ = NAN;
    evaluated_.clear();
  }
  std::ifstream in(path, std::ios::binary);
  const bool skips = read_ == 0 && there.st_size > tail_bytes;
  if (skips) read_ = there.st_size - tail_bytes;
  in.seekg(read_);
  std::string text(size_t(there.st_size - read_), '\0');
  in.read(text.data(), std::streamsize(text.size()));
  text.resize(size_t(in.gcount()));
  size_t begin = skips ? std::min(text.find('\n'), text.size() - 1) + 1 : 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    add_line(data::parse_json_line(std::string_view(text).substr(begin, end - begin), path, ++line_));
  read_ += int64_t(begin);  // a line without its end is read again
}

void RunView::add_line(const Json& line) {
  step_ = int64_t(number_of(line, "step", double(step_)));
  epoch_ = int64_t(number_of(line, "epoch", 0));
  loss_ = number_of(line, "loss", NAN);
  smoothed_ = std::isnan(smoothed_) ? loss_ : 0.95 * smoothed_ + 0.05 * loss_;
  others_.clear();
  for (const auto& [name, value] : line.as_object()) {
    if (!value.is_number() || name == "step" || name == "epoch" || name == "loss") continue;
    if (std::count(std::begin(of_each_step), std::end(of_each_step), name))
      others_.emplace_back(name, value.as_number());
    else evaluated_[name] = {step_, value.as_number()};
  }
}

double RunView::speed() const { return !ranks_.empty() && ranks_[0] ? ranks_[0]->steps_per_second : 0; }

std::string RunView::progress() const {
  const int64_t steps = std::max(step_, int64_t(number_of(config_, "steps", 0)));
  std::string text = fmt::format("step {}/{}", step_, steps);
  if (epoch_ > 0) text += fmt::format(" (epoch {})", epoch_);
  if (steps > 0) text += fmt::format("  {:.1f} %", 100 * double(step_) / double(steps));
  if (running_ && speed() > 0)
    text += fmt::format("  {} left", clock_text(std::llround(double(steps - step_) / speed())));
  return text;
}

std::string RunView::losses() const {
  std::string text = fmt::format("loss {:.4f} (last step {:.4f})", smoothed_, loss_);
  for (const auto& [name, value] : others_) text += fmt::format("  {} {:.4g}", one_line(name), value);
  return text;
}

std::string RunView::speeds() const {
  if (speed() == 0) return "";
  const RankStatus& first = *ranks_[0];
  return fmt::format("{:.3g} steps/s  {:.0f} {}/s", speed(), speed() * first.units, one_line(first.unit));
}

std::string RunView::ranks_table() const {
  // Ranks wait in collectives for the one that comes last, which itself is there for the shortest time.
  double least = 1;
  for (const auto& rank : ranks_)
    if (rank) least = std::min(least, rank->in_collectives);
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string text = fmt::format("{:>4}  {:<16}{:>8}{:>10}{:>12}{:>12}{:>13}{:>8}{:>10}\n", "rank", "host", "pid",
                                 "step", "memory", "peak", "collectives", "waits", "seen");
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i]) {
      text += fmt::format("{:>4}  no state in this folder (does the rank's host share it?)\n", i);
      continue;
    }
    const RankStatus& r = *ranks_[i];
    text += fmt::format("{:>4}  {:<16}{:>8}{:>10}{:>12}{:>12}{:>11.0f} %{:>6.0f} %{:>10}\n", i, one_line(r.host), r.pid,
                        r.step, memory_text(r.memory), memory_text(r.peak), 100 * r.in_collectives,
                        100 * (r.in_collectives - least),
                        fmt::format("{} s ago", std::max<int64_t>(0, int64_t(now - r.time))));
  }
  return text;
}

std::string RunView::table() const {
  std::string text = one_line(folder_);
  for (const char* key : {"program", "model"})
    if (const std::string value = text_of_key(config_, key); !value.empty()) {
      text += "  " + value;
      break;
    }
  for (const char* key : {"plan", "precision"})
    if (const std::string value = text_of_key(config_, key); !value.empty()) text += fmt::format("  {} {}", key, value);
  const bool ended = !ranks_.empty() && ranks_[0] && ranks_[0]->ended;
  text += running_          ? "  running: " + holder_
          : ended           ? "  ended"
          : holder_.empty() ? "  not running; --resume continues it"
                            : "  died: " + holder_ + "; --resume continues it";
  text += "\n" + progress() + "\n";
  if (step_ > 0) text += losses() + "\n";
  std::map<int64_t, std::string, std::greater<>> by_step;
  for (const auto& [name, found] : evaluated_)
    by_step[found.first] += fmt::format("{} {:.4g}  ", one_line(name), found.second);
  for (const auto& [step, values] : by_step) text += fmt::format("{}(step {})\n", values, step);
  if (running_ && speed() > 0) text += speeds() + "\n";
  return ranks_.empty() ? text : text + ranks_table();
}

std::string RunView::line() const {
  std::string text = progress();
  if (step_ > 0) text += "  " + losses();
  if (speed() > 0) text += "  " + speeds();
  if (!ranks_.empty() && ranks_[0]) text += "  memory " + memory_text(ranks_[0]->memory);
  return text;
}

}  // namespace lockstep
