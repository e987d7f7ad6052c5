#pragma once
// 3-d and transposed convolutions, composed of conv2d and conv_transpose2d. Options of a 3-d convolution have three
// values: for depth, height and width. Below, (T, R, S) is the kernel's depth, height and width.
#include "autograd/ops.h"

namespace lockstep {

/// Default options of a 3-d convolution: stride 1, no padding, no dilation.
inline ConvArgs conv_args3() { return {.stride = {1, 1, 1}, .padding = {0, 0, 0}, .dilation = {1, 1, 1}}; }

/// 3-d convolution: x (N, C, D, H, W), kernel w (K, C / groups, T, R, S), bias (K) or undefined. Returns (N, K, ...).
Variable conv3d(const Variable& x, const Variable& w, const Variable& bias = {}, const ConvArgs& args = conv_args3());
/// Transposed conv3d: x (N, C, D, H, W), kernel w (C, K / groups, T, R, S), bias (K) or undefined. Returns (N, K, ...).
Variable conv_transpose3d(const Variable& x, const Variable& w, const Variable& bias = {},
                          const ConvArgs& args = conv_args3(), const Dims& output_padding = {0, 0, 0});
/// Transposed 1-d convolution: x (N, C, length), kernel w (C, K / groups, kernel length), bias (K) or undefined.
Variable conv_transpose1d(const Variable& x, const Variable& w, const Variable& bias = {}, int64_t stride = 1,
                          int64_t padding = 0, int64_t output_padding = 0, int64_t dilation = 1, int64_t groups = 1);

}  // namespace lockstep
