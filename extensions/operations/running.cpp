// Running sums and products, and the gradient of a product, which is composed of them.
#include <vector>

#include "autograd/autocast.h"
#include "autograd/recorded.h"
#include "extensions/operations/kernels.h"
#include "extensions/operations/operations.h"
#include "tensor/ops_common.h"

namespace lockstep {

namespace kernels {
constinit const Op<Cumulative> cumulative{"cumulative", on_cpu::cumulative, LOCKSTEP_ON_CUDA(on_cuda::cumulative)};
}
namespace {

Tensor cumulative(const char* op, bool product, const Tensor& x, int64_t dim, bool reverse = false) {
  check_defined(op, x);
  const int d = normalize_dim(op, dim, x.dim());
  Tensor out = empty(x.shape(), {.dtype = is_floating(x.dtype()) ? x.dtype() : i64, .device = x.device()});
  kernels::cumulative(x.device(), product, x, d, reverse, out);
  return out;
}

Tensor cumsum_from_end(const Tensor& x, int64_t dim) { return cumulative("cumsum", false, x, dim, true); }
Variable cumsum_from_end(const Variable& x, int64_t dim) {
  return x.dim() == 0 ? x : flip(cumsum(flip(x, {dim}), dim), {dim});
}

/// The gradient of cumprod. Let g be the incoming gradient and r_k = g_k + x_{k+1} r_{k+1}. The gradient of x_k is r_k
/// times the product of all x before k. Nothing is divided, so x may have zeros.
template <class T> T cumprod_grad(const T& grad, const T& x, int64_t dim) {
  if (x.dim() == 0 || x.numel() == 0) return grad;
  const int64_t n = x.size(dim);
  std::vector<T> r(static_cast<size_t>(n));
  r.back() = grad.select(dim, n - 1);
  for (int64_t k = n - 2; k >= 0; --k)
    r[size_t(k)] = addcmul(grad.select(dim, k), x.select(dim, k + 1), r[size_t(k + 1)]);
  const T one = ones_like(bare(x).narrow(dim, 0, 1));
  return mul(stack(r, dim), cat(std::vector<T>{one, cumprod(x.narrow(dim, 0, n - 1), dim)}, dim));
}

/// For each element of a row, the product of all other elements of the row. It is the product of those before times the
/// product of those after. Nothing is divided, so a row may have zeros.
template <class T> T products_of_others(const T& rows) {
  const int64_t n = rows.size(1);
  const T one = ones({rows.size(0), 1}, {rows.dtype(), rows.device()});
  const T left = cumprod(cat(std::vector<T>{one, rows.narrow(1, 0, n - 1)}, 1), 1);
  const T right = flip(cumprod(cat(std::vector<T>{one, flip(rows.narrow(1, 1, n - 1), {1})}, 1), 1), {1});
  return mul(left, right);
}

template <class T> T prod_grad(const T& grad, const T& x, const Dims& dims) {
  // Moves the reduced dims to the end and joins them.
  Shape kept = dims.empty() ? Shape::filled(x.dim(), 1) : x.shape();
  for (int64_t dim : dims)
    if (x.dim() > 0) kept[normalize_dim("prod", dim, x.dim())] = 1;
  Dims order, inverse = Dims::filled(x.dim(), 0);
  for (bool reduced : {false, true})
    for (int d = 0; d < x.dim(); ++d)
      if (reduced == (dims.empty() || (kept[d] == 1 && x.shape()[d] != 1))) order.push_back(d);
  for (int i = 0; i < order.rank(); ++i) inverse[int(order[i])] = i;
  const T moved = x.permute(order);
  if (x.numel() == 0) return zeros_like(bare(x));
  const int64_t n = x.numel() / numel_of(kept);
  const T others = products_of_others(moved.reshape({x.numel() / n, n})).view(moved.shape()).permute(inverse);
  return mul(others, grad.reshape(kept));
}

}  // namespace

Tensor cumsum(const Tensor& x, int64_t dim) { return cumulative("cumsum", false, x, dim); }
Tensor cumprod(const Tensor& x, int64_t dim) { return cumulative("cumprod", true, x, dim); }

Variable cumsum(const Variable& input, int64_t dim) {
  const Variable x = Autocast::high(input);
  return on_tape("cumsum", {&x}, cumsum(x.tensor(), dim),
                 [dim](auto& back) { back.give(0, cumsum_from_end(back.grad(), dim)); });
}

Variable cumprod(const Variable& input, int64_t dim) {
  const Wide wide(input);
  const Variable x = wide(input);
  return wide.round(on_tape("cumprod", {&x}, cumprod(x.tensor(), dim), [x = Saved(x), dim](auto& back) {
    back.give(0, cumprod_grad<Value<decltype(back)>>(back.grad(), back.input(0, x), dim));
  }));
}

Variable prod(const Variable& input, const Dims& dims, bool keepdim) {
  const Wide wide(input);
  const Variable x = wide(input);
  return wide.round(on_tape("prod", {&x}, prod(x.tensor(), dims, keepdim), [x = Saved(x), dims](auto& back) {
    back.give(0, prod_grad<Value<decltype(back)>>(back.grad(), back.input(0, x), dims));
  }));
}

}  // namespace lockstep
