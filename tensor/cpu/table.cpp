// The CPU's table of kernels: the reference for every other device.
#include "tensor/cpu/cpu_kernels.h"

namespace lockstep {

#define LOCKSTEP_ENTRY(name) .name = on_cpu::name,
const Kernels cpu_kernels{LOCKSTEP_KERNELS(LOCKSTEP_ENTRY)};
#undef LOCKSTEP_ENTRY

}  // namespace lockstep
