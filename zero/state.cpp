// What checkpoints store: tensors by logical name, in pieces, and numbers.
#include <algorithm>
#include <set>

#include "dist/texts.h"
#include "tensor/ops.h"
#include "zero/sharded_optimizer.h"
#include "zero/stage.h"

namespace lockstep::zero {
namespace {

Tensor flat(const Tensor& tensor) { return tensor.view({tensor.numel()}); }

}  // namespace

Piece Stage::all_owned(const Parameter& p) const {
  const Unit& unit = units[p.unit];
  const dist::Range owned = unit.layout.owned(p.place, shard_number(unit));
  return {.parameter = size_t(&p - parameters.data()),
          .range = owned,
          .at = owned.size() > 0 ? unit.layout.offsets[p.place] + owned.begin - shard(unit).begin : 0};
}

std::vector<StatePiece> Stage::state(bool to_load, bool make) {
  std::vector<StatePiece> all;
  // Where every rank has everything, each hands in its shard_range of it.
  const auto add = [&](const std::string& key, const Parameter& p, dist::Range range, const Tensor& tensor,
                       bool everywhere) {
    const std::string name = key + "." + p.name;
    const Shape& shape = p.variable.shape();
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
      const Piece piece = all_owned(p);
      if (piece.range.size() > 0) add("model", p, piece.range, weight(units[p.unit], piece), false);
    }
  }
  for (Unit& unit : units) {
    for (Piece& piece : unit.pieces) {
      const Parameter& p = parameters[piece.parameter];
      for (const auto& [key, tensor] :
           to_load&& make ? optimizer_->make_kept(unit, piece) : optimizer_->kept(unit, piece)) {
        if (tensor.defined()) add("optimizer." + key, p, piece.range, flat(tensor), !is_cut());
      }
    }
  }
  return all;
}

std::map<std::string, double> Stage::numbers() const {
  std::map<std::string, double> numbers;
  for (const Parameter& p : parameters)
    if (p.trains()) numbers["optimizer.step." + p.name] = double(p.steps);
  for (size_t k = 0; k < optimizers.size(); ++k) {
    const std::string prefix = k == 0 ? "optimizer." : str("optimizer", k, ".");
    for (const auto& [key, value] : optimizers[k]->state().numbers)
      if (key.starts_with("group.")) numbers[prefix + key] = value;
  }
  return numbers;
}

void Stage::load_numbers(const std::map<std::string, double>& numbers) {
  std::vector<std::string> missing;
  std::vector<optim::OptimizerState> states(optimizers.size());
  for (const auto& [key, value] : this->numbers()) {
    const auto found = numbers.find(key);
    if (found == numbers.end()) missing.push_back(key);
  }
  LOCKSTEP_CHECK(missing.empty(), "[zero] the saved state lacks ", missing.size(), " numbers, the first is ",
                 missing.empty() ? "" : missing[0], "; nothing was changed");
  for (size_t k = 0; k < optimizers.size(); ++k) {
    const std::string prefix = k == 0 ? "optimizer." : str("optimizer", k, ".");
    optim::OptimizerState options;
    for (const auto& [key, value] : numbers)
      if (key.starts_with(prefix + "group.")) options.numbers[key.substr(prefix.size())] = value;
    optimizers[k]->load_state(options);
  }
  for (Parameter& p : parameters)
    if (p.trains()) p.steps = int64_t(numbers.at("optimizer.step." + p.name));
}

void Stage::loaded() {
  for (Unit& unit : units)
    if (unit.trains) publish(unit);
  for (Unit& unit : units) unit.published.wait();
  for (const Parameter& p : parameters) p.variable.tensor().storage()->bump_version("load");
}

optim::OptimizerState Stage::whole_state() {
  LOCKSTEP_CHECK(optimizers.size() == 1, "[zero] whole_state() is for one optimizer, got ", optimizers.size());
  optim::OptimizerState saved;
  for (const auto& [key, value] : optimizers[0]->state().numbers)
    if (key.starts_with("group.")) saved.numbers[key] = value;
  std::map<std::string, Tensor> by_name;
  for (Unit& unit : units) {
    if (!unit.trains) continue;
    std::set<std::string> keys;
    for (const size_t i : unit.members)
      if (parameters[i].steps > 0)
        for (const std::string& key : optimizer_->keys_of(parameters[i])) keys.insert(key);
    const dist::Range mine = shard(unit);
    const TensorOptions like{.dtype = unit.dtype == f64 ? f64 : f32, .device = cpu};
    for (const std::string& key : keys) {
      const Tensor whole = zeros({unit.layout.whole()}, like), part = whole.narrow(0, mine.begin, mine.size());
      for (Piece& piece : unit.pieces) {
        const auto all = optimizer_->kept(unit, piece);
        const auto found = all.find(key);
        if (found != all.end() && found->second.defined())
          part.narrow(0, piece.at, piece.range.size()).copy_(flat(found->second));
      }
      if (unit.layout.owner >= 0) unit.ranks->broadcast(whole, unit.layout.owner, {.tag = unit.tag});
      else if (is_cut()) unit.ranks->all_gather(whole, part, {.tag = unit.tag});
      for (size_t place = 0; place < unit.members.size(); ++place) {
        const Parameter& p = parameters[unit.members[place]];
        if (p.steps > 0)
          by_name["state." + p.name + "." + key] =
              whole.narrow(0, unit.layout.offsets[place], p.variable.numel()).view(p.variable.shape()).clone();
      }
    }
  }
  for (const Parameter& p : parameters)
    if (p.trains() && p.steps > 0) saved.numbers["state." + p.name + ".step"] = double(p.steps);
  if (!options.spread.names.empty()) add_from_others(by_name, saved.numbers);
  for (auto& [name, tensor] : by_name) saved.tensors.emplace_back(name, std::move(tensor));
  return saved;
}

/// What other ranks have of spread parameters: each of the first of those that have the same says it to all.
void Stage::add_from_others(std::map<std::string, Tensor>& tensors, std::map<std::string, double>& numbers) {
  const Tensor firsts = zeros({group.size()}, {.dtype = i64, .device = cpu});
  firsts.data<int64_t>()[rank()] = options.spread.group->rank() == 0;
  group.all_reduce(firsts, {.tag = "zero first ranks"});
  for (int from = 0; from < group.size(); ++from) {
    if (firsts.data<int64_t>()[from] == 0) continue;
    for (const Parameter& p : parameters) {
      if (!is_spread(p) || !p.trains()) continue;
      const std::string start = "state." + dist::broadcast_text(p.name, from, group) + ".";
      const Tensor steps = Tensor::from({p.steps}, {1});
      group.broadcast(steps, from, {.tag = "zero steps"});
      if (steps.item<int64_t>() == 0) continue;
      numbers[start + "step"] = double(steps.item<int64_t>());
      for (const std::string& key : optimizer_->keys_of(p)) {
        Tensor& tensor = tensors[start + key];
        if (!tensor.defined())
          tensor = zeros(p.variable.shape(), {.dtype = p.variable.dtype() == f64 ? f64 : f32, .device = cpu});
        group.broadcast(tensor, from, {.tag = start + key});
      }
    }
  }
}

void Stage::load_whole_state(const optim::OptimizerState& saved) {
  LOCKSTEP_CHECK(optimizers.size() == 1, "[zero] load_whole_state() is for one optimizer, got ", optimizers.size());
  optim::OptimizerState options;
  std::map<std::string, const Tensor*> tensors;
  for (const auto& [key, value] : saved.numbers)
    if (key.starts_with("group.")) options.numbers[key] = value;
  for (const auto& [key, tensor] : saved.tensors) tensors[key] = &tensor;
  for (const Parameter& p : parameters) {
    if (!p.trains()) continue;
    const auto step = saved.numbers.find("state." + p.name + ".step");
    for (const std::string& key : step == saved.numbers.end() ? std::vector<std::string>{} : optimizer_->keys_of(p)) {
      const auto found = tensors.find("state." + p.name + "." + key);
      LOCKSTEP_CHECK(found != tensors.end(), "[zero] the saved state has no 'state.", p.name, ".", key,
                     "'; was it saved by another optimizer?");
      LOCKSTEP_CHECK(found->second->shape() == p.variable.shape(), "[zero] expected '", found->first, "' of shape ",
                     p.variable.shape(), ", got ", found->second->shape());
    }
  }
  optimizers[0]->load_state(options);
  for (Unit& unit : units) {
    for (Piece& piece : unit.pieces) {
      const Parameter& p = parameters[piece.parameter];
      piece.state = {};
      piece.started = false;
      if (!saved.numbers.count("state." + p.name + ".step")) continue;
      for (const auto& [key, tensor] : optimizer_->make_kept(unit, piece)) {
        tensor.copy_(tensors.at("state." + p.name + "." + key)
                         ->contiguous()
                         .reshape({p.variable.numel()})
                         .narrow(0, piece.range.begin, piece.range.size()));
      }
    }
  }
  for (Parameter& p : parameters) {
    const auto step = saved.numbers.find("state." + p.name + ".step");
    if (p.trains()) p.steps = step == saved.numbers.end() ? 0 : int64_t(step->second);
  }
}

/// Everybody takes a rank's values of these parameters.
void Stage::take_from(int from, const std::vector<size_t>& indices) {
  const NoGrad no_grad;
  for (const size_t i : indices) {
    Parameter& p = parameters[i];
    LOCKSTEP_CHECK(!is_spread(p) || from == 0, "[gathered] expected modifier rank 0 for ", p.name,
                   ", which only some ranks have: the first of those counts; got ", from);
    const Tensor dense = p.variable.tensor().contiguous();
    p.ranks->broadcast(dense, from, {.tag = p.name});
    if (p.unit == SIZE_MAX) continue;
    Unit& unit = units[p.unit];
    const Piece mine = all_owned(p);
    const dist::Range owned = mine.range;
    if (owned.size() == 0) continue;
    const Tensor now = flat(dense).narrow(0, owned.begin, owned.size());
    weight(unit, mine).copy_(now);
    for (Piece& piece : unit.pieces) {
      if (piece.parameter != i) continue;
      const auto all = optimizer_->kept(unit, piece);
      const auto master = all.find("master");
      if (master != all.end() && master->second.defined())
        master->second.copy_(now.narrow(0, piece.range.begin - owned.begin, piece.range.size()));
    }
  }
}

}  // namespace lockstep::zero
