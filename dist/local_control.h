#pragma once
// A Control for ranks that are threads of one process, and for a world of one: a mutex where others have sockets.
#include <memory>
#include <vector>

#include "dist/control.h"

namespace lockstep::dist {

/// The seats of a job whose ranks are threads of this process, one per rank. `place.rank` is set by it.
std::vector<std::shared_ptr<Control>> local_controls(int ranks, Rendezvous place);

}  // namespace lockstep::dist
