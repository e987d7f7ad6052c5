// Virtual CPU devices: they are separate devices although they share memory.
#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "tensor/backend.h"
#include "tensor/ops.h"
#include "tests/devices.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;

TEST_CASE("devices are counted and listed") {
  CHECK(device_count() >= 1);
  CHECK(int(all_devices(Device::Type::cuda).size()) == device_count(Device::Type::cuda));
  const Devices two;
  CHECK(device_count() == 2);
  CHECK(all_devices() == std::vector<Device>{cpu, second});
  CHECK(str(second) == "cpu:1");
  for (const int n : {0, -1, 65})
    CHECK_ERROR(set_virtual_devices(n),
                "[set_virtual_devices] expected a number from 1 to 64, got " + std::to_string(n));
  CHECK(device_count() == 2);
}

TEST_CASE("an Error for a missing device names it and the devices that exist") {
  const Devices two;
  const Tensor x = ones({2});
  const Device third{Device::Type::cpu, 2}, none{Device::Type::cpu, -1};
  CHECK_ERROR_IS(
      x.to(third),
      "[to] expected one of the devices cpu:0, cpu:1, got cpu:2 (LOCKSTEP_CPU_DEVICES or set_virtual_devices() makes "
      "more)");
  CHECK_ERROR(zeros({2}, {.device = third}), "[storage] expected one of the devices cpu:0, cpu:1, got cpu:2");
  CHECK_ERROR(x.to(none), "got cpu:-1");
  const Device cuda{Device::Type::cuda, 63};
  CHECK_ERROR(x.to(cuda), !backend(cuda)                 ? "no cuda backend"
                          : device_count(cuda.type) == 0 ? "there is no cuda device"
                                                         : "expected one of the devices cuda:0");
}

TEST_CASE("moving copies, and stays on the device") {
  const Devices two;
  const Tensor x = arange(6).to(f32).view({2, 3}), y = x.t().to(second);
  CHECK(y.device() == second);
  CHECK(y.to_vector<float>() == std::vector<float>{0, 3, 1, 4, 2, 5});
  CHECK(y.is_contiguous());
  CHECK(y.to(second).storage() == y.storage());
  y.zero_();
  CHECK(x.to_vector<float>() == std::vector<float>{0, 1, 2, 3, 4, 5});
  CHECK(y.to(cpu).device() == cpu);
  for (const Tensor& made : {y + y, y.clone(), y.to(f64), zeros_like(y), matmul(y, y.t()), sum(y), softmax(y, 0),
                             cat({y, y}), y.slice(0, 1)})
    CHECK(made.device() == second);
  y.copy_(x.t());  // copy_() may cross devices
  CHECK(y.to_vector<float>() == std::vector<float>{0, 3, 1, 4, 2, 5});
  CHECK(to_string(y.to(i64)) == "[[0, 3],\n [1, 4],\n [2, 5]], dtype=i64, device=cpu:1");
  CHECK(to_string(ones({1}, {.device = second})) == to_string(ones({1}, {.device = cpu})) + ", device=cpu:1");
}

TEST_CASE("an operation on two devices is an error that names both") {
  const Devices two;
  const Tensor a = ones({2, 2}), b = ones({2, 2}, {.device = second}), i = zeros({2}, {.dtype = i64, .device = second}),
               m = ones({2, 2}, {boolean, second});
  const std::string here = str(default_device());
  CHECK_ERROR_IS(a + b,
                 "[add] expected one device, got (2, 2) on " + here + " and (2, 2) on cpu:1 (move with .to(device))");
  const Tensor image = ones({1, 1, 4, 4}), kernel = ones({1, 1, 2, 2}, {.device = second}), v = ones({2}),
               w = ones({2}, {.device = second}), q = ones({1, 1, 2, 2});
  const std::vector<Tensor> both{a, b};
  const std::vector<std::pair<const char*, std::function<void()>>> rows = {
      {"[add_]", [&] { add_(a, b); }},
      {"[add_]", [&] { add_(a, b, 2); }},
      {"[lt]", [&] { lt(a, b); }},
      {"[maximum]", [&] { maximum(b, a); }},
      {"[where]", [&] { where(m, a, a); }},
      {"[where]", [&] { where(m, a, b); }},
      {"[addcmul]", [&] { addcmul(a, a, b); }},
      {"[lerp]", [&] { lerp(a, b, 0.5); }},
      {"[matmul]", [&] { matmul(a, b); }},
      {"[addmm]", [&] { addmm(b, a, a); }},
      {"[linear]", [&] { linear(a, b, {}); }},
      {"[linear]", [&] { linear(a, a, w); }},
      {"[outer]", [&] { outer(v, w); }},
      {"[conv2d]", [&] { conv2d(image, kernel, {}); }},
      {"[cat]", [&] { cat(both); }},
      {"[stack]", [&] { stack(both); }},
      {"[index_select]", [&] { index_select(a, 0, i); }},
      {"[gather]", [&] { gather(a, 0, i.unsqueeze(0)); }},
      {"[embedding]", [&] { embedding(a, i); }},
      {"[masked_fill]", [&] { masked_fill(a, m, 0); }},
      {"[index_add_]", [&] { index_add_(a, 0, zeros({2}, {.dtype = i64}), b); }},
      {"[layer_norm]", [&] { layer_norm(a, {2}, w); }},
      {"[rms_norm]", [&] { rms_norm(a, w, 1e-5); }},
      {"", [&] { cross_entropy_rows(a, i); }},
      {"[attention]", [&] { attention(q, q.to(second), q); }},
      {"[allclose]", [&] { allclose(a, b); }},
      {"[equal]", [&] { equal(a, b); }},
  };
  for (const auto& [op, call] : rows) {
    const std::string text = message(call);
    CHECK_MESSAGE((contains(text, op) && contains(text, "expected one device, got ") && contains(text, here) &&
                   contains(text, "cpu:1")),
                  op, ": ", text);
  }
}

TEST_CASE("a thread may be held to fewer threads") {
  const Threads four(4);
  {
    const ThreadLimit limit(2);
    CHECK(get_threads() == 2);
    const ThreadLimit wide(9);
    CHECK(get_threads() == 4);
  }
  CHECK(get_threads() == 4);
}
