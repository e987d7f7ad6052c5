// Writes curves to files, appending as the run goes on: see Monitor in reports.h.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "extensions/deepspeed/reports.h"
#include "extensions/summary/appender.h"
#include "extensions/summary/writer.h"

namespace lockstep::engine {

namespace {

using Warn = Appender::Warn;

std::string folder_of(const MonitorConfig& config) {
  const std::string folder = (std::filesystem::path(config.output_path) / config.job_name).string();
  make_log_folder(folder, "[monitor] ");
  return folder;
}

class TensorBoard final : public Monitor {
 public:
  TensorBoard(const std::string& folder, const Warn& warn) : writer_(folder, {.warn = warn}) {}
  void write(const std::vector<MonitorEvent>& events) override {
    for (const MonitorEvent& e : events) writer_.add_scalar(e.tag, e.value, e.samples);
  }

 private:
  SummaryWriter writer_;
};

class Csv final : public Monitor {
 public:
  Csv(std::string folder, Warn warn) : folder_(std::move(folder)), warn_(std::move(warn)) {}
  void write(const std::vector<MonitorEvent>& events) override {
    for (const MonitorEvent& e : events) {
      std::unique_ptr<Appender>& file = files_[e.tag];
      if (!file) {
        std::string name = e.tag;
        std::replace(name.begin(), name.end(), '/', '_');
        file = std::make_unique<Appender>(folder_ + "/" + name + ".csv", warn_, "[monitor] ");
        if (file->is_empty()) file->add("step," + e.tag.substr(e.tag.rfind('/') + 1) + "\n");
      }
      file->add(fmt::format("{},{:.17g}\n", e.samples, e.value));
    }
  }

 private:
  std::string folder_;
  Warn warn_;
  std::map<std::string, std::unique_ptr<Appender>> files_;
};

}  // namespace

std::vector<std::unique_ptr<Monitor>> make_monitors(const Config& config, const Warn& warn) {
  std::vector<std::unique_ptr<Monitor>> all;
  const auto& board = config.section<TensorBoardConfig>();
  const auto& csv = config.section<CsvMonitorConfig>();
  if (board.enabled) all.push_back(std::make_unique<TensorBoard>(folder_of(board), warn));
  if (csv.enabled) all.push_back(std::make_unique<Csv>(folder_of(csv), warn));
  return all;
}

}  // namespace lockstep::engine
