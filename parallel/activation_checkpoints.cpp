// Activation checkpoints whose inputs are sharded, offloaded or kept in one buffer. See activation_checkpoints.h.
#include "parallel/activation_checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "dist/shard.h"
#include "nn/layer_list.h"
#include "nn/named_fields.h"
#include "tensor/ops.h"
#include "tensor/stream.h"

namespace lockstep::parallel {

namespace {

/// Preallocated memory for several tensors of one size. Several threads may use it at once.
class Buffer : public std::enable_shared_from_this<Buffer> {
 public:
  explicit Buffer(int64_t slots) : used_(size_t(slots)) {}

  /// Returns a free slot as a flat tensor; dropping the handle frees the slot. Errors: no slot is free; slots in use
  /// are smaller, or of another dtype or device.
  std::shared_ptr<Tensor> take(int64_t numel, DType dtype, Device device, Memory category) {
    const std::lock_guard lock(mutex_);
    const bool is_free = std::find(used_.begin(), used_.end(), true) == used_.end();
    const bool fits = memory_.defined() && memory_.dtype() == dtype && memory_.device() == device && numel <= slot_;
    if (!fits) {
      LOCKSTEP_CHECK(
          is_free,
          "[checkpoint] contiguous_memory_optimization expects checkpoints of one size: the buffer has slots of ",
          slot_, " ", memory_.dtype(), " elements, got one of ", numel, " ", dtype, "; leave that option out");
      const MemoryScope scope(category);
      slot_ = numel;
      memory_ = {};
      memory_ = empty({numel * int64_t(used_.size())}, {.dtype = dtype, .device = device});
    }
    const auto place = std::find(used_.begin(), used_.end(), false);
    LOCKSTEP_CHECK(place != used_.end(), "[checkpoint] number_checkpoints ", used_.size(),
                   " is too small: that many checkpoints wait for their backward already; set it to the number of "
                   "checkpoints in a forward, times the forwards before a backward");
    *place = true;
    const size_t i = size_t(place - used_.begin());
    return {new Tensor(memory_.narrow(0, int64_t(i) * slot_, numel)), [self = shared_from_this(), i](Tensor* tensor) {
              delete tensor;
              const std::lock_guard lock(self->mutex_);
              self->used_[i] = false;
            }};
  }

 private:
  std::mutex mutex_;
  std::vector<bool> used_;
  int64_t slot_ = 0;
  Tensor memory_;
};

}  // namespace

struct ActivationCheckpoints::State {
  Options o;
  std::vector<std::string> notes;
  std::mutex mutex;
  std::map<size_t, std::shared_ptr<Buffer>> buffers;  // by index of the input
  std::vector<Times> times;
  std::vector<nn::Module::Calls> wrapped;

  int ranks() const { return o.partition_activations && o.group ? o.group->size() : 1; }
  std::shared_ptr<Buffer> buffer(size_t i) {
    const std::lock_guard lock(mutex);
    auto& found = buffers[i];
    if (!found) found = std::make_shared<Buffer>(o.number_checkpoints);
    return found;
  }
  void add_time(const std::string& name, bool backward, double ms) {
    const std::lock_guard lock(mutex);
    auto row = std::find_if(times.begin(), times.end(), [&](const Times& t) { return t.name == name; });
    if (row == times.end()) row = times.insert(times.end(), Times{.name = name});
    (backward ? row->backwards : row->forwards) += 1;
    (backward ? row->backward_ms : row->forward_ms) += ms;
  }
};

class ActivationCheckpoints::Keeper final : public CheckpointKeeper {
 public:
  Keeper(std::shared_ptr<State> state, std::string name, Device device)
      : state_(std::move(state)), name_(std::move(name)), device_(device) {}

  std::function<Tensor()> keep(const Tensor& input, size_t i) override {
    const Options& o = state_->o;
    const int n = state_->ranks();
    if (!is_floating(input.dtype()) || input.numel() < n || input.numel() == 0) return {};
    if (n == 1 && !o.cpu_checkpointing && !o.contiguous_memory_optimization) return {};
    const Memory category = o.cpu_checkpointing ? Memory::offload : Memory::activation;
    const Device home = o.cpu_checkpointing ? Device(cpu) : input.device();
    const dist::Range mine = dist::shard_range(input.numel(), n, n > 1 ? o.group->rank() : 0);
    const Tensor part = input.contiguous().view({input.numel()}).narrow(0, mine.begin, mine.size());
    std::shared_ptr<Tensor> kept;
    if (o.contiguous_memory_optimization) {
      kept = state_->buffer(i)->take(part.numel(), part.dtype(), home, category);
    } else {
      const MemoryScope scope(category);
      kept = std::make_shared<Tensor>(empty({part.numel()}, {.dtype = part.dtype(), .device = home}));
    }
    kept->copy_(part);
    return [state = state_, kept, n, shape = input.shape(), device = input.device()] {
      const Tensor there = kept->to(device);
      if (n == 1) return there.view(shape);
      const Tensor full = empty(shape, {.dtype = there.dtype(), .device = device});
      state->o.group->all_gather(full.view({full.numel()}), there, {.tag = "checkpointed input"});
      return full;
    };
  }

  void begin(bool) override {
    if (waits()) synchronize(device_);
    start_ = steady_seconds();
  }
  void end(bool backward) noexcept override {
    try {
      if (waits()) synchronize(device_);
      if (state_->o.profile) state_->add_time(name_, backward, 1e3 * (steady_seconds() - start_));
    } catch (...) {}  // NOLINT: the device reports the error again at its next use
  }

 private:
  bool waits() const { return state_->o.synchronize_checkpoint_boundary || state_->o.profile; }

  std::shared_ptr<State> state_;
  std::string name_;
  Device device_;
  double start_ = 0;
};

ActivationCheckpoints::ActivationCheckpoints(const Options& o) : state_(std::make_shared<State>()) {
  LOCKSTEP_CHECK(o.every >= 1, "[checkpoint] expected every >= 1, got ", o.every);
  LOCKSTEP_CHECK(o.number_checkpoints >= 0, "[checkpoint] expected number_checkpoints >= 0, got ",
                 o.number_checkpoints);
  LOCKSTEP_CHECK(!o.contiguous_memory_optimization || o.partition_activations,
                 "[checkpoint] contiguous_memory_optimization needs partition_activations; set that too");
  LOCKSTEP_CHECK(!o.contiguous_memory_optimization || o.number_checkpoints > 0,
                 "[checkpoint] contiguous_memory_optimization needs number_checkpoints; set it to "
                 "the number of checkpoints that wait for their backward at once");
  state_->o = o;
  if (o.partition_activations && state_->ranks() == 1) {
    state_->notes.push_back(str("partition_activations: there are no model-parallel ranks ",
                                o.group ? "but this one" : "(no group)",
                                ", so inputs are not partitioned; leave it out"));
  }
  if (o.number_checkpoints > 0 && !o.contiguous_memory_optimization)
    state_->notes.push_back("number_checkpoints is for contiguous_memory_optimization, which is off; set both or none");
}

const std::vector<std::string>& ActivationCheckpoints::notes() const { return state_->notes; }

Variable ActivationCheckpoints::operator()(const std::function<Variable(const std::vector<Variable>&)>& fn,
                                           const std::vector<Variable>& inputs, const std::string& name) {
  return many([fn](const std::vector<Variable>& in) { return std::vector<Variable>{fn(in)}; }, inputs, name)[0];
}

std::vector<Variable> ActivationCheckpoints::many(
    const std::function<std::vector<Variable>(const std::vector<Variable>&)>& fn, const std::vector<Variable>& inputs,
    const std::string& name) {
  const auto first = std::find_if(inputs.begin(), inputs.end(), [](const Variable& x) { return x.defined(); });
  const Device device = first == inputs.end() ? default_device() : first->device();
  return checkpoint_many(fn, inputs, std::make_shared<Keeper>(state_, name, device));
}

std::vector<std::string> ActivationCheckpoints::wrap_blocks(nn::Module& module) {
  std::vector<std::pair<std::string, nn::Module*>> blocks;
  for (const char* kind : {"ModuleList", "Sequential"}) {
    std::vector<std::string> lists;  // names of the outermost lists
    for (const auto& [name, list] : module.named_modules()) {
      const auto holds = [&name = name](const std::string& outer) {
        return outer.empty() || name.starts_with(outer + ".");
      };
      if (list->kind() != kind || std::any_of(lists.begin(), lists.end(), holds)) continue;
      lists.push_back(name);
      int64_t i = 0;
      for (const auto& [child, block] : list->children()) {
        if (i++ % state_->o.every == 0) blocks.emplace_back(nn::joined(name, child), block);
      }
    }
    if (!blocks.empty()) break;
  }
  if (blocks.empty()) {
    const nn::LayerList list = module.layers();
    const bool marked = list.any_repeats();
    int64_t i = 0;
    for (const nn::LayerList::Item& item : list.items) {
      nn::Module* const block = item.fields.size() == 1 ? item.fields[0].module : nullptr;
      const auto is_block = [&](const auto& one) { return one.second == block; };
      if (!block || block == &module || (marked && !item.repeats) || std::ranges::any_of(blocks, is_block)) continue;
      // An embedding takes tokens, which are no variables.
      if (block->table() == nn::Module::Table::picked || i++ % state_->o.every != 0) continue;
      for (const auto& [name, other] : module.named_modules())
        if (other == block) blocks.emplace_back(name, block);
    }
  }
  LOCKSTEP_CHECK(!blocks.empty(), "[checkpoint] expected a module with blocks (a ModuleList or Sequential), got ",
                 module.kind(), " without any; override layers(), or checkpoint parts of it by hand");
  std::vector<std::string> names;
  for (auto& [name, block] : blocks) {
    const std::vector<Variable*> beside = state_->o.beside ? state_->o.beside(*block) : std::vector<Variable*>();
    block->wrap_call([checkpoints = *this, name = name, beside](
                         const std::vector<Variable>& inputs,
                         const std::function<std::vector<Variable>(const std::vector<Variable>&)>& run) mutable {
      std::vector<Variable> all = checkpoints.many(
          [run, beside](const std::vector<Variable>& in) {
            std::vector<Variable> before;
            for (const Variable* v : beside) before.push_back(*v);
            std::vector<Variable> made = run(in);
            for (size_t i = 0; i < beside.size(); ++i)
              // Restores the value from before run(), because backward calls this function a second time.
              made.push_back(std::exchange(*beside[i], before[i]));
            return made;
          },
          inputs, name);
      const size_t results = all.size() - beside.size();
      for (size_t i = 0; i < beside.size(); ++i) *beside[i] = all[results + i];
      all.resize(results);
      return all;
    });
    state_->wrapped.push_back(block->calls());
    names.push_back(name);
  }
  return names;
}

void ActivationCheckpoints::unwrap_blocks() {
  for (const nn::Module::Calls& block : std::exchange(state_->wrapped, {})) block.unwrap();
}

std::vector<ActivationCheckpoints::Times> ActivationCheckpoints::times() const {
  const std::lock_guard lock(state_->mutex);
  return state_->times;
}

void ActivationCheckpoints::reset_times() {
  const std::lock_guard lock(state_->mutex);
  state_->times.clear();
}

std::string ActivationCheckpoints::report() const {
  const std::vector<Times> all = times();
  size_t width = 10;
  for (const Times& t : all) width = std::max(width, t.name.size());
  std::string out =
      fmt::format("{:<{}}{:>10}{:>14}{:>14}\n", "checkpoint", width, "calls", "forward ms", "backward ms");
  for (const Times& t : all)
    out += fmt::format("{:<{}}{:>10}{:>14.3f}{:>14.3f}\n", t.name, width, t.forwards,
                       t.forward_ms / double(std::max<int64_t>(t.forwards, 1)),
                       t.backward_ms / double(std::max<int64_t>(t.backwards, 1)));
  return out;
}

}  // namespace lockstep::parallel
