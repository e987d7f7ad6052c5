// Decompositions by cuSOLVER and cuBLAS, in f32 and f64. Both libraries work in place on column-major matrices, so each
// function first copies its input and transposes it. It does not transpose a symmetric matrix, or a wide matrix for
// svd, where the library has to work on the transpose. A batch of small matrices is one call if the library has a
// batched function, else a loop. The choice depends only on shapes. The status of all matrices is read at the end.
#include <cublas_v2.h>
#include <cusolverDn.h>

#include <map>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "extensions/linear_algebra/kernels.h"
#include "tensor/cuda/runtime.h"
#include "tensor/graph.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"

namespace lockstep::on_cuda {
namespace {

// Batches of matrices up to these sizes take one call. NVIDIA limits gesvdjBatched to 32, and syevjBatched is made for
// that size. For LU, Cholesky and triangular solves, the size from which a loop is faster has not been measured.
constexpr int64_t max_by_jacobi = 32, max_in_batch = 512;

/// Throws unless the call succeeded. Status: cusolverStatus_t or cublasStatus_t.
template <class Status> void must(const char* call, Status status) {
  if (status == Status()) [[likely]]
    return;
  cuda::check("linalg", cudaPeekAtLastError());  // throws a CUDA error if there is one: it says more
  fail(str("[linalg] ", std::is_same_v<Status, cublasStatus_t> ? "cuBLAS" : "cuSOLVER", "'s ", call,
           " failed with status ", int(status), "; free device memory, or move the matrices to cpu"));
}
static_assert(CUSOLVER_STATUS_SUCCESS == 0 && CUBLAS_STATUS_SUCCESS == 0);

/// The handles of cuSOLVER and cuBLAS. One thread at a time may use them, on one stream, because their internal memory
/// is reused in the order of that stream. They live as long as the process.
struct Handles {
  cusolverDnHandle_t solver = nullptr;
  cublasHandle_t blas = nullptr;
  syevjInfo_t eigh = nullptr;  // default settings: sorted, to full precision
  gesvdjInfo_t svd = nullptr;

  Handles() {
    must("cusolverDnCreate", cusolverDnCreate(&solver));
    must("cublasCreate", cublasCreate(&blas));
    must("cusolverDnCreateSyevjInfo", cusolverDnCreateSyevjInfo(&eigh));
    must("cusolverDnCreateGesvdjInfo", cusolverDnCreateGesvdjInfo(&svd));
  }
};

/// Borrows handles for the current device and stream.
class Lease {
 public:
  Lease() : place_{cuda::current_device(), cuda::current_stream()} {
    LOCKSTEP_CHECK(
        !Graph::is_capturing(),
        "[linalg] matrices cannot be decomposed while a graph is captured; do that before or after the capture");
    {
      const std::lock_guard lock(idle().mutex);
      auto& left = idle().of[place_];
      if (!left.empty()) handles_ = std::move(left.back()), left.pop_back();
    }
    if (!handles_) handles_ = std::make_unique<Handles>();
    must("cusolverDnSetStream", cusolverDnSetStream(handles_->solver, place_.second));
    must("cublasSetStream", cublasSetStream(handles_->blas, place_.second));
  }
  ~Lease() {
    const std::lock_guard lock(idle().mutex);
    idle().of[place_].push_back(std::move(handles_));
  }
  Lease(const Lease&) = delete;
  const Handles* operator->() const { return handles_.get(); }

 private:
  using Place = std::pair<int, cudaStream_t>;
  struct Idle {
    std::mutex mutex;
    std::map<Place, std::vector<std::unique_ptr<Handles>>> of;
  };
  static Idle& idle() {
    static Idle& all = *new Idle;  // leaked: outlives all threads
    return all;
  }
  Place place_;
  std::unique_ptr<Handles> handles_;
};

/// The single or the double precision version of a function.
template <class T, class Single, class Double> constexpr auto of_type(Single single, Double twice) {
  if constexpr (std::is_same_v<T, float>) return single;
  else return twice;
}
// SOLVER(getrf, ...) calls cusolverDnSgetrf or cusolverDnDgetrf, depending on T, and throws if it fails.
#define SOLVER(name, ...) must(#name, of_type<T>(cusolverDnS##name, cusolverDnD##name)(__VA_ARGS__))
#define BLAS(name, ...) must(#name, of_type<T>(cublasS##name, cublasD##name)(__VA_ARGS__))

template <class Fn> void typed(const Tensor& a, Fn fn) { dispatch<float, double>(a.dtype(), "linalg", fn); }

Tensor made(const Tensor& like, const Shape& shape) { return empty(shape, {like.dtype(), like.device()}); }
Tensor integers(const Tensor& like, const Shape& shape) { return empty(shape, {i32, like.device()}); }
/// A column-major copy, as a tensor (batch, columns, rows).
Tensor by_columns(const Tensor& a) { return a.transpose(1, 2).clone(); }

/// The data of matrix i of a batch.
template <class T> T* at(const Tensor& x, int64_t i) { return x.data<T>() + i * x.strides()[0]; }
/// The addresses of the matrices of a batch, as an array on the device. Computed in f64, which is exact for addresses.
Tensor places(const Tensor& x) {
  Tensor out = empty({x.size(0)}, {i64, x.device()});
  const double first = double(reinterpret_cast<uintptr_t>(x.raw_data()));
  kernels::iota(x.device(), out, first, double(x.strides()[0] * size_of(x.dtype())));
  return out;
}
template <class T> T** pointers(const Tensor& places) { return reinterpret_cast<T**>(places.raw_data()); }

/// True if the library's batched function shall compute the whole batch in one call.
bool is_batch(const Tensor& a, int64_t max_size) { return a.size(0) > 1 && std::max(a.size(1), a.size(2)) <= max_size; }

template <class T> struct Workspace : cuda::Scratch {
  explicit Workspace(int elements) : Scratch(size_t(elements) * sizeof(T)), size(elements) {}
  T* data() const { return this->template as<T>(); }
  int size;
};

/// For each row of mask (batch, n): the position of its first true, counted from 1, or 0 if there is none.
Tensor first_true(const Tensor& mask) {
  const auto [found, place] = max(mask.to(i32), 1);
  return mul(found.to(i64), place + 1.0);
}
/// For each matrix the entry of `first` or, if that is 0, of `second`.
std::vector<int64_t> either(const Tensor& first, const Tensor& second) {
  std::vector<int64_t> both = stack({first.to(i64), second.to(i64)}).to_vector<int64_t>();
  const size_t count = both.size() / 2;
  for (size_t i = 0; i < count; ++i)
    if (both[i] == 0) both[i] = both[count + i];
  both.resize(count);
  return both;
}

/// A copy with zeros in place of matrices that are not finite: NVIDIA does not say what the iterations do with those.
Tensor only_finite(const Tensor& a, Tensor& finite) {
  finite = all(isfinite(a), {1, 2});
  return where(finite.view({-1, 1, 1}), a, zeros({}, {a.dtype(), a.device()})).contiguous();
}

/// LU factors of a batch. `places` holds the addresses of its matrices if one call factored them all, else it is
/// undefined.
struct Lu {
  Tensor lu, pivots, info, places;
};
Lu factor(const Lease& on, const Tensor& a) {
  const int64_t count = a.size(0);
  const int n = int(a.size(1));
  Lu made{by_columns(a), integers(a, {count, n}), integers(a, {count}), {}};
  const Tensor &lu = made.lu, &pivots = made.pivots, &info = made.info;
  typed(a, [&]<class T> {
    if (is_batch(a, max_in_batch)) {
      made.places = places(lu);
      return BLAS(getrfBatched, on->blas, n, pointers<T>(made.places), n, pivots.data<int>(), info.data<int>(),
                  int(count));
    }
    int size = 0;
    SOLVER(getrf_bufferSize, on->solver, n, n, lu.data<T>(), n, &size);
    const Workspace<T> work(size);
    for (int64_t i = 0; i < count; ++i)
      SOLVER(getrf, on->solver, n, n, at<T>(lu, i), n, work.data(), at<int>(pivots, i), info.data<int>() + i);
  });
  return made;
}

}  // namespace

void lu_solve(const Tensor& a, const Tensor& b, Tensor& x, std::vector<int64_t>& bad) {
  const Lease on;
  const Lu made = factor(on, a);
  const int n = int(a.size(1)), k = int(b.size(2));
  if (k > 0) {
    const Tensor right = by_columns(b);
    typed(a, [&]<class T> {
      if (made.places.defined()) {
        int refused = 0;  // status of the arguments; this function returns it on the host
        const Tensor places_of_right = places(right);
        BLAS(getrsBatched, on->blas, CUBLAS_OP_N, n, k, pointers<T>(made.places), n, made.pivots.data<int>(),
             pointers<T>(places_of_right), n, &refused, int(a.size(0)));
        return;
      }
      const Tensor refused = integers(a, {1});  // the status, on the device
      for (int64_t i = 0; i < a.size(0); ++i)
        SOLVER(getrs, on->solver, CUBLAS_OP_N, n, k, at<T>(made.lu, i), n, at<int>(made.pivots, i), at<T>(right, i), n,
               refused.data<int>());
    });
    x.copy_(right.transpose(1, 2));
  }
  bad = made.info.to(i64).to_vector<int64_t>();
}

void lu_determinant(const Tensor& a, Tensor& det, Tensor& sign, Tensor& log_abs) {
  const Lease on;
  const Lu made = factor(on, a);
  const Tensor diagonal = made.lu.diagonal(0, 1, 2), signs = lockstep::sign(diagonal);
  // Each exchange of two rows flips the sign of the determinant.
  const Tensor stays = eq(made.pivots, arange(1, double(a.size(1) + 1), 1, {i32, a.device()}));
  const Tensor parity = prod(stays.to(a.dtype()) * 2.0 - 1.0, {1});
  det.copy_(mul(parity, prod(diagonal, {1})));
  sign.copy_(mul(parity, prod(signs, {1})));
  log_abs.copy_(sum(log(abs(diagonal)), {1}));
}

void cholesky(const Tensor& a, Tensor& out, std::vector<int64_t>& bad) {
  const Lease on;
  // cuSOLVER is column-major, so it sees our lower triangle as an upper one. It computes U with A = U^T U, and in our
  // row-major order U is the lower factor.
  const int64_t count = a.size(0);
  const int n = int(a.size(1));
  const Tensor work = a.clone(), info = integers(a, {count});
  typed(a, [&]<class T> {
    if (is_batch(a, max_in_batch)) {
      const Tensor of_work = places(work);
      SOLVER(potrfBatched, on->solver, CUBLAS_FILL_MODE_UPPER, n, pointers<T>(of_work), n, info.data<int>(),
             int(count));
      return;
    }
    int size = 0;
    SOLVER(potrf_bufferSize, on->solver, CUBLAS_FILL_MODE_UPPER, n, work.data<T>(), n, &size);
    const Workspace<T> scratch(size);
    for (int64_t i = 0; i < count; ++i)
      SOLVER(potrf, on->solver, CUBLAS_FILL_MODE_UPPER, n, at<T>(work, i), n, scratch.data(), scratch.size,
             info.data<int>() + i);
  });
  out.copy_(tril(work));
  const Tensor diagonal = out.diagonal(0, 1, 2);
  bad = either(info, first_true(logical_not(gt(diagonal, zeros_like(diagonal)))));  // true for NaN, too
}

void qr(const Tensor& a, Tensor& q, Tensor& r) {
  const Lease on;
  const int64_t count = a.size(0);
  const int m = int(a.size(1)), n = int(a.size(2)), k = std::min(m, n);
  Tensor work = by_columns(a);
  const Tensor tau = made(a, {count, k}), refused = integers(a, {1});
  typed(a, [&]<class T> {
    int size = 0;
    SOLVER(geqrf_bufferSize, on->solver, m, n, work.data<T>(), m, &size);
    const Workspace<T> scratch(size);
    for (int64_t i = 0; i < count; ++i)
      SOLVER(geqrf, on->solver, m, n, at<T>(work, i), m, at<T>(tau, i), scratch.data(), scratch.size,
             refused.data<int>());
  });
  r.copy_(triu(work.transpose(1, 2).narrow(1, 0, r.size(1))));
  if (!q.defined()) return;
  const int columns = int(q.size(2));
  if (columns > n) {
    const Tensor wider = made(a, {count, columns, m});
    wider.narrow(1, 0, n).copy_(work);
    work = wider;
  }
  typed(a, [&]<class T> {
    int size = 0;
    SOLVER(orgqr_bufferSize, on->solver, m, columns, k, work.data<T>(), m, tau.data<T>(), &size);
    const Workspace<T> scratch(size);
    for (int64_t i = 0; i < count; ++i)
      SOLVER(orgqr, on->solver, m, columns, k, at<T>(work, i), m, at<T>(tau, i), scratch.data(), scratch.size,
             refused.data<int>());
  });
  q.copy_(work.narrow(1, 0, columns).transpose(1, 2));
}

void svd(const Tensor& a, Tensor& u, Tensor& s, Tensor& vh, std::vector<int64_t>& bad) {
  const Lease on;
  const bool vectors = u.defined(), wide = a.size(1) < a.size(2);
  // gesvd needs rows >= columns. It reads column-major, so it sees the transpose of `a`, which fits if `a` is wide.
  Tensor finite;
  const Tensor work = only_finite(wide ? a : a.transpose(1, 2), finite), info = integers(a, {a.size(0)});
  const int64_t count = work.size(0), kept = !vectors ? 0 : wide ? vh.size(1) : u.size(2);
  const int n = int(work.size(1)), m = int(work.size(2));
  const bool jacobi = is_batch(work, max_by_jacobi);  // returns all columns of `left`, and V instead of V^T
  Tensor left, right;
  // gesvdjBatched writes `left` and `right` even if no vectors are asked for.
  if (vectors || jacobi) left = made(a, {count, jacobi ? m : kept, m}), right = made(a, {count, n, n});
  typed(a, [&]<class T> {
    int size = 0;
    if (jacobi) {
      T *const l = left.data<T>(), *const r = right.data<T>();
      const auto mode = vectors ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
      SOLVER(gesvdjBatched_bufferSize, on->solver, mode, m, n, work.data<T>(), m, s.data<T>(), l, m, r, n, &size,
             on->svd, int(count));
      const Workspace<T> scratch(size);
      SOLVER(gesvdjBatched, on->solver, mode, m, n, work.data<T>(), m, s.data<T>(), l, m, r, n, scratch.data(),
             scratch.size, info.data<int>(), on->svd, int(count));
      return;
    }
    SOLVER(gesvd_bufferSize, on->solver, m, n, &size);
    const Workspace<T> scratch(size);
    const signed char job = !vectors ? 'N' : kept == m ? 'A' : 'S';
    for (int64_t i = 0; i < count; ++i)
      SOLVER(gesvd, on->solver, job, job, m, n, at<T>(work, i), m, at<T>(s, i), vectors ? at<T>(left, i) : nullptr, m,
             vectors ? at<T>(right, i) : nullptr, n, scratch.data(), scratch.size, static_cast<T*>(nullptr),
             info.data<int>() + i);
  });
  if (vectors) {
    const Tensor u_t = left.narrow(1, 0, kept), v_t = jacobi ? right : right.transpose(1, 2);
    u.copy_(wide ? v_t.transpose(1, 2) : u_t.transpose(1, 2));
    vh.copy_(wide ? u_t : v_t);
  }
  bad = either(logical_not(finite), info);  // `info`: the iterations did not converge
}

void eigh(const Tensor& a, Tensor& values, Tensor& vectors, std::vector<int64_t>& bad) {
  const Lease on;
  Tensor finite;
  const Tensor work = only_finite(tril(a), finite), info = integers(a, {a.size(0)});
  const int64_t count = a.size(0);
  const int n = int(a.size(1));
  const auto mode = vectors.defined() ? CUSOLVER_EIG_MODE_VECTOR : CUSOLVER_EIG_MODE_NOVECTOR;
  constexpr auto lower = CUBLAS_FILL_MODE_UPPER;  // our lower triangle: cuSOLVER is column-major
  typed(a, [&]<class T> {
    int size = 0;
    T *const x = work.data<T>(), *const w = values.data<T>();
    if (is_batch(a, max_by_jacobi)) {
      SOLVER(syevjBatched_bufferSize, on->solver, mode, lower, n, x, n, w, &size, on->eigh, int(count));
      const Workspace<T> scratch(size);
      SOLVER(syevjBatched, on->solver, mode, lower, n, x, n, w, scratch.data(), scratch.size, info.data<int>(),
             on->eigh, int(count));
      return;
    }
    SOLVER(syevd_bufferSize, on->solver, mode, lower, n, x, n, w, &size);
    const Workspace<T> scratch(size);
    for (int64_t i = 0; i < count; ++i)
      SOLVER(syevd, on->solver, mode, lower, n, at<T>(work, i), n, at<T>(values, i), scratch.data(), scratch.size,
             info.data<int>() + i);
  });
  if (vectors.defined()) vectors.copy_(work.transpose(1, 2));
  bad = either(logical_not(finite), info);  // `info`: the iterations did not converge
}

void solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool unit, Tensor& x) {
  const Lease on;
  // cuBLAS reads column-major, so it sees x^T a^T = b^T and the other triangle. Nothing needs to be transposed.
  const Tensor triangle = a.contiguous();
  x.copy_(b);
  const int n = int(x.size(1)), k = int(x.size(2));
  const auto fill = upper ? CUBLAS_FILL_MODE_LOWER : CUBLAS_FILL_MODE_UPPER;
  const auto diagonal = unit ? CUBLAS_DIAG_UNIT : CUBLAS_DIAG_NON_UNIT;
  typed(a, [&]<class T> {
    const T one = 1;
    if (is_batch(a, max_in_batch)) {
      const Tensor of_a = places(triangle), of_x = places(x);
      BLAS(trsmBatched, on->blas, CUBLAS_SIDE_RIGHT, fill, CUBLAS_OP_N, diagonal, k, n, &one, pointers<const T>(of_a),
           n, pointers<T>(of_x), k, int(x.size(0)));
      return;
    }
    for (int64_t i = 0; i < x.size(0); ++i)
      BLAS(trsm, on->blas, CUBLAS_SIDE_RIGHT, fill, CUBLAS_OP_N, diagonal, k, n, &one, at<T>(triangle, i), n,
           at<T>(x, i), k);
  });
}

}  // namespace lockstep::on_cuda
