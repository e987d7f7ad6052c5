// Average pooling and transposed convolution of images: against plain loops and the gradient of conv2d, derivatives,
// errors.
#include "extensions/vision/average.h"

#include <doctest/doctest.h>

#include <cmath>

#include "extensions/vision/conv.h"
#include "tests/autograd/op_rows.h"
#include "tests/messages.h"
#include "tests/tensor/products.h"

using namespace lockstep;
using testing::products::check_close;
using testing::products::values;

namespace {

Tensor channels_last(const Tensor& x) { return x.permute({0, 2, 3, 1}).clone().permute({0, 3, 1, 2}); }

}  // namespace

TEST_CASE("average pooling against plain loops") {
  struct Row {
    Shape x;
    PoolArgs args;
    Shape out;
  };
  const Row rows[] = {
      {{2, 3, 8, 10}, {}, {2, 3, 4, 5}},
      {{2, 3, 7, 35}, {}, {2, 3, 3, 17}},
      {{2, 3, 7, 7}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}, {2, 3, 4, 4}},
      {{2, 3, 9, 9}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .count_include_pad = false}, {2, 3, 5, 5}},
      {{1, 2, 8, 8}, {.kernel = {3, 3}, .stride = {2, 2}, .ceil_mode = true}, {1, 2, 4, 4}},
      {{1, 2, 5, 5}, {.kernel = {2, 2}, .stride = {3, 3}, .padding = {1, 1}, .ceil_mode = true}, {1, 2, 2, 2}},
      {{1, 17, 9, 6}, {.kernel = {4, 2}, .stride = {1, 3}}, {1, 17, 6, 2}},
      {{0, 3, 8, 8}, {}, {0, 3, 4, 4}}};
  for (const Row& row : rows)
    for (DType dtype : {f32, f64, f16})
      for (bool last : {false, true}) {
        INFO("x ", row.x, ", dtype ", dtype, ", last ", last);
        Tensor x = values(row.x, 1, dtype);
        if (last) x = channels_last(x);
        const PoolArgs& a = row.args;
        const double tolerance = dtype == f64 ? 1e-13 : dtype == f32 ? 1e-4 : 2e-3;
        const auto v = x.to_vector<double>();
        const Tensor mean = avg_pool2d(x, a);
        REQUIRE(mean.shape() == row.out);
        const Tensor grad = values(row.out, 2, dtype);
        const auto g = grad.to_vector<double>();
        std::vector<double> average, grad_average(v.size(), 0);
        const int64_t height = row.x[2], width = row.x[3];
        for (int64_t plane = 0; plane < row.x[0] * row.x[1]; ++plane)
          for (int64_t p = 0; p < row.out[2]; ++p)
            for (int64_t q = 0; q < row.out[3]; ++q) {
              const size_t o = average.size();
              double sum = 0, inside = 0;
              const int64_t y0 = p * a.stride[0] - a.padding[0], x0 = q * a.stride[1] - a.padding[1];
              std::vector<size_t> window;
              for (int64_t y = y0; y < y0 + a.kernel[0]; ++y)
                for (int64_t i = x0; i < x0 + a.kernel[1]; ++i) {
                  if (y < 0 || y >= height || i < 0 || i >= width) continue;
                  const size_t from = size_t((plane * height + y) * width + i);
                  window.push_back(from), sum += v[from], ++inside;
                }
              if (a.count_include_pad)
                inside = double((std::min(y0 + a.kernel[0], height + a.padding[0]) - y0) *
                                (std::min(x0 + a.kernel[1], width + a.padding[1]) - x0));
              average.push_back(sum / inside);
              for (size_t from : window) grad_average[from] += g[o] / inside;
            }
        check_close(mean, average, tolerance);
        for (const Tensor& laid : {grad, channels_last(grad)})
          check_close(avg_pool2d_grad(laid, row.x, a), grad_average, tolerance);
      }
}

TEST_CASE("adaptive average pooling: windows of one element, and both layouts") {
  const Tensor x = values({2, 3, 7, 5}, 1), grad = values({2, 3, 3, 2}, 2);
  CHECK(equal(adaptive_avg_pool2d(x, 7, 5), x));
  CHECK(allclose(adaptive_avg_pool2d(channels_last(x), 3, 2), adaptive_avg_pool2d(x, 3, 2), 1e-6, 1e-6));
  CHECK(allclose(adaptive_avg_pool2d_grad(channels_last(grad), x.shape()), adaptive_avg_pool2d_grad(grad, x.shape()),
                 1e-6, 1e-6));
}

TEST_CASE("conv_transpose2d is the gradient of conv2d, with a bias") {
  struct ImageRow {
    Shape x, w;
    ConvArgs args;
    Dims extra;
    Shape out;
  };
  for (const ImageRow& row :
       {ImageRow{{2, 3, 5, 4}, {3, 2, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}, {1, 1}, {2, 2, 10, 8}},
        ImageRow{{2, 4, 5, 5}, {4, 3, 2, 3}, {.groups = 2}, {0, 0}, {2, 6, 6, 7}},
        ImageRow{{1, 2, 3, 3}, {2, 2, 2, 2}, {.stride = {1, 1}, .dilation = {3, 3}}, {2, 2}, {1, 2, 8, 8}}})
    for (DType dtype : {f32, f64, f16}) {
      const Tensor x = values(row.x, 1, dtype), w = values(row.w, 2, dtype), bias = values({row.out[1]}, 3, dtype);
      const Tensor y = conv_transpose2d(x, w, bias, row.args, row.extra);
      REQUIRE(y.shape() == row.out);
      const Variable image(zeros(row.out, {.dtype = f64}), true);
      const Variable made = conv2d(image, w.to(f64), {}, row.args);
      made.narrow(2, 0, row.x[2]).narrow(3, 0, row.x[3]).backward(x.to(f64));
      const Tensor wanted = add(image.grad(), bias.to(f64).view({row.out[1], 1, 1}));
      check_close(y, wanted.to_vector<double>(), dtype == f16 ? 1e-3 : 1e-5);
    }
}

TEST_CASE("derivatives of average pooling and conv_transpose2d") {
  check_row(OP_ROW(adaptive_avg_pool2d(x[0], 3, 2), {2, 2, 5, 7}));
  struct One {
    int64_t stride, padding, dilation, output_padding;
  };
  const One ones[] = {{1, 0, 1, 0}, {1, 1, 2, 1}, {2, 1, 1, 1}, {2, 0, 3, 2},
                      {3, 2, 2, 0}, {1, 3, 4, 3}, {2, 2, 5, 4}, {3, 1, 1, 2}};
  const size_t n = std::size(ones);
  for (size_t i = 0; i < n; ++i) {
    CAPTURE(i);
    const One &row = ones[i], &column = ones[(3 * i + 2) % n];
    const ConvArgs args{.stride = {row.stride, column.stride},
                        .padding = {row.padding, column.padding},
                        .dilation = {row.dilation, column.dilation},
                        .groups = 1 + int64_t(i % 2)};
    const Dims output_padding{row.output_padding, column.output_padding};
    std::vector<Shape> shapes{{1, 2, 5, 8}, {2, 2 / args.groups, 3, 2}};
    if (i % 3 != 0) shapes.push_back({2});
    check_row({"conv_transpose2d", shapes, [&](const Inputs& x) {
                 return conv_transpose2d(x[0], x[1], x.size() > 2 ? x[2] : Variable(), args, output_padding);
               }});
    const PoolArgs pool{.kernel = {3, 2},
                        .stride = {row.stride, column.stride},
                        .padding = {row.padding % 2, column.padding % 2},
                        .dilation = {1, 1},
                        .ceil_mode = i % 2 == 1,
                        .count_include_pad = i % 3 != 1};
    check_row(OP_ROW(avg_pool2d(x[0], pool), {1, 2, 5, 7}));
  }
  // Checked by hand: padding brings pixels of the output padding back into reach.
  const Variable x(Tensor::from({1., 2., 3.}, {1, 1, 1, 3}), true), w(Tensor::from({1., 10.}, {1, 1, 1, 2}), true);
  const Variable y = conv_transpose2d(x, w, {}, {.padding = {0, 1}, .dilation = {1, 2}}, {0, 1});
  y.backward(arange(1, double(y.numel()) + 1, 1, {.dtype = f64}).view(y.shape()));
  CHECK(x.grad().to_vector<double>() == std::vector<double>{20, 31, 42});
  CHECK(w.grad().to_vector<double>() == std::vector<double>{8, 20});
}

TEST_CASE("average pooling and conv_transpose2d: Errors name the wrong argument") {
  const Tensor x = zeros({2, 4, 28, 28}), w = zeros({8, 3, 3, 3});
  CHECK_REJECTED(conv_transpose2d, (x, w), "an input with 8 channels");
  CHECK_REJECTED(conv_transpose2d, (zeros({1, 8, 4, 4}), w, {}, {.groups = 3}),
                 "groups that divide the 8 input channels, got 3");
  CHECK_ERROR(conv_transpose2d(zeros({1, 8, 4, 4}), w, {}, {}, {1, 1}),
              "expected output_padding below the larger of stride and dilation, got (1, 1)");
  CHECK_REJECTED(avg_pool2d, (zeros({1, 1, 1, 1}), {}), "a kernel that fits the padded input");
  CHECK_REJECTED(avg_pool2d, (x, {.dilation = {2, 2}}), "dilation (1, 1)");
  CHECK_REJECTED(adaptive_avg_pool2d, (x, 0, 1), "sizes >= 1");
}
