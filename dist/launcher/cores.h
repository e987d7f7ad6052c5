#pragma once
// Which cores a rank may run on.
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::dist {

/// Where a core sits. Cores that share a `unit` are two threads of one physical core.
struct Core {
  int id = 0, unit = 0, socket = 0, node = 0, cache = 0;
};

/// Cores that the system gives to this process, with what /sys says of them.
std::vector<Core> allowed_cores();
/// What this process may use of them: fewer when its container has a quota of time.
int usable_cores();

/// "0-3,8" as {0, 1, 2, 3, 8}. Error for anything else, and for a core twice.
std::vector<int> parse_cores(std::string_view text);
std::string format_cores(const std::vector<int>& cores);  ///< the way back

enum class Binding {
  none,
  cores,         ///< an equal part of the cores for each rank, neighbours together
  node,          ///< all cores of a NUMA node; ranks are dealt to nodes in blocks
  socket,        ///< all cores of a processor
  exclusive,     ///< an equal part of the NUMA node's cores
  core_complex,  ///< all cores that share a last level cache
};
/// "node", "socket", "exclusive" or "core-complex" (torchrun's --numa-binding).
Binding parse_binding(const std::string& text);

/// Cores of each rank. Error when a rank would get none.
std::vector<std::vector<int>> deal_cores(Binding binding, int ranks, std::vector<Core> cores);

}  // namespace lockstep::dist
