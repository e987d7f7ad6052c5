#pragma once
// Tensors as TMA (tma.h) knows them.
#include <cuda.h>

#include "tensor/tensor.h"

namespace lockstep::on_cuda {

/// A (B, heads, tokens, D) tensor of 16-bit numbers, and boxes of some tokens by 64 elements of it, in the 128-byte
/// swizzle. Kernels take it as a `const __grid_constant__` parameter, which has an address.
struct TileMap {
  CUtensorMap map;
};
/// Boxes of `rows` tokens, up to 256, of a tensor that fits.
TileMap map_tiles(const Tensor& x, int rows);
/// Something in it, D a multiple of 64, and strides that TMA takes: multiples of 16 bytes, as the address; not
/// 0.
bool fits_tiles(const Tensor& x);

}  // namespace lockstep::on_cuda
