// Tensors of more than 2^32 elements on the simulated device. Memory is only committed where it is touched, and of each
// kernel only those blocks run that handle the first and last rows and the rows around elements 2^31 and 2^32
// (fake::SomeBlocks). The device claims so many multiprocessors that each block handles one work item.
#include <algorithm>

#include "tensor/cuda/runtime.h"
#include "tensor/random_math.h"
#include "tests/cuda/against_cpu.h"
#include "tests/cuda/limit_cases.h"
#include "tests/cudasim/fake.h"
#include "tests/cudasim/fiber.h"
#include "tests/messages.h"

using namespace lockstep;
using namespace testing;

namespace {

constexpr int64_t billions[] = {int64_t(1) << 31, int64_t(1) << 32};

/// So many multiprocessors that no block loops over several work items.
struct ManyMultiprocessors {
  ManyMultiprocessors() : before(change(1 << 26)) {}
  ~ManyMultiprocessors() { change(before); }
  static int change(int count) {
    full({1}, 0, {.device = cuda0});  // makes sure that the device's limits have been read
    return std::exchange(const_cast<cuda::DeviceLimits&>(cuda::limits()).multiprocessors, count);
  }
  const int before;
};

struct Range {
  int64_t begin, end;
};

/// The rows around elements 2^31 and 2^32, and the first and last ones.
std::vector<Range> checked_at(int64_t rows, int64_t width) {
  std::vector<Range> ranges{{0, std::min<int64_t>(2, rows)}};
  for (const int64_t element : billions) {
    const int64_t row = element / width;
    if (row + 2 < rows) ranges.push_back({row - 1, row + 2});
  }
  ranges.push_back({rows - 2, rows});
  return ranges;
}

/// A tensor that is zero except for these rows.
Tensor made_large(const LimitInput& input, int number, int64_t rows, const std::vector<Range>& ranges) {
  if (input.full) return limit_rows(input, number, 0, 0).to(cuda0);
  const Tensor x = empty(with_rows(rows, input.shape), {input.dtype, cuda0});
  cudaMemsetAsync(x.raw_data(), 0, size_t(x.numel() * size_of(x.dtype())), cuda::current_stream());
  for (const Range& r : ranges) x.narrow(0, r.begin, r.end - r.begin).copy_(limit_rows(input, number, r.begin, r.end));
  return x;
}

/// The positions of elements of a flat tensor, as parts of the grid.
std::vector<fake::Part> parts_of(int64_t n, std::initializer_list<int64_t> elements) {
  std::vector<fake::Part> parts;
  for (const int64_t at : elements) parts.push_back({double(at) / double(n), double(at + 1) / double(n)});
  return parts;
}

/// Compares a flat tensor's elements around 2^31 and 2^32 and at both ends with expected(i).
void check_elements(const std::string& what, const Tensor& x, const std::function<double(int64_t)>& expected) {
  for (const int64_t at : {int64_t(0), billions[0] - 4, billions[1] - 4, x.numel() - 8}) {
    const auto got = x.narrow(0, at, 8).to(cpu).to_vector<double>();
    for (int64_t i = 0; i < 8; ++i) {
      CAPTURE(what);
      CAPTURE(at + i);
      CHECK(got[size_t(i)] == expected(at + i));
    }
  }
}

}  // namespace

TEST_CASE("large: kernels find elements beyond 2^32") {
  if (simt::with_tsan()) return;  // ThreadSanitizer's shadow memory does not cover such large tensors
  const ManyMultiprocessors many;
  for (const LimitCase& c : limit_cases()) {
    CAPTURE(c.name);
    int64_t width = c.width;
    for (const LimitInput& input : c.inputs) width = std::max(width, input.full ? 0 : numel_of(input.shape));
    if (c.width > 0) width = c.width;
    const int64_t rows = billions[1] / width + 512;
    const std::vector<Range> ranges = checked_at(rows, width);
    std::vector<fake::Part> parts;
    for (const Range& r : ranges) {
      if (!c.places) parts.push_back({double(r.begin) / double(rows), double(r.end) / double(rows)});
      for (int64_t row = r.begin; c.places && row < r.end; ++row)
        for (const double place : c.places(row, rows)) parts.push_back({place, place});
    }
    const fake::SomeBlocks some(parts, c.slow ? 0 : 4);
    Tensors inputs;
    for (size_t i = 0; i < c.inputs.size(); ++i) inputs.push_back(made_large(c.inputs[i], int(i), rows, ranges));
    Tensors got;
    CHECK(message([&] { got = c.run(inputs), synchronize(cuda0); }) == "(no error)");
    for (const Range& r : got.empty() ? std::vector<Range>() : ranges) {
      Tensors here;
      for (size_t i = 0; i < c.inputs.size(); ++i) here.push_back(limit_rows(c.inputs[i], int(i), r.begin, r.end));
      const Tensors expected = c.run(here);
      for (size_t i = 0; i < got.size(); ++i) {
        REQUIRE(got[i].size(0) == rows);
        check_close(got[i].narrow(0, r.begin, r.end - r.begin), expected[i], c.bound,
                    str(c.name, ", result ", i, ", rows from ", r.begin));
      }
    }
  }
}

TEST_CASE("large: operations that depend on the position of an element") {
  if (simt::with_tsan()) return;
  const ManyMultiprocessors many;
  const int64_t n = billions[1] + 1003;
  const fake::SomeBlocks some(parts_of(n, {billions[0], billions[1]}));
  const PhiloxKey key{0x123456789abcdefull, 0xfedcba9876543210ull};
  const auto word = [&](int64_t i) { return philox(key, uint64_t(i) / 4)[size_t(i % 4)]; };
  check_elements("arange", arange(0, double(n), 1, {i64, cuda0}), [](int64_t i) { return double(i); });
  check_elements("fill", full({n}, 7, {u8, cuda0}), [](int64_t) { return 7; });
  Tensor x = empty({n}, {f16, cuda0}), out = empty({n}, {f16, cuda0});
  kernels::uniform(cuda0, x, 0, 1, key);
  check_elements("uniform", x, [&](int64_t i) {
    return double(float(Half(std::min(random_math::unit(word(i)), random_math::max_below<Half>(0, 1)))));
  });
  kernels::randint(cuda0, x, 0, 100, key);
  check_elements("randint", x, [&](int64_t i) {
    const auto words = philox(key, uint64_t(i) / 2);
    const size_t at = size_t(i % 2 * 2);
    return double(random_math::uniform_integer(words[at], words[at + 1], 0, 100));
  });
  kernels::fill(cuda0, x, 3);
  const auto dropped = [&](int64_t i) { return word(i) >= uint32_t(1) << 31 ? 6. : 0.; };
  kernels::dropout(cuda0, x, 0.5, key, {}, {}, out);
  check_elements("dropout", out, dropped);
  kernels::dropout(cuda0, x, 0.5, key, {.first = 0, .run = 1000, .stride = 1000}, {}, out);
  check_elements("dropout of a part", out, dropped);
}

TEST_CASE("large: positions in a large tensor, and searches over all of it") {
  if (simt::with_tsan()) return;
  const ManyMultiprocessors many;
  const LimitInput row{{1000}};
  const int64_t rows = billions[1] / 1000 + 5;
  const std::vector<Range> ranges = checked_at(rows, 1000);
  const fake::SomeBlocks some;
  const Tensor index = Tensor::from(std::vector<int64_t>{0, ranges[1].begin, ranges[2].begin, rows - 1}, {4});
  const Tensor x = made_large(row, 0, rows, ranges), more = limit_rows(row, 1, 0, 4), there = index.to(cuda0);
  const auto picked = [&](const Tensor& from) {
    Tensors parts;
    for (const int64_t i : index.to(cpu).to_vector<int64_t>()) parts.push_back(from.narrow(0, i, 1).to(cpu));
    return cat(parts);
  };
  // Check views, too.
  for (const Range& r : ranges)
    check_close(x.narrow(0, r.begin, r.end - r.begin) * 2, limit_rows(row, 0, r.begin, r.end) * 2, 8, "a view");
  const Tensor before = picked(x);
  CHECK(equal(before[1], limit_rows(row, 0, ranges[1].begin, ranges[1].begin + 1)[0]));
  CHECK(equal(embedding(x, there).to(cpu), before));
  CHECK(equal(gather(x, 0, there.view({4, 1}).expand({4, 1000})).to(cpu), before));
  const struct {
    const char* name;
    std::function<void()> add;
  } adds[] = {{"index_add", [&] { index_add_(x, 0, there, more.to(cuda0)); }},
              {"embedding_grad", [&] { embedding_grad_(x, more.to(cuda0), there); }},
              {"scatter_add", [&] {
                 scatter_add_(x, 0, there.view({4, 1}).expand({4, 1000}), more.to(cuda0));
               }}};
  Tensor now = before;
  for (const auto& add : adds) {
    add.add();
    now = now + more;
    check_close(picked(x), now, 0, add.name);
  }
  Tensor flat = empty({billions[1] + 77}, {u8, cuda0});
  cudaMemsetAsync(flat.raw_data(), 0, size_t(flat.numel()), cuda::current_stream());
  for (const int64_t at : {billions[0] + 5, flat.numel() - 1}) {
    flat.narrow(0, at, 1).fill_(at == billions[0] + 5 ? 8 : 9);
    const fake::SomeBlocks here(parts_of(flat.numel(), {at}), 0);
    CHECK(max(flat).item() == (at == flat.numel() - 1 ? 9 : 8));
    if (at == flat.numel() - 1) CHECK(argmax(flat).item<int64_t>() == at);
  }
}

TEST_CASE("large: an unsupported size is rejected before anything runs") {
  if (simt::with_tsan()) return;
  const ManyMultiprocessors many;
  const fake::SomeBlocks some;
  const auto sized = [](const Shape& shape, DType dtype = u8) { return empty(shape, {dtype, cuda0}); };
  const int64_t n = billions[1], half = billions[0];
  const struct {
    const char* name;
    std::function<void()> call;
    std::vector<const char*> parts;
    std::string copies = "";  // name of the operation that would write the result
  } rows[] = {
      {"sort", [&] { sort(sized({n})); }, {"[sort] expected fewer than 2^32 elements along dim 0"}},
      {"topk", [&] { topk(sized({n}), 3); }, {"[topk] expected fewer than 2^32 elements"}},
      {"scatter",
       [&] { scatter(sized({half}), 0, sized({half}, i64), sized({half})); },
       {"[scatter] expected fewer than 2^31"},
       "copy"},
      {"scatter_add",
       [&] { scatter_add_(sized({8}), 0, sized({n}, i64), sized({n})); },
       {"expected fewer than 2^32 indices on cuda"}},
      {"index_add",
       [&] { index_add_(sized({8}), 0, sized({n}, i64), sized({n})); },
       {"expected fewer than 2^32 indices on cuda"}},
      {"max pool",
       [&] {
         max_pool2d(sized({1, 1, half, 2}, f16), {});
       },
       {"[max_pool2d] expected planes of fewer than 2^31 elements"}},
      {"attention",
       [&] {
         const Tensor q = sized({half, 1, 1, 8}, f16);
         attention(q, q, q);
       },
       {"[attention] expected at most 2147483647 blocks", "2147483648"}},
      {"attention in f32",
       [&] {
         const Tensor q = sized({half, 1, 1, 1}, f32);
         attention(q, q, q);
       },
       {"[attention] expected at most 2147483647 blocks"}},
      {"conv2d",
       [&] {
         conv2d(sized({1, half, 1, 1}, f16), sized({half, 1, 1, 1}, f16), {}, {.groups = half});
       },
       {"[conv2d] expected at most"}},
      {"batch norm",
       [&] {
         batch_norm(sized({1, half, 2}, f16), {}, {}, {}, {}, true);
       },
       {"[batch_norm] expected at most"}},
      {"products",
       [&] {
         matmul(sized({half, 1, 1}, f16), sized({half, 1, 1}, f16));
       },
       {"[matmul] expected at most 2147483647 matrices"}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    synchronize(cuda0);
    fake::take_launches();
    const std::string text = message(row.call);
    CAPTURE(text);
    for (const char* part : row.parts) CHECK(contains(text, part));
    synchronize(cuda0);
    for (const auto& [name, count] : fake::take_launches()) CHECK(name == row.copies);
  }
}
