// Reductions over bags of rows. See embedding_bag.h.
#include "extensions/layers/embedding_bag.h"

#include <algorithm>
#include <cmath>

namespace lockstep::nn {

/// The maxima of all bags. Gathers the bags, padded with -infinity to the longest one. An empty bag gives 0 without
/// gradient. `values` are the indices on the host, or empty if there is no padding_index.
Variable EmbeddingBag::largest(const Tensor& index, const std::vector<int64_t>& values,
                               const std::vector<int64_t>& starts) {
  const int64_t bags = int64_t(starts.size()) - 1, n = index.numel();
  std::vector<std::vector<int64_t>> kept(static_cast<size_t>(bags));
  size_t longest = 1;
  for (size_t bag = 0; bag < size_t(bags); ++bag) {
    for (int64_t i = starts[bag]; i < starts[bag + 1]; ++i)
      if (values.empty() || values[size_t(i)] != o.padding_index) kept[bag].push_back(i);
    longest = std::max(longest, kept[bag].size());
  }
  if (n == 0)
    return add(Variable(zeros({bags, o.dim}, {rows.weight.dtype(), rows.weight.device()})),
               sum(rows(index), {0}, true));
  std::vector<int64_t> places(size_t(bags) * longest);
  std::vector<double> hidden(places.size(), 1), empty_bags;
  for (size_t bag = 0; bag < size_t(bags); ++bag) {
    empty_bags.push_back(kept[bag].empty());
    for (size_t i = 0; i < kept[bag].size(); ++i)
      places[bag * longest + i] = kept[bag][i], hidden[bag * longest + i] = 0;
  }
  const auto mask = [&](const std::vector<double>& numbers, const Shape& shape) {
    return Tensor::from(numbers, shape).to(boolean).to(index.device());
  };
  const int64_t max_length = int64_t(longest);
  const Tensor all = index_select(index, 0, Tensor::from(places, {bags * max_length}).to(index.device()));
  const Variable picked =
      masked_fill(rows(all).view({bags, max_length, o.dim}), mask(hidden, {bags, max_length, 1}), -INFINITY);
  return masked_fill(max(picked, 1).values, mask(empty_bags, {bags, 1}), 0);
}

Variable EmbeddingBag::forward(const Tensor& index, const Tensor& offsets, const Variable& weights) {
  const bool even = index.dim() == 2;
  LOCKSTEP_CHECK(even || index.dim() == 1, "[EmbeddingBag] expected index (n) with offsets, or (bags, n), got ",
                 index.shape(), "; reshape the index");
  LOCKSTEP_CHECK(even != offsets.defined(),
                 "[EmbeddingBag] expected offsets with an index of one dim, and none with (bags, n), got ",
                 index.shape(), offsets.defined() ? " and offsets; leave them out" : " and none; pass offsets");
  LOCKSTEP_CHECK(even || (offsets.dim() == 1 && offsets.dtype() == i64),
                 "[EmbeddingBag] expected offsets i64 (bags), got ", offsets.dtype(), " ", offsets.shape());
  LOCKSTEP_CHECK(!weights.defined() || (o.mode == Mode::sum && weights.shape() == index.shape() &&
                                        weights.dtype() == rows.weight.dtype()),
                 "[EmbeddingBag] expected weights of index's shape ", index.shape(), " in ", rows.weight.dtype(),
                 " and mode sum, got ", weights.shape(), " in ", weights.dtype(),
                 o.mode == Mode::sum    ? "; convert or reshape them"
                 : o.mode == Mode::mean ? " and mode mean; set mode sum"
                                        : " and mode max; set mode sum");
  const int64_t n = index.numel();
  std::vector<int64_t> starts;
  if (even)
    for (int64_t bag = 0; bag <= index.size(0); ++bag) starts.push_back(bag * index.size(1));
  else starts = offsets.to_vector<int64_t>();
  if (!even && !o.last_offset) starts.push_back(n);
  LOCKSTEP_CHECK(
      !starts.empty() && starts.front() == 0 && starts.back() == n && std::is_sorted(starts.begin(), starts.end()),
      "[EmbeddingBag] expected non-decreasing offsets from 0 up to ", n, ", the number of indices",
      o.last_offset ? ", which is the last one" : "", ", got ", Tensor::from(starts, {int64_t(starts.size())}));

  const Tensor flat = index.reshape({n});
  const std::vector<int64_t> values = o.padding_index < 0 ? std::vector<int64_t>() : flat.to_vector<int64_t>();
  if (o.mode == Mode::max) return largest(flat, values, starts);
  const int64_t bags = int64_t(starts.size()) - 1, dim = o.dim;
  std::vector<int64_t> bag_of;
  std::vector<double> counts;
  for (size_t bag = 0; bag < size_t(bags); ++bag) {
    int64_t count = starts[bag + 1] - starts[bag];
    bag_of.insert(bag_of.end(), size_t(count), int64_t(bag));
    if (!values.empty())
      count -= std::count(values.begin() + starts[bag], values.begin() + starts[bag + 1], o.padding_index);
    counts.push_back(double(std::max<int64_t>(count, 1)));
  }
  const DType dtype = rows.weight.dtype(), wide = dtype == f64 ? f64 : f32;
  Variable picked = rows(flat).to(wide);
  if (weights.defined()) picked = picked * weights.to(wide).reshape({n, 1});
  if (o.padding_index >= 0)
    picked = masked_fill(picked, eq(flat, full_like(flat, double(o.padding_index))).view({n, 1}), 0);
  const Tensor places = Tensor::from(bag_of, {n, 1}).to(index.device()).expand({n, dim});
  const Variable sums =
      scatter_add(Variable(zeros({bags, dim}, {.dtype = wide, .device = picked.device()})), 0, places, picked);
  if (o.mode == Mode::sum) return sums.to(dtype);
  return (sums / Variable(Tensor::from(counts, {bags, 1}).to(wide).to(picked.device()))).to(dtype);
}

}  // namespace lockstep::nn
