#pragma once
// Values that several suites of collectives use.
#include <vector>

#include "dist/collective.h"
#include "tensor/tensor.h"

namespace testing {

constexpr lockstep::DType all_dtypes[] = {lockstep::f32, lockstep::f64, lockstep::f16, lockstep::bf16,   lockstep::i64,
                                          lockstep::i32, lockstep::i8,  lockstep::u8,  lockstep::boolean};
constexpr lockstep::dist::ReduceOp all_ops[] = {lockstep::dist::ReduceOp::sum, lockstep::dist::ReduceOp::mean,
                                                lockstep::dist::ReduceOp::product, lockstep::dist::ReduceOp::min,
                                                lockstep::dist::ReduceOp::max};

inline lockstep::Tensor ones_of(int64_t n, lockstep::DType dtype = lockstep::f32) {
  return lockstep::Tensor::from(std::vector<float>(size_t(n), 1.f), {n}).to(dtype);
}

}  // namespace testing
