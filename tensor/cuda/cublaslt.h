#pragma once
// Handles and descriptors of cuBLASLt, for the files that use it. Internal to the CUDA backend.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <vector>

#include "tensor/check.h"
#include "tensor/cuda/runtime.h"
#include "tensor/cuda/streams.h"

namespace lockstep::on_cuda::blas {

/// A deleter for handles of cuBLASLt; Owned is a unique_ptr with it.
template <class Handle, auto destroy> struct Destroy {
  void operator()(Handle handle) const { destroy(handle); }
};
template <class Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, destroy>>;
/// cuBLASLt's descriptors of a product and of a matrix, and its preferences for choosing an algorithm.
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using MatrixLayout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// Throws unless the status is success; `what` is the name of the call.
inline void check_blas(const char* what, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  cuda::check("matmul", cudaPeekAtLastError());  // a CUDA error, if there is one, says more
  fail(str("[matmul] ", what, ": ", cublasLtGetStatusName(status), " (", cublasLtGetStatusString(status), ")"));
}

/// The handle of the current device. Any number of threads may use it; it lives as long as the process.
inline cublasLtHandle_t handle() {
  struct Once {
    std::once_flag flag;
    cublasLtHandle_t handle = nullptr;
  };
  static auto& handles = *new std::array<Once, cuda::most_devices>;
  Once& mine = handles[size_t(cuda::current_device())];
  std::call_once(mine.flag, [&] { check_blas("cublasLtCreate", cublasLtCreate(&mine.handle)); });
  return mine.handle;
}

/// CUDA's name of a floating dtype.
inline cudaDataType_t type_of(DType dtype) {
  return dtype == f64 ? CUDA_R_64F : dtype == f32 ? CUDA_R_32F : dtype == f16 ? CUDA_R_16F : CUDA_R_16BF;
}

/// The largest power of two, up to 256, that divides `bytes`.
inline int64_t alignment(uint64_t bytes) { return bytes == 0 ? 256 : int64_t(std::min<uint64_t>(256, bytes & -bytes)); }

/// Sets an attribute.
template <class T> void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check_blas("cublasLtMatmulDescSetAttribute",
             cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value));
}
template <class T> void set(const MatrixLayout& layout, cublasLtMatrixLayoutAttribute_t attribute, const T& value) {
  check_blas("cublasLtMatrixLayoutSetAttribute",
             cublasLtMatrixLayoutSetAttribute(layout.get(), attribute, &value, sizeof value));
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check_blas("cublasLtMatmulPreferenceSetAttribute",
             cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}

/// A column-major matrix, or a batch of them `stride` elements apart; `lead` elements from column to column.
inline MatrixLayout layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t lead, int64_t batch = 1,
                           int64_t stride = 0) {
  cublasLtMatrixLayout_t made = nullptr;
  check_blas("cublasLtMatrixLayoutCreate",
             cublasLtMatrixLayoutCreate(&made, type, uint64_t(rows), uint64_t(columns), lead));
  MatrixLayout result(made);
  if (batch > 1) {
    set(result, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, int32_t(batch));
    set(result, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  }
  return result;
}

/// An answer of cuBLASLt: an algorithm, and the bytes of workspace that it needs.
struct Algorithm {
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace = 0;
};

/// A product with its descriptors and the algorithm that computes it: the first of `algorithms`.
struct Product {
  Description description;
  MatrixLayout a, b, c;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace = 0;
  std::vector<Algorithm> algorithms;
};

/// Asks cuBLASLt for algorithms, and keeps those that can run. The arguments are the alignments, in bytes, of the
/// library's A, B, C and D. False if the library does not support the product.
inline bool choose_algorithm(Product& plan, int64_t align_a, int64_t align_b, int64_t align_c, int64_t align_d) {
  cublasLtMatmulPreference_t made = nullptr;
  check_blas("cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate(&made));
  const Preference preference(made);
  const size_t workspace = cuda::limits().major >= 9 ? 32 << 20 : 4 << 20;  // NVIDIA's recommendation
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(align_a));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(align_b));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(align_c));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(align_d));
  std::array<cublasLtMatmulHeuristicResult_t, 8> found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle(), plan.description.get(), plan.a.get(), plan.b.get(), plan.c.get(),
                                     plan.c.get(), preference.get(), int(found.size()), found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
  check_blas("cublasLtMatmulAlgoGetHeuristic", status);
  for (int i = 0; i < count; ++i)
    if (found[size_t(i)].state == CUBLAS_STATUS_SUCCESS)
      plan.algorithms.push_back({found[size_t(i)].algo, found[size_t(i)].workspaceSize});
  if (plan.algorithms.empty()) return false;
  plan.algorithm = plan.algorithms[0].algorithm;
  plan.workspace = plan.algorithms[0].workspace;
  return true;
}

/// The plan for a problem, made on first use and kept in `plans`; nullptr if the library does not support the problem.
/// A running plan holds pointers, so each thread has its own plans.
template <class Problem, class Make>
const Product* plan_for(std::map<Problem, std::optional<Product>>& plans, const Problem& problem, const Make& make) {
  const auto known = plans.find(problem);
  if (known != plans.end()) return known->second ? &*known->second : nullptr;
  if (plans.size() >= 1024) plans.clear();  // most likely shapes that never recur
  const auto& added = plans.emplace(problem, make(problem)).first->second;
  return added ? &*added : nullptr;
}

}  // namespace lockstep::on_cuda::blas
