// The kernels of the core's operations, and what each call of a kernel does first (op.h).
#include "tensor/kernels.h"

#include "tensor/backend.h"
#include "tensor/graph.h"

namespace lockstep {

namespace kernels {
#define LOCKSTEP_KERNEL(name, result, parameters) \
  constinit const Op<result parameters> name{#name, on_cpu::name, LOCKSTEP_ON_CUDA(on_cuda::name)};
#include "tensor/operations.def"
}  // namespace kernels

KernelRecorder select_for_kernel(Device device) {
  if (device.is_cpu()) [[likely]] {
    Graph::check_recording(device);
    return nullptr;
  }
  const Backend* other = backend(device);
  LOCKSTEP_CHECK(other, "[device] this build has no cuda backend, got a tensor on ", device,
                 " (configure it with -Dcuda=enabled)");
  other->select(device.index);
  return other->recorder;
}

void fail_no_kernel(const char* op, Device device) {
  fail(str("[", op, "] no ", device.is_cpu() ? "cpu" : "cuda",
           " kernel; move the tensors to a device of the other kind (cpu or cuda)"));
}

}  // namespace lockstep
