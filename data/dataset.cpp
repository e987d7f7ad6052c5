// Collating, row selection, TensorDataset and random_split(). See dataset.h.
#include "data/dataset.h"

#include <cstring>

#include "data/sampler.h"
#include "tensor/ops.h"

namespace lockstep::data {
namespace {

/// Bytes of one row of dim 0 of a contiguous tensor.
int64_t row_bytes(const Tensor& x) {
  int64_t bytes = size_of(x.dtype());
  for (int i = 1; i < x.dim(); ++i) bytes *= x.shape()[i];
  return bytes;
}

/// collate() of tensors that Errors call `name`, such as "target: ".
Tensor stack_samples(const std::vector<Tensor>& samples, const std::string& name) {
  LOCKSTEP_CHECK(!samples.empty(), "[collate] expected at least one sample, got none; give some");
  const Tensor& first = samples[0];
  for (size_t i = 0; i < samples.size(); ++i) {
    const Tensor& x = samples[i];
    LOCKSTEP_CHECK(
        x.defined() && x.device().is_cpu(), "[collate] ", name, "sample ", i,
        " of the batch has no tensor on the cpu; datasets give cpu tensors, and ToDevice copies whole batches");
    LOCKSTEP_CHECK(x.shape() == first.shape() && x.dtype() == first.dtype(), "[collate] ", name,
                   "expected samples like the first, ", first.dtype(), first.shape(), ", got ", x.dtype(), x.shape(),
                   " as sample ", i, " of the batch; pass your own collate function");
  }
  Shape shape = first.shape();
  shape.insert(0, int64_t(samples.size()));
  Tensor out = empty(shape, {.dtype = first.dtype(), .device = cpu});
  const size_t bytes = size_t(first.numel() * size_of(first.dtype()));
  auto* to = static_cast<std::byte*>(out.raw_data());
  if (bytes)
    for (size_t i = 0; i < samples.size(); ++i) std::memcpy(to + i * bytes, samples[i].contiguous().raw_data(), bytes);
  return out;
}

}  // namespace

void check_index(const char* dataset, int64_t index, int64_t size) {
  LOCKSTEP_CHECK(index >= 0 && index < size, "[", dataset, "] index ", index, " is outside the dataset of ", size,
                 " samples; use an index from 0 to one below that");
}

// Single-threaded on purpose: loader threads call this function, and each would start a team of threads.
Tensor take_rows(const Tensor& x, std::span<const int64_t> indices) {
  LOCKSTEP_CHECK(x.defined() && x.dim() >= 1 && x.device().is_cpu(),
                 "[take_rows] expected a tensor on the cpu with at least 1 dim, got ",
                 x.defined() ? str(x.shape(), " on ", x.device()) : "none",
                 "; pass a cpu tensor with a row for each sample");
  for (const int64_t index : indices) check_index("take_rows", index, x.size(0));
  const Tensor source = x.contiguous();
  Shape shape = x.shape();
  shape[0] = int64_t(indices.size());
  Tensor out = empty(shape, {.dtype = x.dtype(), .device = cpu});
  const size_t bytes = size_t(row_bytes(source));
  if (out.numel() == 0) return out;
  const auto* from = static_cast<const std::byte*>(source.raw_data());
  auto* to = static_cast<std::byte*>(out.raw_data());
  for (size_t i = 0; i < indices.size(); ++i) std::memcpy(to + i * bytes, from + size_t(indices[i]) * bytes, bytes);
  return out;
}

Tensor collate(const std::vector<Tensor>& samples) { return stack_samples(samples, ""); }

void collate_into_first(const std::vector<std::vector<std::pair<std::string, Tensor*>>>& samples) {
  LOCKSTEP_CHECK(!samples.empty(), "[collate] expected at least one sample, got none; give some");
  const auto names = [&](size_t i) {
    std::string all;
    for (const auto& [name, x] : samples[i]) all += (all.empty() ? "" : ", ") + name;
    return all;
  };
  const std::string first = names(0);
  for (size_t i = 1; i < samples.size(); ++i)
    LOCKSTEP_CHECK(names(i) == first, "[collate] expected the tensors ", first, " of the first sample, got ", names(i),
                   " in sample ", i, " of the batch; give these");
  std::vector<Tensor> column(samples.size());
  for (size_t part = 0; part < samples[0].size(); ++part) {
    for (size_t i = 0; i < samples.size(); ++i) column[i] = *samples[i][part].second;
    *samples[0][part].second = stack_samples(column, samples[0][part].first + ": ");
  }
}

TensorDataset::TensorDataset(Tensor inputs, Tensor targets, std::vector<Tensor> more_inputs,
                             std::vector<Tensor> more_targets)
    : all_{std::move(inputs), std::move(targets), std::move(more_inputs), std::move(more_targets)} {
  all_.each_tensor([&](const std::string& name, Tensor& x) {
    LOCKSTEP_CHECK(x.defined() && x.dim() >= 1, "[TensorDataset] expected tensors of at least 1 dim, got ",
                   x.defined() ? str(x.shape()) : "none", " as ", name, "; give each, with a row for each sample");
    LOCKSTEP_CHECK(x.size(0) == size(), "[TensorDataset] expected as many rows of ", name, " as of input, got ",
                   all_.input.shape(), " and ", x.shape(), "; drop those without a partner");
    x = x.contiguous();
  });
}

Example TensorDataset::get(int64_t index) const {
  check_index("TensorDataset", index, size());
  Example one = all_;
  one.each_tensor([&](const auto&, Tensor& x) { x = x[index]; });
  return one;
}

std::optional<Example> TensorDataset::get_batch(std::span<const int64_t> indices) const {
  for (const int64_t index : indices) check_index("TensorDataset", index, size());
  Example rows = all_;
  rows.each_tensor([&](const auto&, Tensor& x) { x = take_rows(x, indices); });
  return rows;
}

Example batch_of(const Dataset<Example>& dataset, std::span<const int64_t> indices) {
  if (std::optional<Example> batch = dataset.get_batch(indices)) return *std::move(batch);
  std::vector<Example> samples;
  for (const int64_t index : indices) samples.push_back(dataset.get(index));
  return collate(std::move(samples));
}

TensorDataset to_tensors(const Dataset<Example>& dataset) {
  const Example all = batch_of(dataset, SequentialSampler(dataset.size())());
  return {all.input, all.target, all.more_inputs, all.more_targets};
}

std::vector<std::vector<int64_t>> random_split(int64_t n, const std::vector<int64_t>& lengths, uint64_t seed) {
  int64_t total = 0;
  for (const int64_t length : lengths) {
    LOCKSTEP_CHECK(length >= 0, "[random_split] expected lengths >= 0, got ", length);
    total += length;
  }
  LOCKSTEP_CHECK(total == n, "[random_split] expected lengths that add up to ", n, ", got ", total, "; change one");
  const auto order = permutation(n, seed);
  std::vector<std::vector<int64_t>> parts;
  auto at = order.begin();
  for (const int64_t length : lengths) {
    parts.emplace_back(at, at + length);
    at += length;
  }
  return parts;
}

}  // namespace lockstep::data
