#pragma once
// Datasets: size() samples, the i-th by get(i). Datasets are values: a subset or a loader keeps what it is made from.
#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::data {

/// The usual sample, and a batch of them: auto& [x, y] = batch.
struct Example {
  Tensor input, target;
};

/// size() of a dataset without an end: whoever reads it says which samples make an epoch.
inline constexpr int64_t endless_samples = int64_t(1) << 62;

template <class S = Example> class Dataset {
 public:
  using Sample = S;
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  /// May be called from several threads at once. Random numbers drawn here with lockstep's generator depend, under a
  /// DataLoader, on (seed, epoch, index) only.
  virtual S get(int64_t index) const = 0;
  /// Many samples as one batch, where that is cheaper than one by one; nothing means: call get() and collate.
  virtual std::optional<S> get_batch(std::span<const int64_t>) const { return {}; }
};

template <class S> using DatasetPtr = std::shared_ptr<const Dataset<S>>;
template <class D>
concept IsDataset = std::derived_from<D, Dataset<typename D::Sample>>;
/// A copy of the dataset that others can hold; its tensors are shared.
template <IsDataset D> DatasetPtr<typename D::Sample> share(const D& dataset) {
  return std::make_shared<const D>(dataset);
}

/// Error that names the dataset's size when the index is outside of it.
void check_index(const char* dataset, int64_t index, int64_t size);

/// Rows `indices` of dim 0, copied into a new tensor.
Tensor take_rows(const Tensor& x, std::span<const int64_t> indices);

// Samples to a batch: tensors of one shape are stacked along a new dim 0. Error names the sample that differs.
Tensor collate(const std::vector<Tensor>& samples);
Example collate(const std::vector<Example>& samples);
std::vector<Tensor> collate(const std::vector<std::vector<Tensor>>& samples);

/// Inputs and targets with the samples along dim 0.
class TensorDataset : public Dataset<Example> {
 public:
  TensorDataset(Tensor inputs, Tensor targets);
  int64_t size() const override { return inputs_.size(0); }
  Example get(int64_t index) const override;
  std::optional<Example> get_batch(std::span<const int64_t> indices) const override;
  const Tensor& inputs() const { return inputs_; }
  const Tensor& targets() const { return targets_; }

 private:
  Tensor inputs_, targets_;
};

/// All samples of a dataset, read once.
TensorDataset to_tensors(const Dataset<Example>& dataset);

/// Some samples of a dataset, in the given order.
template <class S> class Subset : public Dataset<S> {
 public:
  template <IsDataset D>
  Subset(const D& dataset, std::vector<int64_t> indices) : Subset(share(dataset), std::move(indices)) {}
  Subset(DatasetPtr<S> dataset, std::vector<int64_t> indices)
      : dataset_(std::move(dataset)), indices_(std::move(indices)) {
    for (const int64_t index : indices_) check_index("Subset", index, dataset_->size());
  }
  int64_t size() const override { return int64_t(indices_.size()); }
  S get(int64_t index) const override { return dataset_->get(original(index)); }
  std::optional<S> get_batch(std::span<const int64_t> indices) const override {
    std::vector<int64_t> mapped;
    for (const int64_t index : indices) mapped.push_back(original(index));
    return dataset_->get_batch(mapped);
  }

 private:
  int64_t original(int64_t index) const {
    check_index("Subset", index, size());
    return indices_[size_t(index)];
  }
  DatasetPtr<S> dataset_;
  std::vector<int64_t> indices_;
};
template <IsDataset D> Subset(const D&, std::vector<int64_t>) -> Subset<typename D::Sample>;

/// Datasets one after the other.
template <class S> class ConcatDataset : public Dataset<S> {
 public:
  explicit ConcatDataset(std::vector<DatasetPtr<S>> parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) ends_.push_back(size() + part->size());
  }
  int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  S get(int64_t index) const override {
    check_index("ConcatDataset", index, size());
    const size_t part = size_t(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
    return parts_[part]->get(index - (part ? ends_[part - 1] : 0));
  }

 private:
  std::vector<DatasetPtr<S>> parts_;
  std::vector<int64_t> ends_;  // of each part
};

/// Cuts shuffled 0 .. n-1 into lists of these lengths, which must add up to n.
std::vector<std::vector<int64_t>> random_split(int64_t n, const std::vector<int64_t>& lengths, uint64_t seed);

/// Disjoint random subsets: auto parts = random_split(all, {9000, 1000}, 1).
template <IsDataset D>
std::vector<Subset<typename D::Sample>> random_split(const D& dataset, const std::vector<int64_t>& lengths,
                                                     uint64_t seed = 0) {
  const auto shared = share(dataset);
  std::vector<Subset<typename D::Sample>> parts;
  for (auto& indices : random_split(dataset.size(), lengths, seed)) parts.emplace_back(shared, std::move(indices));
  return parts;
}

}  // namespace lockstep::data
