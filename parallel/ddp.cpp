// DistributedDataParallel: tells the Reducer how to reduce gradients, in buckets (reducer.h draws a backward pass). One
// bucket of four gradients on one of 4 ranks; g is a gradient of this rank, G the mean over the ranks:
//
//   after backward      after all_reduce (mean)         .grad
//   g g g g             G G G G,   G = Σ g / 4          views of the bucket
//
// Cost per step: each of N ranks sends and receives 2(N-1)/N times the bytes of the gradients. The first bucket is
// small, so that communication starts early.
#include "parallel/ddp.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <unordered_set>

#include "autograd/tape.h"
#include "base/suggest.h"
#include "dist/fingerprint.h"
#include "dist/numbers.h"
#include "nn/init.h"
#include "parallel/agreement.h"
#include "parallel/flat.h"
#include "parallel/naive_ddp.h"
#include "parallel/reducer.h"
#include "tensor/ops.h"

namespace lockstep::parallel {

using Ddp = DistributedDataParallel;

struct Ddp::Impl final : Reducer::Policy, std::enable_shared_from_this<Impl> {
  Impl(nn::Module& model, Options o, dist::ProcessGroup& ranks) : module(model), options(std::move(o)), group(ranks) {
    LOCKSTEP_CHECK(std::isfinite(options.bucket_mib) && options.bucket_mib > 0,
                   "[ddp] expected a finite bucket_mib > 0, got ", options.bucket_mib);
    std::vector<std::string> lines = describe_model(module);
    lines.insert(
        lines.begin(),
        str("options bucket_mib ", options.bucket_mib, ", find_unused_parameters ", options.find_unused_parameters,
            ", static_graph ", options.static_graph, ", broadcast_buffers ", options.broadcast_buffers, ", init_sync ",
            options.init_sync, ", algorithm ", name_of(options.algorithm), ", hook ", bool(options.hook)));
    check_agreement("ddp", lines, group);
    std::vector<Reducer::Parameter> all;
    std::vector<size_t> order;  // the last parameter's gradient is expected first
    for (const auto& p : module.named_parameters()) {
      if (p.variable.requires_grad()) order.insert(order.begin(), all.size());
      all.push_back({.name = p.name, .variable = p.variable});
    }
    LOCKSTEP_CHECK(!order.empty(), "[ddp] expected a module with parameters that require grad, got none in ",
                   module.kind(), "; a model that is not trained needs no wrapper");
    nn::fill(module);
    if (options.init_sync) broadcast_module(module, group);
    reducer.emplace(*this, &group, Reducer::Rules{.name = "ddp", .overlap = options.overlap, .exposes_grad = true},
                    std::move(all));
    if (options.static_graph) expected.assign(reducer->parameters.size(), uncounted);
    ordered(order);
  }

  // --- buckets ---

  /// Divides the parameters into buckets, in the given order: in the constructor the reverse order of fields(); after
  /// the first backward the order in which rank 0's gradients were ready, with which buckets fill sooner.
  void ordered(const std::vector<size_t>& order) override {
    const double mib = 1 << 20;
    const auto cap = int64_t(std::clamp(options.bucket_mib * mib, 1., 0x1p60));
    reducer->cut(order, cap, options.bucket_mib == DdpOptions().bucket_mib ? int64_t(mib) : cap, true);
    buckets.clear(), tags.clear();
    for (const Reducer::Bucket& unit : reducer->buckets) {
      GradBucket& b =
          buckets.emplace_back(GradBucket{.index = int(buckets.size()), .count = int(reducer->buckets.size())});
      for (const size_t i : unit.members) b.names.push_back(reducer->parameters[i].name);
      b.label = str("bucket ", b.index, " of ", b.count, ", ", b.names.front(), " to ", b.names.back());
      tags.push_back(str("ddp ", b.label, ", #", std::hex, dist::hash_text(list_names(b.names, SIZE_MAX)) >> 32));
    }
  }

  std::function<void()> start(size_t b, const Tensor& flat) override {
    const int active = join && join->divides_by_active ? int(join->active.size()) : group.size();
    const bool all = active == group.size();
    if (!options.hook) {
      return [=, work = group.all_reduce(flat, {.op = all ? dist::ReduceOp::mean : dist::ReduceOp::sum,
                                                .algorithm = options.algorithm,
                                                .tag = tags[b],
                                                .async = true})]() mutable {
        work.wait();
        if (!all) div_scalar_(flat, active);
      };
    }
    GradBucket& bucket = buckets[b];
    bucket.gradients = flat;
    bucket.parameters.clear();
    for (const size_t i : reducer->buckets[b].members)
      bucket.parameters.push_back(Reducer::view(flat, reducer->parameters[i]));
    return [this, flat, active, all, &bucket, rest = options.hook(bucket, group)] {
      if (rest) rest();
      LOCKSTEP_CHECK(bucket.gradients.defined() && bucket.gradients.storage() == flat.storage() &&
                         bucket.gradients.numel() == flat.numel(),
                     "[ddp] expected the communication hook to leave its result in bucket.gradients, of ", flat.numel(),
                     " elements, got another tensor; write into bucket.gradients in place");
      if (!all) mul_scalar_(flat, double(group.size()) / active);
    };
  }

  // --- the gradients that a backward must produce: in each step one or more for every parameter, and at most one per
  // backward (Error otherwise). There are two other rules. static_graph: each backward gives as many as the first one.
  // find_unused_parameters: none for those that a forward's output does not depend on. ---

  bool finds_unused() const { return options.find_unused_parameters && !options.static_graph; }

  void pass(Reducer::Pass moment, size_t) override {
    if (moment == Reducer::Pass::begins) {
      if (join && reducer->is_syncing()) agree(Phase::backward);
      expect_gradients();
    }
    if (moment == Reducer::Pass::backward_ends) check_gradients();
  }

  /// Expects a gradient for each parameter that `output` depends on.
  void look_at(const Variable& output) {
    expected.clear();
    // After several forwards, backward may start from any of their outputs: all parameters may get a gradient.
    if (++forwards > 1) return;
    Node* const root = output.impl()->node.get();
    std::unordered_set<const Node*> reachable{root};
    for (std::vector<Node*> stack{root}; !stack.empty();) {
      Node* const node = stack.back();
      stack.pop_back();
      for (const Edge& edge : node->inputs())
        if (edge.node && reachable.insert(edge.node.get()).second) stack.push_back(edge.node.get());
    }
    for (const Reducer::Parameter& p : reducer->parameters)
      expected.push_back(int(reachable.count(p.variable.impl()->node.get())));
    if (std::count(expected.begin(), expected.end(), 1) > 0 || output.is_leaf()) return;
    // No gradient will begin the reducer's pass. But the other ranks wait for zeros from this rank, so this hook begins
    // the pass when backward starts.
    Variable(output).before_backward([ddp = weak_from_this()] {
      if (const auto here = ddp.lock(); here && !here->reducer->in_pass()) here->reducer->begin_pass();
    });
  }

  void expect_gradients() {
    if (finds_unused() && forwards == 0) {
      fail_everywhere(group,
                      "[ddp] find_unused_parameters: expected the forward to run through ddp.call() or ddp(x): a "
                      "rank that uses no parameter would leave the others waiting");
    }
    for (size_t i = 0; i < expected.size(); ++i) reducer->parameters[i].expected = expected[i];
    if (!finds_unused()) return;
    --forwards;
    expected.clear();
  }

  std::string unexpected(const Reducer::Parameter& p) override {
    if (p.expected > 0)
      return Policy::unexpected(p) +
             (options.static_graph ? "; the graph must be the same in every step" : "; set static_graph = true");
    return options.static_graph
               ? str("static_graph: ", p.name,
                     " got a gradient, but none in the first backward; the graph must be the same in every step, or "
                     "leave out static_graph")
               : str(p.name,
                     " got a gradient, but what ddp.call() returned does not depend on it; return everything that the "
                     "loss depends on");
  }

  void check_gradients() {
    std::vector<Reducer::Parameter>& parameters = reducer->parameters;
    const bool needs_all = !finds_unused() && reducer->is_syncing();
    std::vector<std::string> wrong;
    for (size_t i = 0; i < parameters.size(); ++i) {
      Reducer::Parameter& p = parameters[i];
      if (p.expected == uncounted) expected[i] = p.expected = p.arrivals;
      if (options.static_graph ? p.arrivals < p.expected : needs_all && !p.used && p.trains()) wrong.push_back(p.name);
    }
    if (wrong.empty()) return;
    const std::string count = str(wrong.size(), " of ", parameters.size(), " parameters got "),
                      names = list_names(wrong);
    fail_everywhere(group, options.static_graph
                               ? str("[ddp] static_graph: ", count, "fewer gradients than in the first backward: ",
                                     names, "; the graph must be the same in every step, or use find_unused_parameters")
                               : str("[ddp] ", count, "no gradient in this step: ", names,
                                     ". The loss does not depend on them. Set find_unused_parameters = true, or "
                                     "static_graph = true if that is so in every step, or freeze them "
                                     "(requires_grad_(false))"));
  }

  std::vector<bool> used() override {
    if (options.static_graph && !used_anywhere.empty()) return used_anywhere;
    const bool asks = options.static_graph || finds_unused();
    std::vector<bool> mine;
    for (const Reducer::Parameter& p : reducer->parameters) mine.push_back(p.trains() && (p.used || !asks));
    return asks ? used_anywhere = used_by_any(mine, group) : mine;
  }

  // --- uneven inputs. Before each of its collectives a rank gathers from all ranks what comes next. Ranks with data
  // report their phase; ranks without data report none and run the same collectives with zeros. When no rank has data
  // left, all of them leave together.
  //
  //   rank 0   f b s  f b s  f b s  ┐             f  sync of the buffers, forward   b  backward: all buckets
  //   rank 1   f b s  f b s  · z    ┘ all ended   s  optimizer step                 z  the same collectives with zeros

  enum class Phase { none, buffers, backward };
  struct JoinState {
    bool divides_by_active, throws_on_early_end;
    std::vector<int> active = {};  // the ranks that had data in the last agree() in which any rank had
  };

  /// Tells the other ranks this rank's next phase. Returns the next phase of the ranks that have data left; none if no
  /// rank has.
  Phase agree(Phase mine) {
    const std::vector<int64_t> phases = dist::all_gathered<int64_t>({int64_t(mine)}, group, {.tag = "ddp join"});
    std::vector<int> ranks[3];  // by phase
    for (int rank = 0; rank < group.size(); ++rank) ranks[phases[size_t(rank)]].push_back(rank);
    const auto& [ended, before, inside] = ranks;
    LOCKSTEP_CHECK(before.empty() || inside.empty(), "[join] expected all ranks to be in the same phase, got ",
                   before.size(), " before a forward and ", inside.size(),
                   " in a backward; all must use ddp.call() or none, and call no_sync() for the same micro-batches");
    const Phase next = !before.empty() ? Phase::buffers : !inside.empty() ? Phase::backward : Phase::none;
    if (next == Phase::none) return next;
    std::vector<std::string> names;
    for (const int rank : ended) names.push_back(str(group.world_rank(rank)));
    LOCKSTEP_CHECK(!join->throws_on_early_end || ended.empty(), "[join] rank ", list_names(names, SIZE_MAX),
                   " has run out of data while others still have some; give all ranks the same number of batches, or "
                   "leave out throw_on_early_end");
    join->active = ranks[int(next)];
    return next;
  }

  void answer_until_all_ended() {
    for (Phase next; (next = agree(Phase::none)) != Phase::none;)
      next == Phase::backward ? answer_backward() : broadcast_buffers(join->active[0]);
    reducer->forget();
    // Ranks that ended early took fewer steps, so all ranks get the parameters of a rank that took the most steps.
    const std::vector<int>& last = join->active;
    if (!last.empty() && int(last.size()) < group.size()) broadcast_module(module, group, last[0]);
  }

  /// Runs the collectives of a backward on a rank without data. The rank contributes only the gradients that it
  /// collected earlier in no_sync().
  void answer_backward() {
    const NoGrad no_grad;
    for (Reducer::Parameter& p : reducer->parameters)
      if (!reducer->is_placeholder(p.variable.grad())) p.variable.clear_grad();
    reducer->add(true);
    for (Reducer::Parameter& p : reducer->parameters) p.variable.clear_grad();
  }

  /// Gives all ranks the buffers of rank `root`, which a forward may have changed: one collective per dtype and device.
  void broadcast_buffers(int root) {
    std::map<std::pair<int, std::string>, std::vector<Tensor>> kinds;
    for (const auto& b : module.named_buffers())
      kinds[{int(b.tensor.dtype()), str(b.tensor.device())}].push_back(b.tensor);
    for (const auto& [kind, tensors] : kinds) {
      const Packed packed(tensors);
      group.broadcast(packed.flat, root, {.tag = "ddp buffers"});
      if (group.rank() == root) continue;
      for (size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(packed.parts[i]);
    }
  }

  nn::Module& module;
  const Options options;
  dist::ProcessGroup& group;
  std::optional<Reducer> reducer;
  std::vector<GradBucket> buckets;  // with the gradients that the hook got last
  std::vector<std::string> tags;    // of the buckets' collectives
  int forwards = 0;                 // find_unused_parameters: forwards through call() whose backward has not begun
  static constexpr int uncounted = std::numeric_limits<int>::max();
  // Gradients that each parameter gets in the next backward; empty: one each. static_graph: uncounted in the first one.
  std::vector<int> expected;
  std::vector<bool> used_anywhere;  // true for the parameters that any rank used
  std::optional<JoinState> join;
};

// --- the interface ---

Ddp::DistributedDataParallel(nn::Module& module, Options options, dist::ProcessGroup* group)
    : impl_(std::make_shared<Impl>(module, std::move(options), group ? *group : dist::world())) {}
nn::Module& Ddp::module() { return impl_->module; }
dist::ProcessGroup& Ddp::group() { return impl_->group; }
void Ddp::enter_no_sync() { impl_->reducer->enter_no_sync(); }
void Ddp::leave_no_sync() { impl_->reducer->leave_no_sync(); }

std::vector<std::vector<std::string>> Ddp::buckets() const {
  std::vector<std::vector<std::string>> names;
  for (const GradBucket& bucket : impl_->buckets) names.push_back(bucket.names);
  return names;
}

Variable Ddp::call(const std::function<Variable()>& forward) {
  Impl& d = *impl_;
  const bool syncs = !d.reducer->in_no_sync() && d.group.size() > 1 && d.options.broadcast_buffers;
  if (syncs && !d.module.named_buffers().empty()) {
    if (d.join) d.agree(Impl::Phase::buffers);
    d.broadcast_buffers(d.join ? d.join->active[0] : 0);
  }
  Variable output = forward();
  if (d.finds_unused() && output.requires_grad()) d.look_at(output);
  return output;
}
Variable Ddp::operator()(const Variable& x) {
  return call([&] { return module().call(x); });
}

Ddp::Join::Join(Ddp& ddp, bool divide_by_active, bool throw_on_early_end)
    : ddp_(*ddp.impl_), exceptions_(std::uncaught_exceptions()) {
  LOCKSTEP_CHECK(
      !ddp_.join,
      "[join] expected no other join() of this model to be alive, got a second one; destroy the first one before");
  ddp_.join = Impl::JoinState{divide_by_active, throw_on_early_end};
}
Ddp::Join::~Join() noexcept(false) {
  const AtEnd ends([this] { ddp_.join.reset(); });
  if (std::uncaught_exceptions() == exceptions_) ddp_.answer_until_all_ended();
}

nn::State Ddp::state() {
  nn::State state;
  for (auto& [name, tensor] : module().state()) state.emplace_back("module." + name, tensor);
  return state;
}
nn::LoadReport Ddp::load_state(const nn::State& state, bool strict) {
  return module().load_state(without_wrapper(state), strict);
}

nn::State without_wrapper(const nn::State& state, const std::string& prefix) {
  nn::State plain = state;
  if (std::all_of(state.begin(), state.end(), [&](const auto& entry) { return entry.first.starts_with(prefix); }))
    for (auto& [name, tensor] : plain) name.erase(0, prefix.size());
  return plain;
}

}  // namespace lockstep::parallel
