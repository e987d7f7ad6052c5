#pragma once
// A Control for ranks that are threads of one process, and for a world of one rank: shared state under a mutex instead
// of sockets.
#include <memory>
#include <vector>

#include "dist/control.h"

namespace lockstep::dist {

/// Makes a Control for each rank of a job whose ranks are threads of this process. Each one gets a copy of `place` in
/// which its rank is set.
std::vector<std::shared_ptr<Control>> local_controls(int ranks, Rendezvous place);

}  // namespace lockstep::dist
