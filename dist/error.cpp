// error.cpp: names of faults. See error.h.
#include "dist/error.h"

#include "base/classic_text.h"

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

int64_t added(const std::string& key, const std::string& before, int64_t delta, int rank) {
  const auto number = read_number<int64_t>(before);
  int64_t sum = 0;
  if (!number || __builtin_add_overflow(*number, delta, &sum))
    throw DistError(Fault::refused, rank,
                    str("[store] expected a number in key '", key, "' to add ", delta, " to, got '",
                        before.substr(0, 40), "'; count in another key"));
  return sum;
}

}  // namespace lockstep::dist
