#pragma once
// The kernel that resamples planes. CPU only; resample.cpp composes it from other operations for other devices.
#include <vector>

#include "tensor/op.h"
#include "tensor/tensor.h"

namespace lockstep {

/// Resampling of one dim from `in` to `out` elements: element i is the sum over k < taps of
/// weight[k * out + i] * x[first[i] + k]; elements of weight 0 are not read. Empty lists mean the identity.
struct ResampleAxis {
  int64_t in = 1, out = 1, taps = 1;
  std::vector<int32_t> first = {};
  std::vector<double> weight = {};
  bool is_same() const { return first.empty(); }  ///< true for the identity
};

/// Resamples dims H and W of x (units, H, W, C) to P and Q of out (units, P, Q, C); f32 or f64.
using Resample = void(const Tensor& x, const ResampleAxis& rows, const ResampleAxis& columns, Tensor& out);

namespace on_cpu {
/// Resamples planes on the CPU.
Resample resample;
}  // namespace on_cpu

}  // namespace lockstep
