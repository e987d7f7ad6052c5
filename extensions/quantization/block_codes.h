#pragma once
// 8-bit optimizer moments (Dettmers et al., 8-bit Optimizers via Block-wise Quantization, ICLR 2022, arXiv:2110.02861).
// A block of 256 elements stores its largest magnitude in f32 and, for each element, the index of the nearest of 256
// values in [-1, 1] (or [0, 1] without sign), which lie denser towards 0:
//
//   x        -0.03    0.0004    0.2
//   codes     60      144       255      absmax = 0.2
//
//   x ~ map[code] * absmax
//
// An element takes 1 + 4 / 256 bytes instead of 4.
#include <array>

#include "extensions/optimizers/step_kernels.h"

namespace lockstep {

/// Elements per block.
inline constexpr int64_t code_block = 256;

/// The 256 values of bitsandbytes' create_dynamic_map(), in ascending order.
const std::array<float, 256>& code_map(bool is_signed);

/// A tensor in blocks. codes: u8, of the tensor's shape; absmax: f32, one per block of 256 (the last may be shorter).
struct BlockCodes {
  Tensor& codes;
  Tensor& absmax;
  bool is_signed = true;
};
/// Number of blocks of a tensor.
inline int64_t code_blocks(int64_t numel) { return (numel + code_block - 1) / code_block; }
/// Encodes f32 values. Unsigned values above 0 never become 0, because optimizers divide by them.
void encode_blocks(const Tensor& from, const BlockCodes& to);
/// The f32 values of the codes.
Tensor decode_blocks(const BlockCodes& from);

/// One Adam step with moments in 8-bit blocks, in one pass: decode, update in f32, encode. CPU only, f32 parameters.
void adam_8bit(Tensor& p, const Tensor& grad, const BlockCodes& m, const BlockCodes& v, Tensor& low,
               const AdamArgs& args);
/// One Lion step with the momentum in 8-bit blocks, like adam_8bit().
void lion_8bit(Tensor& p, const Tensor& grad, const BlockCodes& m, Tensor& low, const LionArgs& args);

}  // namespace lockstep
