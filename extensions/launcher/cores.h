#pragma once
// The cores that a rank may run on.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::dist {

/// Position of a core in the machine. Cores with equal `unit` are hardware threads of one physical core.
struct Core {
  int id = 0, unit = 0, socket = 0, node = 0, cache = 0;
};

/// The cores in this process's affinity mask, with their topology from /sys.
std::vector<Core> allowed_cores();
/// Number of cores that this process may use: fewer than allowed_cores() when its container has a CPU quota.
int usable_cores();

/// Parses "0-3,8" as {0, 1, 2, 3, 8}. Error for invalid text and for a core listed twice.
std::vector<int> parse_cores(std::string_view text);
std::string format_cores(const std::vector<int>& cores);  ///< the inverse of parse_cores()

/// How ranks are bound to cores.
enum class Binding {
  none,          ///< ranks are not bound to cores
  cores,         ///< each rank gets an equal part of the cores, neighbouring ones together
  node,          ///< each rank gets all cores of a NUMA node; ranks are assigned to nodes in blocks
  socket,        ///< each rank gets all cores of a socket
  exclusive,     ///< each rank gets an equal part of a NUMA node's cores
  core_complex,  ///< each rank gets all cores that share a last-level cache
};
/// The values of torchrun's --numa-binding.
inline constexpr std::pair<Binding, const char*> numa_bindings[] = {{Binding::node, "node"},
                                                                    {Binding::socket, "socket"},
                                                                    {Binding::exclusive, "exclusive"},
                                                                    {Binding::core_complex, "core-complex"}};
/// Parses one of numa_bindings. Error for any other text.
Binding parse_binding(const std::string& text);

/// The cores of each rank; empty lists for Binding::none. Error when a rank would get no core.
std::vector<std::vector<int>> deal_cores(Binding binding, int ranks, std::vector<Core> cores);

}  // namespace lockstep::dist
