#pragma once
// Options that describe a collective, for `lockstep schedule` and the commands of other extensions.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "dist/schedule.h"

namespace apps {

/// Error if one of these options was given. The Error's text is the option's name, followed by `why`.
inline void refuse_given(const CLI::App& command, const std::vector<std::string>& options, const std::string& why) {
  for (const std::string& option : options) LOCKSTEP_CHECK(command.get_option(option)->count() == 0, option, why);
}

/// The options of a command line that describe a collective.
struct CollectiveAsked {
  std::string algorithm, collective, hosts;
  int ranks = 4, root = 0;
  bool mean = false;
};
/// Adds an argument for the algorithm, and the options --ranks, --collective, --root and --hosts.
void add_collective_options(CLI::App& command, CollectiveAsked& asked, bool needs_algorithm);

/// The algorithm and the collective that the options of a command line name.
struct Collective {
  lockstep::dist::Algorithm algorithm;
  lockstep::dist::CollectiveRequest request;
};
/// Parses the options. The algorithm is a name such as "ring"; a name such as "ring_all_reduce" also selects the
/// collective. Error for an invalid option.
Collective understand(const CollectiveAsked& asked);

}  // namespace apps
