// A stub of the CUDA driver, for cuDNN without a device: engines that compile their kernels also load them. Here
// loading always succeeds, and there is no device. The stub has libcuda's soname, so cuDNN finds the stub if that was
// loaded first.
extern "C" {

#define LOCKSTEP_SUCCEEDS(name) \
  int name() { return 0; }
#define LOCKSTEP_HAS_NO_DEVICE(name) \
  int name() { return 100; }

int cuLibraryGetKernel(void** kernel, void*, const char*) {
  static int some;
  *kernel = &some;
  return 0;
}
LOCKSTEP_SUCCEEDS(cuLibraryLoadData)
LOCKSTEP_SUCCEEDS(cuLibraryUnload)
LOCKSTEP_SUCCEEDS(cuKernelGetAttribute)
LOCKSTEP_SUCCEEDS(cuKernelGetFunction)
LOCKSTEP_SUCCEEDS(cuKernelSetAttribute)
LOCKSTEP_SUCCEEDS(cuOccupancyMaxActiveBlocksPerMultiprocessor)
LOCKSTEP_SUCCEEDS(cuOccupancyMaxPotentialClusterSize)

// Symbols that cuDNN looks up but does not call.
LOCKSTEP_HAS_NO_DEVICE(cuCtxGetCurrent)
LOCKSTEP_HAS_NO_DEVICE(cuCtxGetDevice)
LOCKSTEP_HAS_NO_DEVICE(cuCtxGetLimit)
LOCKSTEP_HAS_NO_DEVICE(cuCtxPopCurrent)
LOCKSTEP_HAS_NO_DEVICE(cuCtxPushCurrent)
LOCKSTEP_HAS_NO_DEVICE(cuDeviceGet)
LOCKSTEP_HAS_NO_DEVICE(cuDeviceGetAttribute)
LOCKSTEP_HAS_NO_DEVICE(cuDeviceGetCount)
LOCKSTEP_HAS_NO_DEVICE(cuDevicePrimaryCtxRelease)
LOCKSTEP_HAS_NO_DEVICE(cuDevicePrimaryCtxReset)
LOCKSTEP_HAS_NO_DEVICE(cuDevicePrimaryCtxRetain)
LOCKSTEP_HAS_NO_DEVICE(cuDriverGetVersion)
LOCKSTEP_HAS_NO_DEVICE(cuFuncGetAttribute)
LOCKSTEP_HAS_NO_DEVICE(cuFuncSetAttribute)
LOCKSTEP_HAS_NO_DEVICE(cuGetErrorName)
LOCKSTEP_HAS_NO_DEVICE(cuGetErrorString)
LOCKSTEP_HAS_NO_DEVICE(cuInit)
LOCKSTEP_HAS_NO_DEVICE(cuLaunchCooperativeKernel)
LOCKSTEP_HAS_NO_DEVICE(cuLaunchKernel)
LOCKSTEP_HAS_NO_DEVICE(cuLaunchKernelEx)
LOCKSTEP_HAS_NO_DEVICE(cuLibraryLoadFromFile)
LOCKSTEP_HAS_NO_DEVICE(cuLinkAddData)
LOCKSTEP_HAS_NO_DEVICE(cuLinkAddData_v2)
LOCKSTEP_HAS_NO_DEVICE(cuLinkAddFile_v2)
LOCKSTEP_HAS_NO_DEVICE(cuLinkComplete)
LOCKSTEP_HAS_NO_DEVICE(cuLinkCreate)
LOCKSTEP_HAS_NO_DEVICE(cuLinkCreate_v2)
LOCKSTEP_HAS_NO_DEVICE(cuLinkDestroy)
LOCKSTEP_HAS_NO_DEVICE(cuMemcpyDtoH_v2)
LOCKSTEP_HAS_NO_DEVICE(cuModuleGetFunction)
LOCKSTEP_HAS_NO_DEVICE(cuModuleGetGlobal_v2)
LOCKSTEP_HAS_NO_DEVICE(cuModuleLoadData)
LOCKSTEP_HAS_NO_DEVICE(cuModuleLoadDataEx)
LOCKSTEP_HAS_NO_DEVICE(cuModuleLoadFatBinary)
LOCKSTEP_HAS_NO_DEVICE(cuModuleUnload)
LOCKSTEP_HAS_NO_DEVICE(cuStreamGetCtx)
LOCKSTEP_HAS_NO_DEVICE(cuStreamSynchronize)
LOCKSTEP_HAS_NO_DEVICE(cuTensorMapEncodeTiled)
}
