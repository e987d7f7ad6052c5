// flight.cpp: records the last collectives of a rank, and writes them to a file. See flight.h.
#include "dist/flight.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/check.h"
#include "base/output_file.h"

namespace lockstep::dist {
namespace {

using Json = nlohmann::json;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

uint64_t Flight::start(std::string_view group, uint64_t sequence, std::string_view call, uint64_t step) {
  const std::lock_guard lock(mutex_);
  if (ring_.size() < size_t(capacity)) ring_.emplace_back();
  const uint64_t ticket = next_++;
  Entry& entry = ring_[ticket % capacity];
  entry.group = group;  // assignment reuses the memory of the entry's strings
  entry.call = call;
  entry.error.clear();
  entry.sequence = sequence;
  entry.step = step;
  entry.started_ns = now_ns();
  entry.ended_ns = 0;
  return ticket;
}

void Flight::finish(uint64_t ticket, std::string_view error) {
  std::shared_ptr<const std::function<void(const Entry&)>> listener;
  Entry ended;
  {
    const std::lock_guard lock(mutex_);
    if (ticket >= next_ || next_ - ticket > uint64_t(capacity)) return;  // overwritten since
    Entry& entry = ring_[ticket % capacity];
    entry.ended_ns = now_ns();
    entry.error = error;
    listener = listener_;
    if (listener) ended = entry;
  }
  if (listener) (*listener)(ended);
}

void Flight::listen(std::function<void(const Entry&)> listener) {
  const std::lock_guard lock(mutex_);
  listener_ = listener ? std::make_shared<const std::function<void(const Entry&)>>(std::move(listener)) : nullptr;
}

std::vector<Flight::Entry> Flight::entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> all;
  for (uint64_t t = next_ - ring_.size(); t < next_; ++t) all.push_back(ring_[t % capacity]);
  return all;
}

void Flight::write(const std::string& folder, int rank, int world, const std::string& why) const noexcept {
  try {
    Json json{{"rank", rank}, {"world", world}, {"why", why}, {"entries", Json::array()}};
    for (const Entry& e : entries()) {
      json["entries"].push_back({{"group", e.group},
                                 {"sequence", e.sequence},
                                 {"call", e.call},
                                 {"step", e.step},
                                 {"started_ns", e.started_ns},
                                 {"ended_ns", e.ended_ns},
                                 {"error", e.error}});
    }
    std::filesystem::create_directories(folder);
    const std::string path = str(folder, "/flight-", rank, ".json"), fresh = path + ".tmp";
    OutputFile out(fresh, true);
    if (!out.add(json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n"))
      throw std::runtime_error("cannot write");
    std::filesystem::rename(fresh, path);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "[flight] no record of rank %d in %s: %s\n", rank, folder.c_str(), e.what());
  } catch (...) {}
}

}  // namespace lockstep::dist
