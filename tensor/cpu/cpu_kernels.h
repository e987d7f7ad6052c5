#pragma once
// The CPU kernels: one function per entry of Kernels, in namespace lockstep::on_cpu. Families: pointwise, copy, random,
// reduce, sort, fft, matmul, conv, pool, norm, loss, index, attention, optim.
#include "tensor/kernels.h"

namespace lockstep::on_cpu {

#define LOCKSTEP_ENTRY(name, result, parameters) result name parameters;
#include "tensor/operations.def"

}  // namespace lockstep::on_cpu
