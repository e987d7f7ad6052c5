#pragma once
// Who moves tensors that lie on devices, for a group whose own engine moves those on the CPU: NCCL (nccl_engine.cpp). The group
// decides when: one call at a time, in order (turns.h).
#include <functional>
#include <memory>
#include <vector>

#include "dist/job.h"
#include "dist/messages.h"
#include "dist/turns.h"
#include "dist/work.h"

namespace lockstep::dist {

#ifdef LOCKSTEP_WITH_NCCL
inline constexpr bool with_nccl = true;
#else
inline constexpr bool with_nccl = false;
#endif

class DeviceEngine {
 public:
  virtual ~DeviceEngine() = default;
  /// "nccl", or "host" once it is known that tensors of the group go through the host's memory.
  virtual const char* name() const = 0;
  /// On the thread that makes the call: keeps its tensors, and what its device does before is done before. Error: another device
  /// than that of earlier calls, an algorithm that there is not, a graph that is being captured.
  virtual std::shared_ptr<DeviceWork> begin(const Call& call) = 0;
  /// Returns when the call is on its way; its work says when it is done. Throws DistError.
  virtual void move(Call& call, uint64_t sequence) = 0;
  /// Nothing is on its way.
  virtual bool idle() const = 0;
};

/// What an engine gets from its group.
struct GroupParts {
  Job& job;
  const Membership& group;
  Turns& turns;
  Traffic& traffic;
  /// Returns when all ranks have come to this call, and throws when they call something else.
  std::function<void(Call&, uint64_t sequence)> agree;
  /// Moves a collective whose tensors are on the host.
  std::function<void(Call&, uint64_t sequence)> move;
  /// Exchanges messages whose data are on the host, or just headers.
  std::function<void(const Call&, std::vector<Message>&)> exchange;
};

/// `parts` outlive it. Nothing of CUDA is touched before the first call.
std::unique_ptr<DeviceEngine> make_nccl_engine(GroupParts parts);

}  // namespace lockstep::dist
