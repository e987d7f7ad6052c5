// Pads attention heads and widths with zeros, to multiples of the number of ranks. See heads.h.
#include "extensions/inference/heads.h"

#include <algorithm>
#include <numeric>

#include "nn/attention.h"
#include "nn/init.h"

namespace lockstep::inference {

namespace {

std::vector<int64_t> counted_up(int64_t count, int64_t all) {
  std::vector<int64_t> list(size_t(all), -1);
  std::iota(list.begin(), list.begin() + count, 0);
  return list;
}

int64_t up_to(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }

/// Appends the indices of the elements of each head in `heads`. Head h has `size` elements from begin + h * size on.
/// For head -1, appends -1 `size` times.
void add_places(std::vector<int64_t>& to, const std::vector<int64_t>& heads, int64_t size, int64_t begin) {
  for (const int64_t head : heads)
    for (int64_t i = 0; i < size; ++i) to.push_back(head < 0 ? -1 : begin + head * size + i);
}

/// Divides `from` into runs of consecutive indices or of -1. Calls fn(position in `from`, first value, length) for each
/// run.
template <class Fn> void each_run(const std::vector<int64_t>& from, const Fn& fn) {
  for (size_t i = 0, end; i < from.size(); i = end) {
    for (end = i + 1; end < from.size() && from[end] == (from[i] < 0 ? -1 : from[i] + int64_t(end - i));) ++end;
    fn(int64_t(i), from[i], int64_t(end - i));
  }
}

void widen(std::vector<Widened>& all, const Variable& parameter, int dim, const std::vector<int64_t>& from) {
  if (!parameter.defined()) return;
  const Widened w{parameter, dim, from};
  if (nn::is_built_empty(parameter)) {
    Shape shape = parameter.shape();
    shape[dim] = int64_t(from.size());
    nn::change_start(parameter, shape, {.dtype = parameter.dtype(), .device = parameter.device()},
                     [dim, from](const Tensor& t) {
                       return Widened{{}, dim, from}.widened(t);
                     });
  } else {
    Variable(parameter).set_tensor(w.widened(parameter.tensor()));
  }
  all.push_back(w);
}

void widen(std::vector<Widened>& all, nn::Linear& linear, int dim, const std::vector<int64_t>& from) {
  LOCKSTEP_CHECK(!linear.attached.addition && !linear.attached.store,
                 "[init_inference] ranks that do not divide heads or widths need layers without adapters, and weights "
                 "that are not quantized; use another tp_size");
  widen(all, linear.weight, dim, from);
  if (dim == 0) widen(all, linear.bias, dim, from);
}

}  // namespace

HeadPlan plan_heads(int64_t heads, int64_t kv_heads, int ranks) {
  const int64_t share = heads / kv_heads, together = std::lcm(kv_heads, int64_t(ranks));
  if (heads % ranks == 0 && heads % together == 0) {  // no head is added; key/value heads are repeated
    HeadPlan plan{counted_up(heads, heads), {}};
    for (int64_t i = 0; i < together; ++i) plan.keys.push_back(i / (together / kv_heads));
    return plan;
  }
  const int64_t groups = up_to(kv_heads, ranks), all = up_to(heads, ranks);
  if (groups * share <= all) return {counted_up(heads, groups * share), counted_up(kv_heads, groups)};
  HeadPlan plan{counted_up(heads, all), {}};  // every head gets its own key/value head
  for (const int64_t head : plan.queries) plan.keys.push_back(head < 0 ? -1 : head / share);
  return plan;
}

Tensor Widened::widened(const Tensor& tensor) const {
  Shape shape = tensor.shape();
  shape[dim] = int64_t(from.size());
  const Tensor out = zeros(shape, {.dtype = tensor.dtype(), .device = tensor.device()});
  each_run(from, [&](int64_t at, int64_t old, int64_t length) {
    if (old >= 0) out.narrow(dim, at, length).copy_(tensor.narrow(dim, old, length));
  });
  return out;
}

Tensor Widened::narrowed(const Tensor& tensor) const {
  std::vector<int64_t> first(size_t(1 + *std::max_element(from.begin(), from.end())), -1);
  for (size_t i = from.size(); i-- > 0;)
    if (from[i] >= 0) first[size_t(from[i])] = int64_t(i);
  return Widened{{}, dim, first}.widened(tensor);
}

std::vector<Widened> fit_to_ranks(nn::Module& model, int ranks) {
  std::vector<Widened> all;
  model.apply([&](nn::Module& module) {
    if (auto* const attention = dynamic_cast<nn::AttentionHeads*>(&module)) {
      auto& o = attention->o;
      const HeadPlan plan = plan_heads(o.heads, o.kv_heads, ranks);
      const auto heads = int64_t(plan.queries.size()), kv_heads = int64_t(plan.keys.size());
      if (heads == o.heads && kv_heads == o.kv_heads) return;
      std::vector<int64_t> rows, columns;
      add_places(columns, plan.queries, o.head_size, 0);
      rows = columns;
      add_places(rows, plan.keys, o.head_size, o.heads * o.head_size);
      add_places(rows, plan.keys, o.head_size, (o.heads + o.kv_heads) * o.head_size);
      widen(all, attention->in_proj, 0, rows);
      if (heads != o.heads) widen(all, attention->out_proj, 1, columns);
      o.heads = heads, o.kv_heads = kv_heads;
    }
    const nn::Module::FeedForward place = module.feed_forward_place();
    // Nothing to pad if the number of ranks divides `inner`, or if the layer has experts, which are not sharded.
    if (!place.mlp || *place.other || place.mlp->o.inner % ranks == 0) return;
    nn::Mlp& mlp = *place.mlp;
    const std::vector<int64_t> units = counted_up(mlp.o.inner, up_to(mlp.o.inner, ranks));
    if (mlp.gate) widen(all, *mlp.gate, 0, units);
    widen(all, mlp.up, 0, units);
    widen(all, mlp.down, 1, units);
    mlp.o.inner = int64_t(units.size());
  });
  return all;
}

}  // namespace lockstep::inference
