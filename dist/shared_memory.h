#pragma once
// Tensors in memory that the ranks of a host share, so that collectives work on them where they lie (in_place.h).
//
//   a file in memory, without a name:   │ control page │ bytes of the tensor │      its owner and its peers map all of
//   it
//
// A peer opens /proc/PID/fd/N of the owner. The bytes are given back when the owner lets go of the tensor, whoever
// still maps the file; peers drop their mapping when they next look. When a process is killed nothing is left.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::dist {

/// Where bytes lie in a segment of a process; travels from rank to rank.
struct Placement {
  uint64_t serial = 0;  ///< of the segment, random
  uint64_t offset = 0;  ///< of the first byte, control page not counted
  int32_t fd = -1;      ///< -1: not in shared memory
  uint32_t reserved = 0;
  explicit operator bool() const { return fd >= 0; }
};
static_assert(sizeof(Placement) == 24);

/// A tensor with a segment of its own, uninitialised; an ordinary one when it has no elements. Booked as other tensors
/// are.
Tensor shared_tensor(const Shape& shape, DType dtype);
/// Where these bytes lie; false when they are not in a segment of this process, or too many for it.
Placement placement_of(std::span<const std::byte> bytes);

/// The segments of one process (which may be this one), as they are mapped here.
class PeerSegments {
 public:
  /// peer: world rank, for messages.
  PeerSegments(int64_t pid, int peer) : pid_(pid), peer_(peer) {}
  /// The bytes at a placement; maps the segment at its first use, and drops those that their owner has given back.
  /// Error when the memory cannot be shared, DistError protocol when the segment has no such bytes.
  std::byte* reach(const Placement& placement, size_t bytes);
  size_t size() const { return mapped_.size(); }

 private:
  struct Mapped;
  const int64_t pid_;
  const int peer_;
  std::vector<std::shared_ptr<Mapped>> mapped_;
};

}  // namespace lockstep::dist
