// Training of gpt with its matrices cut over ranks (--tensor-parallel N): which ranks have what.
#include "apps/gpt/training.h"

namespace apps {

using namespace lockstep;

struct SlicedGpt::Impl {
  explicit Impl(const Team& whole) : copies(whole) {}
  std::optional<dist::Mesh> mesh;
  std::optional<tensor_parallel::TensorParallel> sliced;
  Team copies;
};

SlicedGpt::SlicedGpt(const GptOptions& o, nn::GPT& model, const Team& team) : impl_(new Impl(team)) {
  if (o.tensor_parallel == 0) return;
  LOCKSTEP_CHECK(team.size() % o.tensor_parallel == 0, "--tensor-parallel ", o.tensor_parallel, " expected a number of ranks that it divides, got ", team.size(),
                 "; start it with lockstep run -n N -- ..., or give --ranks N");
  LOCKSTEP_CHECK(!o.sequence_parallel || model.o.context % o.tensor_parallel == 0, "--sequence-parallel expected a --context that ", o.tensor_parallel, " ranks divide, got ", model.o.context);
  if (!team.group()) return;
  impl_->mesh.emplace(*team.group(), std::vector<std::pair<std::string, int>>{{"dp", team.size() / o.tensor_parallel}, {"tp", o.tensor_parallel}});  // slices of one copy are neighbours
  dist::ProcessGroup& same = impl_->mesh->group("dp");
  impl_->copies = Team(team, same.size() > 1 ? &same : nullptr);
  impl_->sliced = tensor_parallel::apply(model, tensor_parallel::gpt_plan(model, o.sequence_parallel), impl_->mesh->group("tp"));
}
SlicedGpt::~SlicedGpt() = default;

const Team& SlicedGpt::copies() const { return impl_->copies; }
const tensor_parallel::TensorParallel* SlicedGpt::sliced() const { return impl_->sliced ? &*impl_->sliced : nullptr; }

bool SlicedGpt::any(bool mine) const {
  if (!impl_->sliced) return mine;
  const Tensor flag = full({1}, mine, {.dtype = i64, .device = cpu});
  impl_->mesh->group("tp").all_reduce(flag, {.op = dist::ReduceOp::max, .tag = "stop"});
  return flag.item<int64_t>() != 0;
}

void SlicedGpt::while_whole(optim::Optimizer* optimizer, const std::function<void()>& fn) const {
  if (impl_->sliced) impl_->sliced->while_whole(optimizer, fn);
  else fn();
}

void check_tensor_parallel(const GptOptions& o) {
  const ParallelOptions& p = o.common.parallel;
  LOCKSTEP_CHECK(p.strategy == "auto" || p.strategy == "ddp", "--tensor-parallel needs ranks that train together, leave out --parallel ", p.strategy);
  LOCKSTEP_CHECK(p.zero < 0, "--tensor-parallel and --zero ", p.zero, " cannot be used together: ZeRO clips by the norm of whole gradients; leave one of them out");
  LOCKSTEP_CHECK(o.config.empty(), "--tensor-parallel and --config cannot be used together: the engine has whole models; leave one of them out");
  LOCKSTEP_CHECK(o.precision != "f16", "--tensor-parallel trains in f32, tf32 and bf16: --precision f16 needs a loss scale for all slices");
  LOCKSTEP_CHECK(o.optimizer.name == "adamw", "--tensor-parallel expected --optimizer adamw, which looks at each element alone, got ", o.optimizer.name, ", which looks at whole matrices or sums gradients itself");
  LOCKSTEP_CHECK(p.trace_bits.empty(), "--tensor-parallel splits sums, so its bits are its own: leave out --trace-bits, and compare losses");
}

}  // namespace apps
