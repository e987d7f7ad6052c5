#pragma once
// Handles and descriptors of cuBLASLt, for the files that use it. Internal to the CUDA backend.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tensor/cuda/runtime.h"
#include "tensor/cuda/streams.h"

namespace lockstep::on_cuda::blas {

/// Deletes a handle of cuBLASLt.
template <class Handle, auto destroy> struct Destroy {
  void operator()(Handle handle) const { destroy(handle); }
};
/// A handle that is destroyed with its owner.
template <class Handle, auto destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<Handle, destroy>>;
/// A product: its operation, transposes, epilogue and scales.
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
/// A matrix: its dtype, sizes and strides.
using MatrixLayout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
/// Limits for the choice of an algorithm, such as its workspace.
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

/// Throws unless the status is success; `what` is the name of the call.
inline void check_blas(const char* what, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  cuda::check("matmul", cudaPeekAtLastError());  // a CUDA error, if there is one, says more
  fail(str("[matmul] ", what, ": ", cublasLtGetStatusName(status), " (", cublasLtGetStatusString(status),
           "); free device memory, or multiply on cpu"));
}

/// The handle of the current device. Any number of threads may use it; it lives as long as the process.
inline cublasLtHandle_t handle() {
  struct Once {
    std::once_flag flag;
    cublasLtHandle_t handle = nullptr;
  };
  static auto& handles = *new std::array<Once, cuda::max_devices>;
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

/// A product with its descriptors.
struct Product {
  Description description;
  MatrixLayout a, b, c;
  int64_t align[4] = {256, 256, 256, 256};                      ///< alignment of the library's A, B, C, D, in bytes
  std::vector<Algorithm> algorithms;                            ///< algorithms that compute it, the best first
  const Algorithm& best() const { return algorithms.front(); }  ///< the fastest that fits
};

/// The most workspace that a product may take, in bytes: NVIDIA's recommendation.
inline size_t max_workspace() { return cuda::limits().major >= 9 ? 32 << 20 : 4 << 20; }

/// The number of parts into which the algorithm cuts each sum; 1: it sums in one sequence.
inline int32_t parts_of_sum(const cublasLtMatmulAlgo_t& algorithm) {
  int32_t parts = 0;
  size_t written = 0;
  check_blas("cublasLtMatmulAlgoConfigGetAttribute",
             cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof parts,
                                                  &written));
  return std::max(parts, 1);
}

/// Returns the algorithms that cuBLASLt proposes for the product and reports as usable; none if it does not support the
/// product. `in_parts`: a sum may be cut into parts, which are added in f32 in a fixed order.
inline std::vector<Algorithm> choose_algorithms(const Product& plan, bool in_parts = true) {
  cublasLtMatmulPreference_t made = nullptr;
  check_blas("cublasLtMatmulPreferenceCreate", cublasLtMatmulPreferenceCreate(&made));
  const Preference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, max_workspace());
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t(in_parts ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE));
  constexpr cublasLtMatmulPreferenceAttributes_t alignments[] = {
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
      CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  for (int i = 0; i < 4; ++i) set(preference, alignments[i], uint32_t(plan.align[i]));
  std::array<cublasLtMatmulHeuristicResult_t, 8> found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle(), plan.description.get(), plan.a.get(), plan.b.get(), plan.c.get(),
                                     plan.c.get(), preference.get(), int(found.size()), found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check_blas("cublasLtMatmulAlgoGetHeuristic", status);
  std::vector<Algorithm> usable;
  for (const auto& candidate : std::span(found).first(size_t(count)))
    if (candidate.state == CUBLAS_STATUS_SUCCESS && (in_parts || parts_of_sum(candidate.algo) == 1))
      usable.push_back({candidate.algo, candidate.workspaceSize});
  return usable;
}

/// Returns the algorithm with the workspace that this product needs; nothing if the algorithm cannot compute it.
inline std::vector<Algorithm> check_algorithm(const Product& plan, const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t found{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle(), plan.description.get(), plan.a.get(), plan.b.get(),
                                                        plan.c.get(), plan.c.get(), &algorithm, &found);
  if (status != CUBLAS_STATUS_SUCCESS || found.workspaceSize > max_workspace()) return {};
  return {{algorithm, found.workspaceSize}};
}

/// Tries the product's algorithms in order until the library accepts one. False if it refuses all, which may happen
/// even after it has proposed or checked them. `run(algorithm, workspace)` calls cublasLtMatmul().
template <class Run> bool run_first(const Product& plan, const Run& run) {
  for (const Algorithm& with : plan.algorithms) {
    const cuda::Scratch workspace(with.workspace);
    const cublasStatus_t status = run(with, workspace.as<void>());
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) continue;
    check_blas("cublasLtMatmul", status);
    return true;
  }
  return false;
}

/// Caches the library's algorithms for each problem, for all threads of the process.
template <class Problem> class Answers {
 public:
  /// The algorithms for a problem. `ask` finds them on first use; meanwhile other threads wait.
  template <class Ask> std::vector<Algorithm> get(const Problem& problem, const Ask& ask) {
    const std::lock_guard lock(mutex_);
    if (const auto known = answers_.find(problem); known != answers_.end()) return known->second;
    if (answers_.size() >= 4096) answers_.clear();  // most likely shapes that never recur
    return answers_.emplace(problem, ask()).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<Problem, std::vector<Algorithm>> answers_;
};

/// Returns the plan for a problem; nullptr if there is no algorithm. `describe(problem)` makes its descriptors once for
/// each thread: threads cannot share them, because a running plan holds pointers. `ask(plan)` finds its algorithms once
/// for the process.
template <class Problem, class Describe, class Ask>
const Product* plan_for(const Problem& problem, const Describe& describe, const Ask& ask) {
  static Answers<Problem>& answers = *new Answers<Problem>;  // leaked: outlives all threads
  thread_local std::map<Problem, Product> plans;
  auto known = plans.find(problem);
  if (known == plans.end()) {
    if (plans.size() >= 1024) plans.clear();
    Product plan = describe(problem);
    plan.algorithms = answers.get(problem, [&] { return ask(plan); });
    known = plans.emplace(problem, std::move(plan)).first;
  }
  return known->second.algorithms.empty() ? nullptr : &known->second;
}
/// The plan with the algorithms that cuBLASLt chooses for this very problem.
template <class Problem, class Describe> const Product* plan_for(const Problem& problem, const Describe& describe) {
  return plan_for(problem, describe, [](const Product& plan) { return choose_algorithms(plan); });
}

}  // namespace lockstep::on_cuda::blas
