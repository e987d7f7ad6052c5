// Pooling dim by dim: for volumes first within the planes, then along the depth.
#include "extensions/vision/pool.h"

#include <algorithm>

#include "autograd/autocast.h"
#include "autograd/loss_common.h"

namespace lockstep {
namespace {

/// Checks x and its options. Returns the number of dims after C.
int check_pooled(const char* op, const Variable& x, std::initializer_list<const Dims*> options) {
  const int dims = x.dim() - 2;
  LOCKSTEP_CHECK(is_floating(x.dtype()) && dims >= 1 && dims <= 3, "[", op,
                 "] expected a floating input (N, C, L), (N, C, H, W) or (N, C, D, H, W), got ", x.dtype(), " ",
                 x.shape(), "; convert or reshape it");
  for (const Dims* option : options)
    LOCKSTEP_CHECK(option->rank() == dims, "[", op, "] expected options of ", dims, " values for input ", x.shape(),
                   ", got ", *option);
  return dims;
}
int check_pooled(const char* op, const Variable& x, const PoolArgs& args) {
  return check_pooled(op, x, {&args.kernel, &args.stride, &args.padding, &args.dilation});
}

/// Returns options for 2-d pooling: the options in `a` of dims `first` and `second` (0 is the first dim after C). -1
/// stands for no dim: its options change nothing.
PoolArgs two_of(const PoolArgs& a, int first, int second) {
  const auto both = [&](const Dims& values, int64_t none) {
    return Dims{first < 0 ? none : values[first], second < 0 ? none : values[second]};
  };
  return {.kernel = both(a.kernel, 1),
          .stride = both(a.stride, 1),
          .padding = both(a.padding, 0),
          .dilation = both(a.dilation, 1),
          .ceil_mode = a.ceil_mode,
          .count_include_pad = a.count_include_pad};
}

/// Pools x by 2-d pooling. pool(images, i, j) pools the height of images with the options of dim i of x (0 is the first
/// dim after C), and the width with those of dim j. For -1 it leaves the height or width as it is.
template <class V, class Pool> V over_planes(const V& x, int dims, const Pool& pool) {
  if (dims == 1) return pool(x.unsqueeze(2), -1, 0).squeeze(2);
  if (dims == 2) return pool(x, 0, 1);
  const int64_t n = x.size(0), c = x.size(1), d = x.size(2);
  const V planes = pool(x.reshape({n, c * d, x.size(3), x.size(4)}), 1, 2);
  const int64_t p = planes.size(2), q = planes.size(3);
  const V deep = pool(planes.reshape({n, c, d, p * q}), 0, -1);
  return deep.reshape({n, c, deep.size(2), p, q});
}

Dims known_sizes(const char* op, const Variable& x, const Dims& sizes) {
  Dims known = sizes;
  for (int d = 0; d < check_pooled(op, x, {&sizes}); ++d) {
    if (known[d] == -1) known[d] = x.size(d + 2);
    LOCKSTEP_CHECK(known[d] >= 1 && x.size(d + 2) >= 1, "[", op,
                   "] expected sizes >= 1, or -1, and at least one pixel, got ", sizes, " for ", x.shape());
  }
  return known;
}

/// For each of `out` windows over a dim of size `in`, the indices in the window. Sets `longest` to the length of the
/// longest window; shorter windows repeat their last index.
Tensor window_numbers(int64_t in, int64_t out, int64_t& longest) {
  longest = 1;
  const auto first = [&](int64_t i) { return i * in / out; };
  const auto last = [&](int64_t i) { return ((i + 1) * in + out - 1) / out; };
  for (int64_t i = 0; i < out; ++i) longest = std::max(longest, last(i) - first(i));
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < out; ++i)
    for (int64_t k = 0; k < longest; ++k) numbers.push_back(std::min(first(i) + k, last(i) - 1));
  return Tensor::from(numbers, {out * longest});
}

}  // namespace

Variable max_pool(const Variable& x, const PoolArgs& args) {
  return over_planes(x, check_pooled("max_pool", x, args),
                     [&](const Variable& images, int a, int b) { return max_pool2d(images, two_of(args, a, b)); });
}

VariableIndices max_pool_indices(const Variable& x, const PoolArgs& args) {
  const int dims = check_pooled("max_pool_indices", x, args);
  if (dims == 2) return max_pool2d_indices(x, args);
  if (dims == 1) {
    const auto [values, places] = max_pool2d_indices(x.unsqueeze(2), two_of(args, -1, 0));
    return {values.squeeze(2), places.squeeze(2)};
  }
  // first within the planes, then along the depth
  const int64_t n = x.size(0), c = x.size(1), d = x.size(2), plane = x.size(3) * x.size(4);
  const ValuesIndices flat = max_pool2d(x.tensor().reshape({n, c * d, x.size(3), x.size(4)}), two_of(args, 1, 2));
  const int64_t p = flat.values.size(2), q = flat.values.size(3);
  const ValuesIndices deep = max_pool2d(flat.values.reshape({n, c, d, p * q}), two_of(args, 0, -1));
  const int64_t e = deep.values.size(2);
  // deep.indices: positions in flat.values (d, p, q). flat.indices: for each such value, its place in a plane of x.
  const Tensor of_deep = deep.indices.to(i64).reshape({n, c, e * p * q});
  const Tensor in_plane = gather(flat.indices.to(i64).reshape({n, c, d * p * q}), 2, of_deep);
  const Tensor places =
      add(mul_scalar(floor_divide(of_deep, p * q), plane), in_plane).reshape({n, c, e, p, q}).contiguous();
  const Variable values = gather(x.reshape({n, c, d * plane}), 2, places.view({n, c, e * p * q}));
  return {values.reshape(places.shape()), places};
}

Variable avg_pool(const Variable& input, const PoolArgs& args) {
  const int dims = check_pooled("avg_pool", input, args);
  const Wide wide(input);
  return wide.round(over_planes(
      wide(input), dims, [&](const Variable& images, int a, int b) { return avg_pool2d(images, two_of(args, a, b)); }));
}

Variable adaptive_avg_pool(const Variable& input, const Dims& sizes) {
  const Dims known = known_sizes("adaptive_avg_pool", input, sizes);
  const Wide wide(input);
  return wide.round(over_planes(wide(input), known.rank(), [&](const Variable& images, int a, int b) {
    return adaptive_avg_pool2d(images, a < 0 ? images.size(2) : known[a], b < 0 ? images.size(3) : known[b]);
  }));
}

VariableIndices adaptive_max_pool(const Variable& x, const Dims& sizes) {
  const Dims known = known_sizes("adaptive_max_pool", x, sizes);
  Variable values = x;
  Tensor places;                                 // positions of `values`, flat over the dims after C
  for (int d = known.rank() - 1; d >= 0; --d) {  // last dim first: of equal values the first one wins
    int64_t longest = 1, behind = 1;
    const Tensor numbers = window_numbers(x.size(d + 2), known[d], longest).to(x.device());
    for (int e = d + 3; e < x.dim(); ++e) behind *= x.size(e);
    const Variable windows = index_select(values, d + 2, numbers);
    Shape shape = windows.shape();
    shape[d + 2] = known[d];
    shape.insert(d + 3, longest);
    auto [best, at] = max(windows.reshape(shape), d + 3);
    Shape own = Dims::filled(shape.rank(), 1);
    own[d + 2] = known[d], own[d + 3] = longest;
    Tensor here = mul_scalar(numbers, behind).view(own).expand(shape);
    if (places.defined()) here = add(here, index_select(places, d + 2, numbers).reshape(shape));
    places = gather(here, d + 3, at.unsqueeze(d + 3)).squeeze(d + 3);
    values = best;
  }
  return {values, places};
}

Variable lp_pool(const Variable& input, double p, const PoolArgs& args) {
  check_pooled("lp_pool", input, args);
  LOCKSTEP_CHECK(p > 0, "[lp_pool] expected p > 0, got ", p);
  LOCKSTEP_CHECK(*std::max_element(args.padding.begin(), args.padding.end()) == 0,
                 "[lp_pool] expected no padding, got ", args.padding);
  const Wide wide(input);
  const Variable means = avg_pool(pow_scalar(wide(input), p), args);
  return wide.round(power(means * double(numel_of(args.kernel)), 1 / p));
}

Variable max_unpool(const Variable& x, const Tensor& indices, const Dims& sizes) {
  check_pooled("max_unpool", x, {&sizes});
  LOCKSTEP_CHECK(indices.dtype() == i64 && indices.shape() == x.shape(),
                 "[max_unpool] expected i64 indices like the input ", x.shape(), ", got ", indices.dtype(), " ",
                 indices.shape(), "; max pooling with indices gives them");
  Shape shape{x.size(0), x.size(1)};
  for (const int64_t size : sizes) {
    LOCKSTEP_CHECK(size >= 1, "[max_unpool] expected sizes >= 1, got ", sizes);
    shape.push_back(size);
  }
  const Tensor none = zeros({x.size(0), x.size(1), numel_of(sizes)}, {.dtype = x.dtype(), .device = x.device()});
  return scatter(Variable(none), 2, indices.flatten(2), x.flatten(2)).reshape(shape);
}

namespace nn {

LocalResponseNorm::LocalResponseNorm(const Options& options) : o(options) {
  LOCKSTEP_CHECK(o.size > 0, "[LocalResponseNorm] expected size > 0, got ", o.size);
}
Variable LocalResponseNorm::forward(const Variable& x) {
  LOCKSTEP_CHECK(x.dim() >= 3, "[LocalResponseNorm] expected input (N, C, ...) of at least 3 dims, got ", x.shape());
  if (x.numel() == 0) return x;
  const Variable squares = square(x).reshape({x.size(0), 1, x.size(1), x.numel() / (x.size(0) * x.size(1))});
  const Variable means =
      avg_pool2d(pad(squares, {0, 0, o.size / 2, (o.size - 1) / 2}), {.kernel = {o.size, 1}, .stride = {1, 1}});
  return x / pow_scalar(means.reshape(x.shape()) * o.alpha + o.k, o.beta);
}

}  // namespace nn
}  // namespace lockstep
