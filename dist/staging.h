#pragma once
// Lets a call whose tensors are on a device work on copies of them in host memory.
#include <utility>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::dist {

/// Host copies of one call's tensors.
class Staging {
 public:
  /// Replaces the call's tensors on devices by copies in host memory; waits for the pending work of their device.
  explicit Staging(Call& call);
  bool is_needed() const { return !results_.empty(); }  ///< true if the call has a result to copy back
  /// Copies the call's results back to the device.
  void finish() const;

 private:
  std::vector<std::pair<Tensor, Tensor>> results_;  // device tensor, host copy
};

}  // namespace lockstep::dist
