// Forms the groups of ranks that share a model. See ranks.h.
#include "extensions/inference/ranks.h"

#include <iostream>

#include "base/suggest.h"
#include "engine/engine.h"
#include "parallel/agreement.h"

namespace lockstep::inference {

namespace {

using Group = std::shared_ptr<dist::ProcessGroup>;

/// Returns a pointer to `group` that does not own it.
Group same(dist::ProcessGroup& group) { return {std::shared_ptr<void>(), &group}; }

/// Splits `world`: returns the group of all ranks with this `color`, in order of rank. size: number of these ranks. For
/// size 1, returns null.
Group part_of(dist::ProcessGroup& world, int size, int color, const char* name) {
  return size == 1 ? nullptr : size == world.size() ? same(world) : world.split(color, world.rank(), name);
}

}  // namespace

void Ranks::say(const InitArgs& args, const std::string& text) const {
  if (world && world->rank() != 0) return;
  if (args.log) args.log(text);
  else std::cerr << text << "\n";
}

Ranks Ranks::join(const InferenceConfig& config, const InitArgs& args) {
  Ranks made;
  dist::ProcessGroup*& world = made.world;
  if (dist::is_initialized()) world = &dist::world();
  else if (engine::is_launched()) world = &engine::init_distributed();
  const int tp_size = config.tp(), ep_size = config.ep(), ranks = world ? world->size() : 1, each = tp_size * ep_size;
  LOCKSTEP_CHECK(ranks % each == 0, "[init_inference] tensor_parallel.tp_size ", tp_size, " x moe.ep_size ", ep_size,
                 " needs a multiple of ", each, " ranks, there ", ranks == 1 ? "is 1" : str("are ", ranks),
                 "; start the program with lockstep run -n ", each);
  if (world && ranks > 1) parallel::check_agreement("init_inference", split(to_text(config), '\n'), *world);
  if (args.group) {
    LOCKSTEP_CHECK(args.group->size() == tp_size && ep_size == 1, "[init_inference] expected a group of tp_size ",
                   tp_size, " ranks, and ep_size 1, got ", args.group->size(), " and ", ep_size);
    if (tp_size > 1) made.all = made.tp = same(*args.group);
    return made;
  }
  if (each == 1) return made;
  const int rank = world->rank();
  made.tp = part_of(*world, tp_size, rank / tp_size, "tp");
  made.ep = part_of(*world, ep_size, rank / each * tp_size + rank % tp_size, "ep");
  made.all = tp_size == each ? made.tp : ep_size == each ? made.ep : part_of(*world, each, rank / each, "model");
  return made;
}

}  // namespace lockstep::inference
