#pragma once
// What the groups of one rank share: its seat in the job, the flight record, and groups that ended with work on its
// way.
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dist/control.h"
#include "dist/flight.h"
#include "dist/schedule.h"
#include "tensor/maker.h"

namespace lockstep::dist {

class ProcessGroup;

struct Job {
  explicit Job(std::shared_ptr<Control> seat);

  /// What every rank raises for `error`, which left a collective here: reports it unless somebody failed before. Writes
  /// the flight record.
  DistError fail(std::exception_ptr error);
  void write_flight(const std::string& why) const noexcept;
  /// Hosts by world rank, numbered from 0; asked from the store once. For hierarchical schedules.
  const std::vector<int>& hosts();
  /// Keeps what still works until the job ends.
  void keep(std::shared_ptr<void> engine);
  /// Ends what was kept, then leaves in order (or not at all after a failure).
  void finish();

  const Maker maker;  ///< a forked child does nothing to its parent's job
  std::shared_ptr<Control> control;
  Flight flight;
  Algorithm forced = Algorithm::automatic;  ///< LOCKSTEP_ALGORITHM
  bool checksum = false;                    ///< LOCKSTEP_COMM_CHECKSUM
  std::string backend = "auto";             ///< as init() was told
  std::atomic<bool> told_sharing{false};    ///< that ranks share a device
  std::shared_ptr<void> watchdog;           ///< of the engines for devices, made by the first of them (nccl/watchdog.h)

 private:
  std::string flight_folder_;  // LOCKSTEP_FLIGHT_DIR
  mutable std::mutex mutex_, flight_mutex_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<int> hosts_;
};

/// A rank's place in a world, as init() and spawn() make it.
struct World {
  std::shared_ptr<Job> job;
  std::shared_ptr<ProcessGroup> group;
  std::function<void()> after;  ///< ends the engine, once the job was left in order
};
/// Joins the job; a world of one needs no store, so it opens no socket.
std::shared_ptr<Control> make_control(const Rendezvous& rendezvous);
/// What makes a world of backend mpi (use_mpi()).
void set_mpi(World (*make)());
/// Error unless it is auto, native, or nccl where this build has it.
void check_backend(const char* op, const std::string& backend);
World make_world(std::shared_ptr<Control> control, const std::string& backend = "auto");
/// The world of this thread from here on (ranks that are threads); nullptr: that of the process.
void set_thread_world(World* world);
World* current_world();
/// guard() for a given world: runs the body, reports what leaves it, throws it on.
void guard(World& world, const std::function<void()>& body);

}  // namespace lockstep::dist
