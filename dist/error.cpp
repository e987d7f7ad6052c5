// error.cpp: names of faults. See error.h.
#include "dist/error.h"

namespace lockstep::dist {

std::string_view name_of(Fault fault) {
  switch (fault) {
    case Fault::rank_failed: return "rank failed";
    case Fault::rank_silent: return "rank silent";
    case Fault::rank_left: return "rank left";
    case Fault::store_lost: return "store lost";
    case Fault::mismatch: return "mismatch";
    case Fault::deadlock: return "deadlock";
    case Fault::timeout: return "timeout";
    case Fault::protocol: return "protocol error";
    case Fault::refused: return "refused";
  }
  return "?";
}

}  // namespace lockstep::dist
