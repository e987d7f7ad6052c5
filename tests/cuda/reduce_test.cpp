// Reductions, arg max, sorts and top k on the device against the CPU: every operation and dtype, all
// combinations of dims, few long rows and many short ones, arbitrary strides, and the order of equal values.
#include "tests/cuda/against_cpu.h"

using namespace lockstep;
using namespace testing;

namespace {

struct ReduceCase {
  const char* name;
  ReduceOp op;
  bool of_all;
};
constexpr ReduceCase ops[] = {{"sum", ReduceOp::sum, true},
                              {"prod", ReduceOp::prod, true},
                              {"max", ReduceOp::max, true},
                              {"min", ReduceOp::min, true},
                              {"any", ReduceOp::any, true},
                              {"all", ReduceOp::all, true},
                              {"mean", ReduceOp::mean, false},
                              {"sum_squares", ReduceOp::sum_squares, false},
                              {"logsumexp", ReduceOp::logsumexp, false},
                              {"var", ReduceOp::var, false}};

DType result_of(ReduceOp op, DType dtype) {
  if (op == ReduceOp::any || op == ReduceOp::all) return boolean;
  return is_floating(dtype) || op == ReduceOp::max || op == ReduceOp::min ? dtype : i64;
}

void check_reduce(const ReduceCase& op, const Tensor& x, uint32_t dims) {
  Shape shape = x.shape();
  for (int d = 0; d < x.dim(); ++d) {
    if (dims >> d & 1) shape[d] = 1;
  }
  if (x.numel() == 0 && numel_of(shape) > 0 && (op.op == ReduceOp::max || op.op == ReduceOp::min)) return;
  const DType dtype = result_of(op.op, x.dtype());
  // Products of many elements are tiny or huge; f32 sums of many elements have some rounding error.
  check_kernel({str(op.name, " ", x.dtype(), " ", x.shape(), " strides ", x.strides(), " dims ", dims),
                tolerance(dtype) * (is_floating(dtype) ? 1 : 0)},
               kernels::reduce, op.op, x, dims, 1, Out{empty(shape, {dtype, cpu})});
}

}  // namespace

TEST_CASE("cuda: every reduction and dtype") {
  for (const ReduceCase& op : ops)
    for (const DType dtype : all_dtypes) {
      if (!op.of_all && !is_floating(dtype)) continue;
      for (const int64_t n : {0, 1, 31, 33, 1000, 4099}) {
        check_reduce(op, random_values({n}, dtype, 1), 1);
        check_reduce(op, random_values({3, n}, dtype, 2), 2);
        check_reduce(op, random_values({n, 3}, dtype, 3), 1);
        check_reduce(op, random_values({n, 40}, dtype, 4), 1);
      }
      for (uint32_t dims = 0; dims < 8; ++dims) check_reduce(op, random_values({5, 7, 19}, dtype, 5), dims);
    }
}

TEST_CASE("cuda: reductions of any strides") {
  struct Case {
    ReduceCase op;
    DType dtype;
  };
  for (const auto& [op, dtype] : {Case{ops[0], bf16}, Case{ops[9], f32}}) {
    const Tensor x = random_values({3, 10, 8, 5}, dtype, 1);
    for (const Tensor& y :
         {x, x.permute({3, 1, 0, 2}), x.slice(1, 1, 10, 3), x.select(2, 3), x.narrow(3, 1, 3),
          x.narrow(0, 0, 1).expand({4, 10, 8, 5}), x.select(0, 0).unsqueeze(-1).expand({10, 8, 5, 3})})
      for (uint32_t dims = 0; dims < 1u << y.dim(); ++dims) check_reduce(op, y, dims);
    const Tensor shifted = random_values({3 * 1000 + 1}, dtype, 2).narrow(0, 1, 3000).view({3, 1000});
    for (uint32_t dims = 1; dims < 4; ++dims) check_reduce(op, shifted, dims);
  }
}

TEST_CASE("cuda: reductions cut into chunks") {
  for (const DType dtype : {f32, f16, i64})
    for (const ReduceCase& op : {ops[0], ops[3]}) {
      check_reduce(op, random_values({150001}, dtype, 1), 1);
      check_reduce(op, random_values({2, 40000}, dtype, 2), 2);
      check_reduce(op, random_values({5000, 33}, dtype, 3), 1);
      check_reduce(op, random_values({9, 700, 17}, dtype, 4), 2);
    }
  for (const ReduceCase& op : {ops[8], ops[9]})
    check_reduce(op, random_values({100003}, f32, 5), 1), check_reduce(op, random_values({4000, 20}, f32, 6), 1);
}

TEST_CASE("cuda: reductions of many rows, of few rows and of columns that are no whole vectors") {
  for (const DType dtype : {f32, f64, bf16, i8})
    for (const ReduceCase& op : {ops[0], ops[2], ops[9]}) {
      if (!op.of_all && !is_floating(dtype)) continue;
      // 40 strips of a sector and more are summed without chunks; fewer in chunks; few rows by threads of their own
      for (const Shape& shape : {Shape{1500, 768}, Shape{1501, 643}, Shape{700, 100}, Shape{16, 3000}, Shape{3, 5000}})
        check_reduce(op, random_values(shape, dtype, 1), 1);
      check_reduce(op, random_values({2, 600, 648}, dtype, 2), 2);
      check_reduce(op, random_values({600, 1600}, dtype, 3).narrow(1, 8, 700), 1);
      check_reduce(op, random_values({300, 2, 704}, dtype, 4).permute({1, 0, 2}), 3);
    }
}

TEST_CASE("cuda: reductions of infinities and NaN") {
  const double inf = INFINITY;
  Tensor x = random_values({6, 100}, f32, 1);
  x.select(0, 1).fill_(-inf), x.select(0, 2).narrow(0, 50, 1).fill_(std::nan("")),
      x.select(0, 3).narrow(0, 99, 1).fill_(inf), x.select(0, 4).fill_(inf), x.select(0, 5).fill_(0);
  for (const ReduceCase& op : ops)
    check_reduce(op, x, 2), check_reduce(op, x.t().contiguous(), 1), check_reduce(op, x, 3);
  // The sum of the squares of large f32 values only fits f64.
  const Tensor large = random_tensor({1000}, f32, 2, 1e30);
  check_kernel({"sum of squares in f64", tolerance(f64)}, kernels::reduce, ReduceOp::sum_squares, large, 1, 0,
               Out{empty({1}, {f64, cpu})});
}

TEST_CASE("cuda: arg max and arg min, first place on ties, NaN wins") {
  for (const DType dtype : all_dtypes)
    for (const Shape& shape : {Shape{1}, Shape{4, 3}, Shape{3, 1000}, Shape{1000, 3}, Shape{5, 33, 7}, Shape{4099},
                               Shape{100001}, Shape{0, 3}}) {
      Tensor x = dtype == i8 || dtype == u8 || dtype == boolean ? random_values(shape, dtype, 1)
                                                                : round(random_tensor(shape, f64, 1, 20)).to(dtype);
      if (is_floating(dtype) && x.numel() > 20) x.view({x.numel()}).narrow(0, x.numel() / 2, 2).fill_(std::nan(""));
      for (int dim = 0; dim < shape.rank(); ++dim) {
        if (shape[dim] == 0) continue;
        Shape kept = shape;
        kept.erase(dim);
        for (const bool largest : {true, false})
          check_kernel({str("arg ", dtype, " ", shape, " ", dim), 0}, kernels::arg_reduce, largest, x, dim,
                       Out{empty(kept, {dtype, cpu})}, Out{empty(kept, {i64, cpu})});
      }
    }
  const Tensor scalar = random_tensor({}, f32, 1), turned = random_tensor({20, 30}, f32, 2).t();
  check_kernel({"arg of a scalar", 0}, kernels::arg_reduce, true, scalar, 0, Out{scalar}, Out{scalar.to(i64)});
  check_kernel({"arg of a transposed", 0}, kernels::arg_reduce, true, turned, 1, Out{empty({30}, {f32, cpu})},
               Out{empty({30}, {i64, cpu})});
}

TEST_CASE("cuda: stable sort and top k") {
  for (const DType dtype : all_dtypes) {
    // Long and many rows only for one dtype of each size, because kernels differ by the size of the sort key.
    std::vector<Shape> shapes{{}, {0}, {1}, {2}, {3, 31}, {33, 5}};
    if (dtype == f32 || dtype == i64 || dtype == bf16) shapes.insert(shapes.end(), {{1025}, {2, 2051}, {60, 2}});
    for (const Shape& shape : shapes) {
      // Many equal values, -0 among the zeros, and NaN.
      Tensor x =
          is_floating(dtype) ? round(random_tensor(shape, f64, 1, 40)).to(dtype) : random_values(shape, dtype, 1);
      if (is_floating(dtype) && x.numel() > 40) x.reshape({x.numel()}).slice(0, 3, x.numel(), 37).fill_(std::nan(""));
      for (int dim = 0; dim < std::max(1, shape.rank()); ++dim)
        for (const bool descending : {false, true}) {
          check_kernel({str("sort ", dtype, " ", shape, " ", dim), 0}, kernels::sort, x, dim, descending, Out{x},
                       Out{empty(shape, {i64, cpu})});
          if (shape.rank() == 0) continue;
          for (const int64_t k : {int64_t(0), int64_t(1), int64_t(5), int64_t(513), shape[dim]}) {
            if (k > shape[dim]) continue;
            Shape best = shape;
            best[dim] = k;
            check_kernel({str("topk ", k, " ", dtype, " ", shape, " ", dim), 0}, kernels::topk, x, dim, k, descending,
                         Out{empty(best, {dtype, cpu})}, Out{empty(best, {i64, cpu})});
          }
        }
    }
  }
  const Tensor wide = random_tensor({9, 70}, f32, 2).t();
  check_kernel({"sort of a transposed", 0}, kernels::sort, wide, 0, false, Out{empty({70, 9}, {f32, cpu})},
               Out{empty({70, 9}, {i64, cpu})});
}
