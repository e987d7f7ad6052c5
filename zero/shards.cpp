// Building a stage: checks, agreement between ranks, and the plan of units and shards.
#include <algorithm>

#include "base/suggest.h"
#include "nn/init.h"
#include "tensor/ops.h"
#include "zero/gather.h"
#include "zero/offload/tiles.h"
#include "zero/units.h"

namespace lockstep::zero {
namespace {

struct Size {
  const char* key;
  int64_t size, least;
};
std::vector<Size> sizes_of(const ZeroOptions& o) {
  return {{"reduce_bucket_size", o.reduce_bucket_size, 1},
          {"max_live_parameters", o.max_live_parameters, 1},
          {"sub_group_size", o.sub_group_size, 1},
          {"prefetch_bucket_size", o.prefetch_bucket_size, 0},
          {"param_persistence_threshold", o.param_persistence_threshold, 0},
          {"model_persistence_threshold", o.model_persistence_threshold, 0},
          {"max_reuse_distance", o.max_reuse_distance, 0},
          {"module_size", o.module_size, 0}};
}

}  // namespace

Stage::Stage(nn::Module& module, std::vector<optim::Optimizer*> all, const ZeroOptions& o, dist::ProcessGroup& group)
    : module(module), optimizers(std::move(all)), options(o), group(group) {
  for (const auto& [key, size, least] : sizes_of(o))
    LOCKSTEP_CHECK(size >= least, "[zero] expected ", key, least > 0 ? " > 0, got " : " >= 0, got ", size);
  LOCKSTEP_CHECK(o.hooks || o.stage < 3,
                 "[zero] stage 3 needs hooks, which free parameters when gradients arrive; set hooks = true");
  zero::check(o.offload_optimizer, o.stage);
  zero::check(o.offload_param, o.stage);
  zero::check(o.aio);
  LOCKSTEP_CHECK(!o.communication_data_type || is_floating(*o.communication_data_type),
                 "[zero] expected a floating communication_data_type, got ", *o.communication_data_type);
  for (const auto& p : module.named_parameters()) {
    parameters.push_back(
        {.name = p.name, .variable = p.variable, .ranks = o.experts.names.count(p.name) ? o.experts.group : &group});
    const Device first = parameters[0].variable.device(), here = p.variable.device();
    LOCKSTEP_CHECK(here == first || (here.is_cpu() && first.is_cpu()),
                   "[zero] expected all parameters on one device, got ", parameters[0].name, " on ", first, " and ",
                   p.name, " on ", here, "; move the module with .to(device)");
    if (parameters.size() == 1 && !here.is_cpu()) device = here;
  }
  size_t trained = 0;
  int rules = 0;
  for (optim::Optimizer* optimizer : optimizers) {
    LOCKSTEP_CHECK(optimizer, "[zero] expected pointers to optimizers, got a null pointer");
    LOCKSTEP_CHECK(!optimizer->communicates(), "[zero] ", optimizer->name(),
                   " exchanges gradients between ranks itself and needs those of the whole model: use it without ZeRO");
    for (int g = 0; g < optimizer->group_count(); ++g, ++rules) {
      for (const Variable& v : optimizer->parameters(g)) {
        Parameter& p = parameters[index_of(v)];
        LOCKSTEP_CHECK(!p.optimizer, "[zero] ", p.name, " is in two optimizers; give it to one of them");
        if (!v.requires_grad()) continue;
        p.optimizer = optimizer;
        p.group = g;
        p.rule = rules;
      }
    }
  }
  std::vector<std::string> without;
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& p = parameters[i];
    if (p.variable.requires_grad() && !p.optimizer) without.push_back(p.name);
    if (!p.trains()) continue;
    ++trained;
    p.first_block = norm_blocks_of_all;
    norm_blocks_of_all += norm_blocks(p.variable.numel());
  }
  LOCKSTEP_CHECK(without.empty(), "[zero] expected every parameter that requires grad in an optimizer, got ",
                 without.size(), " that are in none: ", list_names(without),
                 "; freeze them (requires_grad_(false)) or give them to one");
  LOCKSTEP_CHECK(trained > 0, "[zero] expected a module with parameters that require grad, got none in ", module.kind(),
                 "; unfreeze some");
  check_experts();
}

void Stage::check_experts() const {
  const ExpertParameters& experts = options.experts;
  if (experts.names.empty()) return;
  LOCKSTEP_CHECK(experts.group && group.size() % experts.group->size() == 0,
                 "[zero] expected experts.group to be a subgroup of ", group.name(), " (", group.size(),
                 " ranks) whose ranks have the same parameters, got ",
                 experts.group ? str(experts.group->size(), " ranks") : "none");
  size_t known = 0;
  for (const Parameter& p : parameters) known += experts.names.count(p.name);
  for (const auto& b : module.named_buffers()) known += experts.names.count(b.name);
  LOCKSTEP_CHECK(known == experts.names.size(),
                 "[zero] expected experts.names to name parameters and buffers of the module, got ",
                 experts.names.size(), " names, of which the module has ", known,
                 "; give named_parameters()' and named_buffers()' names");
}

/// Checks that all ranks have the same model and options, and broadcasts rank 0's parameters and buffers.
void Stage::agree() {
  std::string line = str("options stage ", options.stage);
  for (const auto& [key, size, least] : sizes_of(options)) line += str(", ", key, " ", size);
  line += str(", overlap_comm ", options.overlap_comm, ", reduce_scatter ", options.reduce_scatter,
              ", ignore_unused_parameters ", options.ignore_unused_parameters, ", communication_data_type ",
              options.communication_data_type ? std::string(name_of(*options.communication_data_type)) : "none",
              ", nonfinite ", int(options.nonfinite), ", hooks ", options.hooks, ", init_sync ", options.init_sync,
              ", offload_optimizer ", name_of(options.offload_optimizer.device), ", offload_param ",
              name_of(options.offload_param.device), ", max_in_cpu ", options.offload_param.max_in_cpu,
              ", buffer_count ", options.offload_param.buffer_count);
  std::vector<std::string> lines{std::move(line)};
  const std::set<std::string>& experts = options.experts.names;
  std::vector<std::string> own;  // lines about parameters that only some ranks have
  for (std::string& line :
       parallel::describe_model(module, [&](const std::string& name) { return experts.count(name) > 0; }))
    lines.push_back(std::move(line));
  if (!experts.empty())
    own = parallel::describe_model(module, [&](const std::string& name) { return experts.count(name) == 0; });
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    const std::string rule = p.trains() ? str(p.optimizer->name(), ", group ", p.group) : "none";
    if (is_expert(p))
      lines.push_back(
          str("expert parameter at place ", i, " ", p.variable.dtype(), " ", p.variable.shape(), ", optimizer ", rule));
    else if (p.trains()) lines.push_back(str("optimizer of ", p.name, " ", rule));
  }
  parallel::check_agreement("zero", lines, group);
  if (!experts.empty()) parallel::check_agreement("zero", own, *options.experts.group);
  if (options.init_sync) {
    for (const Parameter& p : parameters) {
      if (!p.variable.tensor().storage()->is_empty()) p.ranks->broadcast(p.variable.tensor(), 0, {.tag = p.name});
    }
    for (auto& b : module.named_buffers())
      (experts.count(b.name) ? *options.experts.group : group).broadcast(b.tensor, 0, {.tag = b.name});
  }
}

void Stage::plan() {
  std::vector<PlannedParameter> all;
  for (const Parameter& p : parameters) {
    all.push_back({.name = p.name,
                   .numel = p.variable.numel(),
                   .kind = str(p.variable.dtype(), p.trains() ? " trained" : " frozen", is_expert(p) ? ", expert" : ""),
                   .ranks = p.ranks->size(),
                   .trains = p.trains(),
                   .elementwise = !p.trains() || p.optimizer->is_elementwise()});
  }
  for (PlannedUnit& planned : plan_units(all, options)) {
    Unit unit{std::move(planned)};
    const Parameter &first = parameters[unit.parameters.front()], &last = parameters[unit.parameters.back()];
    unit.dtype = first.variable.dtype();
    unit.gradient_dtype = options.communication_data_type.value_or(unit.dtype);
    unit.trains = first.trains();
    unit.group = first.ranks;
    unit.number = units.size();
    unit.first = units.empty() ? 0 : units.back().first + int64_t(units.back().parameters.size());
    unit.tag = str("zero unit ", units.size(), unit.module.empty() ? "" : " of module ", unit.module, ", ", first.name,
                   unit.parameters.size() > 1 ? str(" to ", last.name) : "");
    for (size_t index = 0; index < unit.parameters.size(); ++index) {
      Parameter& p = parameters[unit.parameters[index]];
      p.unit = units.size();
      p.index_in_unit = index;
    }
    units.push_back(std::move(unit));
    for (const size_t i : units.back().parameters) {
      const OwnedPiece piece = all_owned(parameters[i]);
      if (units.back().trains && piece.range.size() > 0) units.back().pieces.push_back(piece);
    }
  }
}

/// Chooses the pieces whose state is offloaded: the first ones, up to offload_optimizer.ratio of all elements. Splits
/// the piece at this limit in two, at a multiple of norm_block elements, unless its optimizer needs whole parameters.
void Stage::find_homes() {
  const OffloadOptimizer& o = options.offload_optimizer;
  if (o.device == Offload::none) return;
  int64_t all = 0;
  for (const Unit& unit : units)
    for (const OwnedPiece& piece : unit.pieces) all += piece.range.size();
  auto wanted = int64_t(o.ratio * double(all) + 0.5);
  for (Unit& unit : units) {
    std::vector<OwnedPiece> pieces;
    for (const OwnedPiece& full : unit.pieces) {
      const auto [begin, end] = full.range;
      const int64_t n = end - begin;
      int64_t first = std::min(n, wanted);
      if (first < n) {
        first = (first + norm_block / 2) / norm_block * norm_block;
        if (first > n || !parameters[full.parameter].optimizer->is_elementwise()) first = 2 * wanted >= n ? n : 0;
      }
      wanted = std::max(int64_t(0), wanted - first);
      if (first > 0) pieces.push_back({full.parameter, {begin, begin + first}, full.at, o.device});
      if (first < n) pieces.push_back({full.parameter, {begin + first, end}, full.at + first});
    }
    unit.pieces = std::move(pieces);
  }
}

dist::Work Stage::all_gather(const Unit& unit, const Tensor& own_shard) const {
  if (unit.layout.full() == 0) return {};
  const dist::CollectiveOptions o{.tag = unit.tag, .async = options.overlap_comm};
  return unit.layout.owner < 0 ? unit.group->all_gather(unit.weights, own_shard, o)
                               : unit.group->broadcast(unit.weights, unit.layout.owner, o);
}

Tensor Stage::value_of(const Parameter& p) {
  const Tensor& tensor = p.variable.tensor();
  return nn::is_built_empty(p.variable) ? nn::start_of(p.variable) : tensor;
}

size_t Stage::index_of(const Variable& variable) const {
  for (size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].variable.impl() == variable.impl()) return i;
  fail(str("[zero] a parameter of shape ", variable.defined() ? str(variable.shape()) : "(undefined)",
           " is not one of the module's ", parameters.size(), "; expected one that its parameters() returns"));
}

}  // namespace lockstep::zero
