// Parses and checks plans, finds the nearest valid plan, and creates the groups of a mesh. See mesh.h.
#include "parallel/mesh.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "base/suggest.h"

namespace lockstep::parallel {

namespace {

struct Axis {
  const char* name;
  int Plan::*size;
  double weight;  // cost of a change, per factor of two
};
constexpr Axis axes[] = {{"dp", &Plan::dp, 1},
                         {"pp", &Plan::pp, 1.3},
                         {"cp", &Plan::cp, 1.1},
                         {"tp", &Plan::tp, 1.2},
                         {"ep", &Plan::ep, 1.1}};
constexpr int greatest = 1 << 20;

/// Splits "dp2" into "dp" and 2. Returns nullopt unless `text` is letters followed by a number.
std::optional<std::pair<std::string, int>> word_of(std::string_view text) {
  constexpr const char* figures = "0123456789";
  const size_t letters = std::min(text.find_first_of(figures), text.size());
  const std::string_view digits = text.substr(letters);
  if (letters == 0 || digits.empty() || digits.size() >= 8 || digits.find_first_not_of(figures) != digits.npos)
    return {};
  return std::pair(std::string(text.substr(0, letters)), std::stoi(std::string(digits)));
}

/// Distance between two plans: first the number of axes that differ (the ZeRO stage counts as one), then the weighted
/// sum of |log2(old size / new size)| over the axes. A change of dp has the least weight.
std::pair<int, double> distance(const Plan& from, const Plan& to) {
  int changes = from.zero != to.zero;
  double steps = from.zero == to.zero ? 0 : 1;
  for (const Axis& axis : axes) {
    changes += from.*axis.size != to.*axis.size;
    steps += axis.weight * std::abs(std::log2(double(from.*axis.size) / to.*axis.size));
  }
  return {changes, steps};
}

std::vector<int> divisors(int64_t n) {
  std::vector<int> all;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(int(d));
  return all;
}

}  // namespace

Plan parse_plan(std::string_view text) {
  Plan plan;
  std::vector<std::string> words;
  for (size_t at = 0, end = 0; at <= text.size(); at = end + 1) {
    end = std::min(text.find('+', at), text.size());
    const std::string_view one = text.substr(at, end - at);
    const auto word = word_of(one);
    const auto set = [&](int& to, int least, int largest) {
      LOCKSTEP_CHECK(word->second >= least && word->second <= largest, "[plan] \"", text, "\": expected ", word->first,
                     " with a number from ", least, " to ", largest, ", got ", one);
      LOCKSTEP_CHECK(std::find(words.begin(), words.end(), word->first) == words.end(), "[plan] \"", text,
                     "\": expected ", word->first, " once, got it twice");
      words.push_back(word->first);
      to = word->second;
    };
    const Axis* found = nullptr;
    for (const Axis& axis : axes)
      if (word && word->first == axis.name) found = &axis;
    if (found) set(plan.*(found->size), 1, greatest);
    else if (word && word->first == "zero") set(plan.zero, 0, 3);
    else
      fail(str("[plan] \"", text,
               "\": expected dpN (replicas), ppN (stages), tpN (tensor), cpN (context), epN (expert parallelism) and "
               "zeroN, joined by +, such as dp2+pp2+tp2+zero1; got \"",
               one, "\"", word ? suggestion(word->first, {"dp", "pp", "tp", "cp", "ep", "zero"}) : ""));
  }
  const double ranks = double(plan.dp) * plan.pp * plan.cp * plan.tp;
  LOCKSTEP_CHECK(ranks <= greatest, "[plan] \"", text, "\": expected at most ", greatest, " ranks, got ", ranks);
  return plan;
}

std::string to_string(const Plan& plan) {
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : "+") + word; };
  for (const Axis& axis : axes)
    if (plan.*(axis.size) > 1) add(axis.name + std::to_string(plan.*(axis.size)));
  if (text.empty()) add("dp1");
  if (plan.zero >= 0) add("zero" + std::to_string(plan.zero));
  return text;
}

Coordinates coordinates_of(const Plan& plan, int rank) {
  LOCKSTEP_CHECK(rank >= 0 && rank < plan.ranks(), "[plan] expected a rank from 0 to ", plan.ranks() - 1, ", got ",
                 rank);
  Coordinates at;
  at.tp = rank % plan.tp;
  at.cp = rank / plan.tp % plan.cp;
  at.pp = rank / plan.tp / plan.cp % plan.pp;
  at.dp = rank / plan.tp / plan.cp / plan.pp;
  at.ep = at.dp % plan.ep;
  return at;
}

std::vector<std::string> reasons_against(const Plan& plan, const PlanSizes& sizes) {
  std::vector<std::string> reasons;
  const auto require = [&](bool holds, const std::string& reason) {
    if (!holds) reasons.push_back(reason);
  };
  require(sizes.ranks == 0 || sizes.ranks == plan.ranks(),
          str("it is for ", plan.ranks(), plan.ranks() == 1 ? " rank" : " ranks", ", and there ",
              sizes.ranks == 1 ? "is " : "are ", sizes.ranks));
  const int64_t parts = int64_t(plan.pp) * std::max<int64_t>(1, plan.pp > 1 ? sizes.chunks : 1);
  require(sizes.layers == 0 || parts <= sizes.layers,
          str(plan.pp, " stages", parts > plan.pp ? str(" of ", sizes.chunks, " chunks") : "", " need ", parts,
              " layers, the model has ", sizes.layers));
  const auto divides = [&](const char* what, int64_t size, int by, const char* name) {
    require(size == 0 || size % by == 0, str(name, by, " does not divide the ", size, " ", what));
  };
  divides("attention heads", sizes.heads, plan.tp, "tp");
  divides("key and value heads", sizes.kv_heads, plan.tp, "tp");
  divides("columns of the model (width)", sizes.width, plan.tp, "tp");
  divides("hidden columns of its layers (inner)", sizes.inner, plan.tp, "tp");
  require(sizes.vocab == 0 || plan.tp <= sizes.vocab,
          str("tp", plan.tp, " has more ranks than the vocabulary has words (", sizes.vocab, ")"));
  const int64_t parts_of_context = plan.cp == 1 ? 1 : plan.cp * sizes.context_parts;
  require(sizes.context % parts_of_context == 0,
          str("cp", plan.cp, " does not divide the ", sizes.context, " tokens of a sample (context)",
              parts_of_context > plan.cp ? str(" into ", parts_of_context, " parts") : ""));
  const bool heads_shared =
      !sizes.context_by_heads || sizes.heads % plan.tp != 0 || sizes.heads / plan.tp % plan.cp == 0;
  require(heads_shared, str("cp", plan.cp, " does not divide the ", sizes.heads / plan.tp, " heads",
                            plan.tp > 1 ? " of a tensor-parallel rank" : "", " (Ulysses; ring takes any)"));
  divides("experts", sizes.experts, plan.ep, "ep");
  divides("replicas (experts are distributed over them)", plan.dp, plan.ep, "ep");
  divides("micro-batches of a step", sizes.micro_batches, plan.dp, "dp");
  const auto require_full_gradients = [&](const char* what) {
    require(plan.zero < 2, str("zero", plan.zero, " shards gradients after every micro-batch, ", what, "; use zero1"));
  };
  if (plan.pp > 1) require_full_gradients("but a pipeline sums all micro-batches first");
  else if (plan.tp > 1) require_full_gradients("but tensor parallelism sums all micro-batches first");
  return reasons;
}

std::unique_ptr<Plan> nearest_plan(const Plan& plan, const PlanSizes& sizes,
                                   const std::function<bool(const Plan&)>& also) {
  const int64_t ranks = sizes.ranks > 0 ? sizes.ranks : plan.ranks();
  PlanSizes fixed = sizes;
  fixed.ranks = ranks;
  std::unique_ptr<Plan> best;
  const auto consider = [&](const Plan& other) {
    if (!reasons_against(other, fixed).empty()) return;
    if (best && !(distance(plan, other) < distance(plan, *best))) return;
    if (!also || also(other)) best = std::make_unique<Plan>(other);
  };
  const auto choices = [](int64_t among, int asked, int64_t size) {
    std::vector<int> all = divisors(among);
    if (size == 0) std::erase_if(all, [&](int one) { return one != 1 && one != asked; });
    return all;
  };
  for (const int tp : choices(ranks, plan.tp, sizes.heads)) {
    for (const int cp : choices(ranks / tp, plan.cp, plan.cp == 1 ? 0 : sizes.context)) {
      for (const int pp : choices(ranks / tp / cp, plan.pp, sizes.layers)) {
        const int dp = int(ranks / tp / cp / pp);
        for (const int ep : choices(dp, plan.ep, plan.ep == 1 ? 0 : sizes.experts)) {
          consider({dp, pp, cp, tp, ep, plan.zero});
          if (plan.zero >= 2) consider({dp, pp, cp, tp, ep, 1});
        }
      }
    }
  }
  return best;
}

void check_plan(const Plan& plan, const PlanSizes& sizes) {
  const std::vector<std::string> reasons = reasons_against(plan, sizes);
  if (reasons.empty()) return;
  std::string text;
  for (const std::string& reason : reasons) text += (text.empty() ? "" : "; ") + reason;
  const auto near = nearest_plan(plan, sizes);
  // The model or the configuration may rule out the nearest plan, too: `sizes` need not have all of the model's sizes,
  // and says nothing about the configuration. engine::check_plan() knows the model and the configuration.
  fail(str("[plan] ", to_string(plan), " is invalid: ", text,
           near ? ". The nearest plan that works: " + to_string(*near) + " (if model and configuration allow it)"
                : ". No plan works on these ranks; use another number of ranks"));
}

Mesh::Mesh(const Plan& plan, dist::ProcessGroup& world)
    : plan_((check_plan(plan, {.ranks = world.size()}), plan)),
      world_(&world),
      at_(coordinates_of(plan, world.rank())),
      axes_(world, {{"dp", plan.dp}, {"pp", plan.pp}, {"cp", plan.cp}, {"tp", plan.tp}}) {
  // A group costs memory and round trips. Reuse an existing group that has the same ranks in the same order.
  const auto same = [](dist::ProcessGroup& group) {
    return std::shared_ptr<dist::ProcessGroup>(std::shared_ptr<void>(), &group);
  };
  replicas_ = plan.pp * plan.tp == 1 ? same(world)
              : plan.cp == 1         ? same(dp())
                                     : world.split(at_.pp * plan.tp + at_.tp, world.rank(), "copies");
  model_ = plan.dp == 1             ? same(world)
           : plan.cp * plan.tp == 1 ? same(pp())
           : plan.pp * plan.cp == 1 ? same(tp())
                                    : world.split(at_.dp, world.rank(), "model");
  ep_ = dp().split(at_.dp / plan.ep, at_.ep, "ep");
  edp_ = plan.ep == 1 ? replicas_ : replicas_->split(at_.ep, replicas_->rank(), "edp");
}

}  // namespace lockstep::parallel
