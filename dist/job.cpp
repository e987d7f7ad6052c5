// job.cpp: reports failures, writes flight records, and ends the job. See job.h.
#include "dist/job.h"

#include <algorithm>

#include "base/environment.h"
#include "dist/executor.h"

namespace lockstep::dist {

Job::Job(std::shared_ptr<Control> seat) : control(std::move(seat)) {
  if (const auto name = environment("LOCKSTEP_ALGORITHM")) forced = parse_algorithm(*name, "LOCKSTEP_ALGORITHM");
  if (environment("LOCKSTEP_COMM_CHECKSUM")) checksum = environment_flag("LOCKSTEP_COMM_CHECKSUM");
  flight_folder_ = environment("LOCKSTEP_FLIGHT_DIR").value_or("");
}

DistError Job::fail(std::exception_ptr error) {
  const auto first = [&]() -> DistError {
    try {
      if (control->failed() && maker.is_here()) control->raise();
      std::rethrow_exception(error);
    } catch (const DistError& e) {
      if (e.fault == Fault::rank_failed && maker.is_here()) await_cause(*control, e.rank);
      return control->report(e.fault, e.rank, e.what());  // the first report wins, so the text may be another rank's
    } catch (const std::exception& e) {
      return control->report(Fault::rank_failed, control->place().rank, e.what());
    } catch (...) {
      return control->report(
          Fault::rank_failed, control->place().rank,
          "an exception that is not a std::exception; throw a std::exception, which names the cause");
    }
  }();
  if (maker.is_here()) write_flight(first.what());
  return first;
}

void Job::write_flight(const std::string& why) const noexcept {
  const std::lock_guard lock(flight_mutex_);  // the caller of a group and the watchdog may fail at the same time
  if (!flight_folder_.empty()) flight.write(flight_folder_, control->place().rank, control->place().world_size, why);
}

const std::vector<int>& Job::hosts() {
  if (hosts_.empty()) {
    const Rendezvous& place = control->place();
    control->set(str("host/", place.rank), control->host());
    std::vector<std::string> names;
    for (int r = 0; r < place.world_size; ++r) names.push_back(control->get(str("host/", r), place.timeout));
    for (const std::string& name : names)
      hosts_.push_back(int(std::find(names.begin(), names.end(), name) - names.begin()));
  }
  return hosts_;
}

void Job::keep(std::shared_ptr<void> engine) {
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(engine));
}

void Job::finish() {
  std::vector<std::shared_ptr<void>> kept;
  {
    const std::lock_guard lock(mutex_);
    kept.swap(kept_);
  }
  kept.clear();
  if (!control->failed()) control->leave();
}

}  // namespace lockstep::dist
