#pragma once
// State shared by all groups of one rank: its control plane, its flight record (the log of its latest collectives), and
// the engines of groups that ended while work was still running.
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

/// The state of the job that one rank keeps. A rank is a thread or a process.
struct Job {
  /// Reads LOCKSTEP_ALGORITHM, LOCKSTEP_COMM_CHECKSUM and LOCKSTEP_FLIGHT_DIR. Error for an invalid value.
  explicit Job(std::shared_ptr<Control> seat);

  /// Call it with the exception that a collective has thrown. Reports it to the other ranks unless a failure was
  /// reported before, writes the flight record, and returns the failure that every rank raises.
  DistError fail(std::exception_ptr error);
  /// Writes the flight record into LOCKSTEP_FLIGHT_DIR, if that is set.
  void write_flight(const std::string& why) const noexcept;
  /// The host number (from 0) of each world rank, for schedules that depend on it. Fetched from the store once.
  const std::vector<int>& hosts();
  /// Keeps the engine of a group alive until the job ends: call it if collectives of that group are still running.
  void keep(std::shared_ptr<void> engine);
  /// Destroys the kept engines, then leaves the job unless it has failed.
  void finish();

  const Maker maker;  ///< recognizes a forked child, which must not touch its parent's job
  std::shared_ptr<Control> control;
  Flight flight;
  Algorithm forced = Algorithm::automatic;    ///< the algorithm that LOCKSTEP_ALGORITHM demands
  bool checksum = false;                      ///< true: LOCKSTEP_COMM_CHECKSUM asks for a crc32c on all data
  std::string backend = "auto";               ///< the `backend` that init() was given
  std::atomic<bool> reported_sharing{false};  ///< true once the notice that ranks share a device was printed
  /// Supervises this rank's NCCL calls (nccl/watchdog.h). Created by the first engine that moves tensors by NCCL.
  std::shared_ptr<void> watchdog;

 private:
  std::string flight_folder_;  // folder for flight records, from LOCKSTEP_FLIGHT_DIR
  mutable std::mutex mutex_, flight_mutex_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<int> hosts_;
};

/// A rank's world, as init() and spawn() create it.
struct World {
  std::shared_ptr<Job> job;
  std::shared_ptr<ProcessGroup> group;
  std::function<void()> after;  ///< called after the job has been left, to finalize the engine
};
/// An engine of process groups that the program adds to the built-in ones, for ranks that another launcher starts.
struct AddedBackend {
  World (*make)(const std::string& url);  ///< makes the world; init() passes its URL
  bool (*launched_us)();                  ///< true: init() with backend auto uses this one for env://
};
/// Adds a backend under the name by which init() selects it. Call it before init(), and before there are threads.
void add_backend(const std::string& name, const AddedBackend& backend);
/// Connects this rank to its job, and returns the connection. A world of one rank needs no store and opens no socket.
std::shared_ptr<Control> make_control(const Rendezvous& rendezvous);
/// Error unless `backend` is auto or native, or nccl in a build with NCCL. `op`: the caller's name, for the message.
void check_backend(const char* op, const std::string& backend);
/// Makes the world group of a job that this rank has joined, with NCCL for tensors on devices if the build has it and
/// `backend` is not native.
World make_world(std::shared_ptr<Control> control, const std::string& backend = "auto");
/// Sets the world of this thread, for ranks that are threads. nullptr: the thread gets the world of its process again.
void set_thread_world(World* world);
/// The world of this thread, else of the process, else nullptr.
World* current_world();
/// guard() for a given world: runs the body; an exception is reported to the other ranks and rethrown.
void guard(World& world, const std::function<void()>& body);

}  // namespace lockstep::dist
