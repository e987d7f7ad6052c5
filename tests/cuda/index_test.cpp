// Gather, scatter and other index operations, and random numbers, on the device: the same bits as on the CPU.
#include "tests/cuda/against_cpu.h"

using namespace lockstep;
using namespace lockstep::testing;

namespace {

constexpr DType floats[] = {f32, f64, f16, bf16};
constexpr DType numbers[] = {f32, f64, f16, bf16, i64, i32, i8, u8};

Tensor values(const Shape& shape, DType dtype, uint32_t seed) {
  return is_floating(dtype) ? random_tensor(shape, dtype, seed) : random_integers(shape, 50, seed).to(dtype);
}

}  // namespace

TEST_CASE("cuda: reading rows by index, and adding to them") {
  for (const DType dtype : numbers) {
    for (const int64_t columns : {1, 3, 8, 33, 256}) {
      for (const int64_t count : {0, 1, 31, 700}) {
        const Tensor weight = values({40, columns}, dtype, 1), index = random_integers({count}, 40, 2),
                     grad = values({count, columns}, dtype, 3);
        against_cpu(
            str("embedding ", dtype, " ", count, " ", columns), {weight, index}, {grad},
            [](Device on, const Arguments& a, Arguments& to) { kernels::embedding(on, a[0], a[1], to[0]); }, 0);
        for (const int64_t padding : {-1, 7})
          against_cpu(
              str("embedding_grad ", dtype, " ", count, " ", columns), {weight, index, grad}, {weight},
              [&](Device on, const Arguments& a, Arguments& to) {
                kernels::copy(on, a[0], to[0]);
                kernels::embedding_grad(on, a[2], a[1], padding, to[0]);
              },
              0);
      }
    }
    for (int dim = 0; dim < 3; ++dim) {
      const Tensor x = values({6, 10, 9}, dtype, 1),
                   index = random_integers({25}, x.shape()[dim], 2).slice(0, 0, 25, 2);
      Shape shape = x.shape();
      shape[dim] = index.numel();
      const Tensor part = values(shape, dtype, 3), turned = values({9, 10, 6}, dtype, 4).permute({2, 1, 0});
      for (const Tensor& from : {x, turned})
        against_cpu(
            str("index_select ", dtype, " ", dim), {from, index}, {part},
            [&](Device on, const Arguments& a, Arguments& to) { kernels::index_select(on, a[0], dim, a[1], to[0]); },
            0);
      against_cpu(
          str("index_add ", dtype, " ", dim), {x, index, part}, {x},
          [&](Device on, const Arguments& a, Arguments& to) {
            kernels::copy(on, a[0], to[0]);
            kernels::index_add(on, a[2], dim, a[1], to[0]);
          },
          0);
    }
  }
  // Long runs of one index, and more indices than one block sorts.
  const Tensor weight = values({3, 20}, bf16, 1), index = random_integers({5000}, 3, 2),
               grad = values({5000, 20}, bf16, 3);
  against_cpu(
      "few rows", {weight, index, grad}, {weight},
      [&](Device on, const Arguments& a, Arguments& to) {
        kernels::copy(on, a[0], to[0]);
        kernels::embedding_grad(on, a[2], a[1], -1, to[0]);
      },
      0);
}

TEST_CASE("cuda: adding rows to frequent places, in parts") {
  // Parts have 32 rows: runs of one part, of exactly one, of many; one index in all rows; prime numbers of rows.
  for (const DType dtype : {f32, f64, bf16, i8}) {
    for (const int64_t count : {32, 33, 64, 65, 97, 1033}) {
      for (const int64_t places : {1, 2, 13}) {
        for (const int64_t columns : {1, 24, 259}) {
          const Tensor weight = values({places, columns}, dtype, 1), index = random_integers({count}, places, 2),
                       grad = values({count, columns}, dtype, 3);
          for (const int64_t padding : {-1, 0})
            against_cpu(
                str("rows to ", places, " places ", dtype, " ", count, " ", columns), {weight, index, grad}, {weight},
                [&](Device on, const Arguments& a, Arguments& to) {
                  kernels::copy(on, a[0], to[0]);
                  kernels::embedding_grad(on, a[2], a[1], padding, to[0]);
                },
                0);
        }
      }
    }
    // Along an inner dim, and rows that begin at an odd element.
    const Tensor x = values({3, 2, 40}, dtype, 4), index = random_integers({211}, 2, 5),
                 part = values({3 * 211 * 40 + 1}, dtype, 6).narrow(0, 1, 3 * 211 * 40).view({3, 211, 40});
    against_cpu(
        str("index_add of frequent places ", dtype), {x, index, part}, {x},
        [](Device on, const Arguments& a, Arguments& to) {
          kernels::copy(on, a[0], to[0]);
          kernels::index_add(on, a[2], 1, a[1], to[0]);
        },
        0);
  }
  // The sum of a row has the same bits whatever else is added, and wherever its run begins.
  const Tensor grad = values({100, 16}, bf16, 7), more = values({59, 16}, bf16, 8);
  const auto sum_of_last = [&](const Device& device, const std::vector<Tensor>& rows, const Tensor& index) {
    const Tensor table = zeros({3, 16}, {.dtype = bf16, .device = device});
    embedding_grad_(table, cat(rows).to(device), index.to(device));
    return table.to(cpu).select(0, 2);
  };
  const Tensor alone = full({100}, 2, {i64, cpu}), others = random_integers({59}, 2, 9);
  const Tensor expected = sum_of_last(cpu, {grad}, alone);
  for (const Device& device : {cpu, cuda0}) {
    CHECK(equal(sum_of_last(device, {grad}, alone), expected));
    CHECK(equal(sum_of_last(device, {more, grad}, cat({others, alone})), expected));
  }
}

TEST_CASE("cuda: gather and scatter") {
  for (const DType dtype : numbers) {
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{33}, Shape{7, 31}, Shape{4, 5, 9}, Shape{1200}}) {
      for (int dim = 0; dim < std::max(1, shape.rank()); ++dim) {
        Shape longer = shape;
        if (shape.rank() > 0) longer[dim] = 2 * shape[dim] + 1;
        const int64_t size = shape.rank() > 0 ? shape[dim] : 1;
        const Tensor x = values(shape, dtype, 1), index = random_integers(longer, size, 2),
                     source = values(longer, dtype, 3);
        const std::string what = str(dtype, " ", shape, " ", dim);
        against_cpu(
            "gather " + what, {x, index}, {source},
            [&](Device on, const Arguments& a, Arguments& to) { kernels::gather(on, a[0], dim, a[1], to[0]); }, 0);
        for (const bool add : {false, true})
          against_cpu((add ? "scatter_add " : "scatter ") + what, {x, index, source}, {x},
                      [&](Device on, const Arguments& a, Arguments& to) {
                        kernels::copy(on, a[0], to[0]);
                        kernels::scatter(on, add, a[2], dim, a[1], to[0]);
                      },
                      0);
      }
    }
  }
  // Strided views, an index smaller than the tensors, and all indices equal.
  const Tensor x = values({9, 8}, f32, 1).t(), index = random_integers({6, 5}, 8, 2).t(),
               source = values({9, 7}, f32, 3).t(), all_to_one = full({3000}, 2, {i64, cpu});
  against_cpu(
      "gather of strides", {x, index}, {empty({5, 6}, {f32, cpu})},
      [](Device on, const Arguments& a, Arguments& to) { kernels::gather(on, a[0], 0, a[1], to[0]); }, 0);
  for (const bool add : {false, true}) {
    against_cpu(
        "scatter of strides", {x, index, source}, {x},
        [&](Device on, const Arguments& a, Arguments& to) {
          kernels::copy(on, a[0], to[0]);
          kernels::scatter(on, add, a[2], 0, a[1], to[0]);
        },
        0);
    against_cpu(
        "scatter to one place", {values({4}, f16, 1), all_to_one, values({3000}, f16, 2)}, {values({4}, f16, 1)},
        [&](Device on, const Arguments& a, Arguments& to) {
          kernels::copy(on, a[0], to[0]);
          kernels::scatter(on, add, a[2], 0, a[1], to[0]);
        },
        0);
  }
}

TEST_CASE("cuda: triangles") {
  for (const DType dtype : {f64, bf16, u8}) {
    for (const Shape& shape : {Shape{1, 1}, Shape{5, 9}, Shape{9, 5}, Shape{3, 33, 31}, Shape{0, 4}}) {
      const Tensor x = values(shape, dtype, 1);
      for (const int64_t diagonal : {-10, -2, 0, 1, 10}) {
        for (const bool upper : {false, true})
          against_cpu(
              str("triangle ", shape, " ", diagonal), {x}, {x},
              [&](Device on, const Arguments& a, Arguments& to) {
                kernels::triangle(on, a[0], diagonal, upper, to[0]);
              },
              0);
      }
    }
  }
}

TEST_CASE("cuda: random numbers have the CPU's bits") {
  const PhiloxKey key{0x123456789abcdefull, 0xfedcba9876543210ull};
  for (const int64_t n : {0, 1, 2, 3, 31, 33, 1000, 4099}) {
    for (const int64_t shift : {0, 1}) {
      const auto to_fill = [&](DType dtype) { return empty({n + shift}, {dtype, cpu}).narrow(0, shift, n); };
      for (const DType dtype : floats) {
        const Tensor out = to_fill(dtype);
        const std::string what = str(dtype, " ", n, " ", shift);
        for (const auto& [low, high] :
             {std::pair{0.0, 1.0}, std::pair{-3.3, 7.1}, std::pair{2.0, 2.0}, std::pair{1.0, 1.001}})
          against_cpu(
              "uniform " + what, {}, {out},
              [&](Device on, const Arguments&, Arguments& to) { kernels::uniform(on, to[0], low, high, key); }, 0);
        for (const auto& [mean, deviation] : {std::pair{0.0, 1.0}, std::pair{-1.7, 0.02}, std::pair{3.0, 0.0}})
          against_cpu(
              "normal " + what, {}, {out},
              [&](Device on, const Arguments&, Arguments& to) { kernels::normal(on, to[0], mean, deviation, key); }, 0);
        const Tensor x = random_tensor({n}, dtype, 1);
        for (const double p : {0.0, 0.1, 0.5, 1.0})
          against_cpu(
              "dropout " + what, {x}, {out},
              [&](Device on, const Arguments& a, Arguments& to) { kernels::dropout(on, a[0], p, key, {}, {}, to[0]); },
              0);
        const Tensor residual = random_tensor({n}, dtype, 2);
        for (const double p : {0.3, 1.0})
          against_cpu(
              "dropout and a residual " + what, {x, residual}, {out},
              [&](Device on, const Arguments& a, Arguments& to) {
                kernels::dropout(on, a[0], p, key, {}, a[1], to[0]);
              },
              0);
        against_cpu(
            "dropout of a part and a residual " + what, {x, residual}, {out},
            [&](Device on, const Arguments& a, Arguments& to) {
              kernels::dropout(on, a[0], 0.4, key, {.first = 3, .run = 7, .stride = 21}, a[1], to[0]);
            },
            0);
        for (const Region& place :
             {Region{.first = 8, .run = 4, .stride = 12}, Region{.first = 3, .run = 7, .stride = 21},
              Region{.first = 5, .run = 1, .stride = 2}})
          against_cpu(
              "dropout of a part " + what, {x}, {out},
              [&](Device on, const Arguments& a, Arguments& to) {
                kernels::dropout(on, a[0], 0.4, key, place, {}, to[0]);
              },
              0);
      }
      for (const DType dtype : numbers) {
        against_cpu(
            str("randint ", dtype), {}, {to_fill(dtype)},
            [&](Device on, const Arguments&, Arguments& to) {
              kernels::randint(on, to[0], dtype == u8 ? 0 : -5, 100, key);
            },
            0);
        against_cpu(
            str("iota ", dtype), {}, {to_fill(dtype)},
            [&](Device on, const Arguments&, Arguments& to) {
              if (is_floating(dtype)) kernels::iota(on, to[0], 0.3, 0.1);
              else kernels::iota(on, to[0], (int64_t(1) << 53) + 1, -3);  // narrow integers keep the low bits
            },
            0);
      }
    }
  }
  against_cpu(
      "randint over everything", {}, {empty({999}, {i64, cpu})},
      [&](Device on, const Arguments&, Arguments& to) { kernels::randint(on, to[0], INT64_MIN, INT64_MAX, key); }, 0);
}
