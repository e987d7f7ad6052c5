#pragma once
// The devices of the tests in this folder. Ranks of NCCL's tests have device_of() of nccl_util.h.
#include "tensor/tensor.h"

/// The device under test, and another one.
inline constexpr lockstep::Device cuda0{lockstep::Device::Type::cuda, 0}, cuda1{lockstep::Device::Type::cuda, 1};
/// For f32 on the device under test.
inline const lockstep::TensorOptions there{.dtype = lockstep::f32, .device = cuda0};
