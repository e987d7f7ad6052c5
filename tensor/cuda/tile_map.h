#pragma once
// Tensor descriptors for TMA (tma.h).
#include <cuda.h>

#include "tensor/tensor.h"

namespace lockstep::on_cuda {

/// Describes a (B, heads, tokens, D) tensor of 16-bit numbers to TMA, and the boxes that TMA copies from it. A box is a
/// range of tokens with 64 of their D elements, stored in the 128-byte swizzle. Kernels take a TileMap as a
/// `const __grid_constant__` parameter, because TMA needs its address.
struct TileMap {
  CUtensorMap map;
};
/// Makes the descriptor of x for boxes of `rows` (at most 256) tokens. fits_tiles(x) must be true. Throws if the driver
/// refuses to make it.
TileMap map_tiles(const Tensor& x, int rows);
/// True if TMA accepts x, a (B, heads, tokens, D) tensor: it is not empty, 64 divides D, its address and strides are
/// multiples of 16 bytes, and the strides are positive.
bool fits_tiles(const Tensor& x);

}  // namespace lockstep::on_cuda
