#pragma once
// LOCKSTEP_HD marks functions that run on the CPU and in CUDA kernels alike.
#if defined(__CUDACC__)
#define LOCKSTEP_HD __host__ __device__
#else
#define LOCKSTEP_HD
#endif
