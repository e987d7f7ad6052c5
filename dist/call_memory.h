#pragma once
// The memory that each transfer of a collective reads and writes: the caller's tensors, or scratch copies.
#include <cstddef>
#include <vector>

#include "dist/executor.h"

namespace lockstep::dist {

/// Size, source and target of each transfer of a collective. Calls reuse the struct, so small calls allocate nothing.
struct CallMemory {
  std::vector<size_t> size;                // bytes of each item of the program
  std::vector<std::byte*> source, target;  // address of each item; null for the remote side
  size_t longest = 0;                      // bytes of the longest chunk

  /// Asks the call for the address and length of every chunk that this rank's transfers read or write. Error when the
  /// source and the target of a transfer differ in length.
  void measure(const Execution& call);
  /// Assigns memory to the scratch copies of chunks, and fills `source` and `target`. The returned tensor owns large
  /// scratch memory: keep it alive as long as the addresses are used.
  Tensor lay_out(const Program& program);

 private:
  std::vector<std::byte*> memory_;  // address of each of Program::places
  std::vector<size_t> length_;      // bytes of each of Program::places
  std::vector<std::byte> small_;    // scratch copies of at most 32 KiB, kept from call to call
  size_t scratch_bytes_ = 0;
};

}  // namespace lockstep::dist
