#pragma once
// More convolutions, composed of conv1d, conv2d and conv_transpose2d. Convolutions of volumes treat the depth taps as
// channels. Options of volumes have 3 values (depth, height, width), options of signals 1.
#include "autograd/ops.h"

namespace lockstep {

/// Default options of volumes: stride 1, no padding, no dilation.
inline ConvArgs conv_args3() { return {.stride = {1, 1, 1}, .padding = {0, 0, 0}, .dilation = {1, 1, 1}}; }

/// Convolution of volumes: x (N, C, D, H, W), w (K, C / groups, T, R, S), bias (K) or undefined. Returns (N, K, ...).
Variable conv3d(const Variable& x, const Variable& w, const Variable& bias = {}, const ConvArgs& args = conv_args3());
/// Transposed convolution: x (N, C, D, H, W), w (C, K / groups, T, R, S), bias (K) or undefined. Returns (N, K, ...).
Variable conv_transpose3d(const Variable& x, const Variable& w, const Variable& bias = {},
                          const ConvArgs& args = conv_args3(), const Dims& output_padding = {0, 0, 0});
/// Transposed convolution: x (N, C, L), w (C, K / groups, S), bias (K) or undefined. Returns (N, K, ...).
Variable conv_transpose1d(const Variable& x, const Variable& w, const Variable& bias = {}, int64_t stride = 1,
                          int64_t padding = 0, int64_t output_padding = 0, int64_t dilation = 1, int64_t groups = 1);

}  // namespace lockstep
