// Matrix products by cuBLASLt. The library is column-major: row-major out (M, N) is column-major out^T = b^T a^T, so
// the operands swap places and nothing is copied. Bound by 2 M N K operations at the tensor cores' rate (f16, bf16,
// tf32) or, for thin products such as decoding, by reading the larger operand.
//
// cuBLASLt is asked once per shape for algorithms, and the process keeps the answer. Algorithms may sum in parts, but
// in f32 and in a fixed order, so equal products give equal bits. Later operations are fused if the library has them:
// bias, relu, gelu_tanh with the value before it, and the derivative of gelu_tanh. The rest runs afterwards as our
// pointwise kernel.
//
// In a BatchInvariant scope, the algorithm chosen for one fixed number of rows serves every number of rows, and it sums
// in one sequence. So a row's bits depend on n, k, dtypes and epilogue alone.
#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "tensor/batch_invariant.h"
#include "tensor/cuda/cublaslt.h"
#include "tensor/cuda/runtime.h"
#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tensor/padded.h"

namespace lockstep::on_cuda {

using namespace blas;

namespace {

/// A matrix as cuBLASLt reads it.
struct Operand {
  int64_t lead;     // elements from one row to the next; if transposed, from one column to the next
  bool transposed;  // true if the elements of a column, not of a row, are neighbours in memory
};
Operand operand(const Tensor& x) {
  const int r = x.dim();
  const int64_t rows = x.shape()[r - 2], columns = x.shape()[r - 1], row = x.strides()[r - 2],
                column = x.strides()[r - 1];
  if (column == 1 && (rows <= 1 || row >= columns)) return {rows <= 1 ? columns : row, false};
  return {columns <= 1 ? rows : column, true};
}

/// A batch dim with its strides. Dims that one stride can express are merged. One call of the library computes all
/// matrices along the innermost dim; run() loops over the other dims.
struct BatchDim {
  int64_t size, a, b;
};
std::vector<BatchDim> batch_dims(const Tensor& a, const Tensor& b, const Tensor& out) {
  std::vector<BatchDim> dims;  // innermost first
  for (int d = out.dim() - 3; d >= 0; --d) {
    const BatchDim next{out.shape()[d], a.strides()[d], b.strides()[d]};
    if (next.size == 1) continue;
    if (!dims.empty() && next.a == dims.back().a * dims.back().size && next.b == dims.back().b * dims.back().size)
      dims.back().size *= next.size;
    else dims.push_back(next);
  }
  if (dims.empty()) dims.push_back({1, 0, 0});
  return dims;
}

/// Everything that the choice of an algorithm depends on; the key of the plans.
struct Problem {
  int64_t device, dtype, result, tf32, m, n, k;
  int64_t lead_a, lead_b, lead_out, transposed_a, transposed_b;
  int64_t batch, stride_a, stride_b;
  int64_t align_a, align_b, align_c, align_d, align_bias, align_pre;
  int64_t epilogue, adds;  // adds: beta != 0
  auto operator<=>(const Problem&) const = default;
};

constexpr uint32_t aux_bit = CUBLASLT_EPILOGUE_GELU_AUX & ~CUBLASLT_EPILOGUE_GELU;
/// True for epilogues that write (gelu) or read (its derivative) the value before gelu.
bool has_pre(int64_t epilogue) { return epilogue & aux_bit; }
bool has_bias(int64_t epilogue) { return epilogue & CUBLASLT_EPILOGUE_BIAS; }

/// Makes the descriptors of a product.
Product describe(const Problem& p) {
  const DType dtype = DType(p.dtype);
  const cudaDataType_t type = type_of(dtype), result = type_of(DType(p.result));
  const cublasComputeType_t compute = dtype == f64 ? CUBLAS_COMPUTE_64F
                                      : p.tf32     ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                   : CUBLAS_COMPUTE_32F;
  Product plan;
  cublasLtMatmulDesc_t made = nullptr;
  check_blas("cublasLtMatmulDescCreate",
             cublasLtMatmulDescCreate(&made, compute, dtype == f64 ? CUDA_R_64F : CUDA_R_32F));
  plan.description.reset(made);
  // Our b is the library's A, and our a is its B.
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSA, int32_t(p.transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(plan.description, CUBLASLT_MATMUL_DESC_TRANSB, int32_t(p.transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N));
  set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t(p.epilogue));
  // Here the library reads only the alignment of these addresses.
  if (has_bias(p.epilogue))
    set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(p.align_bias));
  if (has_pre(p.epilogue)) {
    set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, reinterpret_cast<void*>(p.align_pre));
    set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n);
    if (p.batch > 1) set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, p.m * p.n);
  }
  plan.a = p.transposed_b ? layout(type, p.k, p.n, p.lead_b, p.batch, p.stride_b)
                          : layout(type, p.n, p.k, p.lead_b, p.batch, p.stride_b);
  plan.b = p.transposed_a ? layout(type, p.m, p.k, p.lead_a, p.batch, p.stride_a)
                          : layout(type, p.k, p.m, p.lead_a, p.batch, p.stride_a);
  plan.c = layout(result, p.n, p.m, p.lead_out, p.batch, p.m * p.n);
  std::ranges::copy(std::array{p.align_b, p.align_a, p.align_c, p.align_d}, plan.align);
  return plan;
}

/// The number of rows for which the algorithm of batch-invariant products is chosen. An H200 multiplies about this many
/// rows (165 with tensor cores, 28 in f32) while it reads the weights, so padding fewer rows to a tile costs no time.
int64_t usual_rows(const Problem& p) { return p.tf32 || size_of(DType(p.dtype)) == 2 ? 128 : 32; }

/// The plan of a batch-invariant product of one matrix; nullptr if the algorithm does not take this number of rows.
/// `supported` becomes false if there is no algorithm at all.
const Product* invariant_plan(const Problem& p, bool& supported) {
  Problem usual = p;
  usual.m = usual_rows(p);
  const Product* const chosen = plan_for(usual, describe, [](const Product& plan) {
    std::vector<Algorithm> all = choose_algorithms(plan, false);
    if (all.size() > 1) all.resize(1);  // if it is refused, another one must not take its place
    return all;
  });
  supported = chosen;
  if (!chosen || p == usual) return chosen;
  return plan_for(p, describe, [&](const Product& plan) { return check_algorithm(plan, chosen->best().algorithm); });
}

/// Operations that the library fuses with the product.
struct Fused {
  bool bias = false;
  Activation activation = Activation::none;
  bool keeps_pre = false;  // true (gelu_tanh only): also write the value before the activation
  bool gelu_grad = false;  // true: multiply by the derivative of gelu_tanh at `pre`
  uint32_t epilogue() const {
    if (gelu_grad) return CUBLASLT_EPILOGUE_DGELU;
    uint32_t e = bias ? CUBLASLT_EPILOGUE_BIAS : 0;
    if (activation == Activation::relu) e |= CUBLASLT_EPILOGUE_RELU;
    if (activation == Activation::gelu_tanh) e |= keeps_pre ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU;
    return e ? e : uint32_t(CUBLASLT_EPILOGUE_DEFAULT);
  }
};

/// The operands of a product: out = fused(alpha * a b + beta * c).
struct Operands {
  const Tensor &a, &b, &c, &bias;
  const MatmulArgs& args;
  Fused fused;
  const Tensor &pre, &out;

  int64_t rows() const { return out.size(-2); }
  int64_t columns() const { return out.size(-1); }
  /// The tensor to pass as the library's C. The library needs an address even if beta is 0.
  const Tensor& added() const { return args.beta != 0 ? c : out; }
};

uint64_t address(const Tensor& x) { return reinterpret_cast<uint64_t>(x.raw_data()); }

/// The problem for the library; `dims` are those of the batch.
Problem problem_of(const Operands& o, const std::vector<BatchDim>& dims) {
  const int64_t width = size_of(o.a.dtype()), m = o.rows(), n = o.columns();
  LOCKSTEP_CHECK(dims[0].size <= INT32_MAX, "[matmul] expected at most ", INT32_MAX,
                 " matrices in a batch on cuda, got ", dims[0].size, "; multiply the batch in parts");
  const Operand left = operand(o.a), right = operand(o.b);
  uint64_t places_a = address(o.a), places_b = address(o.b);
  for (const BatchDim& d : dims) places_a |= uint64_t(d.a * width), places_b |= uint64_t(d.b * width);
  const bool strided = o.out.numel() > m * n;
  const auto of_result = [&](const Tensor& x) {
    return x.defined() ? alignment(address(x) | (strided ? uint64_t(m * n * size_of(x.dtype())) : 0)) : 256;
  };
  return {cuda::current_device(),
          int64_t(o.a.dtype()),
          int64_t(o.out.dtype()),
          o.a.dtype() == f32 && float32_matmul_precision() == MatmulPrecision::tf32,
          m,
          n,
          o.a.size(-1),
          left.lead,
          right.lead,
          std::max(o.out.strides()[o.out.dim() - 2], n),  // more than n if rows are padded (never in a batch)
          left.transposed,
          right.transposed,
          dims[0].size,
          dims[0].a,
          dims[0].b,
          alignment(places_a),
          alignment(places_b),
          of_result(o.added()),
          of_result(o.out),
          has_bias(o.fused.epilogue()) ? alignment(address(o.bias)) : 256,
          of_result(o.pre),
          o.fused.epilogue(),
          o.args.beta != 0};
}

/// Computes the product by the plan. Each call of the library multiplies the matrices along dims[0].
void run(const Product& plan, const Operands& o, const std::vector<BatchDim>& dims) {
  const float alpha32 = float(o.args.alpha), beta32 = float(o.args.beta);
  const void *alpha = &alpha32, *beta = &beta32;
  if (o.out.dtype() == f64) alpha = &o.args.alpha, beta = &o.args.beta;
  const int64_t each = o.rows() * o.columns(), matrices = o.out.numel() / each;
  for (int64_t first = 0; first < matrices; first += dims[0].size) {
    int64_t at_a = 0, at_b = 0, index = first / dims[0].size;
    for (size_t d = 1; d < dims.size(); index /= dims[d++].size)
      at_a += index % dims[d].size * dims[d].a, at_b += index % dims[d].size * dims[d].b;
    const auto place = [&](const Tensor& x, int64_t elements) {
      return static_cast<char*>(x.raw_data()) + elements * size_of(x.dtype());
    };
    if (has_bias(o.fused.epilogue()))
      set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(o.bias.raw_data()));
    if (has_pre(o.fused.epilogue()))
      set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(place(o.pre, first * each)));
    if (!run_first(plan, [&](const Algorithm& with, void* workspace) {
          return cublasLtMatmul(handle(), plan.description.get(), alpha, place(o.b, at_b), plan.a.get(),
                                place(o.a, at_a), plan.b.get(), beta, place(o.added(), first * each), plan.c.get(),
                                place(o.out, first * each), plan.c.get(), &with.algorithm, workspace, with.workspace,
                                cuda::current_stream());
        }))
      check_blas("cublasLtMatmul", CUBLAS_STATUS_NOT_SUPPORTED);
  }
}

/// The alignment of rows of `n` elements in every new tensor; kernels gain nothing from more than 16 bytes.
int64_t usual_alignment(int64_t n, DType dtype) {
  return std::min<int64_t>(16, alignment(uint64_t(n * size_of(dtype))));
}

/// Returns x if it is contiguous and begins at an address with usual_alignment(), else a copy.
Tensor usual(const Tensor& x) {
  const bool fits = x.is_contiguous() && address(x) % uint64_t(usual_alignment(x.size(-1), x.dtype())) == 0;
  return fits ? x : x.clone();
}

/// product() in a BatchInvariant scope: the algorithm depends neither on the number of rows nor on their addresses.
/// Numbers of rows that the algorithm does not take are computed in parts of usual_rows(). Returns false if it cannot
/// compute this product.
bool invariant_product(const Operands& o) {
  if (o.fused.keeps_pre) return false;  // the memory's alignment would matter
  const bool adds = o.args.beta != 0;
  if (o.out.dim() > 2) {  // the number of matrices must not matter either
    bool supported = true;
    for (int64_t i = 0; supported && i < o.out.size(0); ++i) {
      const Tensor a = o.a[i], b = o.b[i], c = adds ? o.c[i] : o.c, out = o.out[i];
      supported = invariant_product({a, b, c, o.bias, o.args, o.fused, o.pre, out});
    }
    return supported;
  }
  const auto has_padding = [&](const Tensor& x) {  // a single row may have padding, too
    return !adds && has_full_rows(x) && row_step(x) == padded_columns(x.size(1)) && address(x) % 16 == 0;
  };
  const Tensor a = usual(o.a), c = adds ? usual(o.c) : o.c, out = has_padding(o.out) ? o.out : usual(o.out);
  const Operands plain{a, o.b, c, o.bias, o.args, o.fused, o.pre, out};
  const std::vector<BatchDim> dims = batch_dims(a, o.b, out);
  Problem problem = problem_of(plain, dims);
  problem.lead_a = problem.k, problem.transposed_a = 0;
  problem.align_a = usual_alignment(problem.k, a.dtype());
  problem.lead_out = row_step(out);
  problem.align_c = problem.align_d = usual_alignment(problem.lead_out, out.dtype());
  bool supported = true;
  if (const Product* const plan = invariant_plan(problem, supported)) {
    run(*plan, plain, dims);
  } else if (!supported) {
    return false;
  } else {
    const int64_t each = usual_rows(problem);
    for (int64_t first = 0; first < problem.m; first += each) {
      const int64_t rows = std::min(each, problem.m - first);
      const auto part = [&](const Tensor& x) {
        const Tensor some = x.narrow(0, first, rows);
        return rows == each ? some : cat({some, zeros({each - rows, x.size(1)}, {x.dtype(), x.device()})}, 0);
      };
      const Tensor a_part = part(a), c_part = adds ? part(c) : c,
                   out_part = rows == each       ? out.narrow(0, first, rows)
                              : has_padding(out) ? empty_padded({each, problem.n}, {out.dtype(), out.device()})
                                                 : empty({each, problem.n}, {out.dtype(), out.device()});
      invariant_product({a_part, o.b, c_part, o.bias, o.args, o.fused, o.pre, out_part});
      if (rows < each) out.narrow(0, first, rows).copy_(out_part.narrow(0, 0, rows));
    }
  }
  if (out.storage() != o.out.storage()) Tensor(o.out).copy_(out);
  return true;
}

/// out = fused(alpha * a b + beta * c). False, having written nothing, if the library does not support it.
bool product(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& bias, const MatmulArgs& args,
             const Fused& fused, const Tensor& pre, const Tensor& out) {
  const Operands operands{a, b, c, bias, args, fused, pre, out};
  if (BatchInvariant::is_on() && !fused.gelu_grad) return invariant_product(operands);
  const std::vector<BatchDim> dims = batch_dims(a, b, out);
  const Problem problem = problem_of(operands, dims);
  // required by the library
  if (has_pre(problem.epilogue) && (problem.n % 8 != 0 || problem.align_pre < 16)) return false;
  const Product* const plan = plan_for(problem, describe);
  if (plan) run(*plan, operands, dims);
  return plan;
}

void pointwise_into(PointwiseOp op, const std::vector<const Tensor*>& in, Tensor& out, double p = 0) {
  kernels::pointwise(out.device(), op, PointwisePart::value, {.p = p}, in.data(), int(in.size()), out);
}

/// out = activation(x + bias), with the value before the activation in `pre`; x is out or pre.
void finish(const Tensor& x, const Tensor& bias, Activation activation, Tensor& pre, Tensor& out) {
  constexpr PointwiseOp ops[] = {PointwiseOp::count, PointwiseOp::relu, PointwiseOp::gelu_tanh, PointwiseOp::gelu_erf,
                                 PointwiseOp::silu};
  Tensor before = x;
  if (bias.defined()) pointwise_into(PointwiseOp::add, {&before, &bias}, before);
  if (pre.defined() && pre.storage() != before.storage()) pre.copy_(before);
  if (activation != Activation::none) pointwise_into(ops[int(activation)], {&before}, out);
  else if (before.storage() != out.storage()) out.copy_(before);
}

}  // namespace

void matmul(const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& bias, const MatmulArgs& args, Tensor& pre,
            Tensor& out) {
  if (out.numel() == 0) return;
  const DType dtype = out.dtype();
  LOCKSTEP_CHECK(dtype == f64 || dtype == f32 || dtype == f16 || dtype == bf16,
                 "[matmul] expected a floating dtype, got ", dtype);
  if (a.size(-1) == 0) {  // empty sums
    if (args.beta == 0) out.fill_(0);
    else pointwise_into(PointwiseOp::mul_scalar, {&c}, out, args.beta);
    return finish(out, bias, args.activation, pre, out);
  }
  // Fuse as much as possible. f64 is meant for checking; the library has few epilogues for it.
  const bool fusable = dtype != f64 && (args.activation == Activation::gelu_tanh ||
                                        (args.activation == Activation::relu && !pre.defined()));
  if (fusable && product(a, b, c, bias, args, {bias.defined(), args.activation, pre.defined()}, pre, out)) return;
  const Tensor before = pre.defined() ? pre : out;
  if (dtype != f64 && bias.defined() && product(a, b, c, bias, args, {.bias = true}, pre, before))
    return finish(before, {}, args.activation, pre, out);
  if (product(a, b, c, bias, args, {}, pre, before)) return finish(before, bias, args.activation, pre, out);
  LOCKSTEP_CHECK(a.dtype() == f16 || a.dtype() == bf16, "[matmul] cuBLASLt does not support the product of ", a.shape(),
                 " by ", b.shape(), " in ", dtype, " with strides ", a.strides(), " and ", b.strides(),
                 "; make them contiguous()");
  // Devices that do not support the dtype: compute in f32 and round once.
  if (a.dtype() != dtype) return matmul(a.to(dtype), b.to(dtype), c, bias, args, pre, out);
  Tensor wide = empty(out.shape(), {.dtype = f32, .device = out.device()});
  Tensor wide_pre = pre.defined() ? empty(pre.shape(), {.dtype = f32, .device = out.device()}) : Tensor();
  const auto widened = [](const Tensor& x) { return x.defined() ? x.to(f32) : x; };
  matmul(a.to(f32), b.to(f32), widened(c), widened(bias), args, wide_pre, wide);
  out.copy_(wide);
  if (pre.defined()) pre.copy_(wide_pre);
}

void matmul_unary_grad(const Tensor& a, const Tensor& b, PointwiseOp op, const PointwiseArgs& args, const Tensor& kept,
                       Tensor& out) {
  if (out.numel() == 0) return;
  if (op == PointwiseOp::gelu_tanh && out.dtype() != f64 && a.size(-1) > 0 &&
      product(a, b, {}, {}, {}, {.gelu_grad = true}, kept, out))
    return;
  Tensor none;
  matmul(a, b, none, none, {}, none, out);
  const Tensor* const in[] = {&out, &kept};
  kernels::pointwise(out.device(), op, PointwisePart::grad0, args, in, 2, out);
}

}  // namespace lockstep::on_cuda
