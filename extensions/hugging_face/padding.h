#pragma once
// Batches of samples of different lengths, as Hugging Face's DataCollatorWithPadding and DataCollatorForSeq2Seq make
// them.
#include "data/dataset.h"

namespace lockstep::data {

/// Options of PaddedDataset.
struct PaddingOptions {
  double input_pad = 0;            ///< value behind shorter inputs, such as pad_token_id; others (masks) get 0
  double target_pad = -100;        ///< value behind shorter targets; -100 is ignored by losses
  int64_t pad_to_multiple_of = 1;  ///< lengths of batches are rounded up to a multiple
};

/// A dataset whose batches are padded: dim 0 of inputs and targets may have another size in each sample, and is padded
/// at its end to the largest of the batch. Tensors without dims are stacked. get() returns a sample without padding. A
/// causal model needs no mask for such batches. A mask of ones as a further input becomes an attention mask.
class PaddedDataset : public Dataset<Example> {
 public:
  /// Error for a null dataset and for pad_to_multiple_of below 1.
  explicit PaddedDataset(DatasetPtr<Example> samples, PaddingOptions options = {});
  int64_t size() const override { return samples_->size(); }
  Example get(int64_t index) const override { return samples_->get(index); }
  std::optional<Example> get_batch(std::span<const int64_t> indices) const override;

 private:
  DatasetPtr<Example> samples_;
  PaddingOptions options_;
};

/// Stacks tensors that may differ in dim 0, with `pad` behind the shorter ones: (tensors, largest size, ...). Error if
/// they differ in dtype or in other dims.
Tensor collate_padded(const std::vector<Tensor>& tensors, double pad, int64_t pad_to_multiple_of = 1);

}  // namespace lockstep::data
