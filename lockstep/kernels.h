#pragma once
// For operations of your own: Op (tensor/op.h) and the tools for kernels and their derivatives. A kernel is an
// ordinary function; extensions/spectral/ is an example for the CPU.
//
// Programs that only use tensors need lockstep.h alone.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // warns of vectors wider than the registers of a program without -march
#include "autograd/gradcheck.h"
#include "autograd/loss_common.h"
#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "optim/cpu/step_lanes.h"
#include "optim/cpu/step_update.h"
#include "optim/step_batch.h"
#include "tensor/backend.h"
#include "tensor/block_layout.h"
#include "tensor/complex.h"
#include "tensor/conv_backend.h"
#include "tensor/convert.h"
#include "tensor/cpu/gemm_tile.h"
#include "tensor/cpu/images.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/parallel.h"
#include "tensor/cpu/registers.h"
#include "tensor/cpu/split_vector.h"
#ifdef LOCKSTEP_WITH_CUDA
#include "tensor/cuda/cublaslt.h"
#include "tensor/cuda/runtime.h"
#endif
#ifdef __CUDACC__
#include "optim/cuda/step_update.h"
#include "tensor/cuda/chunks.h"
#include "tensor/cuda/element.h"
#include "tensor/cuda/images.h"
#include "tensor/cuda/simt.h"
#include "tensor/cuda/warp.h"
#endif
#include "tensor/cuda/reduce_shape.h"
#include "tensor/flops.h"
#include "tensor/kernels.h"
#include "tensor/layout.h"
#include "tensor/lines.h"
#include "tensor/math.h"
#include "tensor/math_gamma.h"
#include "tensor/op.h"
#include "tensor/ops_common.h"
#include "tensor/padded.h"
#include "tensor/random_math.h"
#include "tensor/stored_matrix.h"
#pragma GCC diagnostic pop
