#pragma once
// Tensors in memory that the ranks of a host share, so that collectives work on them directly (in_place.h).
//
//   an unnamed file in memory:   │ control page │ bytes of the tensor │      mapped by its owner and by its peers
//
// A peer opens /proc/PID/fd/N of the owner. When the owner releases the tensor, its pages are freed even while peers
// still have the file mapped; peers unmap it at their next access. A killed process leaves nothing behind.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::dist {

/// Position of some bytes in a segment; a segment is the shared memory of one tensor. Ranks send each other placements.
struct SegmentRange {
  uint64_t serial = 0;  ///< random number of the segment
  uint64_t offset = 0;  ///< offset of the first byte in the segment, not counting the control page
  int32_t fd = -1;      ///< descriptor of the segment; -1: not in shared memory
  uint32_t reserved = 0;
  explicit operator bool() const { return fd >= 0; }  ///< true if the bytes are in shared memory
};
static_assert(sizeof(SegmentRange) == 24);

/// Returns a new, uninitialised tensor in a file of shared memory of its own; an ordinary tensor if it has no elements.
/// Memory statistics count it like any other tensor. Error when the memory cannot be allocated.
Tensor shared_tensor(const Shape& shape, DType dtype);
/// Returns the placement of these bytes. It converts to false unless all of them lie in one segment of this process.
SegmentRange placement_of(std::span<const std::byte> bytes);

/// The segments of one process (which may be this one) that this process has mapped so far.
class PeerSegments {
 public:
  /// `peer`: the world rank of process `pid`, for messages.
  PeerSegments(int64_t pid, int peer) : pid_(pid), peer_(peer) {}
  /// The address of the `bytes` bytes at a placement. Maps the segment on first use, and unmaps segments that their
  /// owner has released. Error when the memory cannot be shared; DistError protocol when the segment is too short.
  std::byte* reach(const SegmentRange& placement, size_t bytes);
  size_t size() const { return mapped_.size(); }  ///< number of mapped segments

 private:
  struct Mapped;
  const int64_t pid_;
  const int peer_;
  std::vector<std::shared_ptr<Mapped>> mapped_;
};

}  // namespace lockstep::dist
