// State outside of the update. Checkpoints see pieces of tensors, and single numbers such as step counts, each with a
// name. f32 master copies of 16-bit parameters follow what other code writes to the parameters.
#include "tensor/ops.h"
#include "zero/gather.h"
#include "zero/offload/tiles.h"

namespace lockstep::zero {
namespace {

/// Prefix of an optimizer's names in numbers(): "optimizer." for the first, then "optimizer1.", ...
std::string prefix_of(size_t optimizer) { return optimizer == 0 ? "optimizer." : str("optimizer", optimizer, "."); }

}  // namespace

OwnedPiece Stage::all_owned(const Parameter& p) const {
  const Unit& unit = units[p.unit];
  const dist::Range owned = unit.layout.owned(p.index_in_unit, shard_number(unit));
  return {.parameter = size_t(&p - parameters.data()),
          .range = owned,
          .at = owned.size() > 0 ? unit.layout.offsets[p.index_in_unit] + owned.begin - shard(unit).begin : 0};
}

/// Only the optimizer's update rule knows which state it keeps, so the rule is run on a tensor of one element.
std::map<std::string, DType> Stage::keys_of(const Parameter& p) {
  const bool wide = is_wide(p.variable.dtype());
  const TensorOptions like{.dtype = wide ? p.variable.dtype() : f32, .device = cpu};
  const Shape shape = p.optimizer->is_elementwise() ? Shape{1, 1} : Shape::filled(int(p.variable.dim()), 1);
  Tensor one = zeros(shape, like), low;
  optim::ParameterState state{.step = 1, .tensors = {}, .full = p.variable.numel()};
  p.optimizer->advance(p.group, one, zeros(shape, like), state, low, 1);
  std::map<std::string, DType> keys;
  if (!wide) keys["master"] = f32;
  for (const auto& [key, tensor] : state.tensors)
    if (tensor.defined()) keys[key] = tensor.dtype();
  return keys;
}

/// The optimizer's state for a piece, as flat tensors by name; writes to them change the state. Before the first step
/// it is empty, unless `create_missing` is true: then missing state is first created as zeros.
std::map<std::string, Tensor> Stage::state_of(const Unit& unit, OwnedPiece& piece, bool create_missing) {
  const Parameter& p = parameters[piece.parameter];
  const bool in_file = piece.home == Offload::nvme, made = create_missing && piece.keys.empty();
  const MemoryScope scope(piece.memory());
  for (const auto& [key, dtype] : create_missing ? keys_of(p) : std::map<std::string, DType>()) {
    Tensor& tensor = piece.state[key];
    if (!in_file && !tensor.defined())
      tensor = zeros({entries(p, key, piece.range).size()}, {.dtype = dtype, .device = home_of(piece)});
    piece.keys.insert(key);
  }
  std::map<std::string, Tensor> all = piece.state;
  for (auto& [key, tensor] : all) {
    if (in_file) tensor = tiles_->mapped(unit, piece, key);
    if (made) tensor.zero_();
  }
  if (made) update_master_copy(unit, piece);
  return all;
}

void Stage::update_master_copy(const Unit& unit, OwnedPiece& piece) {
  const auto all = state_of(unit, piece);
  const auto master = all.find("master");
  if (master != all.end()) optim::follow(master->second, weight(unit, piece));
}

/// Updates the master copies of all parameters that were written to since the last step. Skips units that stage 3
/// shards: only gathered() can write to their parameters, and it updates the master copies.
void Stage::update_master_copies() {
  for (Unit& unit : units) {
    if ((gathers() && !unit.persistent) || is_wide(unit.dtype)) continue;
    for (OwnedPiece& piece : unit.pieces) {
      const Parameter& p = parameters[piece.parameter];
      if (p.known_version == 0 || p.known_version != p.variable.tensor().storage()->version())
        update_master_copy(unit, piece);
    }
  }
  see();
}

/// Counts an update of the parameters for which updated[i] is true. Gives the storages of trained parameters new
/// versions, so that a later write by anything but step() can be noticed.
void Stage::written(const std::vector<bool>& updated) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& p = parameters[i];
    p.steps += updated[i];
    if (p.trains()) optim::stamp(*p.variable.tensor().storage(), p.optimizer->name());
  }
  see();
}

/// Notes that master copies include all writes to parameters up to now.
void Stage::see() {
  for (Parameter& p : parameters) p.known_version = p.variable.tensor().storage()->version();
}

std::vector<StatePiece> Stage::state(bool to_load, bool make) {
  update_master_copies();
  std::vector<StatePiece> all;
  // If every rank has the whole tensor (everywhere), each rank stores only one part of it, by shard_range().
  const auto add = [&](const std::string& key, const Parameter& p, dist::Range elements, const Tensor& tensor,
                       bool everywhere) {
    const std::string name = key + "." + p.name;
    const dist::Range range = entries(p, key, elements);
    const Shape shape = p.optimizer ? p.optimizer->state_shape(key, p.variable.shape()) : Shape(p.variable.shape());
    if (everywhere && !to_load) {
      const dist::Range mine = dist::shard_range(range.size(), p.ranks->size(), p.ranks->rank());
      if (mine.size() > 0) all.push_back({name, shape, mine, tensor.narrow(0, mine.begin, mine.size())});
    } else if (range.size() > 0) {
      all.push_back({name, shape, range, tensor});
    }
  };
  for (Parameter& p : parameters) {
    if (p.unit == SIZE_MAX || !is_cut()) {
      add("model", p, {0, p.variable.numel()}, flat(p.variable.tensor()), true);
    } else {
      const OwnedPiece piece = all_owned(p);
      if (piece.range.size() > 0) add("model", p, piece.range, weight(units[p.unit], piece), false);
    }
  }
  for (Unit& unit : units) {
    for (OwnedPiece& piece : unit.pieces) {
      const Parameter& p = parameters[piece.parameter];
      for (const auto& [key, tensor] : state_of(unit, piece, to_load && make))
        add("optimizer." + key, p, piece.range, flat(tensor), !is_cut());
    }
  }
  return all;
}

std::map<std::string, double> Stage::numbers() const {
  std::map<std::string, double> numbers;
  for (const Parameter& p : parameters)
    if (p.trains()) numbers["optimizer.step." + p.name] = double(p.steps);
  for (size_t k = 0; k < optimizers.size(); ++k) {
    for (const auto& [key, value] : optimizers[k]->state().numbers)
      if (key.starts_with("group.")) numbers[prefix_of(k) + key] = value;
  }
  return numbers;
}

void Stage::load_numbers(const std::map<std::string, double>& numbers) {
  std::vector<std::string> missing;
  for (const auto& [key, value] : this->numbers())
    // Older checkpoints lack ".initial_lr".
    if (!numbers.count(key) && !key.ends_with(".initial_lr")) missing.push_back(key);
  LOCKSTEP_CHECK(missing.empty(), "[zero] the saved state lacks ", missing.size(), " numbers, the first is ",
                 missing.empty() ? "" : missing[0],
                 "; nothing was changed; load a state that was saved with the same model and optimizers");
  for (size_t k = 0; k < optimizers.size(); ++k) {
    const std::string prefix = prefix_of(k);
    optim::OptimizerState options;
    for (const auto& [key, value] : numbers)
      if (key.starts_with(prefix + "group.")) options.numbers[key.substr(prefix.size())] = value;
    optimizers[k]->load_state(options);
  }
  for (Parameter& p : parameters)
    if (p.trains()) p.steps = int64_t(numbers.at("optimizer.step." + p.name));
}

void Stage::loaded(bool masters) {
  if (gathers()) gathers()->release_all();  // parameters gathered before the load are stale
  for (Unit& unit : units) {
    for (OwnedPiece& piece : unit.pieces)
      if (masters) update_master_copy(unit, piece);
    if (unit.trains) gather_weights(unit);
  }
  for (Unit& unit : units) unit.gather_work.wait();
  for (const Parameter& p : parameters) p.variable.tensor().storage()->bump_version("load");
  see();
}

/// Broadcasts the values of one rank, and writes them to shards and master copies.
void Stage::take_from(int from, const std::vector<size_t>& indices) {
  const NoGrad no_grad;
  for (const size_t i : indices) {
    Parameter& p = parameters[i];
    LOCKSTEP_CHECK(!is_expert(p) || from == 0, "[gathered] expected modifier rank 0 for ", p.name,
                   ", which only some ranks have, and the first of them decides; got ", from);
    const Tensor dense = p.variable.tensor().contiguous();
    p.ranks->broadcast(dense, from, {.tag = p.name});
    if (p.unit == SIZE_MAX) continue;
    Unit& unit = units[p.unit];
    const OwnedPiece mine = all_owned(p);
    if (mine.range.size() == 0) continue;
    const Tensor now = flat(dense).narrow(0, mine.range.begin, mine.range.size());
    weight(unit, mine).copy_(now);
    for (OwnedPiece& piece : unit.pieces)
      if (piece.parameter == i) update_master_copy(unit, piece);
  }
}

}  // namespace lockstep::zero
