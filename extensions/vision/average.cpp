// Average pooling of images: checks, layouts, derivatives. See average.h.
#include "extensions/vision/average.h"

#include "autograd/recorded.h"
#include "autograd/tape.h"
#include "extensions/vision/average_kernels.h"
#include "tensor/layout.h"

namespace lockstep {

namespace kernels {
constinit const Op<AveragePool2d> avg_pool2d{"avg_pool2d", on_cpu::avg_pool2d, LOCKSTEP_ON_CUDA(on_cuda::avg_pool2d)};
constinit const Op<AveragePool2dGrad> avg_pool2d_grad{"avg_pool2d_grad", on_cpu::avg_pool2d_grad,
                                                      LOCKSTEP_ON_CUDA(on_cuda::avg_pool2d_grad)};
constinit const Op<AdaptiveAveragePool2d> adaptive_avg_pool2d{"adaptive_avg_pool2d", on_cpu::adaptive_avg_pool2d,
                                                              LOCKSTEP_ON_CUDA(on_cuda::adaptive_avg_pool2d)};
constinit const Op<AdaptiveAveragePool2dGrad> adaptive_avg_pool2d_grad{
    "adaptive_avg_pool2d_grad", on_cpu::adaptive_avg_pool2d_grad, LOCKSTEP_ON_CUDA(on_cuda::adaptive_avg_pool2d_grad)};
}  // namespace kernels

namespace {

/// Checks a pooling's gradient, and makes it row-major or channels-last if it is neither.
Tensor grad_images(const char* op, const Tensor& grad, const Shape& shape) {
  check_images(op, grad);
  LOCKSTEP_CHECK(grad.shape() == shape, "[", op, "] expected a gradient ", shape, ", got ", grad.shape());
  return as_images(grad);
}

/// Records `out` = pool(x), where `pool` is linear. grad(g) is the gradient of x for the incoming gradient g.
template <class Pool, class Grad>
Variable record_pool(const char* name, const char* grad_name, const Variable& x, Tensor out, Pool pool, Grad grad) {
  return on_tape(name, {&x}, std::move(out), [=](auto& back) {
    const auto& g = back.grad();
    Tensor grad_x = grad(bare(g));
    if constexpr (std::is_same_v<Value<decltype(back)>, Tensor>) back.give(0, std::move(grad_x));
    else
      back.give(0, on_tape(grad_name, {&g}, std::move(grad_x),
                           [pool](auto& next) { give_value(next, 0, pool(next.grad())); }));
  });
}

}  // namespace

Tensor avg_pool2d(const Tensor& x, const PoolArgs& args) {
  check_images("avg_pool2d", x);
  const Shape shape = pool_shape("avg_pool2d", x.shape(), args);
  LOCKSTEP_CHECK(args.dilation == Dims({1, 1}), "[avg_pool2d] expected dilation (1, 1), got ", args.dilation);
  const Tensor images = as_images(x);
  Tensor out = empty_images(shape, x, is_channels_last(images));
  kernels::avg_pool2d(x.device(), images, args, out);
  return out;
}

Tensor avg_pool2d_grad(const Tensor& grad, const Shape& input_shape, const PoolArgs& args) {
  const Tensor images = grad_images("avg_pool2d_grad", grad, pool_shape("avg_pool2d_grad", input_shape, args));
  Tensor out = empty_images(input_shape, grad, is_channels_last(images));
  kernels::avg_pool2d_grad(grad.device(), images, args, out);
  return out;
}

Tensor adaptive_avg_pool2d(const Tensor& x, int64_t height, int64_t width) {
  check_images("adaptive_avg_pool2d", x);
  LOCKSTEP_CHECK(height >= 1 && width >= 1, "[adaptive_avg_pool2d] expected sizes >= 1, got ", height, " and ", width);
  LOCKSTEP_CHECK(x.size(2) >= 1 && x.size(3) >= 1, "[adaptive_avg_pool2d] expected at least one pixel, got ",
                 x.shape());
  const Tensor images = as_images(x);
  Tensor out = empty_images({x.size(0), x.size(1), height, width}, x, is_channels_last(images));
  kernels::adaptive_avg_pool2d(x.device(), images, out);
  return out;
}

Tensor adaptive_avg_pool2d_grad(const Tensor& grad, const Shape& input_shape) {
  check_images("adaptive_avg_pool2d_grad", grad);
  LOCKSTEP_CHECK(input_shape.rank() == 4, "[adaptive_avg_pool2d_grad] expected an input shape (N, C, H, W), got ",
                 input_shape);
  const Tensor images =
      grad_images("adaptive_avg_pool2d_grad", grad, {input_shape[0], input_shape[1], grad.size(2), grad.size(3)});
  Tensor out = empty_images(input_shape, grad, is_channels_last(images));
  kernels::adaptive_avg_pool2d_grad(grad.device(), images, out);
  return out;
}

Variable avg_pool2d(const Variable& x, const PoolArgs& args) {
  const auto pool = [args](const Variable& v) { return avg_pool2d(v, args); };
  const auto grad = [args, shape = x.shape()](const Tensor& g) { return avg_pool2d_grad(g, shape, args); };
  return record_pool("avg_pool2d", "avg_pool2d_grad", x, avg_pool2d(x.tensor(), args), pool, grad);
}

Variable adaptive_avg_pool2d(const Variable& x, int64_t height, int64_t width) {
  const auto pool = [=](const Variable& v) { return adaptive_avg_pool2d(v, height, width); };
  const auto grad = [shape = x.shape()](const Tensor& g) { return adaptive_avg_pool2d_grad(g, shape); };
  return record_pool("adaptive_avg_pool2d", "adaptive_avg_pool2d_grad", x,
                     adaptive_avg_pool2d(x.tensor(), height, width), pool, grad);
}

}  // namespace lockstep
