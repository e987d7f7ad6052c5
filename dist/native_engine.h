#pragma once
// The engine that runs a group's calls. Asynchronous calls that still run keep the engine alive after its group is
// destroyed. The NCCL engine derives from this engine (nccl/engine.h).
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "dist/call_queue.h"
#include "dist/in_place.h"
#include "dist/job.h"
#include "dist/messages.h"
#include "dist/process_group.h"
#include "dist/program.h"
#include "dist/transport.h"

namespace lockstep::dist {

// A rank's part of a schedule, ready to be executed. Made once for each kind of call, and kept for later calls.
struct Prepared {
  std::optional<Program> program;
  int64_t chunks = 1;
  Share in_place;  // this rank's share if the tensors are in shared memory
  // True if the program also writes chunks of this rank's tensor that belong to other ranks. Then reduce_scatter and
  // scatter work on a copy of the input.
  bool writes_others = false;
};

/// Runs collectives over channels, one call at a time.
struct NativeEngine : Membership {
  /// Creates the transport unless the group has one rank only.
  NativeEngine(std::shared_ptr<Job> job, Membership member, std::shared_ptr<Traffic> traffic);
  virtual ~NativeEngine() { call_queue.drain(); }

  /// True if no call is queued or running.
  virtual bool idle() const { return call_queue.idle(); }
  /// Runs the collective or the exchange of messages `call`. CallQueue calls move() for one call after another.
  virtual void move(Call& call, uint64_t sequence);
  /// The algorithm for a call: the caller's, else that of LOCKSTEP_ALGORITHM if it supports the collective, else
  /// one_shot for a small all_reduce and direct for other calls. Error if the caller's does not support the collective.
  Algorithm choose(const Call& call) const;
  /// Runs a collective that has a schedule.
  void collective(Call& call, uint64_t sequence);
  /// Returns when all ranks have made this call. Throws DistError mismatch if the calls of two ranks differ.
  void agree(Call& call, uint64_t sequence);
  /// Sends and receives the messages in `batch`. Their data must be in host memory.
  void exchange(const Call& call, std::vector<Message>& batch);

  const std::shared_ptr<Job> job;
  std::unique_ptr<Transport> transport;  // null in a group of one rank
  const std::shared_ptr<Traffic> traffic;
  CallQueue call_queue;

 private:
  // Returns the program for a call. Makes it for the first call of this kind, and keeps it for later ones.
  const Prepared& plan(const Call& call);
  // Runs a call of a group of one rank: copies input to output.
  void run_single(const Call& call);
  // Gets the element count of a gather or scatter from the root. The other ranks do not know the count.
  void learn_count(Call& call, uint64_t sequence);
  void barrier(const Call& call, uint64_t sequence);
  void disseminate(const Mail& mail, const Call& call, uint64_t sequence);
  // Returns the parameters with which move_messages() moves the messages of `call`.
  Mail mail(const Call& call);
  // Adds the bytes that a call moved to `traffic`.
  void book(const CallTraffic& moved);

  std::map<std::tuple<Collective, Algorithm, int, bool>, Prepared> plans_;
};

}  // namespace lockstep::dist
