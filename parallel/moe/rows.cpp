#include "parallel/moe/rows.h"

#include <numeric>

#include "autograd/tape.h"

namespace lockstep::moe {
namespace {

Tensor exchange(const Tensor& x, const std::vector<int64_t>& to_each, const std::vector<int64_t>& from_each,
                dist::ProcessGroup& group, const char* tag) {
  const Tensor out =
      empty({std::accumulate(from_each.begin(), from_each.end(), int64_t(0)), x.size(1)}, {x.dtype(), x.device()});
  group.all_to_all(out, from_each, x.contiguous(), to_each, {.tag = tag}).wait();
  return out;
}

}  // namespace

Variable exchange_rows(const Variable& x, const std::vector<int64_t>& to_each, const std::vector<int64_t>& from_each,
                       const std::shared_ptr<dist::ProcessGroup>& group, const char* tag) {
  Tensor out = exchange(x.tensor(), to_each, from_each, *group, tag);
  if (!needs_grad({&x})) return out;
  return record("exchange_rows", {&x}, std::move(out), [to_each, from_each, group, tag](Backward& back) {
    back.give(0, exchange(back.grad(), from_each, to_each, *group, tag));
  });
}

Variable add_rows(const Variable& x, const Tensor& index, int64_t size) {
  Tensor out = zeros({size, x.size(1)}, {x.dtype(), x.device()});
  index_add_(out, 0, index, x.tensor());
  if (!needs_grad({&x})) return out;
  return record("add_rows", {&x}, std::move(out), [index = Saved(index)](Backward& back) {
    back.give(0, index_select(back.grad(), 0, index.get("add_rows")));
  });
}

}  // namespace lockstep::moe
