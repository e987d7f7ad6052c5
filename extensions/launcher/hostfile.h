#pragma once
// The hosts of a job, in the format of DeepSpeed's launcher: a file of "host slots=N" lines, and options that include
// or exclude some of the hosts and slots.
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::dist {

/// A host of the job.
struct Host {
  std::string name;
  std::vector<int> slots;  ///< indices of the slots to use, 0 to n - 1 unless a filter took some away; one rank each
  bool operator==(const Host&) const = default;
};

/// Parses lines `host slots=N`; skips blank lines and comments after #. Error, which names the line, if a line is
/// malformed, repeats a host or gives it 0 slots. Error for a file without hosts.
std::vector<Host> parse_hostfile(std::string_view text, const std::string& file);
/// parse_hostfile() on the contents of a file. Error when it cannot be read.
std::vector<Host> read_hostfile(const std::string& file);

/// Applies `include` or `exclude` (not both): NODE[@NODE...] with NODE = NAME[:SLOT[,SLOT...]]; a NAME alone stands for
/// all slots of the host. Keeps the order of `hosts`. Error for an unknown host or slot, or when no slot is left.
std::vector<Host> filter_hosts(const std::vector<Host>& hosts, const std::string& include, const std::string& exclude);

/// The first `nodes` hosts with the first `ranks` slots of each; 0 keeps all. Error when hosts or slots are too few.
std::vector<Host> limit_hosts(std::vector<Host> hosts, int nodes, int ranks);

}  // namespace lockstep::dist
