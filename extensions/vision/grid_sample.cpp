// Sampling of images and volumes at given positions. The input becomes a table with the channels of one pixel per row.
// Every position gathers the rows of the pixels around it. A last row of zeros stands for pixels outside.
#include <algorithm>
#include <array>
#include <cmath>

#include "autograd/loss_common.h"
#include "extensions/vision/resample.h"

namespace lockstep {
namespace {

/// Returns `value` as a variable whose derivative with respect to x is `slope`.
Variable with_slope(const Tensor& value, const Tensor& slope, const Variable& x) {
  if (!x.requires_grad() || !NoGrad::grad_enabled()) return value;
  return add(value, mul(masked_fill(sub(x, x.detach()), logical_not(isfinite(x.tensor())), 0), slope));
}

/// Clamps to [low, high]. The slope is 0 outside and at the ends, as in PyTorch.
Variable clipped(const Variable& x, double low, double high) {
  const Tensor& t = x.tensor();
  const Tensor inside = logical_and(gt(t, constant(low, t)), lt(t, constant(high, t)));
  return with_slope(clamp(t, low, high), inside.to(t.dtype()), x);
}

/// Reflects x at `low` and `high` until it lies between them.
Variable reflected(const Variable& x, double low, double high) {
  const Tensor& t = x.tensor();
  if (high <= low) return clamp(t, 0, 0);
  const double span = high - low;
  const Tensor from_low = sub(t, constant(low, t)), length = abs(from_low);
  const Tensor rest = remainder(length, span), odd = remainder(floor_divide(length, span), 2);  // 0 or 1
  const Tensor back = rsub_scalar(mul_scalar(odd, 2), 1);                                       // 1, or -1
  const Tensor value = add_scalar(add(mul(rest, back), mul_scalar(odd, span)), low);
  const Tensor negative = lt(from_low, constant(0, t));
  return with_slope(value, mul(back, masked_fill(ones_like(t), negative, -1)), x);
}

struct GridSampler {
  const GridSampleOptions& o;
  Variable rows;   ///< (N * pixels + 1, C)
  Tensor first;    ///< index of the first pixel of each position's image, i64 (N * positions)
  int64_t no_row;  ///< index of the row of zeros
  std::vector<int64_t> sizes = {};

  /// Moves a position into the image, according to the padding mode.
  Variable padded(const Variable& at, int64_t size) const {
    if (o.padding == GridPadding::zeros) return at;
    const double last = double(size - 1), half = o.align_corners ? 0 : 0.5;
    return clipped(o.padding == GridPadding::border ? at : reflected(at, -half, last + half), 0, last);
  }

  /// Returns the pixels at integer positions as (N * positions, C); zeros for positions outside the image. at[d] holds
  /// the coordinates of all positions along dim d.
  Variable pixels(const std::vector<Tensor>& at) const {
    Tensor index, outside;
    for (size_t d = 0; d < at.size(); ++d) {
      const Tensor& t = at[d];
      const double last = double(sizes[d] - 1);
      // NaN fails both comparisons and counts as outside.
      const Tensor out = logical_not(logical_and(ge(t, constant(0, t)), le(t, constant(last, t))));
      const Tensor integers = masked_fill(t, out, 0).to(i64);
      index = d == 0 ? integers : add(mul_scalar(index, sizes[d]), integers);
      outside = d == 0 ? out : logical_or(outside, out);
    }
    return index_select(rows, 0, masked_fill(add(index, first), outside, no_row));
  }
  /// Returns sum + weight * pixels(at), where `weight` has one number for each position.
  Variable with_term(const Variable& sum, const std::vector<Tensor>& at, const Variable& weight) const {
    const Variable term = pixels(at), factor = weight.unsqueeze(1);
    return sum.defined() ? addcmul(sum, term, factor) : mul(term, factor);
  }

  Variable nearest(const std::vector<Variable>& at) const {
    std::vector<Tensor> integers;
    Tensor lost;  // true for NaN positions, whose result must be NaN: there are no NaN weights here
    for (size_t d = 0; d < at.size(); ++d) {
      integers.push_back(round(padded(at[d], sizes[d]).tensor()));
      lost = d == 0 ? isnan(integers[d]) : logical_or(lost, isnan(integers[d]));
    }
    return masked_fill(pixels(integers), lost.unsqueeze(1), NAN);
  }

  /// Linear interpolation: the weighted sum of the 4 pixels (in a volume: 8) around a position. The weight of a pixel
  /// is the product of its weights along all dims.
  Variable linear(const std::vector<Variable>& at) const {
    std::vector<std::array<Tensor, 2>> integers;
    std::vector<std::array<Variable, 2>> weights;
    for (size_t d = 0; d < at.size(); ++d) {
      const Variable place = padded(at[d], sizes[d]);
      const Tensor low = floor(place.tensor());
      const Tensor infinite = eq(abs(low), constant(INFINITY, low));  // infinite positions are outside; NaN stays
      const Variable rest = masked_fill(sub(place, low), infinite, 0);
      integers.push_back({low, add_scalar(low, 1)});
      weights.push_back({rsub_scalar(rest, 1), rest});
    }
    Variable sum;
    for (unsigned corner = 0; corner < 1u << at.size(); ++corner) {
      std::vector<Tensor> where;
      Variable weight;
      for (size_t d = 0; d < at.size(); ++d) {
        const unsigned up = corner >> (at.size() - 1 - d) & 1;
        where.push_back(integers[d][up]);
        weight = d == 0 ? weights[d][up] : mul(weight, weights[d][up]);
      }
      sum = with_term(sum, where, weight);
    }
    return sum;
  }

  /// The weights that Keys' cubic kernel (a = -0.75) gives pixels i - 1, i, i + 1 and i + 2 for position i + rest.
  static std::array<Variable, 4> cubic_weights(const Variable& rest) {
    constexpr double a = -0.75;
    const auto near = [](const Variable& t) { return (t * (a + 2) - (a + 3)) * t * t + 1; };
    const auto far = [](const Variable& t) { return ((t - 5) * t + 8) * t * a - 4 * a; };
    const Variable back = rsub_scalar(rest, 1);
    return {far(rest + 1), near(rest), near(back), far(back + 1)};
  }
  Variable cubic(const std::vector<Variable>& at) const {
    std::array<std::array<Variable, 4>, 2> weights;
    std::array<std::array<Tensor, 4>, 2> integers;
    for (size_t d = 0; d < 2; ++d) {
      const Tensor low = floor(at[d].tensor());
      weights[d] = cubic_weights(sub(at[d], low));
      for (size_t k = 0; k < 4; ++k) integers[d][k] = padded(add_scalar(low, double(k) - 1), sizes[d]).tensor();
    }
    Variable sum;
    for (size_t r = 0; r < 4; ++r)
      for (size_t s = 0; s < 4; ++s)
        sum = with_term(sum, {integers[0][r], integers[1][s]}, mul(weights[0][r], weights[1][s]));
    return sum;
  }
};

}  // namespace

Variable grid_sample(const Variable& input, const Variable& given, const GridSampleOptions& o) {
  const char* const op = "[grid_sample] ";
  const int dims = input.dim() - 2;
  LOCKSTEP_CHECK(is_floating(input.dtype()) && (dims == 2 || dims == 3), op,
                 "expected a floating input (N, C, H, W) or (N, C, D, H, W), got ", input.dtype(), " ", input.shape());
  LOCKSTEP_CHECK(given.dim() == input.dim() && given.size(0) == input.size(0) && given.size(-1) == dims, op,
                 "expected a grid (", input.size(0), dims == 2 ? ", P, Q, 2) " : ", O, P, Q, 3) ", "for input ",
                 input.shape(), ", got ", given.shape(), "; reshape the grid");
  LOCKSTEP_CHECK((given.dtype() == input.dtype() || Autocast::enabled()) && given.device() == input.device(), op,
                 "expected input and grid of one dtype and device, got ", input.dtype(), " on ", input.device(),
                 " and ", given.dtype(), " on ", given.device(), "; convert or move one with .to()");
  LOCKSTEP_CHECK(
      o.mode == Resampling::linear || o.mode == Resampling::nearest || (o.mode == Resampling::cubic && dims == 2), op,
      "expected mode linear or nearest, or cubic for an input (N, C, H, W), got another; choose one of these");
  const Wide wide(input);
  const int64_t n = input.size(0), c = input.size(1);
  const int64_t pixels = numel_of(Shape(input.shape().begin() + 2, input.shape().end()));
  LOCKSTEP_CHECK(pixels > 0, op, "expected at least one pixel, got ", input.shape(), "; leave empty images out");
  Shape shape{n, c};
  int64_t count = 1;
  for (int d = 1; d <= dims; ++d) {
    shape.push_back(given.size(d));
    count *= given.size(d);
  }
  const Variable grid = wide(given).to(wide(input).dtype());
  const Variable rows = wide(input).reshape({n, c, pixels}).transpose(1, 2).reshape({n * pixels, c});
  const Tensor first = arange(0, n * pixels, pixels, {.dtype = i64, .device = input.device()});
  GridSampler sampler{o, pad(rows, {0, 0, 0, 1}), first.view({n, 1}).expand({n, count}).reshape({n * count}),
                      n * pixels};
  std::vector<Variable> at;
  for (int d = 0; d < dims; ++d) {
    const int64_t size = input.size(d + 2);
    const Variable place = grid.select(-1, dims - 1 - d).reshape({n * count});
    sampler.sizes.push_back(size);
    at.push_back(o.align_corners ? (place + 1) * (double(size - 1) / 2) : ((place + 1) * double(size) - 1) * 0.5);
  }
  const Variable found = o.mode == Resampling::nearest  ? sampler.nearest(at)
                         : o.mode == Resampling::linear ? sampler.linear(at)
                                                        : sampler.cubic(at);
  return wide.round(found.reshape({n, count, c}).transpose(1, 2).reshape(shape));
}

Variable affine_grid(const Variable& theta, const Shape& shape, bool align_corners) {
  const int dims = shape.rank() - 2;
  LOCKSTEP_CHECK(
      (dims == 2 || dims == 3) && is_floating(theta.dtype()) && theta.shape() == (Shape{shape[0], dims, dims + 1}),
      "[affine_grid] expected theta (N, 2, 3) for a shape (N, C, H, W), or (N, 3, 4) for (N, C, D, H, W), "
      "got ",
      theta.shape(), " and ", shape, "; reshape theta");
  LOCKSTEP_CHECK(*std::min_element(shape.begin() + 1, shape.end()) >= 1, "[affine_grid] expected sizes >= 1, got ",
                 shape);
  const TensorOptions options{.dtype = f64};
  const Shape places(shape.begin() + 2, shape.end());
  std::vector<Tensor> base;
  for (int d = dims - 1; d >= 0; --d) {
    const int64_t size = places[d];
    Tensor line = size == 1 ? zeros({1}, options) : linspace(-1, 1, size, options);
    if (!align_corners) line = mul_scalar(line, double(size - 1) / double(size));
    Shape own = Dims::filled(dims, 1);
    own[d] = size;
    base.push_back(line.view(own).expand(places));
  }
  base.push_back(ones(places, options));
  const Tensor all = stack(base, -1).reshape({1, numel_of(places), dims + 1}).to(theta.dtype()).to(theta.device());
  Shape result{shape[0]};
  for (const int64_t size : places) result.push_back(size);
  result.push_back(dims);
  return matmul(all, theta.transpose(1, 2)).reshape(result);
}

}  // namespace lockstep
