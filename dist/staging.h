#pragma once
// A call whose tensors are on a device, done with copies of them on the host.
#include <utility>
#include <vector>

#include "dist/process_group.h"

namespace lockstep::dist {

class Staging {
 public:
  /// Puts copies in the place of the call's tensors that are not on the CPU; waits for what their device still does.
  explicit Staging(Call& call);
  bool is_needed() const { return !results_.empty(); }
  /// Copies what the call has received to the device.
  void finish() const;

 private:
  std::vector<std::pair<Tensor, Tensor>> results_;  // on the device, and what it gets from the host
};

}  // namespace lockstep::dist
