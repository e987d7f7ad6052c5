#pragma once
// Tensor descriptors for TMA (tma.h).
#include <cuda.h>

#include "tensor/tensor.h"

namespace lockstep::on_cuda {

/// Describes a (B, heads, tokens, D) tensor of 16-bit numbers and its boxes (the tiles that TMA copies): some tokens by
/// 64 elements, in the 128-byte swizzle. Kernels take it as a `const __grid_constant__` parameter, because TMA needs
/// its address.
struct TileMap {
  CUtensorMap map;
};
/// Describes x with boxes of `rows` (at most 256) tokens; x must pass fits_tiles(). Throws if the driver refuses.
TileMap map_tiles(const Tensor& x, int rows);
/// True if TMA accepts x: not empty, D a multiple of 64, address and strides multiples of 16 bytes, strides positive.
bool fits_tiles(const Tensor& x);

}  // namespace lockstep::on_cuda
