#pragma once
// Datasets: get(i) reads one of size() samples. A dataset is a value: a subset or a loader keeps a copy of its source.
#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::data {

/// The type of a sample in most datasets, and also of a batch of such samples: auto& [x, y] = batch.
struct Example {
  Tensor input, target;
};

/// size() of an endless dataset, such as a stream. A DataLoader over it needs a sampler that defines an epoch.
inline constexpr int64_t endless_samples = int64_t(1) << 62;

/// Base of all datasets. S is the type of a sample.
template <class S = Example> class Dataset {
 public:
  using Sample = S;  ///< lets generic code find the type of a sample
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;  ///< number of samples
  /// The sample at `index`. Must be thread-safe. Under a DataLoader, random numbers drawn here from Lockstep's
  /// generator depend only on (seed, epoch, index).
  virtual S get(int64_t index) const = 0;
  /// Returns many samples as one batch, if the dataset has a faster way than get() for each sample. If the result has
  /// no value, the caller uses get() and collate().
  virtual std::optional<S> get_batch(std::span<const int64_t>) const { return {}; }
};

/// A shared dataset.
template <class S> using DatasetPtr = std::shared_ptr<const Dataset<S>>;
/// Satisfied by classes derived from Dataset.
template <class D>
concept IsDataset = std::derived_from<D, Dataset<typename D::Sample>>;
/// Copies the dataset into a shared one. The copy shares the tensors.
template <IsDataset D> DatasetPtr<typename D::Sample> share(const D& dataset) {
  return std::make_shared<const D>(dataset);
}

/// Raises an Error, with the dataset's name and size, if the index is out of range.
void check_index(const char* dataset, int64_t index, int64_t size);

/// Copies the rows `indices` of dim 0 into a new tensor.
Tensor take_rows(const Tensor& x, std::span<const int64_t> indices);

// Collates samples into a batch: tensors of equal shape are stacked along a new dim 0. Error, with the number of the
// sample, if a sample differs from the first in shape or dtype.
Tensor collate(const std::vector<Tensor>& samples);
Example collate(const std::vector<Example>& samples);
std::vector<Tensor> collate(const std::vector<std::vector<Tensor>>& samples);

/// A dataset of two tensors whose dim 0 counts samples.
class TensorDataset : public Dataset<Example> {
 public:
  /// Error unless inputs and targets have the same size(0).
  TensorDataset(Tensor inputs, Tensor targets);
  int64_t size() const override { return inputs_.size(0); }
  Example get(int64_t index) const override;
  std::optional<Example> get_batch(std::span<const int64_t> indices) const override;
  const Tensor& inputs() const { return inputs_; }    ///< all inputs (N, ...)
  const Tensor& targets() const { return targets_; }  ///< all targets (N, ...)

 private:
  Tensor inputs_, targets_;
};

/// Reads all samples of a dataset into tensors.
TensorDataset to_tensors(const Dataset<Example>& dataset);

/// Selected samples of a dataset, in the given order.
template <class S> class Subset : public Dataset<S> {
 public:
  /// Error if an index is out of range.
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
/// Deduces the sample type.
template <IsDataset D> Subset(const D&, std::vector<int64_t>) -> Subset<typename D::Sample>;

/// Concatenation of datasets.
template <class S> class ConcatDataset : public Dataset<S> {
 public:
  /// The samples of parts[0] come first, then the samples of parts[1], and so on.
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
  std::vector<int64_t> ends_;  // end of each part, cumulative
};

/// Shuffles 0 .. n-1 and cuts it into lists of these lengths. Error unless the lengths add up to n.
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
