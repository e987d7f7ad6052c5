// Convolution and pooling against plain loops in double, in both layouts, and their gradients as transposed maps.
#include <doctest/doctest.h>

#include <cmath>

#include "tensor/layout.h"
#include "tensor/ops.h"
#include "tests/messages.h"
#include "tests/tensor/products.h"
#include "tests/threads.h"

using namespace lockstep;
using testing::products::check_close;
using testing::products::values;

namespace {

Tensor channels_last(const Tensor& x) { return x.permute({0, 2, 3, 1}).clone().permute({0, 3, 1, 2}); }

/// Calls fn(n, k, p, q, c, h, w, c within the group, r, s) for every product of a convolution; c indexes the channels
/// of x.
template <class Fn> void each_product(const Shape& x, const Shape& w, const Shape& y, const ConvArgs& a, Fn&& fn) {
  const int64_t kg = w[0] / a.groups;
  for (int64_t n = 0; n < y[0]; ++n)
    for (int64_t k = 0; k < y[1]; ++k)
      for (int64_t p = 0; p < y[2]; ++p)
        for (int64_t q = 0; q < y[3]; ++q)
          for (int64_t c = 0; c < w[1]; ++c)
            for (int64_t r = 0; r < w[2]; ++r)
              for (int64_t s = 0; s < w[3]; ++s) {
                const int64_t h = p * a.stride[0] - a.padding[0] + r * a.dilation[0],
                              i = q * a.stride[1] - a.padding[1] + s * a.dilation[1];
                if (h < 0 || h >= x[2] || i < 0 || i >= x[3]) continue;
                const int64_t channel = k / kg * w[1] + c;
                fn(((n * y[1] + k) * y[2] + p) * y[3] + q, ((n * x[1] + channel) * x[2] + h) * x[3] + i,
                   ((k * w[1] + c) * w[2] + r) * w[3] + s);
              }
}

double conv_tolerance(DType dtype) { return dtype == f64 ? 1e-13 : dtype == f32 ? 1e-4 : dtype == f16 ? 2e-3 : 1e-2; }

struct ConvRow {
  Shape x, w;
  ConvArgs args;
};
const ConvRow conv_rows[] = {
    {{2, 3, 9, 8}, {4, 3, 3, 3}, {}},
    {{1, 1, 5, 5}, {1, 1, 1, 1}, {}},
    {{3, 1, 28, 28}, {32, 1, 3, 3}, {.padding = {1, 1}}},
    {{9, 16, 12, 12}, {32, 16, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
    {{17, 16, 7, 7}, {16, 16, 3, 3}, {.padding = {1, 1}}},
    {{2, 2, 7, 9}, {3, 2, 2, 3}, {.stride = {2, 1}, .padding = {0, 2}}},
    {{2, 2, 11, 9}, {3, 2, 3, 3}, {.padding = {2, 2}, .dilation = {2, 2}}},
    {{2, 4, 6, 6}, {6, 2, 3, 3}, {.padding = {1, 1}, .groups = 2}},
    {{2, 4, 6, 6}, {8, 1, 3, 3}, {.padding = {1, 1}, .groups = 4}},
    {{3, 32, 6, 6}, {32, 1, 3, 3}, {.padding = {1, 1}, .groups = 32}},
    {{2, 4, 10, 9}, {8, 2, 3, 2}, {.stride = {2, 3}, .padding = {2, 1}, .dilation = {2, 1}, .groups = 2}},
    {{2, 16, 8, 8}, {32, 16, 1, 1}, {.stride = {2, 2}}},
    {{2, 3, 1, 1}, {5, 3, 3, 3}, {.padding = {1, 1}}},
    {{2, 3, 3, 3}, {5, 3, 3, 3}, {}},
    {{0, 3, 6, 6}, {5, 3, 3, 3}, {}}};

}  // namespace

TEST_CASE("conv2d and its gradients") {
  for (const ConvRow& row : conv_rows)
    for (DType dtype : {f32, f64, f16, bf16})
      for (bool last : {false, true}) {
        INFO("x ", row.x, ", w ", row.w, ", groups ", row.args.groups, ", dtype ", dtype, ", last ", last);
        const auto laid = [&](const Tensor& t) { return last ? channels_last(t) : t; };
        const Tensor x = laid(values(row.x, 1, dtype)), w = values(row.w, 2, dtype),
                     bias = values({row.w[0]}, 3, dtype);
        const Tensor y = conv2d(x, w, bias, row.args);
        const auto vx = x.to_vector<double>(), vw = w.to_vector<double>(), vb = bias.to_vector<double>();
        std::vector<double> wanted(size_t(y.numel()));
        const int64_t plane = y.size(2) * y.size(3);
        for (int64_t i = 0; i < y.numel(); ++i) wanted[size_t(i)] = vb[size_t(i / plane % y.size(1))];
        each_product(row.x, row.w, y.shape(), row.args,
                     [&](int64_t o, int64_t i, int64_t k) { wanted[size_t(o)] += vx[size_t(i)] * vw[size_t(k)]; });
        check_close(y, wanted, conv_tolerance(dtype));
        if (last && !is_channels_last(x)) continue;
        if (y.numel() > 0 && is_channels_last(x) && plane > 1 && y.size(1) > 1) CHECK(is_channels_last(y));

        for (bool grad_last : {false, true}) {  // a gradient may have the other layout
          const Tensor grad = grad_last ? channels_last(values(y.shape(), 4, dtype)) : values(y.shape(), 4, dtype);
          const auto vg = grad.to_vector<double>();
          std::vector<double> gx(vx.size(), 0), gw(vw.size(), 0), gb(vb.size(), 0);
          each_product(row.x, row.w, y.shape(), row.args, [&](int64_t o, int64_t i, int64_t k) {
            gx[size_t(i)] += vg[size_t(o)] * vw[size_t(k)];
            gw[size_t(k)] += vg[size_t(o)] * vx[size_t(i)];
          });
          for (int64_t i = 0; i < y.numel(); ++i) gb[size_t(i / plane % y.size(1))] += vg[size_t(i)];
          check_close(conv2d_grad_input(grad, w, row.x, row.args), gx, conv_tolerance(dtype));
          const auto got = conv2d_grad_weight(grad, x, row.w, row.args, true);
          check_close(got.weight, gw, conv_tolerance(dtype));
          check_close(got.bias, gb, conv_tolerance(dtype));
          CHECK(equal(conv2d_grad_weight(grad, x, row.w, row.args, false).weight, got.weight));
        }
      }
}

TEST_CASE("conv2d: the bits do not depend on threads") {
  for (const ConvRow& row : conv_rows)
    for (DType dtype : {f32, f64}) {
      INFO("x ", row.x, ", w ", row.w);
      const Tensor x = rand(row.x).to(dtype), w = rand(row.w).to(dtype), bias = rand({row.w[0]}).to(dtype);
      check_threads([&] {
        const Tensor y = conv2d(x, w, bias, row.args), gx = conv2d_grad_input(y, w, row.x, row.args);
        const auto gw = conv2d_grad_weight(y, x, row.w, row.args, true);
        return std::vector{y, gx, gw.weight, gw.bias};
      });
    }
}

TEST_CASE("conv2d takes views; conv1d is a convolution of height 1") {
  const Tensor big = values({4, 6, 20, 20}, 1), w = values({5, 3, 3, 3}, 2);
  const Tensor view = big.slice(0, 0, 4, 2).slice(1, 1, 6, 2).slice(2, 3, 17).transpose(2, 3);
  CHECK(equal(conv2d(view, w), conv2d(view.clone(), w)));
  const Tensor grad = values({1, 5, 1, 1}, 3).expand({4, 5, 4, 4});
  CHECK(equal(conv2d_grad_input(grad, w, {4, 3, 6, 6}, {}), conv2d_grad_input(grad.clone(), w, {4, 3, 6, 6}, {})));
  const Tensor x = values({3, 4, 15}, 4), v = values({6, 2, 3}, 5), bias = values({6}, 6);
  CHECK(equal(conv1d(x, v, bias, 2, 1, 2, 2),
              conv2d(x.unsqueeze(2), v.unsqueeze(2), bias,
                     {.stride = {1, 2}, .padding = {0, 1}, .dilation = {1, 2}, .groups = 2})
                  .squeeze(2)));
}

TEST_CASE("max pooling") {
  struct Row {
    Shape x;
    PoolArgs args;
    Shape out;
  };
  const Row rows[] = {
      {{2, 3, 8, 10}, {}, {2, 3, 4, 5}},
      {{2, 3, 7, 35}, {}, {2, 3, 3, 17}},
      {{2, 3, 7, 7}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}, {2, 3, 4, 4}},
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
        const auto v = x.to_vector<double>();
        const auto highest = max_pool2d(x, a);
        REQUIRE(highest.values.shape() == row.out);
        const Tensor grad = values(row.out, 2, dtype);
        const auto g = grad.to_vector<double>();
        std::vector<double> top, grad_top(v.size(), 0);
        std::vector<int64_t> places;
        const int64_t height = row.x[2], width = row.x[3];
        for (int64_t plane = 0; plane < row.x[0] * row.x[1]; ++plane)
          for (int64_t p = 0; p < row.out[2]; ++p)
            for (int64_t q = 0; q < row.out[3]; ++q) {
              const size_t o = top.size();
              double best = -INFINITY;
              int64_t at = -1;
              const int64_t y0 = p * a.stride[0] - a.padding[0], x0 = q * a.stride[1] - a.padding[1];
              for (int64_t y = y0; y < y0 + a.kernel[0]; ++y)
                for (int64_t i = x0; i < x0 + a.kernel[1]; ++i) {
                  if (y < 0 || y >= height || i < 0 || i >= width) continue;
                  const size_t from = size_t((plane * height + y) * width + i);
                  if (v[from] > best) best = v[from], at = y * width + i;
                }
              top.push_back(best), places.push_back(at);
              grad_top[size_t(plane * height * width + at)] += g[o];
            }
        check_close(highest.values, top, 0);
        CHECK(highest.indices.dtype() == i32);
        CHECK(highest.indices.to_vector<int64_t>() == places);
        for (const Tensor& laid : {grad, channels_last(grad)})
          check_close(max_pool2d_grad(laid, highest.indices, row.x), grad_top, conv_tolerance(dtype));
      }
}

TEST_CASE("max pooling: first place on ties, NaN wins, dilation, nothing but -inf") {
  const float nan = NAN, inf = INFINITY;
  const Tensor x =
      Tensor::from({1.f, 1.f, 2.f, nan, 1.f, 1.f, 5.f, 1.f, -inf, -inf, 3.f, 4.f, -inf, -inf, 4.f, 3.f}, {1, 1, 4, 4});
  const auto r = max_pool2d(x, {});
  CHECK(r.indices.to_vector<int64_t>() == std::vector<int64_t>{0, 3, 8, 11});
  const auto v = r.values.to_vector<double>();
  CHECK(v[0] == 1);
  CHECK(std::isnan(v[1]));
  CHECK(v[2] == -inf);
  CHECK(v[3] == 4);
  const Tensor ramp = arange(0, 49, 1, {.dtype = f32}).view({1, 1, 7, 7});
  const auto wide = max_pool2d(ramp, {.kernel = {2, 2}, .stride = {2, 2}, .dilation = {3, 3}});
  CHECK(wide.values.to_vector<double>() == std::vector<double>{24, 26, 38, 40});
}

TEST_CASE("convolution and pooling: Errors name the wrong argument") {
  const Tensor x = zeros({2, 4, 28, 28}), w = zeros({8, 3, 3, 3});
  CHECK_ERROR(conv2d(x, w),
              "[conv2d] expected an input with 3 channels (weight (8, 3, 3, 3), groups 1), got (2, 4, 28, 28)");
  CHECK_ERROR(conv2d(zeros({2, 3, 2, 2}), w), "[conv2d] expected a kernel that fits the padded input");
  CHECK_ERROR(conv2d(zeros({3, 5, 5}), w), "[conv2d] expected an input (N, C, H, W)");
  CHECK_ERROR(conv2d(zeros({2, 3, 5, 5}), w, {}, {.groups = 3}),
              "[conv2d] expected groups that divide the 8 output channels, got 3");
  CHECK_ERROR(conv2d(zeros({2, 3, 5, 5}), w, {}, {.stride = {0, 1}}),
              "[conv2d] expected 2 values >= 1 for stride, got (0, 1)");
  CHECK_ERROR(conv2d(zeros({2, 3, 5, 5}), w, {}, {.padding = {1}}), "for padding, got (1)");
  CHECK_ERROR(conv2d(zeros({2, 3, 5, 5}), w, zeros({3})), "[conv2d] expected a bias (8), got (3)");
  CHECK_ERROR(conv2d(zeros({2, 3, 5, 5}, {.dtype = i64}), w), "[conv2d] expected a floating dtype, got i64");
  CHECK_ERROR(conv1d(x, w), "[conv1d] expected an input (N, C, L)");
  CHECK_ERROR(conv2d_grad_input(x, w, {2, 3, 5, 5}, {}),
              "[conv2d_grad_input] expected a gradient (2, 8, 3, 3), got (2, 4, 28, 28)");
  CHECK_ERROR(conv2d_grad_weight(x, x, {8, 4, 3, 3}, {}, true),
              "[conv2d_grad_weight] expected a gradient (2, 8, 26, 26)");
  CHECK_ERROR(max_pool2d(zeros({4, 4}), {}), "[max_pool2d] expected an input (N, C, H, W), got (4, 4)");
  CHECK_ERROR(max_pool2d(x, {.padding = {2, 2}}), "[max_pool2d] expected padding of at most half the kernel");
}
