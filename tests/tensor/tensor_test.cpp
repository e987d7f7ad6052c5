// The core of the tensor library: memory, storage, views, copies, creation, random numbers, printing.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <thread>

#include "tensor/kernels.h"
#include "tensor/ops.h"
#include "tests/devices.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;

namespace {

Tensor counting(const Shape& shape, DType dtype = f32) { return arange(numel_of(shape)).to(dtype).view(shape); }

// The values of any view, element by element through offsets: the reference for to_vector().
std::vector<double> slow_values(const Tensor& x) {
  const Tensor base = x.as_strided({x.storage()->bytes() / size_of(x.dtype())}, {1}, 0);
  const auto all = base.to_vector<double>();
  std::vector<double> values;
  Dims index = Dims::filled(x.dim(), 0);
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t at = x.offset();
    for (int d = 0; d < x.dim(); ++d) at += index[d] * x.strides()[d];
    values.push_back(all[size_t(at)]);
    for (int d = x.dim() - 1; d >= 0 && ++index[d] == x.shape()[d]; --d) index[d] = 0;
  }
  return values;
}

}  // namespace

TEST_CASE("errors name the operation, the expected value and the actual one") {
  const Tensor x = counting({2, 3}), none;
  CHECK_ERROR(none.clone(), "[clone] tensor is undefined");
  CHECK_ERROR(none.view({1}), "[view] tensor is undefined");
  CHECK_ERROR(zeros_like(none), "[full_like] tensor is undefined");
  CHECK_ERROR(none.device(), "[device] tensor is undefined");
  CHECK_ERROR(x.data<double>(), "[data] expected the dtype of the tensor, f32, got f64");
  CHECK_ERROR(x.item(), "[item] expected a tensor of one element, got shape (2, 3)");
  CHECK_ERROR(x.view({4, -1}), "[view] expected a shape of 6 elements");
  CHECK_ERROR(x.view({-1, -1}), "got (-1, -1)");
  CHECK_ERROR(x.t().view({6}), "; use reshape");
  CHECK_ERROR(x.select(0, 2), "[select] expected an index from -2 to 1, got 2");
  CHECK_ERROR(x.transpose(0, 2), "[transpose] expected a dim from -2 to 1, got 2");
  CHECK_ERROR(x.permute({0, 0}), "[permute] expected every dim once, got (0, 0)");
  CHECK_ERROR(x.slice(0, 0, 2, 0), "[slice] expected a step >= 1, got 0");
  CHECK_ERROR(x.narrow(1, 2, 2), "[narrow] expected a range inside 0 to 3");
  CHECK_ERROR(x.expand({4, 3}), "[expand] expected sizes that (2, 3) broadcasts to, got (4, 3)");
  CHECK_ERROR(x.split({1, 3}, 1), "[split] expected sizes >= 0 that sum to 3, got a sum of 4");
  CHECK_ERROR(x.as_strided({2, 4}, {3, 1}, 0), "[tensor] expected a view inside its storage of 6 elements");
  CHECK_ERROR(x.as_strided({3, 3}, {INT64_MAX / 2, 1}, 5), "inside its storage");
  CHECK_ERROR(x.as_strided({2}, {-1}, 3), "[tensor] expected strides >= 0");
  CHECK_ERROR(x.as_strided({1}, {1}, -1), "inside its storage");
  CHECK_ERROR(x.copy_(zeros({4})), "got (4) and (2, 3)");
  CHECK_ERROR(x.copy_(zeros({2, 2, 3})), "[copy_] expected a source that broadcasts to (2, 3), got (2, 2, 3)");
  CHECK_ERROR(zeros({1}).expand({3}).fill_(1),
              "[fill_] expected a tensor without repeated elements, got one expanded along dim 0; use .clone()");
  CHECK_ERROR(Tensor::from({1.f, 2.f}, {3}), "[from] expected 3 values for shape (3), got 2");
  CHECK_ERROR(empty({-1}), "[empty] expected sizes >= 0, got shape (-1)");
  CHECK_ERROR(empty({1ll << 40, 1ll << 40}), "[empty] expected fewer than 2^63 elements");
  CHECK_ERROR(empty({1ll << 62}), "[empty] expected fewer than 2^63 bytes");
  CHECK_ERROR(parse_dtype("f31"), "got \"f31\"");
  CHECK_ERROR(parse_device("gpu"), "got \"gpu\"");
  CHECK_ERROR(parse_device("cpu:-1"), "[device] expected cpu");
  CHECK_ERROR(arange(0.0, 3.0, -1.0), "[arange] expected a step that leads from start to end");
  CHECK_ERROR(randint(3, 3, {2}), "[randint] expected low < high, got 3 and 3");
  CHECK_ERROR(randint(0, 1000, {8}, {.dtype = i8}), "[randint] expected numbers from -128 to 127");
  CHECK_ERROR(randint(-1, 10, {8}, {.dtype = u8}),
              "from 0 to 255, the integers that u8 represents exactly, got -1 to 9");
  CHECK_ERROR(randint(0, 3000000000, {8}, {.dtype = i32}), "from -2147483648 to 2147483647");
  CHECK_ERROR(randint(0, 100000, {8}, {.dtype = f16}), "from -2048 to 2048, the integers that f16 represents");
  CHECK_ERROR(randint(0, 1000, {8}, {.dtype = bf16}), "from -256 to 256, the integers that bf16 represents");
  CHECK_ERROR(randint(-20000000, 0, {8}, {.dtype = f32}),
              "from -16777216 to 16777216, the integers that f32 represents");
  CHECK_ERROR(randint(0, 1ll << 54, {8}, {.dtype = f64}), "got 0 to 18014398509481983; draw them in i64");
  CHECK_ERROR(uniform_(empty({4}, {.dtype = f16}), 0, 1e6),
              "[uniform_] expected low <= high, both and their distance in the range of f16, got 0 and 1e+06");
  CHECK_ERROR(uniform_(empty({4}), 0, 1e39), "in the range of f32, got 0 and 1e+39");
  CHECK_ERROR(uniform_(empty({4}, {.dtype = bf16}), -3e38, 3e38), "and their distance in the range of bf16");
  CHECK_ERROR(uniform_(empty({4}, {.dtype = f64}), -1e308, 1e308), "in the range of f64");
  CHECK_ERROR(uniform_(empty({4}), NAN, 1), "[uniform_] expected low <= high");
  CHECK_ERROR(uniform_(empty({4}), 2, 1), "[uniform_] expected low <= high");
  CHECK_ERROR(normal_(empty({4}, {.dtype = f16}), 1e5, 1), "[normal_] expected a mean and a deviation >= 0 in the");
  CHECK_ERROR(normal_(empty({4}), 0, NAN), "in the range of f32, got 0 and nan");
  CHECK_ERROR(rand({2}, {.dtype = i64}), "[rand] expected a floating dtype, got i64");
  CHECK_ERROR(set_threads(0), "[set_threads]");
  CHECK_ERROR(Dims({1, 1, 1, 1, 1, 1, 1, 1, 1}), "[shape] expected at most 8 dims, got 9");
}

TEST_CASE("names of dtypes and devices are parsed back") {
  for (DType dtype : {f32, f64, f16, bf16, i64, i32, i8, u8, boolean}) CHECK(parse_dtype(name_of(dtype)) == dtype);
  CHECK(parse_dtype("bfloat16") == bf16);
  for (const char* name : {"cpu:0", "cpu:3", "cuda:1"}) CHECK(str(parse_device(name)) == name);
  CHECK(parse_device("cpu") == cpu);
}

TEST_CASE("views show the right elements") {
  const Tensor x = counting({2, 3, 4, 5});
  const Tensor views[] = {x,
                          x.permute({3, 1, 0, 2}),
                          x.transpose(0, -1),
                          x.t(),
                          x.slice(1, 1),
                          x.slice(3, -3, end_of_dim, 2),
                          x.narrow(2, 1, 2).select(0, 1),
                          x[1][2],
                          x[-1],
                          x.diagonal(),
                          x.diagonal(-1, 2, 3),
                          x.diagonal(2, 3, 1),
                          x.unsqueeze(0).squeeze(),
                          x.unsqueeze(-1).expand({2, 3, 4, 5, 3}),
                          x.flatten(1, 2),
                          x.view({6, -1}),
                          x.permute({1, 0, 2, 3}).view({3, 2, 20}),
                          x.slice(0, 5, 9),
                          x.select(0, 0).select(0, 0).select(0, 0).select(0, 3)};
  for (const Tensor& view : views) {
    CAPTURE(view.shape());
    CHECK(view.storage() == x.storage());
    CHECK(view.to_vector<double>() == slow_values(view));
    CHECK(view.clone().is_contiguous());
    CHECK(view.clone().to_vector<double>() == slow_values(view));
    CHECK(view.reshape({-1, 1}).numel() == view.numel());
  }
  CHECK(x.t().reshape({120}).to_vector<double>() == slow_values(x.t()));
  CHECK(x.slice(0, 1, 2).is_contiguous());
  CHECK(x.slice(1, 0, 2).slice(0, 0, 1).is_contiguous());  // the stride of a dimension of size 1 does not matter
  CHECK_FALSE(x.t().is_contiguous());
  CHECK(x.slice(0, 5, 9).shape() == Shape{0, 3, 4, 5});
  const auto sizes = [](const std::vector<Tensor>& pieces) {
    std::vector<int64_t> result;
    for (const Tensor& piece : pieces) result.push_back(piece.size(0));
    return result;
  };
  const Tensor ten = counting({10});
  CHECK(sizes(ten.chunk(3)) == std::vector<int64_t>{4, 4, 2});
  CHECK(sizes(ten.chunk(4)) == std::vector<int64_t>{3, 3, 3, 1});
  CHECK(sizes(ten.split(4)) == std::vector<int64_t>{4, 4, 2});
  CHECK(sizes(ten.split({1, 0, 9})) == std::vector<int64_t>{1, 0, 9});
}

TEST_CASE("copies between dtypes, strides and sizes") {
  const DType all[] = {f32, f64, f16, bf16, i64, i32, i8, u8, boolean};
  for (DType from : all)
    for (DType to : all) {
      INFO("from ", from, ", to ", to);
      const Tensor x = counting({11, 10}).to(from);
      auto expected = x.to_vector<double>();
      if (to == boolean)
        for (double& value : expected) value = value != 0;
      CHECK(x.to(to).to_vector<double>() == expected);
      const Tensor back = empty({10, 11}, {.dtype = to});
      back.t().copy_(x);
      CHECK(back.t().to_vector<double>() == expected);
    }
  // Transposes of sizes around those of the kernel's tiles and blocks.
  for (DType dtype : {f32, f64, bf16, u8})
    for (int64_t rows : {1, 3, 15, 16, 17, 33, 130, 300})
      for (int64_t columns : {1, 2, 16, 31, 64, 257, 600}) {
        CAPTURE(Shape({rows, columns}));
        Tensor x = randint(0, 100, {3, rows, columns}).to(dtype);
        CHECK(x.t().contiguous().to_vector<double>() == slow_values(x.t()));
        CHECK(x.permute({2, 0, 1}).contiguous().to_vector<double>() == slow_values(x.permute({2, 0, 1})));
      }
  const Tensor row = counting({3}), out = zeros({2, 3});
  CHECK(&out.copy_(row) == &out);
  CHECK(out.to_vector<float>() == std::vector<float>{0, 1, 2, 0, 1, 2});
  const Tensor overlap = counting({5});
  overlap.slice(0, 1).copy_(overlap.slice(0, 0, 4));
  CHECK(overlap.to_vector<float>() == std::vector<float>{0, 0, 1, 2, 3});
}

TEST_CASE("conversion is defined for every value") {
  const double inf = HUGE_VAL, nan = std::nan("");
  const Tensor x = Tensor::from({nan, inf, -inf, 1e30, -1e30, 2.9, -2.9, 300.0, 0.0});
  const int64_t low = INT64_MIN, high = INT64_MAX;
  for (DType dtype : {f64, f32}) {
    CHECK(x.to(dtype).to(i64).to_vector<int64_t>() == std::vector<int64_t>{0, high, low, high, low, 2, -2, 300, 0});
    CHECK(x.to(dtype).to(i32).to_vector<int32_t>() ==
          std::vector<int32_t>{0, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, 2, -2, 300, 0});
    CHECK(x.to(dtype).to(u8).to_vector<int>() == std::vector<int>{0, 255, 0, 255, 0, 2, 0, 255, 0});
    CHECK(x.to(dtype).to(boolean).to_vector<int>() == std::vector<int>{1, 1, 1, 1, 1, 1, 1, 1, 0});
  }
  CHECK(Tensor::from({70000.f, 1e-8f, 65504.f}).to(f16).to_vector<float>() ==
        std::vector<float>{float(inf), 0, 65504.f});
  CHECK(Tensor::from({(int64_t(1) << 53) + 1}).item<int64_t>() == (int64_t(1) << 53) + 1);
  CHECK(Tensor::from({true, false}).to_vector<bool>() == std::vector<bool>{true, false});
}

TEST_CASE("creation") {
  CHECK(arange(2.0, 3.0, 0.25, {.dtype = f32}).to_vector<double>() == std::vector<double>{2, 2.25, 2.5, 2.75});
  CHECK(arange(5.0, 0.0, -2.0).to_vector<int>() == std::vector<int>{5, 3, 1});
  CHECK(arange(0).numel() == 0);
  CHECK(linspace(0, 1, 3).to_vector<double>() == std::vector<double>{0, 0.5, 1});
  CHECK(linspace(3, 1, 1).item() == 3);
  CHECK(eye(2, 3).to_vector<int>() == std::vector<int>{1, 0, 0, 0, 1, 0});
  CHECK(full({}, 2.5).item() == 2.5);
  for (DType dtype : {f32, f64, f16, bf16, i64, i32, i8, u8, boolean})
    CHECK(ones({70000}, {.dtype = dtype}).to_vector<int>() == std::vector<int>(70000, 1));
  const Tensor x = zeros({4, 4});
  x.slice(1, 0, 4, 2).fill_(1);
  CHECK(x[3].to_vector<int>() == std::vector<int>{1, 0, 1, 0});
}

TEST_CASE("philox gives the published numbers, and blocks give the same") {
  using Words = std::array<uint32_t, 4>;
  const uint64_t ones64 = ~uint64_t(0);
  CHECK(philox({0, 0}, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({ones64, ones64}, ones64) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  const PhiloxKey key{0x123456789abcdef, 0xfedcba987654321};
  Tensor x = empty({1003});
  kernels::uniform(default_device(), x, 0, 1, key);
  const auto values = x.to_vector<float>();
  for (int i : {0, 1, 2, 3, 4, 255, 256, 1000, 1002})
    CHECK(values[size_t(i)] == float(philox(key, uint64_t(i / 4))[size_t(i % 4)] >> 8) * 0x1p-24f);
}

TEST_CASE("random numbers: range, moments, and the same bits for every number of threads") {
  constexpr int64_t n = 200003;
  const PhiloxKey key{7, 9};
  const Device device = default_device();
  const std::vector<DType> floats{f32, f64, f16, bf16};
  struct Row {
    const char* name;
    std::vector<DType> dtypes;
    std::function<void(Tensor&)> draw;
    double mean, variance, low, high;
  };
  const Row rows[] = {
      {"uniform", floats, [&](Tensor& x) { kernels::uniform(device, x, -2, 3, key); }, 0.5, 25.0 / 12, -2, 3},
      {"normal", floats, [&](Tensor& x) { kernels::normal(device, x, 1, 2, key); }, 1, 4, -15, 17},
      {"dropout", floats, [&](Tensor& x) { kernels::dropout(device, ones({n}).to(x.dtype()), 0.25, key, {}, {}, x); },
       1, 1.0 / 3, 0, 1.34},
      {"randint", {i64}, [&](Tensor& x) { kernels::randint(device, x, -5, 6, key); }, 0, 10, -5, 6}};
  for (const Row& row : rows)
    for (const DType dtype : row.dtypes) {
      INFO(row.name, " ", dtype);
      Tensor x = empty({n}, {.dtype = dtype});
      check_threads([&] { return row.draw(x), std::vector{x.clone()}; });
      const auto values = x.to_vector<double>();
      const auto [least, greatest] = std::ranges::minmax(values);
      CHECK(least >= row.low);
      CHECK(greatest < row.high);
      const double mean = std::accumulate(values.begin(), values.end(), 0.0) / double(n),
                   squares = std::inner_product(values.begin(), values.end(), values.begin(), 0.0),
                   variance = squares / double(n) - mean * mean;
      CHECK(std::abs(mean - row.mean) < 0.02 * (1 + std::sqrt(row.variance)));
      CHECK(std::abs(variance / row.variance - 1) < 0.02);
    }
  // A shorter tensor gets a prefix of a longer one's numbers.
  Tensor part = empty({777}), entire = empty({n});
  kernels::normal(device, part, 1, 2, key);
  kernels::normal(device, entire, 1, 2, key);
  CHECK(equal(part, entire.narrow(0, 0, 777)));
  Tensor nothing = empty({5});
  kernels::dropout(device, ones({5}), 1, key, {}, {}, nothing);
  CHECK(nothing.to_vector<int>() == std::vector<int>(5, 0));
  kernels::dropout(device, ones({5}), 0, key, {}, {}, nothing);
  CHECK(nothing.to_vector<int>() == std::vector<int>(5, 1));
  CHECK_NOTHROW(randint(INT64_MIN, INT64_MAX, {9}));
  // The whole range of a dtype can be drawn, including its limits.
  for (const auto& [dtype, low, greatest] :
       {std::tuple<DType, int64_t, int64_t>{i8, -128, 127}, {u8, 0, 255}, {bf16, -256, 256}, {f16, -2048, 2048}}) {
    const Tensor all = randint(low, greatest + 1, {200000}, {.dtype = dtype});
    CHECK((min(all).item() == double(low) && max(all).item() == double(greatest)));
  }
  const Tensor wide = uniform_(empty({n}, {.dtype = f16}), -65504, 65504);
  CHECK((all_finite(wide) && max(abs(wide)).item() > 60000));
}

TEST_CASE("normal numbers follow Box and Muller") {
  const PhiloxKey key{3, 4};
  Tensor x = empty({100000});
  kernels::normal(default_device(), x, 0, 1, key);
  const auto values = x.to_vector<double>();
  double worst = 0;
  for (size_t i = 0; i < values.size(); i += 2) {
    const auto words = philox(key, i / 4);
    const double u = (double(words[i % 4]) + 0.5) * 0x1p-32, theta = double(words[i % 4 + 1] >> 8) * 0x1p-24;
    const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * M_PI * theta;
    worst = std::max(
        {worst, std::abs(values[i] - radius * std::cos(angle)), std::abs(values[i + 1] - radius * std::sin(angle))});
  }
  CHECK(worst < 2e-3);  // near u = 1 the radius amplifies the rounding of u
}

TEST_CASE("generator state") {
  manual_seed(5);
  const auto a = rand({8}).to_vector<float>(), b = rand({8}).to_vector<float>();
  CHECK(a != b);
  manual_seed(5);
  CHECK(rand({8}).to_vector<float>() == a);
  const RandomState state = random_state();
  CHECK(rand({8}).to_vector<float>() == b);
  set_random_state(state);
  CHECK(rand({8}).to_vector<float>() == b);
  set_random_step(3, 1);
  CHECK(random_state() == RandomState{.seed = 5, .step = 3, .micro_batch = 1, .call = 0});
  // A thread without a seed draws its own numbers; a seeded one draws the same as any thread with that seed.
  std::set<std::vector<float>> sampled{a, b};
  std::vector<float> seeded;
  for (int i = 0; i < 3; ++i)
    std::thread([&] {
      CHECK(random_state().seed == 5);
      sampled.insert(rand({8}).to_vector<float>());
    }).join();
  CHECK(sampled.size() == 5);
  std::thread([&] { manual_seed(5), seeded = rand({8}).to_vector<float>(); }).join();
  CHECK(seeded == a);
  auto order = randperm(1000).to_vector<int64_t>();
  CHECK(order != arange(1000).to_vector<int64_t>());
  std::sort(order.begin(), order.end());
  CHECK(order == arange(1000).to_vector<int64_t>());
}

TEST_CASE("memory of the CPU: ledger, cache, failed allocations") {
  const MemoryReport before = memory_report();
  {
    const MemoryScope scope(Memory::gradient);
    const Tensor x = empty({1000}, {.device = cpu}), y = empty({1 << 20}, {.device = cpu});
    const auto now = memory_report();
    CHECK(now.category[int(Memory::gradient)].current - before.category[int(Memory::gradient)].current ==
          4 * (1000 + (1 << 20)));
    CHECK(reinterpret_cast<uintptr_t>(x.raw_data()) % 64 == 0);
    CHECK(reinterpret_cast<uintptr_t>(y.raw_data()) % 64 == 0);
  }
  CHECK(MemoryScope::current() == Memory::other);
  CHECK(memory_report().total.current == before.total.current);
  CHECK(memory_report().total.peak >= before.total.current + (4 << 20));
  reset_peak_memory();
  CHECK(memory_report().total.peak == memory_report().total.current);
  for (int64_t size : {1, 2, 1000, 1 << 20}) {
    fail_allocation_after(2);
    CHECK_NOTHROW(empty({size}, {.device = cpu}));
    CHECK_ERROR(empty({size}, {.device = cpu}), "[memory] could not allocate ");
    CHECK_NOTHROW(empty({size}, {.device = cpu}));
  }
  const std::string text = message([] { empty({int64_t(1) << 55}, {.device = cpu}); });
  CHECK(contains(text, "[memory] could not allocate 144115188075855872 bytes"));
  CHECK(contains(text, "activation checkpointing"));
  const auto ask = [] { return message([] { fail_out_of_memory("[test] wanted 3 bytes"); }); };
  {
    int asked = 0;
    const auto advice = std::make_shared<const MemoryAdvice>([&](Device device) {
      CHECK(++asked == 1);  // advice that runs out of memory itself is not asked again
      CHECK_THROWS_AS(fail_out_of_memory("[test] within", device), OutOfMemory);
      --asked;
      return std::string("Buy more.");
    });
    const auto fails = std::make_shared<const MemoryAdvice>([](Device) -> std::string { throw Error("unknown"); });
    add_memory_advice(fails), add_memory_advice(advice);
    for (int times = 0; times < 2; ++times) {
      const std::string said = ask();
      CHECK(said.starts_with("[test] wanted 3 bytes; held now:\ncategory"));
      CHECK(said.ends_with("\nBuy more."));
    }
    std::string other;
    std::thread([&] { other = ask(); }).join();
    CHECK(!contains(other, "Buy more."));  // of another thread
  }
  CHECK(!contains(ask(), "Buy more."));
  CHECK(contains(text, "gradient"));
  CHECK(memory_report().total.current == before.total.current);
  release_cached_memory();
  CHECK(memory_report().cached == 0);
}

TEST_CASE("memory of the cpu: random sizes on many threads, freed elsewhere") {
  std::vector<Tensor> shared(64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&shared, t] {
      uint64_t state = uint64_t(t);
      for (int i = 0; i < 2000; ++i) {
        const auto words = philox({1, uint64_t(t)}, state++);
        const int64_t n = int64_t(words[0] % (i % 50 == 0 ? 2000000 : 3000));
        Tensor& slot = shared[size_t(t * 16) + words[1] % 16];
        if (slot.defined() && slot.numel() > 0)
          REQUIRE(slot.data<int32_t>()[slot.numel() - 1] == int32_t(slot.numel()));
        slot = empty({n}, {.dtype = i32, .device = cpu});
        if (n > 0) slot.data<int32_t>()[0] = slot.data<int32_t>()[n - 1] = int32_t(n);
      }
    });
  for (auto& thread : threads) thread.join();
  for (const Tensor& x : shared) {
    if (x.defined() && x.numel() > 0) REQUIRE(x.data<int32_t>()[x.numel() - 1] == int32_t(x.numel()));
  }
}

TEST_CASE("storage: empty, refill, adopt, versions") {
  const OnCpu on_cpu;
  const Tensor x = ones({10});
  const int64_t before = memory_report().total.current;
  x.storage()->empty();
  CHECK(memory_report().total.current == before - 40);
  CHECK(x.storage()->is_empty());
  CHECK_ERROR(x.data<float>(), "the storage is empty");
  CHECK_ERROR(x.clone(), "[clone] the storage is empty");
  CHECK(contains(to_string(x), "released"));
  x.storage()->refill();
  const uint32_t version = x.storage()->version();
  x.fill_(2);
  CHECK(x.storage()->version() == version + 1);
  CHECK(std::string(x.storage()->last_writer()) == "fill_");
  CHECK(x.to_vector<int>() == std::vector<int>(10, 2));

  std::vector<float> owner{1, 2, 3};
  int released = 0;
  {
    const Tensor view(Storage::adopt(owner.data(), 12, cpu, [&] { ++released; }), 1, {2}, {1}, f32);
    CHECK(view.to_vector<float>() == std::vector<float>{2, 3});
    CHECK(view.is_exclusive());
    const Tensor other = view;
    CHECK_FALSE(view.is_exclusive());
  }
  CHECK(released == 1);
}

TEST_CASE("printing") {
  const OnCpu on_cpu;
  struct Row {
    Tensor tensor;
    const char* text;
  };
  const Row rows[] = {
      {Tensor(), "undefined"},
      {full({}, 2.5), "2.5"},
      {Tensor::from({1.f, 2.f, 30.f}), "[ 1.,  2., 30.]"},
      {Tensor::from({0.5f, -1.25f, float(std::nan("")), HUGE_VALF}), "[ 0.50, -1.25,   nan,   inf]"},
      {Tensor::from({1e-6f, 1.f}), "[1e-06, 1e+00]"},
      {Tensor::from({true, false}), "[ true, false], dtype=bool"},
      {counting({2, 2}, i64), "[[0, 1],\n [2, 3]], dtype=i64"},
      {counting({2, 1, 2}), "[[[0., 1.]],\n\n [[2., 3.]]]"},
      {zeros({0}), "[]"},
      {zeros({0, 3}), "[], shape=(0, 3)"},
      {arange(2000), "[   0,    1,    2, ..., 1997, 1998, 1999], dtype=i64"},
      {full({3}, 1.0 / 3), "[0.3333, 0.3333, 0.3333]"},
  };
  for (const Row& row : rows) CHECK(to_string(row.tensor) == row.text);
}
