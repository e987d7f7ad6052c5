// cuSOLVER and cuBLAS in miniature: the decompositions that tensor/cuda/solvers.cpp asks for, by plain loops in f64,
// with checks of leading dimensions, workspaces, streams, and of which pointers are the device's. What the real ones
// may overwrite is overwritten, with NaN.
#include <cublas_v2.h>
#include <cusolverDn.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/cudasim/runtime.h"

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

cusolverStatus_t solver(Answer answer) {
  return answer == Answer::fine      ? CUSOLVER_STATUS_SUCCESS
         : answer == Answer::invalid ? CUSOLVER_STATUS_INVALID_VALUE
                                     : CUSOLVER_STATUS_EXECUTION_FAILED;
}
cublasStatus_t blas(Answer answer) {
  return answer == Answer::fine      ? CUBLAS_STATUS_SUCCESS
         : answer == Answer::invalid ? CUBLAS_STATUS_INVALID_VALUE
                                     : CUBLAS_STATUS_EXECUTION_FAILED;
}

/// An array of the current device, whole.
template <class T> bool is_array(const T* p, int64_t count) {
  return count >= 0 && fake::device_of(p) == fake::current_device() &&
         reinterpret_cast<uintptr_t>(p) % alignof(T) == 0 && fake::is_inside(p, size_t(count) * sizeof(T));
}
template <class T> bool is_matrix(const T* p, int64_t m, int64_t n, int64_t lead, int64_t batch = 1) {
  return m >= 1 && n >= 1 && batch >= 1 && lead >= m && is_array(p, lead * n * (batch - 1) + lead * (n - 1) + m);
}

template <class Fn> Answer run(const SolverHandle* h, bool valid, Fn fn) {
  if (!valid || !h->stream || h->device != fake::current_device() || !fake::find_stream(h->stream))
    return Answer::invalid;
  if (fake::step() != cudaSuccess || fake::launch_failure.next() != cudaSuccess) return Answer::failed;
  fake::enqueue(h->stream, fn);
  return Answer::fine;
}

template <class T> void spoil(T* p, int64_t count) { std::fill_n(p, count, std::numeric_limits<T>::quiet_NaN()); }
/// What an array of pointers says, which only the device reads.
template <class T> T* pointed(T* p, const char* call) {
  if (fake::device_of(p) < 0 || reinterpret_cast<uintptr_t>(p) % alignof(T) != 0)
    fake::fail_device(cudaErrorIllegalAddress, std::string(call) + ": a pointer of the batch is not the device's");
  return p;
}

using Columns = std::vector<std::vector<double>>;
template <class T> Columns load(const T* a, int m, int n, int lead) {
  Columns made;
  for (int j = 0; j < n; ++j) made.emplace_back(a + int64_t(j) * lead, a + int64_t(j) * lead + m);
  return made;
}
template <class T> void store(const Columns& columns, T* a, int lead) {
  for (size_t j = 0; j < columns.size(); ++j)
    for (size_t i = 0; i < columns[j].size(); ++i) a[j * size_t(lead) + i] = T(columns[j][i]);
}
double dot(const std::vector<double>& x, const std::vector<double>& y) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}
void subtract(std::vector<double>& x, double s, const std::vector<double>& y, size_t from = 0) {
  for (size_t i = from; i < x.size(); ++i) x[i] -= s * y[i];
}
/// x, y = c x - s y, s x + c y
void rotate(std::vector<double>& x, std::vector<double>& y, double c, double s) {
  for (size_t i = 0; i < x.size(); ++i) {
    const double before = x[i];
    x[i] = c * before - s * y[i], y[i] = s * before + c * y[i];
  }
}
Columns identity(size_t m, size_t n) {
  Columns made(n, std::vector<double>(m, 0.0));
  for (size_t i = 0; i < std::min(m, n); ++i) made[i][i] = 1;
  return made;
}

// --- LU, Cholesky, triangles, QR ---

template <class T> void lu(T* a, int n, int lead, int* pivots, int* info) {
  Columns x = load(a, n, n, lead);
  *info = 0;
  for (int k = 0; k < n; ++k) {
    int most = k;
    for (int i = k + 1; i < n; ++i)
      if (std::abs(x[k][i]) > std::abs(x[k][most])) most = i;
    pivots[k] = most + 1;
    for (auto& column : x) std::swap(column[k], column[most]);
    if (x[k][k] == 0) {
      if (*info == 0) *info = k + 1;
      continue;
    }
    for (int i = k + 1; i < n; ++i) x[k][i] = T(x[k][i] / x[k][k]);
    for (int j = k + 1; j < n; ++j) {
      subtract(x[j], x[j][k], x[k], size_t(k + 1));
      for (int i = k + 1; i < n; ++i) x[j][i] = T(x[j][i]);  // rounded, so that singular matrices are found
    }
  }
  store(x, a, lead);
}
template <class T> void lu_solve(const T* a, int n, int lead, const int* pivots, T* b, int k, int lead_b) {
  const Columns x = load(a, n, n, lead);
  Columns y = load(b, n, k, lead_b);
  for (auto& column : y) {
    for (int i = 0; i < n; ++i) std::swap(column[i], column[pivots[i] - 1]);
    for (int j = 0; j < n; ++j) subtract(column, column[j], x[j], size_t(j + 1));
    for (int j = n - 1; j >= 0; --j) {
      column[j] /= x[j][j];
      for (int i = 0; i < j; ++i) column[i] -= column[j] * x[j][i];
    }
  }
  store(y, b, lead_b);
}
template <class T> void cholesky(T* a, int n, int lead, bool upper, int* info) {
  const auto at = [&](int i, int j) -> T& { return upper ? a[j + int64_t(i) * lead] : a[i + int64_t(j) * lead]; };
  *info = 0;
  for (int j = 0; j < n; ++j)
    for (int i = 0; i < j; ++i) at(i, j) = std::numeric_limits<T>::quiet_NaN();
  for (int j = 0; j < n; ++j)
    for (int i = j; i < n; ++i) {
      double sum = at(i, j);
      for (int k = 0; k < j; ++k) sum -= double(at(i, k)) * double(at(j, k));
      if (i == j && sum <= 0) {
        *info = j + 1;
        return;
      }
      at(i, j) = T(i == j ? std::sqrt(sum) : sum / double(at(j, j)));
    }
}
/// x a = b, from the right.
template <class T> void triangular(const T* a, int n, int lead, bool upper, bool unit, T* b, int m, int lead_b) {
  const auto at = [&](int i, int j) { return double(a[i + int64_t(j) * lead]); };
  Columns x = load(b, m, n, lead_b);
  for (int step = 0; step < n; ++step) {
    const int j = upper ? step : n - 1 - step;
    for (int l = upper ? 0 : j + 1; l < (upper ? j : n); ++l) subtract(x[j], at(l, j), x[l]);
    for (double& value : x[j]) value /= unit ? 1.0 : at(j, j);
  }
  store(x, b, lead_b);
}
/// x -= tau v v^T x, where v is a column from `from` on, and 1 there.
void reflect(const std::vector<double>& v, size_t from, double tau, std::vector<double>& x) {
  double sum = x[from];
  for (size_t i = from + 1; i < x.size(); ++i) sum += v[i] * x[i];
  x[from] -= tau * sum;
  subtract(x, tau * sum, v, from + 1);
}
template <class T> void householder(T* a, int m, int n, int lead, T* taus) {
  Columns x = load(a, m, n, lead);
  for (int k = 0; k < std::min(m, n); ++k) {
    double rest = 0, tau = 0;
    for (int i = k + 1; i < m; ++i) rest += x[k][i] * x[k][i];
    if (rest > 0) {
      const double first = x[k][k], beta = -std::copysign(std::sqrt(first * first + rest), first);
      tau = (beta - first) / beta;
      for (int i = k + 1; i < m; ++i) x[k][i] /= first - beta;
      for (int j = k + 1; j < n; ++j) reflect(x[k], size_t(k), tau, x[j]);
      x[k][k] = beta;
    }
    taus[k] = T(tau);
  }
  store(x, a, lead);
}
template <class T> void orthogonal(T* a, int m, int n, int k, int lead, const T* taus) {
  const Columns v = load(a, m, k, lead);
  Columns q = identity(size_t(m), size_t(n));
  for (int i = k - 1; i >= 0; --i)
    for (auto& column : q) reflect(v[i], size_t(i), double(taus[i]), column);
  store(q, a, lead);
}

// --- Jacobi's methods ---

template <class T> void eigenvalues(T* a, int n, int lead, bool upper, bool vectors, T* values, int* info) {
  Columns x = load(a, n, n, lead), v = identity(size_t(n), size_t(n));
  double size = 0;
  for (int j = 0; j < n; ++j)
    for (int i = 0; i <= j; ++i) {
      const double value = upper ? x[j][i] : x[i][j];
      x[j][i] = x[i][j] = value, size = std::max(size, std::abs(value));
    }
  for (bool turned = true; turned;) {
    turned = false;
    for (int p = 0; p < n; ++p)
      for (int q = p + 1; q < n; ++q) {
        if (!(std::abs(x[q][p]) > 1e-18 * size)) continue;
        turned = true;
        const double theta = (x[q][q] - x[p][p]) / (2 * x[q][p]);
        const double t = std::copysign(1 / (std::abs(theta) + std::sqrt(theta * theta + 1)), theta);
        const double c = 1 / std::sqrt(t * t + 1), s = t * c;
        rotate(x[p], x[q], c, s), rotate(v[p], v[q], c, s);
        for (auto& column : x) {
          const double before = column[p];
          column[p] = c * before - s * column[q], column[q] = s * before + c * column[q];
        }
        x[q][p] = x[p][q] = 0;
      }
  }
  std::vector<int> order(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) order[size_t(i)] = i;
  std::sort(order.begin(), order.end(), [&](int i, int j) { return x[i][i] < x[j][j]; });
  Columns sorted;
  for (const int i : order) sorted.push_back(v[i]), values[sorted.size() - 1] = T(x[i][i]);
  for (int j = 0; j < n; ++j) spoil(a + int64_t(j) * lead, n);
  if (vectors) store(sorted, a, lead);
  *info = 0;
}

/// Makes columns up to `count` orthogonal, in place of those that are empty.
void complete(Columns& u, size_t rows, size_t count) {
  u.resize(count);
  for (auto& missing : u) {
    if (!missing.empty()) continue;
    std::vector<double> covered(rows, 0.0);
    for (const auto& column : u)
      for (size_t i = 0; i < column.size(); ++i) covered[i] += column[i] * column[i];
    std::vector<double> x(rows, 0.0);
    x[size_t(std::min_element(covered.begin(), covered.end()) - covered.begin())] = 1;
    for (int again = 0; again < 2; ++again)
      for (const auto& column : u)
        if (!column.empty()) subtract(x, dot(column, x), column);
    const double length = std::sqrt(dot(x, x));
    for (double& value : x) value /= length;
    missing = x;
  }
}
/// At least as many rows as columns. u gets `kept` columns, v n; both may be nullptr.
template <class T>
void singular_values(T* a, int m, int n, int lead, T* values, T* u, int lead_u, int kept, T* v, int lead_v,
                     bool transposed, int* info) {
  Columns x = load(a, m, n, lead), right = identity(size_t(n), size_t(n)), left;
  double size = 0;
  for (auto& column : x)
    for (const double value : column) size = std::max(size, std::abs(value));
  if (size == 0) size = 1;
  for (auto& column : x)
    for (double& value : column) value /= size;
  for (bool turned = true; turned;) {
    turned = false;
    for (int p = 0; p < n; ++p)
      for (int q = p + 1; q < n; ++q) {
        const double xx = dot(x[p], x[p]), yy = dot(x[q], x[q]), xy = dot(x[p], x[q]);
        if (!(std::abs(xy) > 4e-16 * std::sqrt(xx) * std::sqrt(yy)) || std::min(xx, yy) < 1e-40) continue;
        turned = true;
        const double theta = (yy - xx) / (2 * xy);
        const double t = std::copysign(1 / (std::abs(theta) + std::sqrt(theta * theta + 1)), theta);
        const double c = 1 / std::sqrt(t * t + 1), s = t * c;
        rotate(x[p], x[q], c, s), rotate(right[p], right[q], c, s);
      }
  }
  std::vector<std::pair<double, int>> order;
  for (int j = 0; j < n; ++j) order.emplace_back(-std::sqrt(dot(x[j], x[j])), j);
  std::sort(order.begin(), order.end());
  Columns sorted;
  for (int j = 0; j < n; ++j) {
    const auto& [minus, place] = order[size_t(j)];
    values[j] = T(-minus * size);
    left.emplace_back();
    if (-minus > 1e-15 * -order[0].first)
      for (const double value : x[place]) left.back().push_back(value / -minus);
    sorted.push_back(right[place]);
  }
  for (int j = 0; j < n; ++j) spoil(a + int64_t(j) * lead, m);
  *info = 0;
  if (!u) return;
  complete(left, size_t(m), size_t(kept));
  store(left, u, lead_u);
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) v[i + int64_t(j) * lead_v] = T(transposed ? sorted[i][j] : sorted[j][i]);
}

int workspace_of(int m, int n) { return m + 2 * n + 7; }

}  // namespace

// --- the interface, in both dtypes ---

#define FAKE_SOLVERS(T, S)                                                                                             \
  cusolverStatus_t cusolverDn##S##getrf_bufferSize(cusolverDnHandle_t, int m, int n, T* a, int lead, int* size) {      \
    *size = workspace_of(m, n);                                                                                        \
    return is_matrix(a, m, n, lead) ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INVALID_VALUE;                         \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##getrf(cusolverDnHandle_t h, int m, int n, T* a, int lead, T* work, int* pivots,      \
                                        int* info) {                                                                   \
    const int size = workspace_of(m, n);                                                                               \
    const bool valid = m == n && is_matrix(a, m, n, lead) && is_array(work, size) && is_array(pivots, n);              \
    return solver(run(h, valid && is_array(info, 1), [=] { spoil(work, size), lu(a, n, lead, pivots, info); }));       \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##getrs(cusolverDnHandle_t h, cublasOperation_t op, int n, int k, const T* a,          \
                                        int lead, const int* pivots, T* b, int lead_b, int* info) {                    \
    const bool valid = op == CUBLAS_OP_N && is_matrix(a, n, n, lead) && is_matrix(b, n, k, lead_b);                    \
    return solver(run(h, valid && is_array(pivots, n) && is_array(info, 1),                                            \
                      [=] { lu_solve(a, n, lead, pivots, b, k, lead_b), *info = 0; }));                                \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##potrf_bufferSize(cusolverDnHandle_t, cublasFillMode_t, int n, T* a, int lead,        \
                                                   int* size) {                                                        \
    *size = workspace_of(n, n);                                                                                        \
    return is_matrix(a, n, n, lead) ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INVALID_VALUE;                         \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##potrf(cusolverDnHandle_t h, cublasFillMode_t fill, int n, T* a, int lead, T* work,   \
                                        int size, int* info) {                                                         \
    const bool valid = is_matrix(a, n, n, lead) && size >= workspace_of(n, n) && is_array(work, size);                 \
    return solver(run(h, valid && is_array(info, 1),                                                                   \
                      [=] { spoil(work, size), cholesky(a, n, lead, fill == CUBLAS_FILL_MODE_UPPER, info); }));        \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##potrfBatched(cusolverDnHandle_t h, cublasFillMode_t fill, int n, T* a[], int lead,   \
                                               int* info, int batch) {                                                 \
    const bool valid = n >= 1 && lead >= n && batch >= 1 && is_array(a, batch) && is_array(info, batch);               \
    return solver(run(h, valid, [=] {                                                                                  \
      for (int i = 0; i < batch; ++i)                                                                                  \
        cholesky(pointed(a[i], "potrfBatched"), n, lead, fill == CUBLAS_FILL_MODE_UPPER, info + i);                    \
    }));                                                                                                               \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##geqrf_bufferSize(cusolverDnHandle_t, int m, int n, T* a, int lead, int* size) {      \
    *size = workspace_of(m, n);                                                                                        \
    return is_matrix(a, m, n, lead) ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INVALID_VALUE;                         \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##geqrf(cusolverDnHandle_t h, int m, int n, T* a, int lead, T* tau, T* work, int size, \
                                        int* info) {                                                                   \
    const bool valid = is_matrix(a, m, n, lead) && is_array(tau, std::min(m, n)) && size >= workspace_of(m, n) &&      \
                       is_array(work, size) && is_array(info, 1);                                                      \
    return solver(run(h, valid, [=] { spoil(work, size), householder(a, m, n, lead, tau), *info = 0; }));              \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##orgqr_bufferSize(cusolverDnHandle_t, int m, int n, int k, const T* a, int lead,      \
                                                   const T* tau, int* size) {                                          \
    *size = workspace_of(m, n);                                                                                        \
    return m >= n && n >= k && is_matrix(a, m, n, lead) && is_array(tau, k) ? CUSOLVER_STATUS_SUCCESS                  \
                                                                            : CUSOLVER_STATUS_INVALID_VALUE;           \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##orgqr(cusolverDnHandle_t h, int m, int n, int k, T* a, int lead, const T* tau,       \
                                        T* work, int size, int* info) {                                                \
    const bool valid = m >= n && n >= k && is_matrix(a, m, n, lead) && is_array(tau, k) &&                             \
                       size >= workspace_of(m, n) && is_array(work, size) && is_array(info, 1);                        \
    return solver(run(h, valid, [=] { spoil(work, size), orthogonal(a, m, n, k, lead, tau), *info = 0; }));            \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##syevd_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, cublasFillMode_t, int n,     \
                                                   const T* a, int lead, const T* w, int* size) {                      \
    *size = workspace_of(n, n);                                                                                        \
    return is_matrix(a, n, n, lead) && is_array(w, n) ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INVALID_VALUE;       \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##syevd(cusolverDnHandle_t h, cusolverEigMode_t mode, cublasFillMode_t fill, int n,    \
                                        T* a, int lead, T* w, T* work, int size, int* info) {                          \
    const bool valid = is_matrix(a, n, n, lead) && is_array(w, n) && size >= workspace_of(n, n) &&                     \
                       is_array(work, size) && is_array(info, 1);                                                      \
    return solver(run(h, valid, [=] {                                                                                  \
      spoil(work, size);                                                                                               \
      eigenvalues(a, n, lead, fill == CUBLAS_FILL_MODE_UPPER, mode == CUSOLVER_EIG_MODE_VECTOR, w, info);              \
    }));                                                                                                               \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##syevjBatched_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, cublasFillMode_t,     \
                                                          int n, const T* a, int lead, const T* w, int* size,          \
                                                          syevjInfo_t params, int batch) {                             \
    *size = workspace_of(n, n) * batch;                                                                                \
    return params && is_matrix(a, n, n, lead, batch) && is_array(w, n * batch) ? CUSOLVER_STATUS_SUCCESS               \
                                                                               : CUSOLVER_STATUS_INVALID_VALUE;        \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##syevjBatched(cusolverDnHandle_t h, cusolverEigMode_t mode, cublasFillMode_t fill,    \
                                               int n, T* a, int lead, T* w, T* work, int size, int* info,              \
                                               syevjInfo_t params, int batch) {                                        \
    const bool valid = params && is_matrix(a, n, n, lead, batch) && is_array(w, n * batch) &&                          \
                       size >= workspace_of(n, n) * batch && is_array(work, size) && is_array(info, batch);            \
    return solver(run(h, valid, [=] {                                                                                  \
      spoil(work, size);                                                                                               \
      for (int i = 0; i < batch; ++i)                                                                                  \
        eigenvalues(a + int64_t(i) * lead * n, n, lead, fill == CUBLAS_FILL_MODE_UPPER,                                \
                    mode == CUSOLVER_EIG_MODE_VECTOR, w + i * n, info + i);                                            \
    }));                                                                                                               \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##gesvd_bufferSize(cusolverDnHandle_t, int m, int n, int* size) {                      \
    *size = workspace_of(m, n);                                                                                        \
    return m >= n && n >= 1 ? CUSOLVER_STATUS_SUCCESS : CUSOLVER_STATUS_INVALID_VALUE;                                 \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##gesvd(cusolverDnHandle_t h, signed char job_u, signed char job_v, int m, int n,      \
                                        T* a, int lead, T* s, T* u, int lead_u, T* v, int lead_v, T* work, int size,   \
                                        T*, int* info) {                                                               \
    const int kept = job_u == 'A' ? m : n;                                                                             \
    const bool vectors = job_u != 'N';                                                                                 \
    const bool valid = job_u == job_v && (job_u == 'A' || job_u == 'S' || !vectors) && m >= n &&                       \
                       is_matrix(a, m, n, lead) && is_array(s, n) && size >= workspace_of(m, n) &&                     \
                       is_array(work, size) && is_array(info, 1);                                                      \
    return solver(run(h, valid && (!vectors || (is_matrix(u, m, kept, lead_u) && is_matrix(v, n, n, lead_v))), [=] {   \
      spoil(work, size);                                                                                               \
      singular_values(a, m, n, lead, s, vectors ? u : nullptr, lead_u, kept, v, lead_v, true, info);                   \
    }));                                                                                                               \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##gesvdjBatched_bufferSize(cusolverDnHandle_t, cusolverEigMode_t, int m, int n,        \
                                                           const T* a, int lead, const T* s, const T*, int, const T*,  \
                                                           int, int* size, gesvdjInfo_t params, int batch) {           \
    *size = workspace_of(m, n) * batch;                                                                                \
    return params && std::max(m, n) <= 32 && is_matrix(a, m, n, lead, batch) && is_array(s, n * batch)                 \
               ? CUSOLVER_STATUS_SUCCESS                                                                               \
               : CUSOLVER_STATUS_INVALID_VALUE;                                                                        \
  }                                                                                                                    \
  cusolverStatus_t cusolverDn##S##gesvdjBatched(cusolverDnHandle_t h, cusolverEigMode_t mode, int m, int n, T* a,      \
                                                int lead, T* s, T* u, int lead_u, T* v, int lead_v, T* work, int size, \
                                                int* info, gesvdjInfo_t params, int batch) {                           \
    const bool vectors = mode == CUSOLVER_EIG_MODE_VECTOR;                                                             \
    const bool valid = params && m >= n && m <= 32 && is_matrix(a, m, n, lead, batch) && is_array(s, n * batch) &&     \
                       size >= workspace_of(m, n) * batch && is_array(work, size) && is_array(info, batch);            \
    return solver(                                                                                                     \
        run(h, valid && (!vectors || (is_matrix(u, m, m, lead_u, batch) && is_matrix(v, n, n, lead_v, batch))), [=] {  \
          spoil(work, size);                                                                                           \
          for (int i = 0; i < batch; ++i)                                                                              \
            singular_values(a + int64_t(i) * lead * n, m, n, lead, s + i * n,                                          \
                            vectors ? u + int64_t(i) * lead_u * m : nullptr, lead_u, m,                                \
                            vectors ? v + int64_t(i) * lead_v * n : nullptr, lead_v, false, info + i);                 \
        }));                                                                                                           \
  }                                                                                                                    \
  cublasStatus_t cublas##S##getrfBatched(cublasHandle_t h, int n, T* const a[], int lead, int* pivots, int* info,      \
                                         int batch) {                                                                  \
    const bool valid = n >= 1 && lead >= n && batch >= 1 && is_array(a, batch) && is_array(pivots, n * batch);         \
    return blas(run(h, valid && is_array(info, batch), [=] {                                                           \
      for (int i = 0; i < batch; ++i) lu(pointed(a[i], "getrfBatched"), n, lead, pivots + i * n, info + i);            \
    }));                                                                                                               \
  }                                                                                                                    \
  cublasStatus_t cublas##S##getrsBatched(cublasHandle_t h, cublasOperation_t op, int n, int k, const T* const a[],     \
                                         int lead, const int* pivots, T* const b[], int lead_b, int* info,             \
                                         int batch) {                                                                  \
    if (!info || fake::device_of(info) >= 0) return CUBLAS_STATUS_INVALID_VALUE; /* this one is the host's */          \
    *info = 0;                                                                                                         \
    const bool valid = op == CUBLAS_OP_N && n >= 1 && k >= 1 && lead >= n && lead_b >= n && batch >= 1 &&              \
                       is_array(a, batch) && is_array(b, batch) && is_array(pivots, n * batch);                        \
    return blas(run(h, valid, [=] {                                                                                    \
      for (int i = 0; i < batch; ++i)                                                                                  \
        lu_solve(pointed(a[i], "getrsBatched"), n, lead, pivots + i * n, pointed(b[i], "getrsBatched"), k, lead_b);    \
    }));                                                                                                               \
  }                                                                                                                    \
  cublasStatus_t cublas##S##trsm_v2(cublasHandle_t h, cublasSideMode_t side, cublasFillMode_t fill,                    \
                                    cublasOperation_t op, cublasDiagType_t diagonal, int m, int n, const T* alpha,     \
                                    const T* a, int lead, T* b, int lead_b) {                                          \
    const bool valid = side == CUBLAS_SIDE_RIGHT && op == CUBLAS_OP_N && *alpha == 1 && is_matrix(a, n, n, lead) &&    \
                       is_matrix(b, m, n, lead_b);                                                                     \
    return blas(run(h, valid, [=] {                                                                                    \
      triangular(a, n, lead, fill == CUBLAS_FILL_MODE_UPPER, diagonal == CUBLAS_DIAG_UNIT, b, m, lead_b);              \
    }));                                                                                                               \
  }                                                                                                                    \
  cublasStatus_t cublas##S##trsmBatched(cublasHandle_t h, cublasSideMode_t side, cublasFillMode_t fill,                \
                                        cublasOperation_t op, cublasDiagType_t diagonal, int m, int n, const T* alpha, \
                                        const T* const a[], int lead, T* const b[], int lead_b, int batch) {           \
    const bool valid = side == CUBLAS_SIDE_RIGHT && op == CUBLAS_OP_N && *alpha == 1 && m >= 1 && n >= 1 &&            \
                       lead >= n && lead_b >= m && batch >= 1 && is_array(a, batch) && is_array(b, batch);             \
    return blas(run(h, valid, [=] {                                                                                    \
      for (int i = 0; i < batch; ++i)                                                                                  \
        triangular(pointed(a[i], "trsmBatched"), n, lead, fill == CUBLAS_FILL_MODE_UPPER,                              \
                   diagonal == CUBLAS_DIAG_UNIT, pointed(b[i], "trsmBatched"), m, lead_b);                             \
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
