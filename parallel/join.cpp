// Uneven inputs. Before its collectives a rank asks all what comes next: ranks with data say where they are, ranks
// without say nothing, and do the same collectives with zeros. When no rank has data left, all are done together.
//
//   rank 0   f b s  f b s  f b s  ┐             f  buffers        b  backward: all buckets       s  optimizer step
//   rank 1   f b s  f b s  · z    ┘ all ended   z  the same collectives with zeros, no step
#include <exception>

#include "parallel/ddp_impl.h"
#include "parallel/naive_ddp.h"
#include "tensor/ops.h"

namespace lockstep::parallel {

using Impl = DistributedDataParallel::Impl;

Impl::Agreed Impl::agree(Phase mine) {
  const int64_t n = group.size();
  std::vector<int64_t> row(size_t(n + 2), 0);  // who has data; how many are before a forward; in a backward
  if (mine != Phase::none) row[size_t(group.rank())] = 1;
  if (mine == Phase::buffers) row[size_t(n)] = 1;
  if (mine == Phase::backward) row[size_t(n + 1)] = 1;
  const Tensor all = Tensor::from(row, {n + 2});
  group.all_reduce(all, {.tag = "ddp join"});
  row = all.to_vector<int64_t>();
  Agreed agreed{{}, row[size_t(n)] > 0 ? Phase::buffers : row[size_t(n + 1)] > 0 ? Phase::backward : Phase::none};
  std::string ended;
  for (int rank = 0; rank < n; ++rank) {
    if (row[size_t(rank)]) agreed.active.push_back(rank);
    else ended += str(ended.empty() ? "" : ", ", group.world_rank(rank));
  }
  LOCKSTEP_CHECK(row[size_t(n)] == 0 || row[size_t(n + 1)] == 0,
                 "[join] expected all ranks to be in the same place, got ", row[size_t(n)], " before a forward and ",
                 row[size_t(n + 1)],
                 " in a backward; all must use ddp.call() or none, and call no_sync() for the same micro-batches");
  LOCKSTEP_CHECK(!join->throw_on_early_end || agreed.active.empty() || ended.empty(), "[join] rank ", ended,
                 " has no data left while others have; ",
                 "give all ranks as many batches, or do not set throw_on_early_end");
  if (!agreed.active.empty()) {
    join->active = int(agreed.active.size());
    join->authority = agreed.active[0];
  }
  return agreed;
}

void Impl::shadow_until_all_ended() {
  for (;;) {
    const Agreed agreed = agree(Phase::none);
    if (agreed.active.empty()) break;
    if (agreed.phase == Phase::backward) shadow_backward();
    else receive_buffers(agreed.active[0]);
  }
  reducer->forget();
  // Ranks that ended early took fewer steps: everybody gets what the longest made. All know whether there is any.
  if (join->active > 0 && join->active < group.size()) broadcast_module(module, group, join->authority, options.ignore);
}

/// The collectives of a backward in which this rank has nothing but what it may have collected before.
void Impl::shadow_backward() {
  const NoGrad no_grad;
  for (Reducer::Parameter& p : reducer->parameters)
    if (!reducer->is_placeholder(p.variable.grad())) p.variable.clear_grad();
  answering = true;
  reducer->answer();
  answering = false;
  for (Reducer::Parameter& p : reducer->parameters) p.variable.clear_grad();
}

DistributedDataParallel::Join::Join(DistributedDataParallel& ddp, bool divide_by_active, bool throw_on_early_end)
    : ddp_(ddp), exceptions_(std::uncaught_exceptions()) {
  LOCKSTEP_CHECK(!ddp.impl_->join, "[join] expected no other join() of this model to be alive");
  ddp.impl_->join = Impl::JoinState{.divide_by_active = divide_by_active, .throw_on_early_end = throw_on_early_end};
}

DistributedDataParallel::Join::~Join() noexcept(false) {
  Impl& impl = *ddp_.impl_;
  const struct End {
    Impl& impl;
    ~End() { impl.join.reset(); }
  } end{impl};
  if (std::uncaught_exceptions() == exceptions_) impl.shadow_until_all_ended();
}

}  // namespace lockstep::parallel
