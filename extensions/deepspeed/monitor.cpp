// Writes curves to files, appending as the run goes on: see Monitor in reports.h.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/check.h"
#include "base/output_file.h"
#include "dist/fingerprint.h"
#include "extensions/deepspeed/reports.h"

namespace lockstep::engine {

namespace {

using Warn = std::function<void(const std::string&)>;

/// A file to which bytes are appended; add() returns after passing them to the operating system.
class Appender {
 public:
  Appender(std::string path, Warn warn)
      : path_(std::move(path)), warn_(std::move(warn)), file_(path_, false, "[monitor] ") {}
  bool is_empty() { return file_.is_empty(); }
  void add(std::string_view bytes) {
    if (over_ || file_.add(bytes)) return;
    over_ = true;
    warn_(str("warning: ", path_, ": writing failed: ", std::strerror(errno),
              "; free disk space or check its permissions; the run goes on without this file"));
  }

 private:
  std::string path_;
  Warn warn_;
  OutputFile file_;
  bool over_ = false;
};

std::string folder_of(const MonitorConfig& config) {
  const std::filesystem::path folder = std::filesystem::path(config.output_path) / config.job_name;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  LOCKSTEP_CHECK(!error, "[monitor] ", folder.string(), ": cannot make this folder: ", error.message(),
                 "; check the path and its permissions");
  return folder.string();
}

// --- TensorBoard: TFRecord files of protocol buffers. The subset for events with a single number:
//
//   Event   { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
//   Summary { repeated Value value = 1; }      Value { string tag = 1; float simple_value = 2; }

enum Wire { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

template <class T> std::string little_endian(T value) {
  std::string out;
  for (size_t i = 0; i < sizeof value; ++i) out += char(value >> (8 * i) & 0xff);
  return out;
}
std::string varint_of(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += char(value | 0x80);
  return out + char(value);
}
std::string head(int field, Wire wire) { return varint_of(uint64_t(field) << 3 | wire); }
std::string field(int number, double value) {
  return head(number, fixed64) + little_endian(std::bit_cast<uint64_t>(value));
}
std::string field(int number, float value) {
  return head(number, fixed32) + little_endian(std::bit_cast<uint32_t>(value));
}
std::string field(int number, int64_t value) { return head(number, varint) + varint_of(uint64_t(value)); }
std::string field(int number, const std::string& value) {
  return head(number, bytes) + varint_of(value.size()) + value;
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] ? name : "unknown host";
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// The masked CRC-32C (Castagnoli) of TFRecord files.
uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = dist::crc32c(bytes.data(), bytes.size());
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

class TensorBoard final : public Monitor {
 public:
  TensorBoard(const std::string& folder, const Warn& warn)
      : file_(str(folder, "/events.out.tfevents.", int64_t(seconds_now()), ".", host_name(), ".", ::getpid()), warn) {
    add(field(1, seconds_now()) + field(3, std::string("brain.Event:2")));
  }
  void write(const std::vector<MonitorEvent>& events) override {
    for (const MonitorEvent& e : events) {
      const std::string value = field(1, e.tag) + field(2, float(e.value));
      add(field(1, seconds_now()) + field(2, e.samples) + field(5, field(1, value)));
    }
  }

 private:
  void add(const std::string& event) {
    const std::string length = little_endian(uint64_t(event.size()));
    file_.add(length + little_endian(masked_crc32c(length)) + event + little_endian(masked_crc32c(event)));
  }
  Appender file_;
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
        file = std::make_unique<Appender>(folder_ + "/" + name + ".csv", warn_);
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
