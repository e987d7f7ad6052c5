#pragma once
// Moments of optimizers in 8 bits (Dettmers et al., 8-bit optimizers via block-wise quantization, ICLR 2022,
// arXiv:2110.02861). A block of 256 elements has its largest magnitude in f32, and for each element the number of the
// nearest of 256 values in [-1, 1], or in [0, 1], that lie closer together towards 0:
//
//   x    -0.03   0.0004   0.2   ...     absmax 0.2, codes 14, 140, 255 ...     x ~ map[code] * absmax
//
// 1 + 4 / 256 bytes an element in place of 4.
#include <array>

#include "tensor/kernels.h"

namespace lockstep {

inline constexpr int64_t code_block = 256;

/// The 256 values in ascending order, those of bitsandbytes' create_dynamic_map().
const std::array<float, 256>& code_map(bool is_signed);

/// A tensor in blocks. codes: u8, of any shape; absmax: f32, one for each block of 256, the last one may be shorter.
struct BlockCodes {
  Tensor& codes;
  Tensor& absmax;
  bool is_signed = true;
};
inline int64_t code_blocks(int64_t numel) { return (numel + code_block - 1) / code_block; }
/// Rounds f32 values into the codes. Without sign a value above 0 never becomes 0, which would be a divisor.
void encode_blocks(const Tensor& from, const BlockCodes& to);
Tensor decode_blocks(const BlockCodes& from);

/// Kernels adam and lion with moments in blocks, in one pass: decoded, updated in f32, encoded. CPU only, f32
/// parameters.
void adam_8bit(Tensor& p, const Tensor& grad, const BlockCodes& m, const BlockCodes& v, Tensor& low,
               const AdamArgs& args);
void lion_8bit(Tensor& p, const Tensor& grad, const BlockCodes& m, Tensor& low, const LionArgs& args);

}  // namespace lockstep
