#pragma once
// Which hosts take part, as DeepSpeed's launcher says it: a file of "host slots=N" lines, and filters on it.
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::dist {

struct Host {
  std::string name;
  std::vector<int> slots;  ///< one rank each; with a filter, the numbers that it kept
  bool operator==(const Host&) const = default;
};

/// One `host slots=N` a line; blank lines and what follows a # are skipped. Error naming the line: malformed, a host
/// twice, no slot; and for a file without hosts.
std::vector<Host> parse_hostfile(std::string_view text, const std::string& file);
std::vector<Host> read_hostfile(const std::string& file);

/// `include` or `exclude`, not both: NODE[@NODE...] with NODE = NAME[:SLOT[,SLOT...]]; no slots means all of them. The
/// order is that of the file. Error naming a host or slot that is not there, or when nothing is left.
std::vector<Host> filter_hosts(const std::vector<Host>& hosts, const std::string& include, const std::string& exclude);

/// The first `nodes` hosts with the first `ranks` slots each; 0 takes all. Error when there are fewer.
std::vector<Host> limit_hosts(std::vector<Host> hosts, int nodes, int ranks);

}  // namespace lockstep::dist
