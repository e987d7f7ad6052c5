#pragma once
// Rows of operations, each of which is run on two devices.
#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "tensor/random.h"
#include "tests/devices.h"

namespace testing {

using namespace lockstep;

using Inputs = std::vector<Variable>;
/// The inputs: x[0] (4, 6), x[1] (4, 6), x[2] (6), x[3] (2, 4, 6, 6), x[4] (4, 4, 3, 3). `on` moves other tensors to
/// their device.
struct Row {
  const char* name;
  std::function<Variable(const Inputs& x, const std::function<Tensor(Tensor)>& on)> op;
};

inline Inputs inputs_on(Device device) {
  manual_seed(5);
  Inputs inputs;
  for (const Shape& shape : {Shape{4, 6}, Shape{4, 6}, Shape{6}, Shape{2, 4, 6, 6}, Shape{4, 4, 3, 3}})
    inputs.emplace_back(add_scalar(rand(shape), 0.1).to(device), true);
  return inputs;
}

#define OP(expression)                                                                                            \
  {                                                                                                               \
#expression, []([[maybe_unused]] const Inputs& x,                                                             \
                    [[maybe_unused]] const std::function <Tensor(Tensor)>& on) -> Variable { return expression; } \
  }

inline const Tensor places = Tensor::from<int64_t>({0, 2, 1, 3}, {4});
inline const Tensor signs = sub(mul_scalar(Tensor::from<int64_t>({1, 0, 1, 1, 0, 0, 1, 0, 0, 1, 1, 1,  //
                                                                  0, 0, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1},
                                                                 {4, 6}),
                                           2),
                                ones({4, 6}, {.dtype = i64}));
inline const Tensor tokens = Tensor::from<int64_t>({3, 0, 0, 1, 2, 3}, {2, 3});

/// Checks that each operation stays on its device, forward and backward, with the same bits as on cpu:0.
inline void check_devices(const std::vector<Row>& rows) {
  const OnCpu on_cpu;
  const Devices two;
  for (const Row& row : rows) {
    CAPTURE(std::string(row.name));
    std::vector<Tensor> results[2];
    for (const Device device : {cpu, second}) {
      const Inputs x = inputs_on(device);
      auto& kept = results[device.index];
      try {
        const Variable y = row.op(x, [device](const Tensor& t) { return t.to(device); });
        kept.push_back(y.tensor());
        sum(y * y).backward();
        for (const Variable& input : x) kept.push_back(input.grad());
      } catch (const Error& e) {
        FAIL_CHECK(str(device, ": ", e.what()));
        continue;
      }
    }
    REQUIRE(results[0].size() == results[1].size());
    for (size_t i = 0; i < results[0].size(); ++i) {
      REQUIRE(results[0][i].defined() == results[1][i].defined());
      if (!results[0][i].defined()) continue;
      CHECK(results[1][i].device() == second);
      CHECK(equal(results[0][i], results[1][i].to(cpu)));
    }
  }
}

}  // namespace testing
