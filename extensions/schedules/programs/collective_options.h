#pragma once
// Options that describe a collective, for `lockstep schedule` and the commands of other extensions.
#include <CLI/CLI.hpp>
#include <string>

#include "dist/schedule.h"

namespace apps {

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
