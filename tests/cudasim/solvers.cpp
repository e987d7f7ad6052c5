// A fake of cuSOLVER and cuBLAS: the decompositions that extensions/linear_algebra/cuda/solvers.cpp uses. It checks
// leading dimensions, workspaces, streams, and that pointers belong to the device.
#include <cublas_v2.h>
#include <cusolverDn.h>

#include "tests/cudasim/runtime.h"
#include "tests/cudasim/solver_loops.h"

namespace {

struct SolverHandle {
  cudaStream_t stream = nullptr;
  int device = fake::current_device();
};
enum class Answer { fine, invalid, failed };

}  // namespace

struct cusolverDnContext : SolverHandle {};
struct cublasContext : SolverHandle {};
struct syevjInfo {};
struct gesvdjInfo {};

namespace {

using namespace fake;

cusolverStatus_t solver(Answer answer) {
  constexpr cusolverStatus_t of[] = {CUSOLVER_STATUS_SUCCESS, CUSOLVER_STATUS_INVALID_VALUE,
                                     CUSOLVER_STATUS_EXECUTION_FAILED};
  return of[int(answer)];
}
cublasStatus_t blas(Answer answer) {
  constexpr cublasStatus_t of[] = {CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_EXECUTION_FAILED};
  return of[int(answer)];
}

/// True if all `count` elements are in one allocation of the current device.
template <class T> bool is_array(const T* p, int64_t count) {
  return count >= 0 && device_of(p) == current_device() && reinterpret_cast<uintptr_t>(p) % alignof(T) == 0 &&
         is_inside(p, size_t(count) * sizeof(T));
}
template <class T> bool is_matrix(const T* p, int64_t m, int64_t n, int64_t lead, int64_t batch = 1) {
  return m >= 1 && n >= 1 && batch >= 1 && lead >= m && is_array(p, lead * n * (batch - 1) + lead * (n - 1) + m);
}
/// True for a valid array of pointers to matrices; the pointers themselves are checked by pointed() when used.
template <class T> bool is_batch(T* const* p, int m, int n, int lead, int batch) {
  return m >= 1 && n >= 1 && lead >= m && batch >= 1 && is_array(p, batch);
}
template <class T> T* pointed(T* p) {
  if (device_of(p) < 0 || reinterpret_cast<uintptr_t>(p) % alignof(T) != 0)
    fail_device(cudaErrorIllegalAddress, "a pointer of a batch of matrices does not point to device memory");
  return p;
}

/// Elements of workspace that the fakes require.
int need(int m, int n, int batch = 1) { return (m + 2 * n + 7) * batch; }
cusolverStatus_t answer_size(int* size, int needed, bool valid) {
  *size = needed;
  return solver(valid ? Answer::fine : Answer::invalid);
}
template <class T> bool is_enough(T* work, int size, int needed) { return size >= needed && is_array(work, size); }

template <class Fn> Answer run(const SolverHandle* h, bool valid, Fn fn) {
  if (!valid || !h->stream || h->device != current_device() || !find_stream(h->stream)) return Answer::invalid;
  if (step() != cudaSuccess || launch_failure.next() != cudaSuccess) return Answer::failed;
  enqueue(h->stream, fn);
  return Answer::fine;
}
bool is_upper(cublasFillMode_t fill) { return fill == CUBLAS_FILL_MODE_UPPER; }

}  // namespace

// --- the interface, in both dtypes ---

#define FAKE_SOLVERS(T, S)                                                                                             \
  cusolverStatus_t cusolverDn##S##getrf_bufferSize(cusolverDnHandle_t, int m, int n, T* a, int lead, int* size) {      \
    return answer_size(size, need(m, n), is_matrix(a, m, n, lead));                                                    \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##getrf(cusolverDnHandle_t h, int m, int n, T* a, int lead, T* work, int* pivots,      \
                                        int* info) {                                                                   \
    const bool valid =                                                                                                 \
        m == n && is_matrix(a, m, n, lead) && is_array(work, need(m, n)) && is_array(pivots, n) && is_array(info, 1);  \
    return solver(run(h, valid, [=] { spoil(work, need(m, n)), lu(a, n, lead, pivots, info); }));                      \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##getrs(cusolverDnHandle_t h, cublasOperation_t op, int n, int k, const T* a,          \
                                        int lead, const int* pivots, T* b, int lead_b, int* info) {                    \
    const bool valid = op == CUBLAS_OP_N && is_matrix(a, n, n, lead) && is_matrix(b, n, k, lead_b) &&                  \
                       is_array(pivots, n) && is_array(info, 1);                                                       \
    return solver(run(h, valid, [=] { lu_solve(a, n, lead, pivots, b, k, lead_b), *info = 0; }));                      \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##potrf_bufferSize(cusolverDnHandle_t, cublasFillMode_t, int n, T* a, int lead,        \
                                                   int* size) {                                                        \
    return answer_size(size, need(n, n), is_matrix(a, n, n, lead));                                                    \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##potrf(cusolverDnHandle_t h, cublasFillMode_t fill, int n, T* a, int lead, T* work,   \
                                        int size, int* info) {                                                         \
    const bool valid = is_matrix(a, n, n, lead) && is_enough(work, size, need(n, n)) && is_array(info, 1);             \
    return solver(run(h, valid, [=] { spoil(work, size), cholesky(a, n, lead, is_upper(fill), info); }));              \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##potrfBatched(cusolverDnHandle_t h, cublasFillMode_t fill, int n, T* a[], int lead,   \
                                               int* info, int batch) {                                                 \
    return solver(run(h, is_batch(a, n, n, lead, batch) && is_array(info, batch), [=] {                                \
      for (int i = 0; i < batch; ++i) cholesky(pointed(a[i]), n, lead, is_upper(fill), info + i);                      \
    }));                                                                                                               \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##geqrf_bufferSize(cusolverDnHandle_t, int m, int n, T* a, int lead, int* size) {      \
    return answer_size(size, need(m, n), is_matrix(a, m, n, lead));                                                    \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##geqrf(cusolverDnHandle_t h, int m, int n, T* a, int lead, T* tau, T* work, int size, \
                                        int* info) {                                                                   \
    const bool valid = is_matrix(a, m, n, lead) && is_array(tau, std::min(m, n)) &&                                    \
                       is_enough(work, size, need(m, n)) && is_array(info, 1);                                         \
    return solver(run(h, valid, [=] { spoil(work, size), householder(a, m, n, lead, tau), *info = 0; }));              \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##orgqr_bufferSize(cusolverDnHandle_t, int m, int n, int k, const T* a, int lead,      \
                                                   const T* tau, int* size) {                                          \
    return answer_size(size, need(m, n), m >= n && n >= k && is_matrix(a, m, n, lead) && is_array(tau, k));            \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##orgqr(cusolverDnHandle_t h, int m, int n, int k, T* a, int lead, const T* tau,       \
                                        T* work, int size, int* info) {                                                \
    const bool valid = m >= n && n >= k && is_matrix(a, m, n, lead) && is_array(tau, k) &&                             \
                       is_enough(work, size, need(m, n)) && is_array(info, 1);                                         \
    return solver(run(h, valid, [=] { spoil(work, size), orthogonal(a, m, n, k, lead, tau), *info = 0; }));            \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##syevd_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, cublasFillMode_t, int n,     \
                                                   const T* a, int lead, const T* w, int* size) {                      \
    return answer_size(size, need(n, n), is_matrix(a, n, n, lead) && is_array(w, n));                                  \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##syevd(cusolverDnHandle_t h, cusolverEigMode_t mode, cublasFillMode_t fill, int n,    \
                                        T* a, int lead, T* w, T* work, int size, int* info) {                          \
    const bool valid = is_matrix(a, n, n, lead) && is_array(w, n) && is_enough(work, size, need(n, n)) &&              \
                       is_array(info, 1),                                                                              \
               vectors = mode == CUSOLVER_EIG_MODE_VECTOR;                                                             \
    return solver(                                                                                                     \
        run(h, valid, [=] { spoil(work, size), eigenvalues(a, n, lead, is_upper(fill), vectors, w, info); }));         \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##syevjBatched_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, cublasFillMode_t,     \
                                                          int n, const T* a, int lead, const T* w, int* size,          \
                                                          syevjInfo_t params, int batch) {                             \
    return answer_size(size, need(n, n, batch), params && is_matrix(a, n, n, lead, batch) && is_array(w, n * batch));  \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##syevjBatched(cusolverDnHandle_t h, cusolverEigMode_t mode, cublasFillMode_t fill,    \
                                               int n, T* a, int lead, T* w, T* work, int size, int* info,              \
                                               syevjInfo_t params, int batch) {                                        \
    const bool valid = params && is_matrix(a, n, n, lead, batch) && is_array(w, n * batch) &&                          \
                       is_enough(work, size, need(n, n, batch)) && is_array(info, batch),                              \
               vectors = mode == CUSOLVER_EIG_MODE_VECTOR;                                                             \
    return solver(run(h, valid, [=] {                                                                                  \
      spoil(work, size);                                                                                               \
      for (int i = 0; i < batch; ++i)                                                                                  \
        eigenvalues(a + int64_t(i) * lead * n, n, lead, is_upper(fill), vectors, w + i * n, info + i);                 \
    }));                                                                                                               \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##gesvd_bufferSize(cusolverDnHandle_t, int m, int n, int* size) {                      \
    return answer_size(size, need(m, n), m >= n && n >= 1);                                                            \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##gesvd(cusolverDnHandle_t h, signed char job_u, signed char job_v, int m, int n,      \
                                        T* a, int lead, T* s, T* u, int lead_u, T* v, int lead_v, T* work, int size,   \
                                        T*, int* info) {                                                               \
    const bool vectors = job_u != 'N';                                                                                 \
    const int kept = job_u == 'A' ? m : n;                                                                             \
    const bool valid = m >= n && job_u == job_v && (job_u == 'A' || job_u == 'S' || !vectors) &&                       \
                       is_matrix(a, m, n, lead) && is_array(s, n) && is_enough(work, size, need(m, n)) &&              \
                       is_array(info, 1) &&                                                                            \
                       (!vectors || (is_matrix(u, m, kept, lead_u) && is_matrix(v, n, n, lead_v)));                    \
    return solver(run(h, valid, [=] {                                                                                  \
      spoil(work, size),                                                                                               \
          singular_values(a, m, n, lead, s, vectors ? u : nullptr, lead_u, kept, v, lead_v, true, info);               \
    }));                                                                                                               \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##gesvdjBatched_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, int m, int n,        \
                                                           const T* a, int lead, const T* s, const T*, int, const T*,  \
                                                           int, int* size, gesvdjInfo_t params, int batch) {           \
    return answer_size(size, need(m, n, batch),                                                                        \
                       params && m <= 32 && n <= 32 && is_matrix(a, m, n, lead, batch) && is_array(s, n * batch));     \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##gesvdjBatched(cusolverDnHandle_t h, cusolverEigMode_t mode, int m, int n, T* a,      \
                                                int lead, T* s, T* u, int lead_u, T* v, int lead_v, T* work, int size, \
                                                int* info, gesvdjInfo_t params, int batch) {                           \
    const bool vectors = mode == CUSOLVER_EIG_MODE_VECTOR;                                                             \
    const bool valid = params && m >= n && m <= 32 && is_matrix(a, m, n, lead, batch) && is_array(s, n * batch) &&     \
                       is_enough(work, size, need(m, n, batch)) && is_array(info, batch);                              \
    /* As on an H200, u and v are written even if no vectors are asked for. */                                         \
    const bool held = is_matrix(u, m, m, lead_u, batch) && is_matrix(v, n, n, lead_v, batch);                          \
    return solver(run(h, valid, [=] {                                                                                  \
      if (!held) return fail_device(cudaErrorIllegalAddress, "gesvdjBatched: no memory for u and v");                  \
      spoil(work, size);                                                                                               \
      for (int64_t i = 0; i < batch; ++i) {                                                                            \
        T *const left = u + i * lead_u * m, *const right = v + i * lead_v * n;                                         \
        for (int j = 0; j < m; ++j) spoil(left + j * lead_u, m);                                                       \
        for (int j = 0; j < n; ++j) spoil(right + j * lead_v, n);                                                      \
        singular_values(a + i * lead * n, m, n, lead, s + i * n, vectors ? left : nullptr, lead_u, m, right, lead_v,   \
                        false, info + i);                                                                              \
      }                                                                                                                \
    }));                                                                                                               \
  }                                                                                                                    \
  cublasStatus_t cublas##S##getrfBatched(cublasHandle_t h, int n, T* const a[], int lead, int* pivots, int* info,      \
                                         int batch) {                                                                  \
    return blas(run(h, is_batch(a, n, n, lead, batch) && is_array(pivots, n * batch) && is_array(info, batch), [=] {   \
      for (int i = 0; i < batch; ++i) lu(pointed(a[i]), n, lead, pivots + i * n, info + i);                            \
    }));                                                                                                               \
  }                                                                                                                    \
  cublasStatus_t cublas##S##getrsBatched(cublasHandle_t h, cublasOperation_t op, int n, int k, const T* const a[],     \
                                         int lead, const int* pivots, T* const b[], int lead_b, int* info,             \
                                         int batch) {                                                                  \
    if (!info || device_of(info) >= 0) return CUBLAS_STATUS_INVALID_VALUE; /* this one is the host's */                \
    *info = 0;                                                                                                         \
    return blas(run(h,                                                                                                 \
                    op == CUBLAS_OP_N && is_batch(a, n, n, lead, batch) && is_batch(b, n, k, lead_b, batch) &&         \
                        is_array(pivots, n * batch),                                                                   \
                    [=] {                                                                                              \
                      for (int i = 0; i < batch; ++i)                                                                  \
                        lu_solve(pointed(a[i]), n, lead, pivots + i * n, pointed(b[i]), k, lead_b);                    \
                    }));                                                                                               \
  }                                                                                                                    \
  cublasStatus_t cublas##S##trsm_v2(cublasHandle_t h, cublasSideMode_t side, cublasFillMode_t fill,                    \
                                    cublasOperation_t op, cublasDiagType_t diagonal, int m, int n, const T* alpha,     \
                                    const T* a, int lead, T* b, int lead_b) {                                          \
    const bool valid = side == CUBLAS_SIDE_RIGHT && op == CUBLAS_OP_N && *alpha == 1 && is_matrix(a, n, n, lead) &&    \
                       is_matrix(b, m, n, lead_b);                                                                     \
    return blas(                                                                                                       \
        run(h, valid, [=] { triangular(a, n, lead, is_upper(fill), diagonal == CUBLAS_DIAG_UNIT, b, m, lead_b); }));   \
  }                                                                                                                    \
  cublasStatus_t cublas##S##trsmBatched(cublasHandle_t h, cublasSideMode_t side, cublasFillMode_t fill,                \
                                        cublasOperation_t op, cublasDiagType_t diagonal, int m, int n, const T* alpha, \
                                        const T* const a[], int lead, T* const b[], int lead_b, int batch) {           \
    const bool valid = side == CUBLAS_SIDE_RIGHT && op == CUBLAS_OP_N && *alpha == 1 &&                                \
                       is_batch(a, n, n, lead, batch) && is_batch(b, m, n, lead_b, batch);                             \
    return blas(run(h, valid, [=] {                                                                                    \
      for (int i = 0; i < batch; ++i)                                                                                  \
        triangular(pointed(a[i]), n, lead, is_upper(fill), diagonal == CUBLAS_DIAG_UNIT, pointed(b[i]), m, lead_b);    \
    }));                                                                                                               \
  }

extern "C" {

cusolverStatus_t cusolverDnCreate(cusolverDnHandle_t* h) {
  *h = new cusolverDnContext;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnSetStream(cusolverDnHandle_t h, cudaStream_t stream) {
  h->stream = stream;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnCreateSyevjInfo(syevjInfo_t* info) {
  *info = new syevjInfo;
  return CUSOLVER_STATUS_SUCCESS;
}
cusolverStatus_t cusolverDnCreateGesvdjInfo(gesvdjInfo_t* info) {
  *info = new gesvdjInfo;
  return CUSOLVER_STATUS_SUCCESS;
}
cublasStatus_t cublasCreate_v2(cublasHandle_t* h) {
  *h = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t stream) {
  h->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_SOLVERS(float, S)
FAKE_SOLVERS(double, D)

}  // extern "C"
