// Convolutions, pooling and resampling composed of other operations: gradients, odd sizes, threads, 16 bits and
// rejected arguments. Their values are golden cases.
#include <doctest/doctest.h>

#include <cmath>

#include "extensions/vision/vision.h"
#include "tests/autograd/check_gradient.h"
#include "tests/messages.h"
#include "tests/threads.h"

using namespace lockstep;

namespace {

PoolArgs cube(int64_t kernel, int64_t stride, int64_t padding) {
  return {.kernel = Dims::filled(3, kernel),
          .stride = Dims::filled(3, stride),
          .padding = Dims::filled(3, padding),
          .dilation = Dims::filled(3, 1)};
}

}  // namespace

TEST_CASE("resample: places of maxima in planes whose number of places has no exact reciprocal") {
  for (const int64_t width : {1, 7, 41, 47, 49}) {  // 49: 49 * (1 / 49.) rounds to less than 1
    CAPTURE(width);
    const Tensor x = arange(6 * width, {.dtype = f32}).view({1, 1, 6, 1, width});
    const auto [values, places] =
        max_pool_indices(x, {.kernel = {2, 1, 1}, .stride = {2, 1, 1}, .padding = {0, 0, 0}, .dilation = {1, 1, 1}});
    CHECK(equal(places.to(f32), values.tensor()));  // each value equals its position
  }
}

TEST_CASE("resample: gradients") {
  manual_seed(31);
  const auto places = max_pool_indices(randn({1, 2, 4, 4}), PoolArgs()).indices;
  CHECK_GRADIENT(
      conv3d(x[0], x[1], x[2], {.stride = {2, 1, 1}, .padding = {1, 0, 1}, .dilation = {2, 1, 1}, .groups = 2}),
      {2, 4, 3, 4, 3}, {2, 2, 2, 3, 2}, {2});
  CHECK_GRADIENT(
      conv_transpose3d(x[0], x[1], x[2],
                       {.stride = {2, 1, 2}, .padding = {1, 0, 0}, .dilation = {1, 2, 1}, .groups = 2}, {1, 0, 1}),
      {1, 4, 2, 2, 3}, {4, 1, 3, 2, 1}, {2});
  CHECK_GRADIENT(conv_transpose1d(x[0], x[1], {}, 2, 1, 1), {2, 2, 3}, {2, 2, 3});
  CHECK_GRADIENT(max_pool(x[0], cube(2, 1, 1)), {1, 2, 3, 4, 5});
  CHECK_GRADIENT(max_pool_indices(x[0], cube(2, 2, 0)).values, {1, 2, 3, 4, 5});
  CHECK_GRADIENT(avg_pool(x[0], cube(3, 2, 1)), {1, 2, 3, 4, 5});
  CHECK_GRADIENT(adaptive_avg_pool(x[0], {2, 3, -1}), {1, 2, 3, 4, 5});
  CHECK_GRADIENT(adaptive_max_pool(x[0], {2, 3, -1}).values, {1, 2, 3, 4, 5});
  CHECK_GRADIENT(lp_pool(square(x[0]) + 0.1, 2.5, PoolArgs()), {1, 2, 4, 4});
  CHECK_GRADIENT(max_unpool(x[0], places, {4, 4}), {1, 2, 2, 2});
  CHECK_GRADIENT(interpolate(x[0], {.size = {7, 9}, .mode = Resampling::linear}), {1, 2, 3, 4});
  CHECK_GRADIENT(interpolate(x[0], {.scale = {0.4}, .mode = Resampling::cubic, .antialias = true}), {1, 2, 7, 8});
  CHECK_GRADIENT(interpolate(x[0], {.size = {3, 2, 7}, .mode = Resampling::linear, .align_corners = true}),
                 {1, 1, 2, 3, 4});
  // the operation is linear, so the derivative of its gradient is the interpolation itself
  CHECK_GRADIENT(resample(x[0], {transposed(resample_axis(3, 5, Resampling::linear))}), {1, 2, 5});
  CHECK_GRADIENT(grid_sample(x[0], tanh(x[1])), {1, 2, 4, 5}, {1, 2, 3, 2});
  CHECK_GRADIENT(grid_sample(x[0], x[1] * 1.5, {.padding = GridPadding::reflection, .align_corners = true}),
                 {1, 2, 4, 5}, {1, 2, 3, 2});
  CHECK_GRADIENT(grid_sample(x[0], tanh(x[1]), {.mode = Resampling::cubic}), {1, 2, 4, 5}, {1, 2, 3, 2});
  CHECK_GRADIENT(grid_sample(x[0], tanh(x[1])), {1, 2, 2, 3, 4}, {1, 1, 2, 2, 3});
  CHECK_GRADIENT(affine_grid(x[0], {2, 1, 3, 2}), {2, 2, 3});
  CHECK_GRADIENT(unfold(x[0], {.kernel = {2, 3}, .dilation = {1, 2}, .padding = {1, 0}, .stride = {2, 1}}),
                 {2, 2, 4, 5});
  CHECK_GRADIENT(fold(x[0], {3, 4}, {.kernel = {2, 2}}), {2, 4, 6});
}

TEST_CASE("resample: known properties") {
  manual_seed(32);
  const Tensor x = randn({2, 3, 11, 13}), t = randn({2, 3, 17, 7});
  // The gradient is the transpose: <A x, y> = <x, A^T y>.
  for (const Resampling method : {Resampling::nearest, Resampling::linear, Resampling::cubic, Resampling::area}) {
    const std::vector<ResampleAxis> axes{resample_axis(11, 17, method), resample_axis(13, 7, method)};
    const Tensor there = resample(x.to(f64), axes),
                 back = resample(t.to(f64), {transposed(axes[0]), transposed(axes[1])});
    CHECK(sum(there * t.to(f64)).item() == doctest::Approx(sum(x.to(f64) * back).item()));
    // A constant image stays constant at every size.
    CHECK(allclose(interpolate(ones({1, 1, 5, 4}), {.size = {9, 3}, .mode = method}).tensor(), ones({1, 1, 9, 3})));
    CHECK(equal(interpolate(x, {.size = {11, 13}, .mode = method}).tensor(), x));
    // Channels last, other strides, and 16 bits.
    const InterpolateOptions o{.size = {17, 7}, .mode = method};
    const Tensor plain = interpolate(x, o).tensor();
    const Tensor last = x.permute({0, 2, 3, 1}).contiguous().permute({0, 3, 1, 2});
    CHECK(allclose(interpolate(last, o).tensor(), plain, 1e-5, 1e-6));
    CHECK(equal(interpolate(x.transpose(2, 3).contiguous().transpose(2, 3), o).tensor(), plain));
    CHECK(allclose(interpolate(x.to(bf16), o).tensor().to(f32), plain, 0.02, 0.02));
    CHECK(interpolate(x.to(f16), o).dtype() == f16);
  }
  CHECK(equal(fold(unfold(x, {.kernel = {1, 1}}), {11, 13}, {.kernel = {1, 1}}).tensor(), x));
  const Tensor image = randn({1, 2, 5, 6}), eye_map = Tensor::from<float>({1, 0, 0, 0, 1, 0}, {1, 2, 3});
  for (const bool align : {false, true}) {
    const Variable grid = affine_grid(eye_map, {1, 2, 5, 6}, align);
    CHECK(allclose(grid_sample(image, grid, {.align_corners = align}).tensor(), image, 1e-4, 1e-5));
  }
  CHECK(allclose(grid_sample(image, full({1, 1, 2, 2}, INFINITY)).tensor(), zeros({1, 2, 1, 2})));
  // A NaN coordinate makes the result for its own position NaN in all channels, and no other result. Under reflection
  // padding, so does an infinite coordinate.
  const Tensor places = Tensor::from<float>({0.1, NAN, 0.2, 0.3, NAN, -0.4}, {1, 1, 3, 2});
  for (const Resampling method : {Resampling::nearest, Resampling::linear, Resampling::cubic})
    for (const GridPadding padding : {GridPadding::zeros, GridPadding::border, GridPadding::reflection})
      for (const bool align : {false, true})
        for (const Tensor& x : {image, image.narrow(2, 0, 1).narrow(3, 0, 1)}) {
          CAPTURE(int(method));
          CAPTURE(int(padding));
          const GridSampleOptions o{.mode = method, .padding = padding, .align_corners = align};
          const Tensor y = grid_sample(x, places, o).tensor();
          CHECK(isnan(y).to_vector<bool>() == std::vector<bool>{true, false, true, true, false, true});
          CHECK(grid_sample(x.to(bf16), places.to(bf16), o).tensor().dtype() == bf16);
        }
  const Variable moved(places, true);
  sum(masked_fill(grid_sample(image, moved), isnan(grid_sample(image, moved).tensor()), 0)).backward();
  CHECK(std::isfinite(moved.grad().select(2, 1).select(2, 0).item()));
  const Tensor holes = Tensor::from<float>({1, INFINITY, NAN, 2}, {1, 1, 4});
  CHECK(equal(interpolate(holes, {.scale = {2}}).tensor().slice(2, 0, 8, 2), holes));
  // Empty inputs.
  CHECK(interpolate(zeros({0, 2, 3, 4}), {.size = {5}}).shape() == Shape{0, 2, 5, 5});
  CHECK(conv3d(zeros({0, 2, 3, 4, 5}), zeros({3, 2, 1, 1, 1})).shape() == Shape{0, 3, 3, 4, 5});
  CHECK(conv_transpose3d(zeros({0, 2, 3, 4, 5}), zeros({2, 3, 2, 1, 1})).shape() == Shape{0, 3, 4, 4, 5});
  CHECK(grid_sample(zeros({0, 2, 3, 4}), zeros({0, 2, 2, 2})).shape() == Shape{0, 2, 2, 2});
  const Variable still(zeros({1, 1, 4, 4}), true);  // where the norm is 0, its gradient is 0, not NaN
  sum(lp_pool(still, 2, PoolArgs())).backward();
  CHECK(equal(still.grad(), zeros({1, 1, 4, 4})));
  const Variable none(zeros({0, 2, 3, 4}), true);
  sum(grid_sample(none, zeros({0, 1, 2, 2}))).backward();
  CHECK(none.grad().shape() == Shape{0, 2, 3, 4});
  CHECK(unfold(zeros({0, 2, 3, 4}), {.kernel = {2, 2}}).shape() == Shape{0, 8, 6});
  CHECK(adaptive_max_pool(zeros({0, 2, 3, 4}), {2, 2}).values.shape() == Shape{0, 2, 2, 2});
}

TEST_CASE("resample: the same bits on any number of threads") {
  manual_seed(33);
  const Tensor x = randn({3, 5, 37, 41});
  const InterpolateOptions up{.size = {90, 83}, .mode = Resampling::linear},
      down{.size = {9, 23}, .mode = Resampling::cubic};
  const Variable grid = affine_grid(full({3, 2, 3}, 0.4), {3, 1, 40, 40});
  const Tensor kernel = full({2, 3, 3, 3, 3}, 0.1);
  const std::pair<const char*, std::function<Variable(const Variable&)>> rows[] = {
      {"up", [&](auto& v) { return interpolate(v, up); }},
      {"down", [&](auto& v) { return interpolate(v, down); }},
      {"grid", [&](auto& v) { return grid_sample(v, grid); }},
      {"unfold",
       [](auto& v) {
         return unfold(v, UnfoldOptions{.kernel = {3, 3}});
       }},
      {"conv3d", [&](auto& v) { return conv3d(v.unsqueeze(0), kernel); }},
  };
  for (const auto& [name, fn] : rows) {
    CAPTURE(name);
    check_threads(
        [&, &run = fn] {
          const Variable v(x, true), y = run(v);
          sum(square(y)).backward();
          return std::vector{y.tensor(), v.grad()};
        },
        {2, 3, 7});
  }
}

TEST_CASE("resample: invalid arguments are rejected") {
  const Tensor image = zeros({1, 2, 4, 4}), volume = zeros({1, 2, 3, 4, 4}), line = zeros({1, 2, 4});
  CHECK_REJECTED(conv3d, (image, volume), "an input (N, C, D, H, W) and a weight");
  CHECK_REJECTED(conv3d, (volume, zeros({1, 3, 1, 1, 1})), "an input with 3 channels");
  CHECK_REJECTED(conv3d, (volume, zeros({1, 2, 4, 1, 1})), "a kernel that fits the padded input");
  CHECK_REJECTED(conv3d, (volume, volume, {}, {}), "3 values >= 1 for stride, got (1, 1)");
  CHECK_ERROR(conv_transpose3d(volume, zeros({3, 1, 1, 1, 1})), "expected an input with 3 channels");
  CHECK_ERROR(conv_transpose3d(volume, zeros({2, 1, 1, 1, 1}), {}, conv_args3(), {1, 0, 0}),
              "expected output_padding below the larger of stride and dilation");
  CHECK_ERROR(conv_transpose3d(volume, zeros({2, 1, 1, 1, 1}), zeros({3})), "expected a bias (1), got (3)");
  CHECK_REJECTED(conv_transpose1d, (image, line), "an input (N, C, L)");
  CHECK_REJECTED(max_pool, (volume, {}), "options of 3 values for input (1, 2, 3, 4, 4), got (2, 2)");
  CHECK_REJECTED(max_pool, (zeros({2, 3}), {}), "a floating input (N, C, L)");
  CHECK_REJECTED(adaptive_avg_pool, (image, {2}), "options of 2 values");
  CHECK_REJECTED(adaptive_max_pool, (image, {0, 1}), "sizes >= 1, or -1");
  CHECK_REJECTED(lp_pool, (image, 0, {}), "p > 0, got 0");
  CHECK_REJECTED(lp_pool, (image, 2, {.padding = {1, 0}}), "no padding, got (1, 0)");
  CHECK_REJECTED(max_unpool, (image, image, {8, 8}), "i64 indices like the input");
  CHECK_ERROR(max_unpool(image, full({1, 2, 4, 4}, 64, {.dtype = i64}), {8, 8}), "64");
  CHECK_REJECTED(interpolate, (image, {}), "a size or a scale, got neither");
  CHECK_ERROR(interpolate(image, {.size = {2}, .scale = {2}}), "expected a size or a scale, got both");
  CHECK_ERROR(interpolate(image, {.size = {2, 2, 2}}), "expected one size, or 2 of them for (1, 2, 4, 4), got 3");
  CHECK_ERROR(interpolate(image, {.scale = {0}}), "expected sizes >= 1 and scales > 0, got 0");
  CHECK_ERROR(interpolate(image, {.scale = {0.1}}), "expected an input and a result of at least one pixel");
  CHECK_ERROR(interpolate(image, {.size = {2}, .align_corners = true}), "align_corners with linear and cubic only");
  CHECK_ERROR(interpolate(line, {.size = {2}, .mode = Resampling::linear, .antialias = true}), "antialias");
  CHECK_ERROR(interpolate(line, {.size = {2}, .mode = Resampling::cubic}), "expected images (N, C, H, W) for cubic");
  CHECK_REJECTED(interpolate, (zeros({2, 2, 4}, {.dtype = i64}), {.size = {2}}), "a floating input");
  CHECK_REJECTED(resample, (image, {resample_axis(4, 2, Resampling::area)}), "an input (N, C, ...) with 1");
  CHECK_REJECTED(grid_sample, (image, zeros({1, 2, 2, 3})), "a grid (1, P, Q, 2)");
  CHECK_ERROR(grid_sample(image, zeros({1, 2, 2, 2}, {.dtype = f64})), "of one dtype and device, got f32");
  CHECK_ERROR(grid_sample(volume, zeros({1, 1, 1, 1, 3}), {.mode = Resampling::cubic}),
              "or cubic for an input (N, C, H, W)");
  CHECK_REJECTED(affine_grid, (zeros({1, 2, 2}), {1, 1, 2, 2}), "theta (N, 2, 3)");
  CHECK_REJECTED(unfold, (image, {.kernel = {5, 1}}), "a kernel that fits the padded image");
  CHECK_REJECTED(unfold, (line, {.kernel = {1, 1}}), "an input (N, C, H, W), got (1, 2, 4)");
  CHECK_REJECTED(unfold, (image, {.kernel = {1}}), "2 values >= 1 for kernel, got (1)");
  CHECK_ERROR(fold(line, {2, 2}, {.kernel = {2, 1}}), "expected columns (N, C x 2, 2) for (2, 2), got (1, 2, 4)");
}
