// Pads the samples of a batch to one length. See padding.h.
#include "extensions/hugging_face/padding.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "base/check.h"
#include "tensor/ops.h"

namespace lockstep::data {

Tensor collate_padded(const std::vector<Tensor>& tensors, double pad, int64_t pad_to_multiple_of) {
  LOCKSTEP_CHECK(!tensors.empty(), "[collate_padded] expected at least one tensor, got none; give some");
  const Tensor& first = tensors[0];
  if (first.dim() == 0) return collate(tensors);
  int64_t longest = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& x = tensors[i];
    Shape like_first = x.shape();
    if (x.dim() > 0) like_first[0] = first.size(0);
    LOCKSTEP_CHECK(x.device().is_cpu() && x.dtype() == first.dtype() && like_first == first.shape(),
                   "[collate_padded] expected cpu tensors like the first, ", first.dtype(), first.shape(),
                   ", but for dim 0, got ", x.dtype(), x.shape(), " as sample ", i, " of the batch");
    longest = std::max(longest, x.size(0));
  }
  longest = (longest + pad_to_multiple_of - 1) / pad_to_multiple_of * pad_to_multiple_of;
  Shape shape = first.shape();
  shape[0] = longest;
  shape.insert(0, int64_t(tensors.size()));
  const Tensor out = full(shape, pad, {.dtype = first.dtype(), .device = cpu});
  auto* const to = static_cast<std::byte*>(out.raw_data());
  const size_t row = size_t(out.numel() / int64_t(tensors.size()) * size_of(first.dtype()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor x = tensors[i].contiguous();
    if (x.numel() > 0) std::memcpy(to + i * row, x.raw_data(), size_t(x.numel() * size_of(x.dtype())));
  }
  return out;
}

PaddedDataset::PaddedDataset(DatasetPtr<Example> samples, PaddingOptions options)
    : samples_(std::move(samples)), options_(options) {
  LOCKSTEP_CHECK(samples_, "[PaddedDataset] expected a dataset, got none");
  LOCKSTEP_CHECK(options_.pad_to_multiple_of >= 1, "[PaddedDataset] expected pad_to_multiple_of >= 1, got ",
                 options_.pad_to_multiple_of);
}

std::optional<Example> PaddedDataset::get_batch(std::span<const int64_t> indices) const {
  Example batch;
  std::map<std::string, std::vector<Tensor>> columns;
  for (size_t i = 0; i < indices.size(); ++i) {
    batch = samples_->get(indices[i]);
    batch.each_tensor([&](const std::string& name, const Tensor& x) { columns[name].push_back(x); });
    for (const auto& [name, column] : columns)
      LOCKSTEP_CHECK(column.size() == i + 1, "[PaddedDataset] expected the same tensors in all samples, got no ", name,
                     " in some of sample ", indices[0], " to sample ", indices[i], "; give each sample all of them");
  }
  batch.each_tensor([&](const std::string& name, Tensor& x) {
    const double pad = name == "input" ? options_.input_pad : name.starts_with("target") ? options_.target_pad : 0;
    x = collate_padded(columns[name], pad, options_.pad_to_multiple_of);
  });
  return batch;
}

}  // namespace lockstep::data
