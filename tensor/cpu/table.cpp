// The CPU's table of kernels: the reference for every other device.
#include "tensor/cpu/cpu_kernels.h"

namespace lockstep {

const Kernels cpu_kernels{
#define LOCKSTEP_ENTRY(name, result, parameters) .name = on_cpu::name,
#include "tensor/operations.def"
};

}  // namespace lockstep
