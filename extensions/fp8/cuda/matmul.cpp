// Products of 8-bit floats by cuBLASLt: out = a b^T + bias. Each operand has a scale in device memory.
// The library is column-major and computes out^T = b a^T, so we pass b as its operand A, transposed, and a as its
// operand B. This is the only form that Hopper supports. "Fast accumulation" is off, for more accurate sums.
#include <algorithm>
#include <array>
#include <tuple>

#include "extensions/fp8/kernels.h"
#include "tensor/cuda/cublaslt.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"

namespace lockstep::on_cuda {

using namespace blas;

namespace {

/// Everything that the choice of an algorithm depends on. The plans (descriptors and algorithm) are kept by this key.
struct Fp8Problem {
  int64_t device, result, m, n, k;
  bool a_is_e5m2, b_is_e5m2;
  int64_t align_a, align_b, align_out, align_bias;  // align_bias 0: no bias is fused
  auto operator<=>(const Fp8Problem&) const = default;
};

/// The alignment in bytes of the addresses of scales. Plans are made for this alignment, and the library refuses a call
/// with a scale at another address.
constexpr uintptr_t scale_place = 16;
/// Returns the scale, or a copy if its address is not a multiple of 16. The scales of nn::Fp8Scaling need no copy.
Tensor placed(const Tensor& scale) {
  return reinterpret_cast<uintptr_t>(scale.raw_data()) % scale_place == 0 ? scale : scale.clone();
}

/// Makes the descriptors of a product.
Product describe_fp8(const Fp8Problem& p) {
  const auto type = [](bool is_e5m2) { return is_e5m2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3; };
  Product plan;
  cublasLtMatmulDesc_t made = nullptr;
  check_blas("cublasLtMatmulDescCreate", cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  plan.description.reset(made);
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, int32_t(CUBLAS_OP_T));
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, int32_t(CUBLAS_OP_N));
  set(plan.description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(0));
  set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE,
      uint32_t(p.align_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT));
  // These are not real addresses: here the library looks only at their alignment.
  for (const auto scale : {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER})
    set(plan.description, scale, reinterpret_cast<const void*>(scale_place));
  if (p.align_bias) {
    set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(type_of(DType(p.result))));
    set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(p.align_bias));
  }
  plan.a = layout(type(p.b_is_e5m2), p.k, p.n, p.k);
  plan.b = layout(type(p.a_is_e5m2), p.k, p.m, p.k);
  plan.c = layout(type_of(DType(p.result)), p.n, p.m, p.n);
  std::ranges::copy(std::array{p.align_b, p.align_a, p.align_out, p.align_out}, plan.align);
  return plan;
}

/// True if the device can multiply 8-bit floats (compute capability 8.9 or later).
bool is_new_enough() { return std::tuple(cuda::limits().major, cuda::limits().minor) >= std::tuple(8, 9); }

}  // namespace

bool matmul_fp8(const Tensor& a, Fp8Format a_format, const Tensor& a_scale, const Tensor& b, Fp8Format b_format,
                const Tensor& b_scale, const Tensor& bias, Tensor& out) {
  const int64_t m = out.size(0), n = out.size(1), k = a.size(1);
  if (!is_new_enough() || m % 16 != 0 || n % 16 != 0 || k % 16 != 0) return false;
  const bool a_is_e5m2 = a_format == Fp8Format::e5m2, b_is_e5m2 = b_format == Fp8Format::e5m2;
  if (a_is_e5m2 && b_is_e5m2) return false;
  const auto align = [](const Tensor& x) { return alignment(reinterpret_cast<uint64_t>(x.raw_data())); };
  const bool fuses = bias.defined() && out.dtype() != f32;  // the library's fused biases have 16 bits
  const Fp8Problem problem{
      cuda::current_device(), int64_t(out.dtype()), m, n, k, a_is_e5m2, b_is_e5m2, align(a), align(b), align(out),
      fuses ? align(bias) : 0};
  if (problem.align_a < 16 || problem.align_b < 16 || problem.align_out < 16) return false;
  const Product* const plan = plan_for(problem, describe_fp8);
  if (!plan) return false;
  const Tensor scale_a = placed(a_scale), scale_b = placed(b_scale);
  set(plan->description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(scale_b.raw_data()));
  set(plan->description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(scale_a.raw_data()));
  if (fuses) set(plan->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.raw_data()));
  const float alpha = 1, beta = 0;
  if (!run_first(*plan, [&](const Algorithm& with, void* workspace) {
        return cublasLtMatmul(handle(), plan->description.get(), &alpha, b.raw_data(), plan->a.get(), a.raw_data(),
                              plan->b.get(), &beta, out.raw_data(), plan->c.get(), out.raw_data(), plan->c.get(),
                              &with.algorithm, workspace, with.workspace, cuda::current_stream());
      }))
    return false;
  if (bias.defined() && !fuses) {
    const Tensor* const in[] = {&out, &bias};
    kernels::pointwise(out.device(), PointwiseOp::add, PointwisePart::value, {}, in, 2, out);
  }
  return true;
}

}  // namespace lockstep::on_cuda
