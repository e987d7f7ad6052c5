#pragma once
// Samples whose tensors have names, as in Hugging Face's datasets, and the columns of them that train a model.
//
//   struct Texts : data::Dataset<data::NamedTensors> { ... };   // {"input_ids", ids}, {"attention_mask", mask}, ...
//   options.data = data::share(data::ColumnDataset(Texts(), {"input_ids", "attention_mask"}, {"labels"}));
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "data/dataset.h"

namespace lockstep::data {

/// A sample, or a batch of samples, whose tensors have names: batch.at("labels").
struct NamedTensors : std::map<std::string, Tensor> {
  using map::map;
  const Tensor& at(const std::string& name) const;  ///< the tensor of this name; Error if there is none
  /// Calls fn(name, tensor) for each tensor, in the order of the names.
  void each_tensor(const auto& fn) {
    for (auto& [name, x] : *this) fn(name, x);
  }
};

/// The tensors of these names as an Example. Error if one is missing.
Example columns_of(const NamedTensors& all, const std::vector<std::string>& inputs,
                   const std::vector<std::string>& targets);

/// Examples for a Trainer or an engine, from samples with named tensors: NamedTensors, or structs with each_tensor().
template <HoldsTensors S> class ColumnDataset : public Dataset<Example> {
 public:
  /// inputs: names of the arguments of forward(), in its order. targets: names of what the loss gets, in its order.
  /// Samples may have further tensors. Error unless there is at least one name of each kind.
  ColumnDataset(DatasetPtr<S> samples, std::vector<std::string> inputs, std::vector<std::string> targets)
      : samples_(std::move(samples)), inputs_(std::move(inputs)), targets_(std::move(targets)) {
    LOCKSTEP_CHECK(samples_, "[ColumnDataset] expected a dataset, got none");
    LOCKSTEP_CHECK(!inputs_.empty() && !targets_.empty(),
                   "[ColumnDataset] expected names of inputs and of targets, got ", inputs_.size(), " and ",
                   targets_.size(), "; name at least one of each");
  }
  template <IsDataset D>
  ColumnDataset(const D& samples, std::vector<std::string> inputs, std::vector<std::string> targets)
      : ColumnDataset(DatasetPtr<S>(share(samples)), std::move(inputs), std::move(targets)) {}
  int64_t size() const override { return samples_->size(); }
  Example get(int64_t index) const override { return chosen(samples_->get(index)); }
  std::optional<Example> get_batch(std::span<const int64_t> indices) const override {
    std::optional<S> batch = samples_->get_batch(indices);
    return batch ? std::optional(chosen(std::move(*batch))) : std::nullopt;
  }

 private:
  Example chosen(S sample) const {
    NamedTensors all;
    each_tensor(sample, [&](const std::string& name, const Tensor& x) { all[name] = x; });
    return columns_of(all, inputs_, targets_);
  }
  DatasetPtr<S> samples_;
  std::vector<std::string> inputs_, targets_;
};
/// Deduces the type of the samples.
template <IsDataset D>
ColumnDataset(const D&, std::vector<std::string>, std::vector<std::string>) -> ColumnDataset<typename D::Sample>;

}  // namespace lockstep::data
