// collective_options.cpp: parses the options that describe a collective. See collective_options.h.
#include "extensions/schedules/programs/collective_options.h"

#include <algorithm>

#include "base/suggest.h"
#include "pipeline/schedule.h"
#include "train/option_group.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;

namespace {

/// Returns, for each rank, the index of its host. "2,2": 2 hosts of 2 ranks; "512x8": 512 hosts of 8 ranks; "": none.
std::vector<int> parse_hosts(const std::string& text, int ranks) {
  std::vector<int> hosts;
  if (text.empty()) return hosts;
  const auto number = [&](const std::string& word) {
    LOCKSTEP_CHECK(integer(1, 9'999'999)(word).empty(),
                   "--hosts expected numbers of ranks such as 4,4 or 2x4 (2 hosts of 4), got \"", text, "\"");
    return std::stoi(word);
  };
  int host = 0;
  for (const std::string& part : split(text, ',')) {
    const std::vector<std::string> words = split(part, 'x');
    const bool several = words.size() > 1;
    const int count = several ? number(words[0]) : 1, each = number(several ? part.substr(words[0].size() + 1) : part);
    for (int i = 0; i < count; ++i) {
      LOCKSTEP_CHECK(hosts.size() + size_t(each) <= size_t(ranks), "--hosts ", text, " has more than the ", ranks,
                     " ranks of --ranks; make the numbers equal");
      hosts.insert(hosts.end(), size_t(each), host++);
    }
  }
  LOCKSTEP_CHECK(int(hosts.size()) == ranks, "--hosts ", text, " has ", hosts.size(), " ranks, --ranks has ", ranks,
                 "; make the numbers equal");
  return hosts;
}

}  // namespace

Collective understand(const CollectiveAsked& asked) {
  std::string algorithm = asked.algorithm, collective = asked.collective;
  std::vector<std::string> known = dist::names_of_algorithms();
  known.emplace_back(name_of(dist::Algorithm::automatic));
  for (int c = 0; c < dist::scheduled_collectives; ++c) {
    const std::string name(name_of(dist::Collective(c)));
    if (!algorithm.ends_with("_" + name)) continue;
    const std::string rest = algorithm.substr(0, algorithm.size() - name.size() - 1);
    if (!std::count(known.begin(), known.end(), rest)) continue;  // "x_all_gather" also ends with "_gather"
    LOCKSTEP_CHECK(collective.empty() || collective == name, algorithm, " and --collective ", collective,
                   " name two collectives: leave one out");
    algorithm = rest;
    collective = name;
  }
  const dist::Algorithm parsed = dist::parse_algorithm(algorithm);
  LOCKSTEP_CHECK(parsed != dist::Algorithm::automatic,
                 "expected a specific algorithm such as ring, got automatic, which chooses one for every call");
  return {parsed,
          {collective.empty() ? dist::Collective::all_reduce : dist::parse_collective(collective), asked.ranks,
           asked.root, asked.mean, parse_hosts(asked.hosts, asked.ranks)}};
}

void add_collective_options(CLI::App& command, CollectiveAsked& asked, bool needs_algorithm) {
  const std::string pipelines =
      needs_algorithm ? "; of a pipeline: " + listed(pipeline::names_of_kinds()) + "; ring-attention" : "";
  const OptionGroup add(command);
  add("algorithm", asked.algorithm,
      listed(dist::names_of_algorithms()) + "; also ring_all_reduce and so on" + pipelines)
      ->required(needs_algorithm);
  command.add_option("--ranks", asked.ranks, "number of ranks")
      ->check(CLI::Range(1, needs_algorithm ? 65536 : 1 << 20));
  add("--collective", asked.collective,
      "all_reduce (default), reduce_scatter, all_gather, broadcast, reduce, gather, scatter or all_to_all");
  add("--root", asked.root, "where a broadcast, reduce, gather or scatter begins or ends; where tree and server meet")
      ->capture_default_str();
  add("--hosts", asked.hosts, "ranks of each host, for hierarchical: 4,4 or 512x8 (512 hosts of 8)");
}

}  // namespace apps
