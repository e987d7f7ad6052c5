// Divides the parameters of a model into the units that ZeRO gathers and reduces as a whole.
#include "zero/units.h"

#include <algorithm>
#include <map>
#include <set>

#include "parallel/flat.h"

namespace lockstep::zero {
namespace {

class Planner {
 public:
  Planner(const std::vector<PlannedParameter>& all, const ZeroOptions& options)
      : all_(all), options_(options), owners_(all.size(), -1), taken_(all.size(), false) {
    std::set<int> ranks;
    for (const PlannedParameter& p : all) ranks.insert(p.ranks);
    for (const int n : ranks) {
      std::vector<size_t> uncut;
      std::vector<int64_t> sizes;
      for (size_t i = 0; i < all.size(); ++i)
        if (all[i].trains && !all[i].elementwise && all[i].ranks == n)
          uncut.push_back(i), sizes.push_back(all[i].numel);
      const std::vector<int> assigned = assign_owners(sizes, shards(n));
      for (size_t k = 0; k < uncut.size(); ++k) owners_[uncut[k]] = assigned[k];
    }
  }

  std::vector<PlannedUnit> units() {
    std::vector<size_t> flat;
    if (options_.stage < 3) {
      for (size_t i = all_.size(); i-- > 0;)
        if (all_[i].trains) flat.push_back(i);
    } else {
      take_persistent(flat);
      claim("");
      std::reverse(units_.begin(), units_.end());
    }
    std::vector<int64_t> sizes;
    std::vector<std::string> kinds;
    for (const size_t i : flat) {
      sizes.push_back(all_[i].numel);
      kinds.push_back(kind_of(i));
    }
    // On one rank nothing is communicated: one unit per parameter lets its gradient stay in its own memory.
    const bool single_rank = options_.stage == 0 && std::all_of(all_.begin(), all_.end(),
                                                                [](const PlannedParameter& p) { return p.ranks == 1; });
    for (const auto& indices : parallel::plan_units(sizes, kinds, single_rank ? 1 : options_.reduce_bucket_size)) {
      std::vector<size_t> members;
      for (const size_t index : indices) members.push_back(flat[index]);
      add(members, "", true);
    }
    return std::move(units_);
  }

 private:
  int shards(int ranks) const { return options_.stage == 0 ? 1 : ranks; }
  std::string kind_of(size_t i) const { return str(all_[i].kind, " of ", owners_[i], " of ", all_[i].ranks); }

  void take_persistent(std::vector<size_t>& trained) {
    int64_t kept = 0;
    for (size_t i = 0; i < all_.size(); ++i) {
      const int64_t n = all_[i].numel;
      if (n > 0 && (n >= options_.param_persistence_threshold || n > options_.model_persistence_threshold - kept))
        continue;
      kept += n;
      taken_[i] = true;
      if (all_[i].trains) trained.push_back(i);
    }
  }

  /// Makes the units of a module and of the modules below it. A tied parameter belongs to the first module that has it,
  /// which is the module in the parameter's name.
  void claim(const std::string& module) {
    const std::string below = module.empty() ? "" : module + ".";
    int64_t numel = 0;
    for (const PlannedParameter& p : all_)
      if (p.name.starts_with(below)) numel += p.numel;
    const bool coarse = options_.module_size > 0 && numel <= options_.module_size;
    std::map<std::string, std::vector<size_t>> kinds;
    std::vector<std::string> children;
    for (size_t i = 0; i < all_.size(); ++i) {
      const std::string& name = all_[i].name;
      if (!name.starts_with(below)) continue;
      const size_t end = name.find('.', below.size());
      if (coarse || end == name.npos) {
        if (!taken_[i]) kinds[kind_of(i)].push_back(i);
        taken_[i] = true;
      } else if (std::string child = name.substr(0, end);
                 std::find(children.begin(), children.end(), child) == children.end()) {
        children.push_back(std::move(child));
      }
    }
    for (const auto& [kind, members] : kinds) add(members, module.empty() ? "(model)" : module, false);
    for (const std::string& child : children) claim(child);
  }

  void add(const std::vector<size_t>& members, const std::string& module, bool persistent) {
    std::vector<int64_t> sizes;
    for (const size_t i : members) sizes.push_back(all_[i].numel);
    const int owner = owners_[members[0]], ranks = all_[members[0]].ranks, shard_count = shards(ranks);
    units_.push_back(
        {module, members,
         owner < 0 || shard_count == 1 ? lay_out(sizes, shard_count) : lay_out_at(sizes, shard_count, owner),
         persistent, ranks});
  }

  const std::vector<PlannedParameter>& all_;
  const ZeroOptions& options_;
  std::vector<int> owners_;
  std::vector<bool> taken_;
  std::vector<PlannedUnit> units_;
};

}  // namespace

std::vector<PlannedUnit> plan_units(const std::vector<PlannedParameter>& parameters, const ZeroOptions& options) {
  return Planner(parameters, options).units();
}

}  // namespace lockstep::zero
