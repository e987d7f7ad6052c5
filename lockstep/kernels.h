#pragma once
// For operations of your own: Op (tensor/op.h) and what kernels and their derivatives are made of. A kernel is an
// ordinary function; extensions/spectral/ is an example for the CPU.
//
// Programs that only use tensors need lockstep.h alone.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // vectors that are wider than the registers of a program without -march
#include "autograd/loss_common.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "optim/step_batch.h"
#include "tensor/backend.h"
#include "tensor/cpu/gemm_tile.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"
#include "tensor/cpu/registers.h"
#include "tensor/cpu/split_vector.h"
#ifdef LOCKSTEP_WITH_CUDA
#include "tensor/cuda/runtime.h"
#endif
#include "tensor/cuda/reduce_shape.h"
#include "tensor/flops.h"
#include "tensor/kernels.h"
#include "tensor/layout.h"
#include "tensor/math.h"
#include "tensor/math_gamma.h"
#include "tensor/op.h"
#include "tensor/ops_common.h"
#include "tensor/random_math.h"
#pragma GCC diagnostic pop
