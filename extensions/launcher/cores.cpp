// cores.cpp: reads the machine's topology and assigns cores to ranks. See cores.h.
#include "extensions/launcher/cores.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/check.h"
#include "base/classic_text.h"
#include "base/suggest.h"
#include "base/threads.h"
#include "dist/shard.h"

namespace lockstep::dist {
namespace {

constexpr int max_cores = 65536;
const std::string sys = "/sys/devices/system/";

/// Returns the first number in a file, or `missing`. If the file lists the cores that share a cache ("4-7,12-15"),
/// all of these cores have the same list, so its first number identifies the cache.
int number_in(const std::string& file, int missing) {
  std::ifstream in(file);
  std::string word;
  in >> word;
  return read_number<int>(word.substr(0, word.find_first_not_of("0123456789"))).value_or(missing);
}

std::map<int, int> nodes_of_cores() {
  std::map<int, int> nodes;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(sys + "node", none)) {
    const std::string name = entry.path().filename();
    const std::optional<int> node = name.starts_with("node") ? read_number<int>(name.substr(4)) : std::nullopt;
    std::ifstream in(entry.path() / "cpulist");
    std::string list;
    if (node && in >> list)
      for (const int core : parse_cores(list)) nodes[core] = *node;
  }
  return nodes;
}

}  // namespace

std::vector<Core> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<Core> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {Core{}};
  const std::map<int, int> nodes = nodes_of_cores();
  for (int id = 0; id < CPU_SETSIZE; ++id) {
    if (!CPU_ISSET(id, &set)) continue;
    const std::string of = sys + "cpu/cpu" + std::to_string(id) + "/";
    const auto node = nodes.find(id);
    cores.push_back({.id = id,
                     .unit = number_in(of + "topology/thread_siblings_list", id),
                     .socket = number_in(of + "topology/physical_package_id", 0),
                     .node = node == nodes.end() ? 0 : node->second,
                     .cache = number_in(of + "cache/index3/shared_cpu_list", 0)});
  }
  return cores;
}

int usable_cores() { return std::min(container_cores(), int(allowed_cores().size())); }

std::vector<int> parse_cores(std::string_view text) {
  std::vector<int> cores;
  for (const std::string& part : split(text, ',')) {
    std::vector<int> ends;
    for (const std::string& end : split(part, '-')) ends.push_back(read_number<int>(end).value_or(-1));
    LOCKSTEP_CHECK(ends.size() <= 2 && ends[0] >= 0 && ends[0] <= ends.back() && ends.back() < max_cores,
                   "[run] expected a list of cores such as 0-3,8, got '", text, "'");
    for (int core = ends[0]; core <= ends.back(); ++core) cores.push_back(core);
  }
  LOCKSTEP_CHECK(std::set<int>(cores.begin(), cores.end()).size() == cores.size(),
                 "[run] expected every core once, got '", text, "'");
  return cores;
}

std::string format_cores(const std::vector<int>& cores) {
  std::string text;
  for (size_t i = 0; i < cores.size();) {
    size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(cores[i]);
    if (last > i) (text += '-') += std::to_string(cores[last]);
    i = last + 1;
  }
  return text;
}

Binding parse_binding(const std::string& text) {
  for (const auto& [binding, name] : numa_bindings)
    if (text == name) return binding;
  fail(str("[run] expected --numa-binding to be node, socket, exclusive or core-complex, got '", text, "'"));
}

std::vector<std::vector<int>> deal_cores(Binding binding, int ranks, std::vector<Core> cores) {
  std::vector<std::vector<int>> dealt(static_cast<size_t>(ranks));
  if (binding == Binding::none) return dealt;
  std::sort(cores.begin(), cores.end(), [](const Core& a, const Core& b) {
    return std::tie(a.socket, a.node, a.cache, a.unit, a.id) < std::tie(b.socket, b.node, b.cache, b.unit, b.id);
  });
  std::vector<std::pair<int, std::vector<int>>> groups;  // by node, socket or cache, in core order
  for (const Core& core : cores) {
    const int key = binding == Binding::socket         ? core.socket
                    : binding == Binding::core_complex ? core.cache
                    : binding == Binding::cores        ? 0
                                                       : core.node;
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == key; });
    if (group == groups.end()) group = groups.insert(groups.end(), {key, {}});
    group->second.push_back(core.id);
  }
  LOCKSTEP_CHECK(!groups.empty(), "[run] expected cores to bind ranks to, got none; leave ranks unbound");
  std::vector<std::vector<int>> ranks_of(groups.size());
  for (int rank = 0; rank < ranks; ++rank) ranks_of[size_t(rank) * groups.size() / size_t(ranks)].push_back(rank);
  const bool divided = binding == Binding::cores || binding == Binding::exclusive;
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::vector<int>& group = groups[g].second;
    const int parts = divided ? int(ranks_of[g].size()) : 1;
    LOCKSTEP_CHECK(parts <= int(group.size()), "[run] expected at least one core a rank to bind to, got ", group.size(),
                   " for ", parts, " ranks; start fewer ranks, or leave them unbound");
    for (size_t i = 0; i < ranks_of[g].size(); ++i) {
      const auto part = shard_range(int64_t(group.size()), parts, divided ? int(i) : 0);
      std::vector<int>& mine = dealt[size_t(ranks_of[g][i])];
      mine.assign(group.begin() + part.begin, group.begin() + part.end);
      std::sort(mine.begin(), mine.end());
    }
  }
  return dealt;
}

}  // namespace lockstep::dist
