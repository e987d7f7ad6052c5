// Convolution and pooling on the device against the CPU, in both layouts.
#include "tests/cuda/against_cpu.h"

using namespace lockstep;
using namespace testing;

namespace {

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

}  // namespace

TEST_CASE("cuda: convolution and its gradients") {
  struct Case {
    Shape x, w;
    ConvArgs args;
  };
  const Case cases[] = {
      {{1, 1, 1, 1}, {1, 1, 1, 1}, {}},
      {{0, 2, 3, 3}, {4, 2, 1, 1}, {}},
      {{2, 3, 9, 11}, {5, 3, 3, 3}, {.stride = {2, 1}, .padding = {1, 2}}},
      {{3, 8, 7, 7}, {70, 4, 3, 2}, {.padding = {2, 0}, .dilation = {2, 3}, .groups = 2}},
      {{2, 6, 5, 13}, {6, 1, 3, 3}, {.stride = {1, 3}, .padding = {1, 1}, .groups = 6}},
      {{1, 66, 1, 33}, {3, 66, 1, 5}, {.padding = {0, 2}}},
      {{4, 3, 17, 19}, {8, 3, 5, 5}, {.stride = {3, 2}}},
  };
  for (const auto& [xs, ws, args] : cases) {
    Shape ys{xs[0], ws[0]};
    for (int d = 0; d < 2; ++d)
      ys.push_back(outputs(xs[d + 2], ws[d + 2], args.stride[d], args.padding[d], args.dilation[d]));
    for (const DType dtype : float_dtypes)
      for (const bool last : {false, true}) {
        const Tensor x = images(xs, dtype, 1, last), w = random_tensor(ws, dtype, 2),
                     bias = random_tensor({ws[0]}, dtype, 3), g = images(ys, dtype, 4, last);
        const std::string what = str("conv2d ", dtype, " ", xs, " ", ws, last ? " channels last" : "");
        const double bound = tolerance(Near::image, dtype);
        for (const bool biased : {true, false})
          check_kernel({what, bound}, kernels::conv2d, x, w, biased ? bias : Tensor(), args, Out{g});
        check_kernel({what + " gradient of input", bound}, kernels::conv2d_grad_input, g, w, args, Out{x});
        for (const bool biased : {true, false})
          check_kernel({what + " gradient of weight", bound}, kernels::conv2d_grad_weight, g, x, args, Out{w},
                       Out{biased ? bias : Tensor()});
      }
  }
}

TEST_CASE("cuda: max pooling and its gradient") {
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
      {{1, 4, 12, 5}, {.kernel = {4, 5}, .stride = {3, 5}, .padding = {2, 2}, .ceil_mode = true}},
  };
  for (const auto& [xs, plain] : cases)
    for (const bool dilated : {false, true}) {
      PoolArgs args = plain;
      if (dilated) args.dilation = {2, 1};
      if (xs[2] + 2 * args.padding[0] < args.dilation[0] * (args.kernel[0] - 1) + 1) continue;
      Shape ys{xs[0], xs[1]};
      for (int d = 0; d < 2; ++d)
        ys.push_back(
            outputs(xs[d + 2], args.kernel[d], args.stride[d], args.padding[d], args.dilation[d], args.ceil_mode));
      for (const DType dtype : float_dtypes)
        for (const bool last : {false, true}) {
          Tensor x = images(xs, dtype, 1, last), g = images(ys, dtype, 2, last), places = images(ys, i32, 3, last);
          if (x.numel() > 20)
            // equal maxima, and NaN
            x.narrow(3, 1, 1).fill_(0.5), x.narrow(2, 2, 1).narrow(3, 3, 1).fill_(std::nan(""));
          const std::string what = str("pool ", dtype, " ", xs, " ", args.kernel, last ? " channels last" : "");
          check_kernel({"max " + what, 0}, kernels::max_pool2d, x, args, Out{g}, Out{places});
          Tensor y = images(ys, dtype, 3, last);
          kernels::max_pool2d(cpu, x, args, y, places);
          check_kernel({"max " + what + " gradient"}, kernels::max_pool2d_grad, g, places, Out{x});
        }
    }
}
