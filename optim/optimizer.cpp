// The part that all optimizers share: groups, the loop over parameters, master copies, state by name. See optimizer.h.
#include "optim/optimizer.h"

#include <atomic>
#include <set>

#include "base/suggest.h"
#include "tensor/ops.h"
#include "trace/trace.h"

namespace lockstep::optim {

Tensor& ParameterState::zeros(const std::string& name, const Tensor& like) {
  Tensor& tensor = tensors[name];
  if (!tensor.defined()) {
    const MemoryScope scope(Memory::optimizer);
    tensor = zeros_like(like);
  }
  return tensor;
}

static void check_rate(const char* op, int group, double value) {
  LOCKSTEP_CHECK(value >= 0 && value < INFINITY, "[", op, "] expected a rate lr >= 0 that is finite, got ", value,
                 " for group ", group,
                 "; check the options of its schedule, the calls of set_lr() and the loaded state");
}

void stamp(Storage& storage, const char* writer) {
  static std::atomic<uint32_t> stamps{0};
  storage.bump_version(writer);
  storage.restore_version(++stamps << 12 | 1);  // the low 12 bits count later writes; a version is never 0
}

void follow(const Tensor& copy, const Tensor& parameter) {
  const NoGrad no_grad;
  const Tensor now = parameter.to(copy.device()).reshape(copy.shape());
  copy.copy_(where(eq(copy.to(now.dtype()), now), copy, now.to(copy.dtype())));
}

void check_ranges(const char* op, const std::vector<OptionRange>& table) {
  for (const OptionRange& o : table)
    LOCKSTEP_CHECK(o.low == unchecked || (*o.value >= o.low && *o.value < o.high), "[", op, "] expected ", o.name,
                   " in [", o.low, ", ", o.high, "), got ", *o.value);
}

std::map<std::string, double*> by_name(const std::vector<OptionRange>& table) {
  std::map<std::string, double*> all;
  for (const OptionRange& o : table) all[o.name] = o.value;
  return all;
}

void Optimizer::add_group_of(std::vector<Variable> parameters, bool may_be_empty) {
  LOCKSTEP_CHECK(may_be_empty || !parameters.empty(), "[", name(),
                 "] expected at least one parameter, got an empty list; name the model's layers in its fields()");
  std::set<const void*> known;
  for (const auto& group : groups_)
    for (const Variable& p : group) known.insert(p.impl().get());
  for (const Variable& p : parameters) {
    LOCKSTEP_CHECK(p.defined() && p.is_leaf(), "[", name(), "] expected leaf variables as parameters, got ",
                   p.defined() ? "the output of an operation" : "an undefined one", "; pass model.parameters()");
    const bool is_frozen = p.dtype() == i8 || p.dtype() == u8;  // such as the codes of a quantised weight
    LOCKSTEP_CHECK(is_floating(p.dtype()) || is_frozen, "[", name(), "] expected floating parameters, got ", p.dtype(),
                   "; leave that one out");
    LOCKSTEP_CHECK(known.insert(p.impl().get()).second, "[", name(), "] a parameter of shape ", p.shape(),
                   " was given twice; leave one of them out");
  }
  groups_.push_back(std::move(parameters));
}

Optimizer::Prepared Optimizer::prepare(Variable& parameter, bool any_gradient) {
  ParameterState& state = states_[parameter.impl().get()];
  Tensor p = parameter.tensor(), grad = parameter.checked_grad(name()), low;
  for (auto& [name, tensor] : state.tensors)
    tensor = tensor.defined() ? tensor.to(p.device()) : tensor;  // the parameter may have moved (Module::to(device))
  if (size_of(p.dtype()) == 2) {  // the rule works on an f32 master copy and rounds it into the parameter
    const MemoryScope scope(Memory::optimizer);
    if (grad.defined() && !any_gradient) grad = grad.to(f32);
    low = std::exchange(p, master_of(p, state));
  }
  LOCKSTEP_CHECK(p.is_contiguous(), "[", name(), "] expected row-major parameters, got strides ", p.strides(),
                 "; make that one contiguous() before the optimizer gets it");
  return {std::move(p), grad.defined() ? grad.contiguous() : grad, std::move(low), state};
}

/// Returns the f32 master copy of a 16-bit parameter. Creates it if missing; updates it if other code has written the
/// parameter.
Tensor& Optimizer::master_of(const Tensor& parameter, ParameterState& state) {
  Tensor& master = state.tensors["master"];
  if (!master.defined()) master = parameter.to(f32);
  else if (state.known_version == 0 || state.known_version != parameter.storage()->version()) follow(master, parameter);
  return master;
}

void Optimizer::written(const Variable& parameter) {
  stamp(*parameter.tensor().storage(), name());
  states_[parameter.impl().get()].known_version = parameter.tensor().storage()->version();
}

/// Gives new version numbers to the storages of all parameters, and only then records these numbers, because several
/// parameters may share a storage.
void Optimizer::written(const std::vector<Taking>& all) {
  for (const Taking& t : all) stamp(*t.parameter->tensor().storage(), name());
  for (const Taking& t : all)
    states_[t.parameter->impl().get()].known_version = t.parameter->tensor().storage()->version();
}

void Optimizer::step(double grad_scale) {
  const NoGrad no_grad;
  trace::memory();  // records memory use here, while gradients exist
  const trace::Scope scope(name(), trace::Category::optimizer);
  std::map<int, std::vector<Taking>> there;  // keyed by device index
  std::vector<Taking> here;
  for (const Taking& t : taking_part())
    (t.parameter->device().is_cpu() || !can_be_collected() ? here : there[t.parameter->device().index]).push_back(t);
  for (const auto& [device, all] : there) step_on_device(all, {.grad_scale = grad_scale}, false);
  check_capture(here);
  for (const Taking& t : here) {
    Prepared at = prepare(*t.parameter);
    ++at.state.step;
    advance(t.group, at.parameter, at.grad, at.state, at.low, grad_scale);
    t.parameter->tensor().storage()->bump_version(name());  // already here, because the next parameter may throw
  }
  written(here);
}

void Optimizer::advance(int group, Tensor& parameter, const Tensor& grad, ParameterState& state, Tensor& low,
                        double grad_scale) {
  update(group, parameter, grad, state, low, grad_scale);
  if (average_decay_ == 0) return;
  const bool begins = state.is_new("ema");
  Tensor& average = state.zeros("ema", parameter);
  average.copy_(begins ? parameter : lerp(average, parameter, 1 - average_decay_));
}

void Optimizer::keep_average(double decay) {
  LOCKSTEP_CHECK(decay >= 0 && decay < 1, "[", name(), "] expected a decay of the average in [0, 1), got ", decay);
  LOCKSTEP_CHECK(decay == 0 || average_decay_ > 0 || !keeps_average(), "[", name(),
                 "] keeps an average of its own; leave out keep_average() and ema.decay, got ", decay);
  average_decay_ = decay;
}

void Optimizer::zero_grad(bool keep) {
  for (auto& group : groups_) {
    for (Variable& parameter : group) {
      if (keep && parameter.grad().defined()) parameter.grad().zero_();
      else parameter.clear_grad();
    }
  }
}

Shape Optimizer::state_shape(const std::string& key, const Shape& parameter) const {
  return is_per_block(key) ? Shape{(numel_of(parameter) + block() - 1) / block()} : parameter;
}

std::vector<Variable> Optimizer::parameters() const {
  std::vector<Variable> all;
  for (const auto& group : groups_) all.insert(all.end(), group.begin(), group.end());
  return all;
}

ParameterState& Optimizer::state_of(const Variable& parameter) {
  count_steps();
  return states_[parameter.impl().get()];
}

namespace {
std::vector<std::string> keys_of(const std::map<std::string, double*>& options) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : options) keys.push_back(key);
  return keys;
}
}  // namespace

double Optimizer::get(int group, const std::string& option) const {
  LOCKSTEP_CHECK(group >= 0 && group < group_count(), "[", name(), "] expected a group in [0, ", group_count(),
                 "), got ", group);
  const auto all = const_cast<Optimizer*>(this)->options(group);
  const auto found = all.find(option);
  LOCKSTEP_CHECK(found != all.end(), "[", name(), "] expected the option ", listed(keys_of(all)), ", got '", option,
                 "'");
  return *found->second;
}

void Optimizer::set(int group, const std::string& option, double value) {
  get(group, option);
  if (option == "lr") check_rate(name(), group, value);
  *options(group).at(option) = value;
}

double Optimizer::initial_lr(int group) {
  const double now = lr(group);
  if (initial_lr_.size() < groups_.size()) initial_lr_.resize(groups_.size(), NAN);
  double& first = initial_lr_[size_t(group)];
  if (std::isnan(first)) first = now;
  return first;
}

bool Optimizer::has(const std::string& option) const {
  return const_cast<Optimizer*>(this)->options(0).count(option) > 0;
}

void Optimizer::name_parameters(const std::vector<std::pair<std::string, Variable>>& names) {
  std::map<const void*, std::string> known;
  for (const auto& [name, variable] : names) known.emplace(variable.impl().get(), name);
  for (const Variable& p : parameters()) {
    LOCKSTEP_CHECK(known.count(p.impl().get()), "[", name(), "] a parameter of shape ", p.shape(), " is not among the ",
                   names.size(), " names given; give named_parameters() of the model that holds all of them");
  }
  names_ = std::move(known);
}

std::string Optimizer::name_of(const Variable& parameter, int index) const {
  const auto found = names_.find(parameter.impl().get());
  return found == names_.end() ? std::to_string(index) : found->second;
}

OptimizerState Optimizer::state() const {
  const_cast<Optimizer*>(this)->count_steps();
  OptimizerState saved;
  int index = 0;
  for (int g = 0; g < group_count(); ++g) {
    for (const auto& [option, value] : const_cast<Optimizer*>(this)->options(g))
      saved.numbers["group." + std::to_string(g) + "." + option] = *value;
    if (size_t(g) < initial_lr_.size() && !std::isnan(initial_lr_[size_t(g)]))
      saved.numbers["group." + std::to_string(g) + ".initial_lr"] = initial_lr_[size_t(g)];
    for (const Variable& parameter : groups_[g]) {
      const std::string prefix = "state." + name_of(parameter, index++) + ".";
      const auto found = states_.find(parameter.impl().get());
      if (found == states_.end()) continue;
      saved.numbers[prefix + "step"] = double(found->second.step);
      for (const auto& [key, number] : found->second.numbers) saved.numbers[prefix + key] = number;
      for (const auto& [key, tensor] : found->second.tensors) saved.tensors.emplace_back(prefix + key, tensor);
    }
  }
  return saved;
}

void Optimizer::load_state(const OptimizerState& saved) {
  // Match everything first and assign at the end, so that an error changes nothing.
  std::map<const void*, ParameterState> states;
  std::map<std::string, const Variable*> by_name;
  int index = 0;
  for (const auto& group : groups_)
    for (const Variable& parameter : group) by_name["state." + name_of(parameter, index++) + "."] = &parameter;
  const auto owner = [&](const std::string& key) {
    const auto found = by_name.find(key.substr(0, key.rfind('.') + 1));
    LOCKSTEP_CHECK(found != by_name.end(), "[", name(), "] the saved state has '", key,
                   "', which belongs to none of this optimizer's ", by_name.size(),
                   " parameters; load it into an optimizer of the same model, with the same names");
    return found->second;
  };
  for (const auto& [key, tensor] : saved.tensors) {
    const Variable& parameter = *owner(key);
    const Shape expected = state_shape(key, parameter.shape());
    LOCKSTEP_CHECK(tensor.shape() == expected, "[", name(), "] expected '", key, "' of shape ", expected, ", got ",
                   tensor.shape(), "; load a state of the same model");
    const MemoryScope scope(Memory::optimizer);
    states[parameter.impl().get()].tensors[key.substr(key.rfind('.') + 1)] = tensor.clone();
  }
  std::vector<std::pair<double*, double>> values;
  initial_lr_.resize(groups_.size(), NAN);
  for (const auto& [key, value] : saved.numbers) {
    if (key.starts_with("state.")) {
      ParameterState& state = states[owner(key)->impl().get()];
      if (key.ends_with(".step")) state.step = int64_t(value);
      else state.numbers[key.substr(key.rfind('.') + 1)] = value;
      continue;
    }
    const size_t dot = key.find('.', 6);
    LOCKSTEP_CHECK(key.starts_with("group.") && dot != std::string::npos, "[", name(),
                   "] expected entries 'state.PARAMETER.NAME' and 'group.NUMBER.OPTION' in the saved state, got '", key,
                   "'; load a state that Optimizer::state() returned");
    const int group = std::atoi(key.c_str() + 6);
    LOCKSTEP_CHECK(group >= 0 && group < group_count(), "[", name(), "] the saved state has group ", group,
                   ", expected groups in [0, ", group_count(), "); add the missing groups before load_state()");
    auto all = options(group);
    all["initial_lr"] = &initial_lr_[size_t(group)];
    const auto found = all.find(key.substr(dot + 1));
    LOCKSTEP_CHECK(found != all.end(), "[", name(), "] the saved state has option '", key, "', which ", name(),
                   " does not know; load it into the optimizer class that saved it");
    if (key.ends_with("lr")) check_rate(name(), group, value);
    values.emplace_back(found->second, value);
  }
  forget_recorded();
  states_ = std::move(states);
  for (auto& [place, value] : values) *place = value;
}

}  // namespace lockstep::optim
