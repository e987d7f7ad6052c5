// Converts the bytes of image datasets to tensors. See images.h.
#include "data/images.h"

#include "tensor/ops.h"

namespace lockstep::data {

Tensor images_from_bytes(const Tensor& bytes) {
  const Tensor source = bytes.to(cpu).contiguous();
  Tensor out = empty(source.shape(), {.device = cpu});
  const uint8_t* from = source.data<uint8_t>();
  float* to = out.data<float>();
  for (int64_t i = 0; i < out.numel(); ++i) to[i] = float(from[i]) / 255;
  return out;
}

Tensor labels_from_bytes(const Tensor& bytes, int classes, const std::string& origin) {
  const Tensor source = bytes.to(cpu).contiguous();
  const uint8_t* from = source.data<uint8_t>();
  for (int64_t i = 0; i < source.numel(); ++i)
    LOCKSTEP_CHECK(from[i] < classes, "[labels] ", origin, ": expected labels from 0 to ", classes - 1, ", got ",
                   int(from[i]), " for sample ", i, "; fetch the file again");
  Tensor out = empty(source.shape(), {.dtype = i64, .device = cpu});
  std::copy_n(from, source.numel(), out.data<int64_t>());
  return out;
}

}  // namespace lockstep::data
