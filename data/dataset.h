#pragma once
// Datasets: get(i) reads one of size() samples. A dataset is a value: a subset or a loader keeps a copy of its source.
#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace lockstep::data {

/// The type of a sample in most datasets, and also of a batch of such samples: auto& [x, y] = batch. A model gets all
/// inputs() as the arguments of its forward(), a loss gets all targets().
struct Example {
  Tensor input, target;
  std::vector<Tensor> more_inputs = {}, more_targets = {};                      ///< the second input, the third, ...
  std::vector<Tensor> inputs() const { return joined(input, more_inputs); }     ///< all inputs
  std::vector<Tensor> targets() const { return joined(target, more_targets); }  ///< all targets
  void each_tensor(const auto& fn) {                                            ///< see HoldsTensors
    fn("input", input), fn("target", target);
    for (size_t i = 0; i < more_inputs.size(); ++i) fn("input " + std::to_string(i + 2), more_inputs[i]);
    for (size_t i = 0; i < more_targets.size(); ++i) fn("target " + std::to_string(i + 2), more_targets[i]);
  }
  template <size_t i> Tensor& get() { return i == 0 ? input : target; }              ///< for auto& [x, y]
  template <size_t i> const Tensor& get() const { return i == 0 ? input : target; }  ///< for const auto& [x, y]

 private:
  static std::vector<Tensor> joined(const Tensor& first, std::vector<Tensor> more) {
    return more.insert(more.begin(), first), std::move(more);
  }
};

/// Calls fn(name, tensor) for each tensor of a sample. The names of tensors in a vector are their positions.
void each_tensor(std::vector<Tensor>& sample, const auto& fn) {
  for (size_t i = 0; i < sample.size(); ++i) fn(std::to_string(i), sample[i]);
}
template <class S> auto each_tensor(S& sample, const auto& fn) -> decltype(sample.each_tensor(fn)) {
  return sample.each_tensor(fn);
}
/// Samples that collate() joins and batches that ToDevice copies: vectors of tensors, and structs with a member
/// each_tensor(fn) that calls fn(name, tensor) for each tensor.
template <class S>
concept HoldsTensors = requires(S& sample, void (*fn)(const std::string&, Tensor&)) {
  each_tensor(sample, fn);
};

}  // namespace lockstep::data

/// Number of names in auto& [x, y] = example.
template <> struct std::tuple_size<lockstep::data::Example> : std::integral_constant<size_t, 2> {};
/// Both are tensors.
template <size_t i> struct std::tuple_element<i, lockstep::data::Example> : std::type_identity<lockstep::Tensor> {};

namespace lockstep::data {

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

/// Puts the batch of samples into the tensors of the first.
void collate_into_first(const std::vector<std::vector<std::pair<std::string, Tensor*>>>& samples);

// Collates samples into a batch: tensors of equal shape are stacked along a new dim 0. Error, with the number of the
// sample and the name of the tensor, if a sample differs from the first in shapes, dtypes or names.
Tensor collate(const std::vector<Tensor>& samples);
template <HoldsTensors S> S collate(std::vector<S> samples) {
  std::vector<std::vector<std::pair<std::string, Tensor*>>> all(samples.size());
  for (size_t i = 0; i < samples.size(); ++i)
    each_tensor(samples[i], [&](const auto& name, Tensor& x) { all[i].emplace_back(name, &x); });
  return collate_into_first(all), std::move(samples[0]);
}

/// A dataset of tensors whose dim 0 counts samples.
class TensorDataset : public Dataset<Example> {
 public:
  /// Error unless all have the same size(0).
  TensorDataset(Tensor inputs, Tensor targets, std::vector<Tensor> more_inputs = {},
                std::vector<Tensor> more_targets = {});
  int64_t size() const override { return all_.input.size(0); }
  Example get(int64_t index) const override;
  std::optional<Example> get_batch(std::span<const int64_t> indices) const override;
  const Tensor& inputs() const { return all_.input; }    ///< all (first) inputs (N, ...)
  const Tensor& targets() const { return all_.target; }  ///< all (first) targets (N, ...)

 private:
  Example all_;
};

/// Reads the samples at these indices as one batch.
Example batch_of(const Dataset<Example>& dataset, std::span<const int64_t> indices);
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
