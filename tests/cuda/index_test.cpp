// Gather, scatter and other index operations, and random numbers, on the device: the same bits as on the CPU.
#include "tests/cuda/against_cpu.h"

using namespace lockstep;
using namespace testing;

namespace {

constexpr DType number_dtypes[] = {f32, f64, f16, bf16, i64, i32, i8, u8};

Tensor below_50(const Shape& shape, DType dtype, uint32_t seed) { return random_values(shape, dtype, seed, 50); }

}  // namespace

TEST_CASE("cuda: reading rows by index, and adding to them") {
  for (const DType dtype : number_dtypes) {
    for (const int64_t columns : {1, 3, 8, 33, 256})
      for (const int64_t count : {0, 1, 31, 700}) {
        const Tensor weight = below_50({40, columns}, dtype, 1), index = random_integers({count}, 40, 2),
                     grad = below_50({count, columns}, dtype, 3);
        check_kernel({str("embedding ", dtype, " ", count, " ", columns), 0}, kernels::embedding, weight, index,
                     Out{grad});
        for (const int64_t padding : {-1, 7})
          check_kernel({str("embedding_grad ", dtype, " ", count, " ", columns), 0}, kernels::embedding_grad, grad,
                       index, padding, changed(weight));
      }
    for (int dim = 0; dim < 3; ++dim) {
      const Tensor x = below_50({6, 10, 9}, dtype, 1),
                   index = random_integers({25}, x.shape()[dim], 2).slice(0, 0, 25, 2);
      Shape shape = x.shape();
      shape[dim] = index.numel();
      const Tensor part = below_50(shape, dtype, 3), turned = below_50({9, 10, 6}, dtype, 4).permute({2, 1, 0});
      for (const Tensor& from : {x, turned})
        check_kernel({str("index_select ", dtype, " ", dim), 0}, kernels::index_select, from, dim, index, Out{part});
      check_kernel({str("index_add ", dtype, " ", dim), 0}, kernels::index_add, part, dim, index, changed(x));
    }
  }
  // Long runs of one index, and more indices than one block sorts.
  const Tensor weight = below_50({3, 20}, bf16, 1), index = random_integers({5000}, 3, 2),
               grad = below_50({5000, 20}, bf16, 3);
  check_kernel({"few rows", 0}, kernels::embedding_grad, grad, index, -1, changed(weight));
}

TEST_CASE("cuda: adding rows to frequent places, in parts") {
  // Parts have 32 rows: runs of one part, of exactly one, of many; one index in all rows; prime numbers of rows.
  for (const DType dtype : {f32, f64, bf16, i8}) {
    for (const int64_t count : {32, 33, 64, 65, 97, 1033})
      for (const int64_t places : {1, 2, 13})
        for (const int64_t columns : {1, 24, 259}) {
          const Tensor weight = below_50({places, columns}, dtype, 1), index = random_integers({count}, places, 2),
                       grad = below_50({count, columns}, dtype, 3);
          for (const int64_t padding : {-1, 0})
            check_kernel({str("rows to ", places, " places ", dtype, " ", count, " ", columns), 0},
                         kernels::embedding_grad, grad, index, padding, changed(weight));
        }
    // Along an inner dim, and rows that begin at an odd element.
    const Tensor x = below_50({3, 2, 40}, dtype, 4), index = random_integers({211}, 2, 5),
                 part = below_50({3 * 211 * 40 + 1}, dtype, 6).narrow(0, 1, 3 * 211 * 40).view({3, 211, 40});
    check_kernel({str("index_add of frequent places ", dtype), 0}, kernels::index_add, part, 1, index, changed(x));
  }
  // The sum of a row has the same bits whatever else is added, and wherever its run begins.
  const Tensor grad = below_50({100, 16}, bf16, 7), more = below_50({59, 16}, bf16, 8);
  const auto sum_of_last = [&](const Device& device, const std::vector<Tensor>& rows, const Tensor& index) {
    const Tensor table = zeros({3, 16}, {.dtype = bf16, .device = device});
    embedding_grad_(table, cat(rows).to(device), index.to(device));
    return table.to(cpu).select(0, 2);
  };
  const Tensor repeated = full({100}, 2, {i64, cpu}), others = random_integers({59}, 2, 9);
  const Tensor expected = sum_of_last(cpu, {grad}, repeated);
  for (const Device& device : {cpu, cuda0}) {
    CHECK(equal(sum_of_last(device, {grad}, repeated), expected));
    CHECK(equal(sum_of_last(device, {more, grad}, cat({others, repeated})), expected));
  }
}

TEST_CASE("cuda: gather and scatter") {
  for (const DType dtype : number_dtypes)
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{33}, Shape{7, 31}, Shape{4, 5, 9}, Shape{1200}})
      for (int dim = 0; dim < std::max(1, shape.rank()); ++dim) {
        Shape longer = shape;
        if (shape.rank() > 0) longer[dim] = 2 * shape[dim] + 1;
        const int64_t size = shape.rank() > 0 ? shape[dim] : 1;
        const Tensor x = below_50(shape, dtype, 1), index = random_integers(longer, size, 2),
                     source = below_50(longer, dtype, 3);
        const std::string what = str(dtype, " ", shape, " ", dim);
        check_kernel({"gather " + what, 0}, kernels::gather, x, dim, index, Out{source});
        for (const bool add : {false, true})
          check_kernel({(add ? "scatter_add " : "scatter ") + what, 0}, kernels::scatter, add, source, dim, index,
                       changed(x));
      }
  // Strided views, an index smaller than the tensors, and all indices equal.
  const Tensor x = below_50({9, 8}, f32, 1).t(), index = random_integers({6, 5}, 8, 2).t(),
               source = below_50({9, 7}, f32, 3).t(), all_to_one = full({3000}, 2, {i64, cpu});
  check_kernel({"gather of strides", 0}, kernels::gather, x, 0, index, Out{empty({5, 6}, {f32, cpu})});
  for (const bool add : {false, true}) {
    check_kernel({"scatter of strides", 0}, kernels::scatter, add, source, 0, index, changed(x));
    check_kernel({"scatter to one place", 0}, kernels::scatter, add, below_50({3000}, f16, 2), 0, all_to_one,
                 changed(below_50({4}, f16, 1)));
  }
}

TEST_CASE("cuda: triangles") {
  for (const DType dtype : {f64, bf16, u8})
    for (const Shape& shape : {Shape{1, 1}, Shape{5, 9}, Shape{9, 5}, Shape{3, 33, 31}, Shape{0, 4}}) {
      const Tensor x = below_50(shape, dtype, 1);
      for (const int64_t diagonal : {-10, -2, 0, 1, 10})
        for (const bool upper : {false, true})
          check_kernel({str("triangle ", shape, " ", diagonal), 0}, kernels::triangle, x, diagonal, upper, Out{x});
    }
}

TEST_CASE("cuda: random numbers are bit-identical to the CPU's") {
  const PhiloxKey key{0x123456789abcdefull, 0xfedcba9876543210ull};
  for (const int64_t n : {0, 1, 2, 3, 31, 33, 1000, 4099})
    for (const int64_t shift : {0, 1}) {
      const auto to_fill = [&](DType dtype) { return empty({n + shift}, {dtype, cpu}).narrow(0, shift, n); };
      for (const DType dtype : float_dtypes) {
        const Tensor out = to_fill(dtype);
        const std::string what = str(dtype, " ", n, " ", shift);
        for (const auto& [low, high] :
             {std::pair{0.0, 1.0}, std::pair{-3.3, 7.1}, std::pair{2.0, 2.0}, std::pair{1.0, 1.001}})
          check_kernel({"uniform " + what, 0}, kernels::uniform, Out{out}, low, high, key);
        for (const auto& [mean, deviation] : {std::pair{0.0, 1.0}, std::pair{-1.7, 0.02}, std::pair{3.0, 0.0}})
          check_kernel({"normal " + what, 0}, kernels::normal, Out{out}, mean, deviation, key);
        const Tensor x = random_tensor({n}, dtype, 1);
        for (const double p : {0.0, 0.1, 0.5, 1.0})
          check_kernel({"dropout " + what, 0}, kernels::dropout, x, p, key, Region(), Tensor(), Out{out});
        const Tensor residual = random_tensor({n}, dtype, 2);
        for (const double p : {0.3, 1.0})
          check_kernel({"dropout and a residual " + what, 0}, kernels::dropout, x, p, key, Region(), residual,
                       Out{out});
        check_kernel({"dropout of a part and a residual " + what, 0}, kernels::dropout, x, 0.4, key,
                     Region{.first = 3, .run = 7, .stride = 21}, residual, Out{out});
        for (const Region& place :
             {Region{.first = 8, .run = 4, .stride = 12}, Region{.first = 3, .run = 7, .stride = 21},
              Region{.first = 5, .run = 1, .stride = 2}})
          check_kernel({"dropout of a part " + what, 0}, kernels::dropout, x, 0.4, key, place, Tensor(), Out{out});
      }
      for (const DType dtype : number_dtypes) {
        check_kernel({str("randint ", dtype), 0}, kernels::randint, Out{to_fill(dtype)}, dtype == u8 ? 0 : -5, 100,
                     key);
        const std::string iota = str("iota ", dtype);
        if (is_floating(dtype)) check_kernel({iota, 0}, kernels::iota, Out{to_fill(dtype)}, 0.3, 0.1);
        else  // narrow integers keep the low bits
          check_kernel({iota, 0}, kernels::iota, Out{to_fill(dtype)}, (int64_t(1) << 53) + 1, -3);
      }
    }
  check_kernel({"randint over everything", 0}, kernels::randint, Out{empty({999}, {i64, cpu})}, INT64_MIN, INT64_MAX,
               key);
}
