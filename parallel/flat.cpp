// Many tensors in one flat buffer: packing them, and planning which share one. See flat.h.
#include "parallel/flat.h"

#include <algorithm>
#include <map>

#include "tensor/ops.h"

namespace lockstep::parallel {

Packed::Packed(const std::vector<Tensor>& tensors) {
  if (tensors.empty()) return;
  std::vector<Tensor> rows;
  for (const Tensor& tensor : tensors) rows.push_back(tensor.reshape({tensor.numel()}));
  flat = cat(rows);
  int64_t at = 0;
  for (const Tensor& tensor : tensors) {
    parts.push_back(flat.narrow(0, at, tensor.numel()).view(tensor.shape()));
    at += tensor.numel();
  }
}

std::vector<std::vector<size_t>> plan_units(const std::vector<int64_t>& sizes, const std::vector<std::string>& kinds,
                                            int64_t cap, int64_t first_cap) {
  LOCKSTEP_CHECK(cap > 0 && sizes.size() == kinds.size(),
                 "[plan_units] expected cap > 0 and one kind for each size, got cap ", cap, ", ", sizes.size(),
                 " sizes and ", kinds.size(), " kinds");
  struct Open {
    std::vector<size_t> members;
    int64_t size = 0, cap = 0;
  };
  std::map<std::string, Open> open;
  std::vector<std::vector<size_t>> units;
  const auto close = [&](Open& o) {
    units.push_back(std::move(o.members));
    o = {.members = {}, .cap = cap};
  };
  for (size_t i = 0; i < sizes.size(); ++i) {
    Open& o = open.try_emplace(kinds[i], Open{.members = {}, .cap = first_cap > 0 ? first_cap : cap}).first->second;
    if (!o.members.empty() && o.size + sizes[i] > o.cap) close(o);
    o.members.push_back(i);
    o.size += sizes[i];
    if (o.size >= o.cap) close(o);
  }
  const auto full = int64_t(units.size());
  for (auto& [kind, o] : open)
    if (!o.members.empty()) close(o);
  std::sort(units.begin() + full, units.end());  // by their first members
  return units;
}

std::vector<std::vector<size_t>> plan_buckets(const std::vector<Variable>& parameters, int64_t cap, int64_t first_cap) {
  std::vector<int64_t> bytes;
  std::vector<std::string> kinds;
  for (const Variable& p : parameters) {
    bytes.push_back(p.numel() * size_of(p.dtype()));
    kinds.push_back(str(p.dtype(), " on ", p.device()));
  }
  return plan_units(bytes, kinds, cap, first_cap);
}

}  // namespace lockstep::parallel
