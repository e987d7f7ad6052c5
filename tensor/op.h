#pragma once
// Op: an operation's kernels, one for each kind of device. An Op is a constant, and nothing is registered. So an
// operation that a user adds is called in the same way as Lockstep's own.
//
//   using Scale = void(const Tensor& x, double factor, Tensor& out);
//   namespace on_cpu { Scale scale; }
//   namespace on_cuda { Scale scale; }
//   constinit const Op<Scale> scale_op{"scale", on_cpu::scale, LOCKSTEP_ON_CUDA(on_cuda::scale)};
//   ...
//   scale_op(x.device(), x, 2, out);
//
// Kernels trust their arguments: the caller checks them and allocates the outputs.
#include <initializer_list>
#include <type_traits>
#include <typeinfo>

#include "tensor/device.h"
#include "tensor/observer.h"

namespace lockstep {

/// A CUDA kernel for an Op; nullptr if this is compiled without CUDA.
#ifdef LOCKSTEP_WITH_CUDA
#define LOCKSTEP_ON_CUDA(kernel) kernel
#else
#define LOCKSTEP_ON_CUDA(kernel) nullptr
#endif

/// An argument of a kernel call that is recorded instead of run (dry_run.h).
struct KernelArgument {
  const void* value;
  const std::type_info* type;
  bool is_written;  ///< true if the kernel takes it by a reference that is not const
  /// The argument if it has type T, else nullptr.
  template <class T> const T* as() const { return *type == typeid(T) ? static_cast<const T*>(value) : nullptr; }
};
/// Records a call of an operation's kernel.
using KernelRecorder = void (*)(const char* op, std::initializer_list<KernelArgument> arguments);

/// Makes `device` the one on which this thread's next kernels run. Returns the function to call instead of the kernel;
/// nullptr: call the kernel. Error if this build does not support the device, or if a graph is being recorded and the
/// device is another one.
KernelRecorder select_for_kernel(Device device);
/// Throws "[op] no cuda kernel" (or cpu).
[[noreturn]] void fail_no_kernel(const char* op, Device device);

/// An operation; Function is the signature of its kernels.
template <class Function> struct Op;
/// The kernels of an operation, by kind of device; nullptr: none.
template <class Result, class... Arguments> struct Op<Result(Arguments...)> {
  /// A kernel of this operation.
  using Kernel = Result (*)(Arguments...);
  const char* name;
  Kernel cpu, cuda;

  /// True if there is a kernel for the device, or if calls for this device are recorded instead of run.
  bool runs_on(Device device) const { return on(device) || select_for_kernel(device); }
  /// Runs the device's kernel, or throws if there is none. The observer (observer.h) sees `name` while it runs.
  Result operator()(Device device, Arguments... arguments) const {
    return as(name, device, static_cast<Arguments&&>(arguments)...);
  }
  /// Does the same, but the observer sees `label` instead of `name`. (One kernel may compute several operations.)
  Result as(const char* label, Device device, Arguments... arguments) const {
    const KernelScope scope(label);
    if (const KernelRecorder record = select_for_kernel(device)) [[unlikely]] {
      record(name, {KernelArgument{&arguments, &typeid(Arguments),
                                   std::is_lvalue_reference_v<Arguments> &&
                                       !std::is_const_v<std::remove_reference_t<Arguments>>}...});
      if constexpr (std::is_void_v<Result>) return;
      else return Result(true);  // a recorded kernel reports success
    }
    const Kernel kernel = on(device);
    if (!kernel) fail_no_kernel(name, device);
    return kernel(static_cast<Arguments&&>(arguments)...);
  }

 private:
  Kernel on(Device device) const { return device.is_cpu() ? cpu : cuda; }
};

}  // namespace lockstep
