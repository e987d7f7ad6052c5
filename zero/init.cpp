#include "zero/init.h"

#include "parallel/agreement.h"
#include "tensor/ops.h"
#include "tensor/random.h"

namespace lockstep::zero {

Init::Init(const Options& o, dist::ProcessGroup* group) : options_(o), group_(group ? *group : dist::world()) {
  LOCKSTEP_CHECK(is_floating(o.dtype), "[zero::Init] expected a floating dtype, got ", o.dtype);
  const RandomState r = random_state();
  parallel::check_agreement("zero::Init", {str("random numbers from seed ", r.seed, ", step ", r.step, ", micro-batch ", r.micro_batch, ", call ", r.call),
                                           str("dtype ", o.dtype)}, group_);
  start();
}

Init::~Init() { if (listening_) stop(); }

void Init::end() {
  if (!listening_) return;
  listening_ = false;
  stop();
  cut();
}

/// Initialising again what was cut already: all of it is overwritten, so its memory need not hold anything.
void Init::initialises(const Variable& parameter) {
  if (whole_.defined() && whole_.impl() == parameter.impl()) return;
  const auto found = kept_.find(parameter.impl().get());
  if (found == kept_.end()) return;  // made before this scope
  cut();
  kept_.erase(found);
  const MemoryScope scope(Memory::parameter);
  whole_ = parameter;
  whole_.set_tensor(empty(parameter.shape(), {.device = parameter.device()}));
}

void Init::cut() {
  if (!whole_.defined()) return;
  Variable parameter = std::exchange(whole_, {});
  const Tensor& tensor = parameter.tensor();
  const dist::Range mine = dist::shard_range(tensor.numel(), group_.size(), group_.rank());
  const MemoryScope scope(Memory::parameter);
  Tensor shard = tensor.view({tensor.numel()}).narrow(0, mine.begin, mine.size()).to(options_.dtype);
  if (shard.storage() == tensor.storage()) shard = shard.clone();
  if (tensor.dtype() != options_.dtype) parameter.set_tensor(empty(tensor.shape(), {.dtype = options_.dtype, .device = tensor.device()}));
  parameter.tensor().storage()->empty();
  kept_[parameter.impl().get()] = {std::move(shard), parameter};
}

Tensor Init::take(const Variable& parameter, const std::string& name) {
  const auto found = kept_.find(parameter.impl().get());
  LOCKSTEP_CHECK(found != kept_.end(), "[zero::Init] ", name, " was not made in this scope");
  const MemoryScope scope(Memory::parameter);
  const Tensor whole = empty({parameter.numel()}, {.dtype = options_.dtype, .device = parameter.device()});
  if (whole.numel() > 0) group_.all_gather(whole, found->second.shard, {.tag = "zero::Init " + name});
  kept_.erase(found);
  return whole.view(parameter.shape());
}

int64_t Init::bytes() const {
  int64_t bytes = 0;
  for (const auto& [key, kept] : kept_) bytes += kept.shard.numel() * size_of(kept.shard.dtype());
  return bytes;
}

}  // namespace lockstep::zero
