#pragma once
// Kernels: one struct of function pointers per device, the whole interface between operations and hardware.
// tensor/cpu/table.cpp fills it for the CPU (the reference), tensor/cuda/table.cpp for CUDA. An operation in ops_*.cpp
// checks its arguments, allocates the results and calls LOCKSTEP_KERNEL(device, x)(...); an empty entry throws
// "[x] no cuda kernel".
//
// Conventions. Kernels trust their arguments: shapes fit and outputs are allocated. Unless an entry states otherwise,
// outputs are row-major, and dtypes are floating and equal. f16 and bf16 are computed in f32 and rounded once.
// Optional tensors are undefined Tensors. Letters: B batch, T tokens, C channels, H heads, D head size, N images.
#include "tensor/kernel_args.h"
#include "tensor/observer.h"
#include "tensor/tensor.h"

namespace lockstep {

/// The entries, documented in operations.def.
struct Kernels {
#define LOCKSTEP_ENTRY(name, result, parameters) result(*name) parameters;
#include "tensor/operations.def"
};

extern const Kernels cpu_kernels;

/// The table of a device. Also selects the device, so that this thread's next kernels run on it. Error if this build
/// does not support the device, or if a graph is being recorded and the device is the CPU.
const Kernels& table(Device device);

/// LOCKSTEP_KERNEL(device, softmax)(...) calls the device's kernel, or throws if the entry is empty. The observer
/// (observer.h) sees `name` until the end of the statement.
// fail_no_kernel() throws "[name] no cuda kernel" (or cpu).
[[noreturn]] void fail_no_kernel(const char* name, Device device);
#define LOCKSTEP_KERNEL_AS(device, entry, name)                         \
  (::lockstep::KernelScope(name), ::lockstep::table(device).entry       \
                                      ? ::lockstep::table(device).entry \
                                      : (::lockstep::fail_no_kernel(#entry, device), nullptr))
#define LOCKSTEP_KERNEL(device, entry) LOCKSTEP_KERNEL_AS(device, entry, #entry)

}  // namespace lockstep
