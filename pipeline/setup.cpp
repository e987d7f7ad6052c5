// How an engine is set up: who has which layers, and the groups over which its ranks talk. All ranks make the same
// groups in the same order.
#include <algorithm>
#include <chrono>
#include <set>

#include "autograd/tape.h"
#include "nn/build_empty.h"
#include "parallel/agreement.h"
#include "parallel/moe/expert_parallel.h"
#include "parallel/naive_ddp.h"
#include "pipeline/engine_impl.h"
#include "pipeline/schedule_check.h"
#include "tensor/ops.h"

namespace lockstep::pipeline {

using Impl = Engine::Impl;

Impl::Impl(std::vector<LayerSpec> layers_, Options options_, Loss loss, dist::ProcessGroup* world_)
    : layers(std::move(layers_)),
      options(std::move(options_)),
      loss_of(std::move(loss)),
      world(world_ && world_->size() > 1 ? world_ : nullptr) {
  const int slices = options.mesh ? options.mesh->plan().tp * options.mesh->plan().cp : 1;
  const int ranks = (world ? world->size() : 1) / slices,
            stages = options.stages == 0 ? (options.mesh ? options.mesh->plan().pp : ranks) : options.stages;
  LOCKSTEP_CHECK(!options.mesh || (&options.mesh->world() == world_ && options.mesh->plan().pp == stages),
                 "[pipeline] expected the ranks and the ", stages, " stages of the mesh, got a mesh ",
                 to_string(options.mesh->plan()));
  LOCKSTEP_CHECK(loss_of, "[pipeline] expected a loss function, got none");
  LOCKSTEP_CHECK(stages >= 1 && stages <= ranks && ranks % stages == 0, "[pipeline] expected stages that divide the ",
                 ranks, ranks == 1 ? " rank" : " ranks", ", got ", stages,
                 "; ranks are stages x replicas of the pipeline");
  LOCKSTEP_CHECK(options.checkpoint_interval >= 0, "[pipeline] expected a checkpoint_interval of 0 or more, got ",
                 options.checkpoint_interval);
  schedule = options.custom ? *options.custom
                            : make_schedule({options.schedule, stages, options.micro_batches, options.chunks});
  LOCKSTEP_CHECK(schedule.request.stages == stages, "[pipeline] expected a schedule of ", stages,
                 " stages, got one of ", schedule.request.stages);
  count = schedule.request.micro_batches;
  virtual_stages = schedule.virtual_stages();
  if (options.bounds.empty()) {
    const bool by_type = options.split.method == SplitBy::Method::type,
               by_parameters = options.split.method == SplitBy::Method::parameters;
    const std::vector<std::string> kinds = by_type ? kinds_of(layers) : std::vector<std::string>(layers.size());
    bounds = balance(
        weights_of(options.split, kinds, by_parameters ? parameters_of(layers) : std::vector<double>(layers.size())),
        schedule);
  } else {
    bounds = options.bounds;
    const bool rising =
        std::adjacent_find(bounds.begin(), bounds.end(), [](int a, int b) { return a >= b; }) == bounds.end();
    LOCKSTEP_CHECK(
        int(bounds.size()) == virtual_stages + 1 && rising && bounds[0] == 0 && bounds.back() == int(layers.size()),
        "[pipeline] expected bounds to be ", virtual_stages + 1, " rising numbers from 0 to ", layers.size(),
        ", the layers; got ", bounds.size(), " numbers");
  }
  std::map<std::string, std::set<int>> keys;
  for (int stage = 0; stage < virtual_stages; ++stage) {
    for (int i = bounds[size_t(stage)]; i < bounds[size_t(stage) + 1]; ++i)
      for (const std::string& key : layers[size_t(i)].ties) keys[key].insert(stage);
  }
  for (const auto& [key, where] : keys) ties.push_back({key, {where.begin(), where.end()}, {}, nullptr, {}});
  const Check check = check_schedule(schedule, tie_pairs());
  if (!check.right() && check_schedule(schedule).right()) {
    fail(str("[pipeline] ", name_of(schedule.request.kind),
             " cannot sum the gradients of tied layers micro-batch by micro-batch: ", check.errors[0],
             "; use 1f1b, or untie them"));
  }
  LOCKSTEP_CHECK(check.right(), "[pipeline] the schedule is wrong: ", check.errors[0]);
  if (world) {
    agree();
    mesh = options.mesh;
    if (!mesh) {
      own_mesh = std::make_unique<parallel::Mesh>(parallel::Plan{.dp = ranks / stages, .pp = stages}, *world);
      mesh = own_mesh.get();
    }
    if (stages > 1) pp = &mesh->pp();
    if (mesh->copies().size() > 1) copies = &mesh->copies();
    rank = mesh->at().pp;
    dp_rank = mesh->at().dp;
    dp_size = ranks / stages;
    cp_rank = mesh->at().cp;
    cp_size = mesh->plan().cp;
  }
  std::vector<StageModule::Chunk> chunks;
  for (int c = 0; c < schedule.request.chunks; ++c) {
    const auto stage = size_t(schedule.virtual_stage(rank, c));
    chunks.push_back({bounds[stage], bounds[stage + 1]});
  }
  module = std::make_unique<StageModule>(layers, chunks, options.checkpoint_interval);
  std::set<const void*> trained;
  for (const Variable& p : module->parameters()) trained.insert(p.impl().get());
  for (const WholeModel* one : module->models()) {
    for (const Variable& p : one->model->parameters())
      if (!trained.count(p.impl().get())) p.tensor().storage()->empty("a parameter of another stage");
  }
  if (options.dtype) module->to(*options.dtype);
  nn::fill(*module);
  if (copies) {
    const std::set<std::string> experts = moe::expert_names(*module);  // of which other copies have others
    LOCKSTEP_CHECK(experts.empty() || !options.reduce, "[pipeline] expected experts that all replicas have, got ",
                   experts.size(), " parameters that only some have: the engine adds up their gradients");
    const auto same = [&](dist::ProcessGroup& ranks, bool spread) {
      const auto ignore = [&](const std::string& name) { return (experts.count(name) > 0) != spread; };
      parallel::check_agreement("pipeline", parallel::describe_model(*module, ignore), ranks);
      parallel::broadcast_module(*module, ranks, 0, ignore);
    };
    same(*copies, false);
    if (!experts.empty()) same(mesh->edp(), true);
  }
  make_links();
  make_ties();
  for (int c = 0; c < schedule.request.chunks; ++c) {
    std::vector<Variable> variables;
    for (auto& p : module->own_parameters(size_t(c))) variables.push_back(p.variable);
    for (const Tie& tie : ties)
      if (tie.stages[0] == schedule.virtual_stage(rank, c))
        variables.insert(variables.end(), tie.parameters.begin(), tie.parameters.end());
    auto& sum = sums.emplace_back();
    if (std::any_of(variables.begin(), variables.end(), [](const Variable& p) { return p.requires_grad(); }))
      sum.emplace(variables, options.reduce ? copies : nullptr);
  }
}

void Impl::agree() {
  const Request& r = schedule.request;
  std::vector<std::string> lines{str("options ", name_of(r.kind), ", stages ", r.stages, ", micro_batches ",
                                     r.micro_batches, ", chunks ", r.chunks, ", split ", to_string(options.split),
                                     ", checkpoint_interval ", options.checkpoint_interval, ", dynamic_shapes ",
                                     options.dynamic_shapes)};
  std::string cuts;
  for (const int b : bounds) cuts += str(cuts.empty() ? "" : ", ", b);
  lines.push_back("stages begin at layers " + cuts);
  for (size_t i = 0; i < layers.size(); ++i)
    lines.push_back(str("layer ", i, " ", layers[i].kind, layers[i].ties.empty() ? "" : " tied as " + listed(layers[i].ties)));
  parallel::check_agreement("pipeline", lines, *world);
}

/// Gradients of tied layers go from the last stage that has them to the first, by way of the others.
Ties Impl::tie_pairs() const {
  Ties pairs;
  for (const Tie& tie : ties)
    for (size_t i = 1; i < tie.stages.size(); ++i) pairs.emplace_back(tie.stages[i], tie.stages[i - 1]);
  return pairs;
}

void Impl::make_links() {
  std::set<std::tuple<Road, int, int>> wanted;
  for (int stage = 0; stage + 1 < virtual_stages; ++stage) {
    const int a = schedule.place(stage).rank, b = schedule.place(stage + 1).rank;
    if (a == b) continue;
    wanted.insert({Road::activation, a, b});
    wanted.insert({Road::gradient, b, a});
  }
  for (const auto& [from, to] : tie_pairs()) {
    const int a = schedule.place(from).rank, b = schedule.place(to).rank;
    if (a != b) wanted.insert({Road::tied, a, b});
  }
  const auto parameters = module->parameters();
  const Device device = parameters.empty() ? default_device() : parameters[0].device();
  constexpr const char* names[] = {"activation", "gradient", "tied"};
  for (const auto& [road, from, to] : wanted) {
    auto group = pp->new_group({from, to}, str("pp.", names[int(road)], ".", from, "-", to));
    if (!group) continue;
    link_groups.push_back(group);
    links.emplace(std::tuple(road, from, to), std::make_unique<Link>(group, device));
  }
}

void Impl::make_ties() {
  for (Tie& tie : ties) {
    std::vector<int> have;
    for (const int stage : tie.stages) {
      const int at = schedule.place(stage).rank;
      if (std::find(have.begin(), have.end(), at) == have.end()) have.push_back(at);
    }
    const bool mine = std::find(have.begin(), have.end(), rank) != have.end();
    if (mine)
      for (auto& p : module->tied_parameters(tie.key)) tie.parameters.push_back(p.variable);
    if (have.size() == 1) continue;
    tie.ranks = pp->new_group(have, "pp.tie." + tie.key);  // the first of them adds up
    if (!tie.ranks) continue;
    std::vector<std::string> lines;
    for (auto& p : module->tied_parameters(tie.key))
      lines.push_back(str(p.name, " ", p.variable.dtype(), " ", p.variable.shape()));
    parallel::check_agreement("pipeline", lines, *tie.ranks);
    for (const Variable& p : tie.parameters) tie.ranks->broadcast(p.tensor(), 0, {.tag = "tied " + tie.key});
  }
}

Engine::Engine(std::vector<LayerSpec> layers, Options options, Loss loss, dist::ProcessGroup* world)
    : impl_(std::make_unique<Impl>(std::move(layers), std::move(options), std::move(loss),
                                   world                    ? world
                                   : dist::is_initialized() ? &dist::world()
                                                            : nullptr)) {}
Engine::~Engine() = default;

nn::Module& Engine::module() { return *impl_->module; }
void Engine::set_step(uint64_t step) { impl_->step = step; }
const Schedule& Engine::schedule() const { return impl_->schedule; }
const std::vector<int>& Engine::bounds() const { return impl_->bounds; }
int Engine::stage() const { return impl_->rank; }
bool Engine::is_first() const { return impl_->schedule.place(0).rank == impl_->rank; }
bool Engine::is_last() const { return impl_->schedule.place(impl_->virtual_stages - 1).rank == impl_->rank; }
const std::vector<RankTime>& Engine::times() const { return impl_->times; }
double Engine::bubble() const {
  double idle = 0, all = 0;
  for (const RankTime& t : impl_->times) idle += t.idle, all += t.busy + t.idle;
  return all > 0 ? idle / all : 0;
}
std::vector<Engine::Member> Engine::places() const {
  const Impl& m = *impl_;
  std::vector<Member> all;
  for (const auto& p : m.module->numbered_parameters()) {
    bool leads = true;
    for (const Impl::Tie& tie : m.ties)
      if (tie.key == p.key) leads = m.schedule.place(tie.stages[0]).rank == m.rank;
    all.push_back({p.name, p.layer, p.place, leads});
  }
  return all;
}
int64_t Engine::bytes_sent() const {
  int64_t bytes = 0;
  for (const auto& group : impl_->link_groups) bytes += group->traffic().sent;
  return bytes;
}

std::vector<double> measure(const std::vector<LayerSpec>& layers, const std::vector<Tensor>& inputs, int repeats) {
  LOCKSTEP_CHECK(repeats >= 1, "[pipeline] expected to measure once or more, got ", repeats);
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  Values values(inputs.begin(), inputs.end());
  for (int i = 0; i < int(layers.size()); ++i) {
    StageModule one(layers, {{i, i + 1}}, 0);
    nn::fill(one);
    Values outputs;
    double best = 0;
    for (int k = 0; k <= repeats; ++k) {  // the first run warms up
      Values leaves;
      for (const Variable& v : values) leaves.emplace_back(v.tensor(), is_floating(v.dtype()));
      const auto start = Clock::now();
      outputs = one.forward(0, leaves);
      std::vector<Tensor> gradients;
      for (const Variable& v : outputs) gradients.push_back(v.requires_grad() ? ones_like(v.tensor()) : Tensor());
      joined(outputs, std::move(gradients)).backward();
      const double took = std::chrono::duration<double>(Clock::now() - start).count();
      one.zero_grad();
      if (k > 0) best = k == 1 ? took : std::min(best, took);
    }
    seconds.push_back(best);
    values.clear();
    for (const Variable& v : outputs) values.push_back(v.detach());
  }
  return seconds;
}

}  // namespace lockstep::pipeline
