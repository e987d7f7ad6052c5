// table(): finds the kernels of a device.
#include "tensor/kernels.h"

#include "tensor/backend.h"
#include "tensor/graph.h"

namespace lockstep {

const Kernels& table(Device device) {
  if (device.is_cpu()) [[likely]] {
    Graph::check_recording(device);
    return cpu_kernels;
  }
  const Backend* other = backend(device);
  LOCKSTEP_CHECK(other, "[device] this build has no cuda backend, got a tensor on ", device,
                 " (configure it with -Dcuda=enabled)");
  other->select(device.index);
  return *other->kernels;
}

void fail_no_kernel(const char* name, Device device) {
  fail(str("[", name, "] no ", device.is_cpu() ? "cpu" : "cuda",
           " kernel; move the tensors to a device of the other kind (cpu or cuda)"));
}

}  // namespace lockstep
