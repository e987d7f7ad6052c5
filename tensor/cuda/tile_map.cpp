// The driver encodes TMA descriptors. It is looked up at run time, so that programs start on machines without a driver.
#include "tensor/cuda/tile_map.h"

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "tensor/cuda/runtime.h"

namespace lockstep::on_cuda {
namespace {

decltype(&cuTensorMapEncodeTiled) encode_tiled() {
  static const auto found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    constexpr unsigned since = 12000;  // CUDA 12.0
    cuda::check("attention", cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, since,
                                                              cudaEnableDefault, &result));
    LOCKSTEP_CHECK(function,
                   "[attention] the driver has no cuTensorMapEncodeTiled: update it to one of CUDA 12, or set "
                   "LOCKSTEP_WGMMA=0");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return found;
}

}  // namespace

bool fits_tiles(const Tensor& x) {
  // TMA's coordinates have 32 bits (signed in our kernels), and a tile may reach beyond the tensor: so sizes stay below
  // 2^30. TMA requires strides below 2^40 bytes.
  constexpr int64_t max_elements = int64_t(1) << 30, max_stride = int64_t(1) << 39;
  bool fits = x.numel() > 0 && x.shape()[3] % 64 == 0 && reinterpret_cast<uintptr_t>(x.raw_data()) % 16 == 0;
  for (int d = 0; d < 3; ++d) {
    const int64_t size = x.shape()[d], stride = x.strides()[d];
    fits &= size < max_elements && (size == 1 || (stride > 0 && stride % 8 == 0 && stride < max_stride));
  }
  return fits;
}

TileMap map_tiles(const Tensor& x, int rows) {
  constexpr int dims = 4;
  cuuint64_t sizes[dims], strides[dims - 1];  // innermost dimension first
  for (int d = 0; d < dims; ++d) sizes[d] = cuuint64_t(x.shape()[dims - 1 - d]);
  // TMA checks the strides of dimensions of size 1 too. A tensor may have any stride there, so a valid one is passed.
  for (int d = 1; d < dims; ++d)
    strides[d - 1] = 2 * cuuint64_t(sizes[d] == 1 ? x.shape()[dims - 1] : x.strides()[dims - 1 - d]);
  const cuuint32_t box[dims] = {64, cuuint32_t(rows), 1, 1}, steps[dims] = {1, 1, 1, 1};
  TileMap tiles;
  const CUresult code = encode_tiled()(&tiles.map, CU_TENSOR_MAP_DATA_TYPE_UINT16, dims, x.raw_data(), sizes, strides,
                                       box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                       CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  LOCKSTEP_CHECK(code == CUDA_SUCCESS,
                 "[attention] the driver refused a TMA descriptor (cuTensorMapEncodeTiled) for a tensor of shape ",
                 x.shape(), " and strides ", x.strides(), " (CUresult ", int(code), "): set LOCKSTEP_WGMMA=0");
  return tiles;
}

}  // namespace lockstep::on_cuda
