// Sets up an engine: which rank holds which layers, and the process groups, which all ranks create in the same order.
#include <algorithm>
#include <set>

#include "base/suggest.h"
#include "nn/init.h"
#include "parallel/moe/expert_parallel.h"
#include "parallel/naive_ddp.h"
#include "pipeline/engine.h"
#include "pipeline/link.h"
#include "pipeline/schedule_check.h"

namespace lockstep::pipeline {

namespace {

/// The ranks that train together; null for a single rank.
dist::ProcessGroup* ranks_of(dist::ProcessGroup* given) {
  dist::ProcessGroup* const world = given ? given : dist::is_initialized() ? &dist::world() : nullptr;
  return world && world->size() > 1 ? world : nullptr;
}

}  // namespace

PipelineEngine::PipelineEngine(std::vector<LayerSpec> layers, Options options, Loss loss, dist::ProcessGroup* world)
    : layers_(std::move(layers)), options_(std::move(options)), loss_(std::move(loss)), world_(ranks_of(world)) {
  const int ranks_per_stage = options_.mesh ? options_.mesh->plan().tp * options_.mesh->plan().cp : 1;
  const int ranks = (world_ ? world_->size() : 1) / ranks_per_stage,
            stages = options_.stages == 0 ? (options_.mesh ? options_.mesh->plan().pp : ranks) : options_.stages;
  LOCKSTEP_CHECK(
      !options_.mesh || ((!world_ || &options_.mesh->world() == world_) && options_.mesh->plan().pp == stages),
      "[pipeline] expected the ranks and the ", stages, " stages of the mesh, got a mesh ",
      to_string(options_.mesh->plan()), "; set stages to the mesh's pp, or to 0, and pass the mesh's world as `world`");
  LOCKSTEP_CHECK(loss_, "[pipeline] expected a loss function, got none; pass one");
  LOCKSTEP_CHECK(stages >= 1 && stages <= ranks && ranks % stages == 0, "[pipeline] expected stages that divide the ",
                 ranks, ranks == 1 ? " rank" : " ranks", ", got ", stages,
                 "; ranks are stages x replicas of the pipeline");
  LOCKSTEP_CHECK(options_.checkpoint_interval >= 0, "[pipeline] expected a checkpoint_interval of 0 or more, got ",
                 options_.checkpoint_interval);
  schedule_ = options_.custom ? *options_.custom
                              : make_schedule({options_.schedule, stages, options_.micro_batches, options_.chunks});
  LOCKSTEP_CHECK(schedule_.request.stages == stages, "[pipeline] expected a schedule of ", stages,
                 " stages, got one of ", schedule_.request.stages, "; set Request::stages of EngineOptions::custom");
  if (options_.bounds.empty()) {
    std::vector<std::string> kinds(layers_.size());
    if (options_.split.method == SplitBy::Method::type) kinds = kinds_of(layers_);
    std::vector<double> parameters;
    if (options_.split.method == SplitBy::Method::parameters) parameters = parameters_of(layers_);
    bounds_ = balance(weights_of(options_.split, kinds, parameters), schedule_);
  } else {
    bounds_ = options_.bounds;
    const bool rising = std::adjacent_find(bounds_.begin(), bounds_.end(), std::greater_equal<>()) == bounds_.end();
    LOCKSTEP_CHECK(int(bounds_.size()) == schedule_.virtual_stages() + 1 && rising && bounds_[0] == 0 &&
                       bounds_.back() == int(layers_.size()),
                   "[pipeline] expected bounds to be ", schedule_.virtual_stages() + 1, " rising numbers from 0 to ",
                   layers_.size(), ", the layers; got ", bounds_.size(), " numbers from ", bounds_[0], " to ",
                   bounds_.back(), rising ? "" : " that do not all rise");
  }
  std::map<std::string, std::vector<int>> users;
  for (int stage = 0; stage < schedule_.virtual_stages(); ++stage) {
    for (int i = bounds_[size_t(stage)]; i < bounds_[size_t(stage) + 1]; ++i)
      for (const std::string& key : layers_[size_t(i)].ties)
        if (users[key].empty() || users[key].back() != stage) users[key].push_back(stage);
  }
  for (const auto& [key, where] : users) {
    for (size_t i = 1; i < where.size(); ++i) hops_.push_back({where[i], where[i - 1], ties_.size()});
    ties_.push_back({key, where, {}, nullptr});
  }
  const PipelineCheck check = check_schedule(schedule_, hops_);
  LOCKSTEP_CHECK(check.right() || !check_schedule(schedule_).right(), "[pipeline] ", name_of(schedule_.request.kind),
                 " cannot sum the gradients of tied layers micro-batch by micro-batch: ", check.errors[0],
                 "; use 1f1b, or untie them");
  LOCKSTEP_CHECK(check.right(), "[pipeline] the schedule is wrong: ", check.errors[0],
                 "; correct EngineOptions::custom, or leave it out and choose a kind of schedule");
  step_list_ = step_of(schedule_, hops_);
  if (world_) {
    agree();
    const parallel::Plan plan{.dp = ranks / stages, .pp = stages};
    if (!options_.mesh) own_mesh_ = std::make_unique<parallel::Mesh>(plan, *world_);
    mesh_ = own_mesh_ ? own_mesh_.get() : options_.mesh;
    if (mesh_->replicas().size() > 1) replicas_ = &mesh_->replicas();
    plan_ = mesh_->plan();
    at_ = mesh_->at();
    rank_ = at_.pp;
  }
  make_module();
  make_links(check.ahead);
  make_ties();
  for (const auto& p : module_->numbered_parameters()) {
    const auto tie = std::find_if(ties_.begin(), ties_.end(), [&](const Tie& one) { return one.key == p.tie; });
    const bool leads = tie == ties_.end() || schedule_.place(tie->stages[0]).rank == rank_;
    places_[p.name] = {p, leads, p.variable.requires_grad()};
  }
  for (int c = 0; c < schedule_.request.chunks; ++c) {
    std::vector<Variable> variables;
    for (auto& p : module_->own_parameters(size_t(c))) variables.push_back(p.variable);
    for (const Tie& tie : ties_)
      if (tie.stages[0] == schedule_.virtual_stage(rank_, c))
        variables.insert(variables.end(), tie.parameters.begin(), tie.parameters.end());
    if (!variables.empty()) sums_.try_emplace(c, variables, options_.reduce ? replicas_ : nullptr, replicas_);
  }
}

/// Builds this rank's layers, with the same initial values on every replica.
void PipelineEngine::make_module() {
  std::vector<StageModule::Chunk> chunks;
  for (int c = 0; c < schedule_.request.chunks; ++c) {
    const auto stage = size_t(schedule_.virtual_stage(rank_, c));
    chunks.push_back({bounds_[stage], bounds_[stage + 1]});
  }
  module_ = std::make_unique<StageModule>(layers_, chunks, options_.checkpoint_interval);
  std::set<const void*> trained;
  for (const Variable& p : module_->parameters()) trained.insert(p.impl().get());
  for (const FullModel* one : module_->models()) {
    for (const Variable& p : one->model->parameters())
      if (!trained.count(p.impl().get())) p.tensor().storage()->empty("a parameter of another stage");
  }
  if (options_.dtype) module_->to(*options_.dtype);
  nn::fill(*module_);
  if (replicas_) {
    const std::set<std::string> experts = moe::expert_names(*module_);  // replicas hold different experts
    LOCKSTEP_CHECK(experts.empty() || !options_.reduce, "[pipeline] expected experts that all replicas have, got ",
                   experts.size(),
                   " parameters that only some have: the engine sums their gradients over all replicas; let every "
                   "replica have all experts, or let ZeRO sum them (reduce = false)");
    const auto same = [&](dist::ProcessGroup& ranks, bool are_experts) {
      const auto ignore = [&](const std::string& name) { return (experts.count(name) > 0) != are_experts; };
      parallel::check_agreement("pipeline", parallel::describe_model(*module_, ignore), ranks);
      parallel::broadcast_module(*module_, ranks, 0, ignore);
    };
    same(*replicas_, false);
    if (!experts.empty()) same(mesh_->edp(), true);
  }
}

void PipelineEngine::agree() const {
  const PipelineRequest& r = schedule_.request;
  std::vector<std::string> lines{str("options ", name_of(r.kind), ", stages ", r.stages, ", micro_batches ",
                                     r.micro_batches, ", chunks ", r.chunks, ", split ", to_string(options_.split),
                                     ", checkpoint_interval ", options_.checkpoint_interval, ", dynamic_shapes ",
                                     options_.dynamic_shapes)};
  std::string cuts;
  for (const int b : bounds_) cuts += str(cuts.empty() ? "" : ", ", b);
  lines.push_back("stages begin at layers " + cuts);
  for (size_t i = 0; i < layers_.size(); ++i)
    lines.push_back(str("layer ", i, " ", layers_[i].kind,
                        layers_[i].ties.empty() ? "" : " tied as " + lockstep::list_names(layers_[i].ties)));
  parallel::check_agreement("pipeline", lines, *world_);
}

// Makes a link for each pair of ranks and direction that exchange activations, gradients or tied gradients.
void PipelineEngine::make_links(int ahead) {
  std::set<std::tuple<Road, int, int>> wanted;
  const auto want = [&](Road road, int from, int to) {
    const int a = schedule_.place(from).rank, b = schedule_.place(to).rank;
    if (a != b) wanted.insert({road, a, b});
  };
  for (int stage = 0; stage + 1 < schedule_.virtual_stages(); ++stage) {
    want(Road::activation, stage, stage + 1);
    want(Road::gradient, stage + 1, stage);
  }
  for (const TiedStages& hop : hops_) want(Road::tied, hop.from, hop.to);
  const auto parameters = module_->parameters();
  const Device device = parameters.empty() ? default_device() : parameters[0].device();
  constexpr const char* names[] = {"activation", "gradient", "tied"};
  for (const auto& [road, from, to] : wanted) {
    auto group = mesh_->pp().new_group({from, to}, str("pp.", names[int(road)], ".", from, "-", to));
    if (group) lanes_[{road, from, to}].link = std::make_unique<Link>(group, device, ahead);
  }
}

// Groups the ranks that share each tied parameter, and gives all of them the same values.
void PipelineEngine::make_ties() {
  for (Tie& tie : ties_) {
    std::vector<std::string> lines;
    for (auto& p : module_->tied_parameters(tie.key)) {
      tie.parameters.push_back(p.variable);
      lines.push_back(str(p.name, " ", p.variable.dtype(), " ", p.variable.shape()));
    }
    std::vector<int> have;
    for (const int stage : tie.stages) {
      const int at = schedule_.place(stage).rank;
      if (std::find(have.begin(), have.end(), at) == have.end()) have.push_back(at);
    }
    if (have.size() == 1) continue;
    tie.ranks = mesh_->pp().new_group(have, "pp.tie." + tie.key);  // the group's first rank adds the gradients
    if (!tie.ranks) continue;
    parallel::check_agreement("pipeline", lines, *tie.ranks);
    for (const Variable& p : tie.parameters) tie.ranks->broadcast(p.tensor(), 0, {.tag = "tied " + tie.key});
  }
}

double PipelineEngine::bubble() const {
  double idle = 0, all = 0;
  for (const RankTime& t : times_) idle += t.idle, all += t.busy + t.idle;
  return all > 0 ? idle / all : 0;
}

bool PipelineEngine::leads(const std::string& parameter) const {
  const auto found = places_.find(parameter);
  return found == places_.end() || found->second.leads;
}

std::optional<std::pair<int, int>> PipelineEngine::place_in_norm(const std::string& parameter) const {
  const Place& p = places_.at(parameter);
  return p.leads ? std::optional(std::pair(p.layer, p.place)) : std::nullopt;
}

std::vector<dist::ProcessGroup*> PipelineEngine::groups() const {
  std::vector<dist::ProcessGroup*> all;
  for (const auto& [road, lane] : lanes_) all.push_back(&lane.link->group());
  for (const Tie& tie : ties_)
    if (tie.ranks) all.push_back(tie.ranks.get());
  return all;
}

int64_t PipelineEngine::bytes_sent() const {
  int64_t bytes = 0;
  for (const auto& [road, lane] : lanes_) bytes += lane.link->bytes_sent();
  return bytes;
}

}  // namespace lockstep::pipeline
