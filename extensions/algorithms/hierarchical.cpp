// hierarchical: first within the hosts, over memory, then between the hosts, over the network, then back. The network
// carries 1/k of the bytes that it would carry if each of the k ranks of a host communicated by itself.
//
//   2 hosts of 2 ranks, all_reduce
//
//            host 0: rank 0, rank 1            host 1: rank 2, rank 3
//   step 0   0 ◀──chunks 0,2   1,3──▶ 1        2 ◀──chunks 0,2   1,3──▶ 3       reduce_scatter within a host
//   step 1   chunk 2 of (0+1) ──────▶ rank 2   chunk 0 of (2+3) ──────▶ rank 0  reduce_scatter between hosts, among
//            chunk 3 of (0+1) ──────▶ rank 3   chunk 1 of (2+3) ──────▶ rank 1  ranks 0, 2 and ranks 1, 3
//   step 2   chunk 0, 1 ──────▶ 2, 3           chunk 2, 3 ──────▶ 0, 1          all_gather between hosts
//   step 3   chunks 0,2 ─▶ 1   1,3 ─▶ 0        chunks 0,2 ─▶ 3   1,3 ─▶ 2       all_gather within a host
//
// Cost of all_reduce of S bytes, m hosts of k ranks: 2(k-1) + 2(m-1) messages; each rank sends 2(k-1)/k·S bytes within
// its host and 2(m-1)/(mk)·S between hosts. Both levels add like `direct`, so with hosts of 2^i consecutive ranks each
// the order of addition is that of summation_tree.h. If hosts differ in size, only the first rank of each host, its
// leader, uses the network. Mikami et al., Massively distributed SGD: ImageNet/ResNet-50 training in a flash,
// arXiv:1811.05233.
#include <algorithm>
#include <map>

#include "dist/algorithm_rules.h"
#include "extensions/algorithms/algorithms.h"

namespace lockstep::dist {
namespace {

/// The ranks grouped by host, and the teams (groups that exchange data) that follow from this grouping.
struct HostGroups {
  std::vector<std::vector<int>> hosts;  // ranks of each host, in order of first appearance
  std::vector<int> host_of, position_of;
  bool equal = true;  // true: all hosts have the same number of ranks

  explicit HostGroups(const CollectiveRequest& request) {
    std::map<int, int> index;
    for (int rank = 0; rank < request.ranks; ++rank) {
      const int name = request.hosts.empty() ? 0 : request.hosts[size_t(rank)];
      const int host = index.try_emplace(name, int(index.size())).first->second;
      if (size_t(host) == hosts.size()) hosts.emplace_back();
      host_of.push_back(host);
      position_of.push_back(int(hosts[size_t(host)].size()));
      hosts[size_t(host)].push_back(rank);
    }
    for (const auto& ranks : hosts) equal &= ranks.size() == hosts[0].size();
  }

  /// One team for each host: its ranks. The rank at position l owns the chunks of the ranks at position l of all hosts.
  Teams within() const {
    Teams teams;
    for (const auto& ranks : hosts) teams.push_back({ranks});
    for (const RankSet& position : between())
      for (RankSet& team : teams) team.chunks.push_back(position.ranks);
    return teams;
  }
  /// One team for each position: the ranks that have this position on their hosts. Each rank owns its own chunk.
  Teams between() const {
    Teams teams;
    for (size_t l = 0; l < hosts[0].size(); ++l) {
      RankSet team;
      for (const auto& ranks : hosts) {
        team.ranks.push_back(ranks[l]);
        team.chunks.push_back({ranks[l]});
      }
      teams.push_back(std::move(team));
    }
    return teams;
  }
  /// One team per host, whose tree has the host's first rank as its root. The host of rank `root` comes first; the root
  /// of its tree is `root`.
  Teams trees_within(int root) const {
    Teams teams;
    for (const auto& ranks : hosts) {
      teams.push_back({ranks});
      auto& list = teams.back().ranks;
      if (const auto at = std::find(list.begin(), list.end(), root); at != list.end())
        std::rotate(list.begin(), at, list.end());
    }
    std::rotate(teams.begin(), teams.begin() + host_of[size_t(root)], teams.end());
    return teams;
  }
  /// One team of the hosts' leaders (the first rank of each host). A leader owns the chunks of its host's ranks.
  static Teams leaders(const Teams& trees) {
    RankSet team;
    for (const RankSet& host : trees) {
      team.ranks.push_back(host.ranks[0]);
      team.chunks.push_back(host.ranks);
    }
    return {team};
  }
};

}  // namespace

static bool has_one_chunk(Collective c) { return c != Collective::all_reduce; }

static void by_hosts(const CollectiveRequest& request, const Emit& emit) {
  const int n = request.ranks;
  const HostGroups groups(request);
  const auto chunks = int32_t(chunk_count(request, has_one_chunk(request.collective)));
  const int root = has_root(request.collective) ? request.root : 0;
  const Teams trees = groups.trees_within(root), leaders = HostGroups::leaders(trees);
  StepWriter w(emit);
  const auto scale_owned = [&](const Teams& teams) {
    for (const RankSet& team : teams) {
      for (int i = 0; request.mean && i < team.size(); ++i)
        for (const int32_t c : team.chunks[size_t(i)]) w.scale(team.ranks[size_t(i)], c);
    }
    w.next();
  };

  switch (request.collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter: {
      const bool scatter = request.collective == Collective::reduce_scatter;
      if (groups.equal) {
        sum_at_owners(w, groups.within());
        sum_at_owners(w, groups.between());
        scale_owned(groups.between());
        if (scatter) return;
        share_from_owners(w, groups.between());
        return share_from_owners(w, groups.within());
      }
      sum_up(w, trees, chunks);
      sum_at_owners(w, leaders);
      scale_owned(leaders);
      if (scatter) return scatter_down(w, trees, request);
      share_from_owners(w, leaders);
      return copy_down(w, trees, chunks);
    }
    case Collective::all_gather:
      if (groups.equal) {
        share_from_owners(w, groups.between());
        return share_from_owners(w, groups.within());
      }
      gather_up(w, trees, request);
      share_from_owners(w, leaders);
      return down_the_tree(w, trees, [&](const TreeEdge& e) {  // all chunks except those of the child's subtree
        const auto gave = std::vector<int>(e.team.ranks.begin() + e.begin, e.team.ranks.begin() + e.end);
        for (int32_t c = 0; c < n; ++c)
          if (std::find(gave.begin(), gave.end(), c) == gave.end()) w.copy(e.parent, e.child, c);
      });
    case Collective::broadcast: copy_down(w, leaders, chunks); return copy_down(w, trees, chunks);
    case Collective::reduce:
      sum_up(w, trees, chunks);
      sum_up(w, leaders, chunks);
      for (int32_t c = 0; request.mean && c < chunks; ++c) w.scale(root, c);
      return;
    case Collective::gather: gather_up(w, trees, request); return gather_up(w, leaders, request);
    case Collective::scatter: scatter_down(w, leaders, request); return scatter_down(w, trees, request);
    case Collective::all_to_all: {
      // Rank i sends its data for rank j of another host to the rank of its own host at j's position (modulo the host's
      // size). That rank forwards it with the data of its host's other ranks: few, large messages between hosts.
      const auto via = [&](int i, int j) {
        const auto& near = groups.hosts[size_t(groups.host_of[size_t(i)])];
        return groups.host_of[size_t(i)] == groups.host_of[size_t(j)]
                   ? j
                   : near[size_t(groups.position_of[size_t(j)]) % near.size()];
      };
      for (int s = 1; s < n; ++s, w.next()) {
        for (int i = 0; i < n; ++i) {
          const auto& near = groups.hosts[size_t(groups.host_of[size_t(i)])];
          if (size_t(s) >= near.size()) continue;
          const int to = near[(size_t(groups.position_of[size_t(i)]) + size_t(s)) % near.size()];
          for (int j = 0; j < n; ++j)
            if (via(i, j) == to) w.move(TransferAction::copy, i, {i * n + j, 0}, to, {i * n + j, to != j});
        }
      }
      const int m = int(groups.hosts.size());
      // In step h, every host sends to the host h places after it. A rank sends all data for one receiver in a row.
      for (int h = 1; h < m; ++h, w.next()) {
        for (int rank = 0; rank < n; ++rank) {
          const auto& near = groups.hosts[size_t(groups.host_of[size_t(rank)])];
          for (const int j : groups.hosts[size_t((groups.host_of[size_t(rank)] + h) % m)]) {
            if (via(rank, j) != rank) continue;
            for (const int i : near) w.move(TransferAction::copy, rank, {i * n + j, i != rank}, j, {i * n + j, 0});
          }
        }
      }
      return;
    }
    default: return;
  }
}

std::vector<CollectiveAlgorithm> hierarchical_algorithm() {
  const AlgorithmRules rules{
      .visit = by_hosts,
      .has_one_chunk = has_one_chunk,
      .adds_in_tree_order =
          [](const CollectiveRequest& r) {
            // Adds in tree order with one host, or if every host has 2^i consecutive ranks. A reduce also needs root 0.
            if (r.collective == Collective::reduce && r.root != 0) return false;
            const HostGroups groups(r);
            const int size = int(groups.hosts[0].size());
            if (size == r.ranks) return true;
            // Consecutive ranks share a host of `size` ranks: rank r is on host r / size.
            return groups.equal && is_power_of_two(size) &&
                   std::is_sorted(groups.host_of.begin(), groups.host_of.end());
          },
      .uses_hosts = true,
  };
  return {{"hierarchical", rules}};
}

}  // namespace lockstep::dist
