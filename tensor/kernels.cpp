// Finds the table of kernels of a device.
#include "tensor/kernels.h"

namespace lockstep {

const Kernels& table(Device device) {
  LOCKSTEP_CHECK(device.is_cpu(), "[device] this build has no cuda backend, got a tensor on ", device);
  return cpu_kernels;
}

void fail_no_kernel(const char* name, Device device) {
  fail(str("[", name, "] no ", device.is_cpu() ? "cpu" : "cuda", " kernel"));
}

}  // namespace lockstep
