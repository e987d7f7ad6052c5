// Searches tensors for NaN and infinity. See nonfinite.h.
#include "tensor/nonfinite.h"

#include "tensor/kernels.h"
#include "tensor/ops_common.h"

namespace lockstep {

void find_nonfinite(const std::vector<Tensor>& all, const Tensor& found) {
  check_defined("find_nonfinite", found);
  LOCKSTEP_CHECK(found.dtype() == i32 && found.is_contiguous() && found.numel() == int64_t(all.size()),
                 "[find_nonfinite] expected an i32 element for each of ", all.size(), " tensors, got ", found.dtype(),
                 " ", found.shape());
  std::vector<Tensor> values;
  for (const Tensor& x : all) {
    check_floating("find_nonfinite", x);
    check_same_device("find_nonfinite", found, x);
    values.push_back(x.contiguous());
  }
  if (values.empty()) return;
  found.storage()->bump_version("find_nonfinite");
  kernels::find_nonfinite(found.device(), values, found.data<int32_t>());
}

}  // namespace lockstep
