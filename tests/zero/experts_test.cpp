// ZeRO with parameters that exist on some ranks only (experts): the bits of one process that has all of them.
#include <doctest/doctest.h>

#include <mutex>

#include "tests/zero/util.h"

using namespace lockstep;
using namespace testing;
using zero::ZeroOptions;

namespace {

constexpr int micros = 8, experts = 4;

/// Each micro-batch belongs to one expert. Unless `only`, the other experts are called with no rows, because in stage 3
/// all ranks must gather the same parameters.
struct Mixed : nn::Layer<Mixed> {
  nn::Linear a = linear(6, 40), c = linear(120, 3);
  std::map<int, std::shared_ptr<nn::Linear>> parts;  // their large weights are sharded in blocks
  int chosen = 0;
  bool only = false;
  Mixed() {
    for (int e = 0; e < experts; ++e) parts[e] = std::make_shared<nn::Linear>(linear(40, 120));
  }
  Variable forward(const Variable& x) {
    const Variable h = gelu(a(x));
    std::vector<Variable> rows;
    for (auto& [e, part] : parts)
      if (e == chosen || !only) rows.push_back(part->call(e == chosen ? h : h.narrow(0, 0, 0)));
    return c(gelu(rows.empty() ? cat({h, h, h}, 1) : cat(rows, 0)));
  }
  void fields(nn::Fields& f) override {
    f("a", a);
    for (auto& [e, part] : parts) f(str("experts.", e), *part);
    f("c", c);
  }
};

struct ExpertPlan {
  // parallel: number of ranks that share the experts; rank has expert e if rank % parallel == e % parallel
  int ranks = 4, parallel = 1;
  ZeroOptions options = {};
  DType dtype = f32;
  double max_norm = 0;
  bool only = false;  // true: unselected experts get no gradient, and in step 1 one expert is never selected
  bool by_norm = false;
  int first = 0, steps = 3;
  Tensors start = {};  // the state after `first` steps: whole tensors by name
  std::map<std::string, double> numbers = {};
};

struct Trained {
  Tensors parameters, state;  // state: as in a checkpoint
  std::map<std::string, double> numbers;
};

int expert_of(int64_t micro, bool interleaved) {
  return int(interleaved ? micro % experts : micro / (micros / experts));
}

std::vector<std::unique_ptr<optim::Optimizer>> make_optimizers(nn::Module& net, bool by_norm) {
  if (by_norm) return by_shape<ByNorm>(net);
  std::vector<std::unique_ptr<optim::Optimizer>> one;
  one.push_back(adamw(net.parameters()));
  return one;
}

Variable loss_of(Mixed& net, const ExpertPlan& plan, int step, int64_t micro) {
  net.only = plan.only;
  net.chosen = expert_of(micro, plan.options.stage >= 2);
  if (plan.only && step == 1 && net.chosen == 3) net.chosen = -1;
  return loss_of_micro_batch(net, step, micro, plan.dtype);
}

/// Trains in one process that has all experts; also returns the norms.
std::pair<Tensors, std::vector<double>> single_process(const ExpertPlan& plan) {
  Tensors parameters =
      train({.accumulation = micros,
             .dtype = plan.dtype,
             .max_norm = plan.max_norm > 0 ? plan.max_norm : 1e9,
             .steps = plan.steps,
             .make_all = [&](nn::Module& net) { return make_optimizers(net, plan.by_norm); },
             .model = [] { return std::make_unique<Mixed>(); },
             .loss = [&](nn::Module& net, const Call&, int step,
                         int64_t micro) { return loss_of(static_cast<Mixed&>(net), plan, step, micro); }});
  const std::vector<double> norms = parameters.extract("norms").mapped().to_vector<double>();
  return {parameters, norms};
}

/// What a rank has of the model if `parallel` ranks share the experts.
struct Part {
  std::shared_ptr<dist::ProcessGroup> same;  // the ranks that have the same experts
  Mixed net;
  std::set<std::string> names;  // the experts' parameters
  explicit Part(int parallel) {
    const int rank = dist::world().rank();
    same = dist::world().split(rank % parallel, rank, "same");
    for (int e = 0; e < experts; ++e) {
      if (e % parallel != rank % parallel) net.parts.erase(e);
      else if (parallel > 1) names.insert({str("experts.", e, ".weight"), str("experts.", e, ".bias")});
    }
  }
};

/// Merges the tensors of all ranks; checks that those on several ranks are equal.
Trained train_experts(const ExpertPlan& plan, const std::vector<double>& norms = {}) {
  std::mutex mutex;
  Trained all;
  on_ranks(plan.ranks, [&](int) {
    manual_seed(1);
    Part part(plan.parallel);
    Mixed& net = part.net;
    net.to(plan.dtype);
    if (part.same->rank() > 0)
      // Overwritten by the values of the first rank.
      for (const auto& p : net.named_parameters())
        if (part.names.count(p.name)) add_scalar_(p.variable.tensor(), 1);
    const auto optimizers = make_optimizers(net, plan.by_norm);
    ZeroOptions options = plan.options;
    options.experts = {part.names, part.same.get()};
    options.ignore_unused_parameters = plan.only;
    Zero zero(net, pointers_to(optimizers), options);
    if (!plan.start.empty()) load_from(zero, plan.start, plan.numbers);
    const int accumulation = micros / plan.ranks;
    for (int step = plan.first; step < plan.steps; ++step) {
      backwards(zero, accumulation, [&](int64_t micro) { loss_of(net, plan, step, micro).backward(); });
      const auto report = zero.step({.grad_scale = 1. / accumulation, .max_norm = plan.max_norm, .want_norm = true});
      if (!norms.empty())
        CHECK(report.norm == doctest::Approx(norms[size_t(step)]).epsilon(plan.dtype == f64 ? 1e-12 : 1e-6));
    }
    const auto pieces = zero.state();
    const auto numbers = zero.numbers();
    const auto gathered = zero.gathered();
    const std::scoped_lock lock(mutex);
    for (const auto& [name, tensor] : copy_parameters(net)) {
      const auto [at, is_new] = all.parameters.emplace(name, tensor);
      CHECK_MESSAGE(equal(at->second, tensor), name);
    }
    for (const zero::StatePiece& piece : pieces) place_of(all.state, piece).copy_(piece.tensor);
    for (const auto& [key, value] : numbers) all.numbers[key] = value;
  });
  return all;
}

/// Checks that ranks give the bits and norms of one process.
void check_experts(const ExpertPlan& plan, const std::pair<Tensors, std::vector<double>>& expected) {
  INFO(plan.ranks, " ranks, ", plan.parallel, " share the experts, stage ", plan.options.stage);
  CHECK(differing(expected.first, train_experts(plan, expected.second).parameters) == "");
}

}  // namespace

TEST_CASE("zero: parameters of experts: every stage, overlap or not, size of units: bit-identical to one process") {
  for (const int stage : {0, 1, 2, 3}) {
    const auto expected = single_process({.options = {.stage = stage}});
    const auto [clipped, norms64] = single_process({.options = {.stage = stage}, .dtype = f64, .max_norm = 0.05});
    for (const auto& [ranks, parallel] : {std::pair{2, 2}, {4, 2}, {4, 4}, {4, 1}}) {
      // the two experts of a rank would differ from those that ranks share
      if (stage < 2 && ranks == 2) continue;
      ExpertPlan plan{.ranks = ranks, .parallel = parallel};
      for (const auto& [overlap, size] :
           {std::pair{true, int64_t(1)}, {false, int64_t(1) << 40}, {true, int64_t(3000)}}) {
        plan.options = {.stage = stage, .overlap_comm = overlap, .reduce_bucket_size = size};
        check_experts(plan, expected);
      }
      plan.options = {.stage = stage, .reduce_scatter = false};
      plan.dtype = f64;
      plan.max_norm = 0.05;
      INFO(ranks, " ranks, ", parallel, " share the experts, stage ", stage);
      CHECK(distance(clipped, train_experts(plan, norms64).parameters) < 1e-12);
    }
  }
}

TEST_CASE("zero: parameters of experts: offload, rules that take whole matrices, those without gradients") {
  const auto by_norm = single_process({.options = {.stage = 2}, .by_norm = true});
  for (const int stage : {2, 3}) check_experts({.parallel = 2, .options = {.stage = stage}, .by_norm = true}, by_norm);
  const Tensors plain = single_process({.options = {.stage = 3}}).first;
  check_experts({.parallel = 2, .options = all_in_files()}, {plain, {}});
  for (const int stage : {0, 1, 2}) {
    const Tensors unused = single_process({.options = {.stage = stage}, .only = true}).first;
    for (const int parallel : {2, 4})
      check_experts({.parallel = parallel, .options = {.stage = stage}, .only = true}, {unused, {}});
  }
}

TEST_CASE(
    "zero: state of experts' parameters is saved by name, and goes on with any ranks that share them, in any stage") {
  const ExpertPlan one{.options = {.stage = 2}, .steps = 4};
  const Trained expected = train_experts(one);
  CHECK(expected.state.size() == 3 * 12);
  const ExpertPlan half{.options = {.stage = 2}, .steps = 2};
  const Trained first = train_experts(half);
  for (const auto& [stage, parallel] : {std::pair{2, 2}, {3, 4}, {2, 4}}) {
    INFO("stage ", stage, ", ", parallel, " share the experts");
    ExpertPlan plan{.parallel = parallel, .options = {.stage = stage}, .steps = 2};
    const Trained half_way = train_experts(plan);
    CHECK(differing(first.state, half_way.state) == "");
    CHECK(first.numbers == half_way.numbers);
    plan.start = first.state;
    plan.numbers = first.numbers;
    plan.first = 2;
    plan.steps = 4;
    CHECK(differing(expected.state, train_experts(plan).state) == "");
  }
}

TEST_CASE("zero: parameters of experts: writes, values that are not finite, invalid calls") {
  on_ranks(4, [](int rank) {
    manual_seed(1);
    Part part(2);
    Mixed& net = part.net;
    const auto optimizer = adamw(net.parameters());
    const auto make = [&](const zero::ExpertParameters& own) { Zero(net, *optimizer, {.experts = own}); };
    CHECK_ERROR(
        make({part.names, nullptr}),
        "expected experts.group to be a subgroup of world (4 ranks) whose ranks have the same parameters, got none");
    CHECK_ERROR(make({{"experts.9.bias"}, part.same.get()}), "got 1 names, of which the module has 0");
    CHECK_ERROR(make({}), "rank 1 has 'parameter experts.1.weight");
    Zero zero(net, *optimizer,
              {.stage = 3, .nonfinite = zero::NonFinite::skip, .experts = {part.names, part.same.get()}});
    const int mine = rank % 2;
    {
      const auto full = zero.gathered(0);
      if (rank < 2) net.parts[mine]->weight.tensor().fill_(rank + 5);
    }
    {
      const auto full = zero.gathered();
      CHECK(net.parts[mine]->weight.tensor().view({4800}).narrow(0, 4799, 1).item() == mine + 5);
    }
    net.chosen = rank;
    Variable bad = net.parts.rbegin()->second->bias;
    const int hook = bad.on_grad([rank](const Tensor& g) { return rank == 3 ? mul_scalar(g, INFINITY) : g; });
    net(ones({2, 6})).narrow(1, 0, 1).view({2}).narrow(0, 0, 1).backward();
    const auto report = zero.step();
    bad.remove_hook(hook);
    CHECK((report.skipped && report.first_nonfinite == "experts.3.bias" && report.rank == 3));
  });
  CHECK_ERROR(dist::spawn(2,
                          [](int) {
                            Part part(2);
                            const auto optimizer = adamw(part.net.parameters());
                            Zero zero(part.net, *optimizer, {.stage = 1, .experts = {part.names, part.same.get()}});
                            const auto full = zero.gathered(1);
                          }),
              "expected modifier rank 0 for experts.");
}
