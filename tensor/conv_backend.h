#pragma once
// Libraries that compute convolutions in place of the kernels of tensor/cpu/conv.cpp and tensor/cuda/conv.cu.
//
// Extensions add them: an extension's meson.build sets `conv_backends = ['NAME']`, and one of its sources defines
// std::vector<ConvBackend> lockstep::NAME(). meson generates the list, from the extensions that are built
// (lockstep/list.cpp.in). If several libraries are for one type of device, they are asked in the order of the table
// `extensions` in meson.build.
#include <string>
#include <utility>
#include <vector>

#include "tensor/kernels.h"

namespace lockstep {

/// A library that computes convolutions on one type of device. Its functions take what conv2d, conv2d_grad_input and
/// conv2d_grad_weight of kernels:: take. Operands may be empty. On the CPU, f16 and bf16 arrive as f32. A function
/// returns false if the library does not support the call. Then it has written nothing, and the built-in kernel
/// computes the result.
struct ConvBackend {
  Device::Type device;  ///< whose tensors it takes
  /// Writes the convolution of x and w, plus the bias if it is defined, to out.
  bool (*forward)(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args, Tensor& out);
  /// Writes the gradient of the input to grad_x.
  bool (*grad_input)(const Tensor& grad, const Tensor& w, const ConvArgs& args, Tensor& grad_x);
  /// Writes grad_w, and grad_bias if it is defined. On CUDA it never is: a built-in kernel computes it.
  bool (*grad_weight)(const Tensor& grad, const Tensor& x, const ConvArgs& args, Tensor& grad_w, Tensor& grad_bias);
  /// What `lockstep env` prints of the library: names with their values, such as {"oneDNN", "2.6.0"}.
  std::vector<std::pair<std::string, std::string>> (*facts)();
};

/// The libraries of the extensions that are built.
const std::vector<ConvBackend>& conv_backends();

/// True if a library for the device computed the call, such as
/// by_library(x.device(), &ConvBackend::forward, x, w, bias, args, out).
template <class Function, class... Args> bool by_library(Device device, Function function, Args&&... args) {
  for (const ConvBackend& library : conv_backends())
    if (library.device == device.type && (library.*function)(args...)) return true;
  return false;
}

}  // namespace lockstep
