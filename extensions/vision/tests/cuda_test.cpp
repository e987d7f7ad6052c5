// Average pooling on the device against the CPU, in both layouts.
#include "extensions/vision/average.h"
#include "extensions/vision/average_kernels.h"
#include "tests/cuda/against_cpu.h"
#include "tests/cuda/limit_cases.h"

using namespace lockstep;
using namespace testing;

namespace {

constexpr DType floats[] = {f32, f64, f16, bf16};

Tensor images(const Shape& s, DType dtype, uint32_t seed, bool last) {
  return last ? random_tensor({s[0], s[2], s[3], s[1]}, dtype, seed).permute({0, 3, 1, 2})
              : random_tensor(s, dtype, seed);
}

int64_t outputs(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, bool ceil = false) {
  const int64_t free = size + 2 * padding - dilation * (kernel - 1) - 1;
  int64_t n = (free + (ceil ? stride - 1 : 0)) / stride + 1;
  if (ceil && (n - 1) * stride >= size + padding) --n;
  return n;
}

std::vector<LimitCase> limits_of_pools() {
  const auto unary = [](const char* name, const Shape& x, const std::function<Tensor(const Tensor&)>& f) {
    return LimitCase{.name = name, .inputs = {{x}}, .run = [f](Tensors in) { return Tensors{f(in[0])}; }};
  };
  return {unary("average pool", {2, 8, 16},
                [](const Tensor& a) {
                  return avg_pool2d(a, {.padding = {1, 1}});
                }),
          unary("gradient of average pool", {2, 4, 8},
                [](const Tensor& g) {
                  return avg_pool2d_grad(g, {g.size(0), 2, 8, 16}, {});
                }),
          unary("adaptive pool", {2, 8, 16}, [](const Tensor& a) { return adaptive_avg_pool2d(a, 3, 5); })};
}
[[maybe_unused]] const bool added = (more_limit_cases().push_back(limits_of_pools), true);

}  // namespace

TEST_CASE("cuda: average pooling and its gradient") {
  struct Case {
    Shape x;
    PoolArgs args;
  };
  const Case cases[] = {
      {{1, 1, 1, 1}, {.kernel = {1, 1}, .stride = {1, 1}}},
      {{0, 2, 4, 4}, {}},
      {{2, 3, 8, 8}, {}},
      {{70, 2, 7, 9}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}},
      {{2, 5, 31, 33}, {.kernel = {3, 2}, .stride = {1, 3}, .padding = {0, 1}, .ceil_mode = true}},
      {{1, 4, 12, 5},
       {.kernel = {4, 5}, .stride = {3, 5}, .padding = {2, 2}, .ceil_mode = true, .count_include_pad = false}},
  };
  for (const auto& [xs, args] : cases) {
    Shape ys{xs[0], xs[1]};
    for (int d = 0; d < 2; ++d)
      ys.push_back(outputs(xs[d + 2], args.kernel[d], args.stride[d], args.padding[d], 1, args.ceil_mode));
    for (const DType dtype : floats) {
      for (const bool last : {false, true}) {
        const Tensor x = images(xs, dtype, 5, last), g = images(ys, dtype, 2, last);
        const std::string what = str("average pool ", dtype, " ", xs, " ", args.kernel, last ? " channels last" : "");
        check_kernel({what}, kernels::avg_pool2d, x, args, Out{g});
        check_kernel({what + " gradient"}, kernels::avg_pool2d_grad, g, args, Out{x});
      }
    }
  }
}

TEST_CASE("cuda: adaptive average pooling and its gradient") {
  struct Case {
    Shape x;
    int64_t p, q;
  };
  for (const auto& [xs, p, q] : {Case{{1, 1, 1, 1}, 3, 2}, Case{{2, 3, 7, 9}, 1, 1}, Case{{2, 5, 10, 7}, 3, 4},
                                 Case{{0, 2, 4, 4}, 2, 2}, Case{{1, 2, 5, 6}, 8, 6}}) {
    for (const DType dtype : floats) {
      for (const bool last : {false, true}) {
        const Tensor x = images(xs, dtype, 1, last), g = images({xs[0], xs[1], p, q}, dtype, 2, last);
        const std::string what = str("adaptive_avg_pool2d ", dtype, " ", xs, " to ", p, "x", q);
        check_kernel({what}, kernels::adaptive_avg_pool2d, x, Out{g});
        check_kernel({what + " gradient"}, kernels::adaptive_avg_pool2d_grad, g, Out{x});
      }
    }
  }
}
