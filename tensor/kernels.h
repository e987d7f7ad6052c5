#pragma once
// One struct of function pointers per device: the whole surface between operations and hardware. tensor/cpu/table.cpp
// fills it for the CPU (the reference), tensor/cuda/table.cpp for CUDA. An operation in ops_*.cpp checks its arguments,
// allocates the results and calls kernels(device).x(...); an empty entry throws "[x] no cuda kernel".
//
// Kernels trust their arguments: shapes fit, outputs are allocated and row-major unless said otherwise, dtypes are
// floating and equal unless said otherwise. f16 and bf16 are computed in f32 and rounded once.
// Optional tensors are undefined Tensors. Letters: B batch, T tokens, C channels, H heads, D head size, N images.
#include "tensor/kernel_args.h"
#include "tensor/observer.h"
#include "tensor/tensor.h"

namespace lockstep {

struct Kernels {
#define LOCKSTEP_ENTRY(name, result, parameters) result(*name) parameters;
#include "tensor/operations.def"
};

extern const Kernels cpu_kernels;

/// The table of a device, which this thread's next kernels then run on. Error when this build has no such device.
const Kernels& table(Device device);

/// kernels(device).x with a check that the entry exists, under `name` for the observer until the end of the statement:
/// call LOCKSTEP_KERNEL(device, softmax)(...).
[[noreturn]] void fail_no_kernel(const char* name, Device device);
#define LOCKSTEP_KERNEL_AS(device, entry, name)                         \
  (::lockstep::KernelScope(name), ::lockstep::table(device).entry       \
                                      ? ::lockstep::table(device).entry \
                                      : (::lockstep::fail_no_kernel(#entry, device), nullptr))
#define LOCKSTEP_KERNEL(device, entry) LOCKSTEP_KERNEL_AS(device, entry, #entry)

}  // namespace lockstep
