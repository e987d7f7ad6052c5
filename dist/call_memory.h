#pragma once
// Where each transfer of a collective reads and writes: the caller's memory, or scratch copies.
#include <cstddef>
#include <vector>

#include "dist/executor.h"

namespace lockstep::dist {

struct CallMemory {
  std::vector<size_t> size;                // bytes, by item of the program
  std::vector<std::byte*> source, target;  // by item
  size_t longest = 0;                      // bytes of any chunk

  /// Asks the call for its memory. Error when chunks that meet in a transfer differ in length.
  void measure(const Execution& call);
  /// Gives scratch copies theirs, and fills source and target. What comes back must live as long as they are used.
  Tensor lay_out(const Program& program);

 private:
  std::vector<std::byte*> memory_;  // by place
  std::vector<size_t> length_;      // by place
  std::vector<std::byte> small_;    // scratch copies, when they are small: kept from call to call
  size_t scratch_bytes_ = 0;
};

}  // namespace lockstep::dist
