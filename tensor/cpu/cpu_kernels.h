#pragma once
// The CPU kernels, one function for each entry of Kernels, in namespace lockstep::on_cpu. Families: pointwise, copy,
// random, reduce, sort, matmul, conv, pool, norm, loss, index, attention, optim.
#include <type_traits>

#include "tensor/kernels.h"

namespace lockstep::on_cpu {

// Each has the type of its entry.
#define LOCKSTEP_DECLARE(name) std::remove_pointer_t<decltype(Kernels::name)> name;
LOCKSTEP_KERNELS(LOCKSTEP_DECLARE)
#undef LOCKSTEP_DECLARE

}  // namespace lockstep::on_cpu
