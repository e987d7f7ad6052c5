// Sums of gradients without hooks on the tape. See gradient_sum.h.
#include "parallel/gradient_sum.h"

#include "tensor/graph.h"

namespace lockstep::parallel {

GradientSum::GradientSum(const std::vector<Variable>& parameters, dist::ProcessGroup* mean, dist::ProcessGroup* agree)
    : mean_(mean && mean->size() > 1 ? mean : nullptr), agree_(agree) {
  std::vector<Reducer::Parameter> all;
  std::vector<size_t> trained;
  for (const Variable& p : parameters) {
    if (p.requires_grad()) trained.push_back(all.size());
    all.push_back({.name = str("a parameter of shape ", p.shape()), .variable = p});
  }
  LOCKSTEP_CHECK(!trained.empty(), "[GradientSum] expected parameters that require grad, got none among ", all.size(),
                 "; unfreeze the parameters to train");
  reducer_.emplace(static_cast<Policy&>(*this), mean_,
                   Reducer::Rules{.name = "GradientSum", .hooks = false, .exposes_grad = true}, std::move(all));
  // 25 MiB are large enough for collectives, and small enough for caches. Without collectives each parameter has its
  // own bucket, so that ZeRO can take over the memory of .grad. Results are the same.
  const int64_t cap = mean_ ? 25 << 20 : 1;
  reducer_->cut(trained, cap, cap, false);
}

void GradientSum::finish() {
  LOCKSTEP_CHECK(count() > 0,
                 "[GradientSum] expected add() after a backward, got finish() without it; call add() first");
  reducer_->reduce();
}

std::function<void()> GradientSum::start(size_t b, const Tensor& sum) {
  if (!mean_) return [] {};
  return
      [work = mean_->all_reduce(
           sum, {.op = dist::ReduceOp::mean, .tag = str("gradients ", b), .async = true})]() mutable { work.wait(); };
}

std::vector<bool> GradientSum::used() {
  std::vector<bool> used;
  for (const Reducer::Parameter& p : reducer_->parameters) used.push_back(p.used);
  if (!agree_) return used;
  if (Graph::is_recording()) {  // ranks cannot be asked inside a recording: use the previous answer
    LOCKSTEP_CHECK(
        used == used_here_,
        "[GradientSum] a sum can only be captured if the previous sum had gradients for the same parameters; "
        "make such a sum before the capture");
    return used_anywhere_;
  }
  used_here_ = used;
  return used_anywhere_ = used_by_any(used, *agree_);
}

}  // namespace lockstep::parallel
