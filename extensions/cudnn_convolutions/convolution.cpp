// Decides which convolutions cuDNN computes. Handles and cached plans: session.cpp. Graphs, choice of plans: graph.cpp.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "extensions/cudnn_convolutions/cudnn_convolutions.h"
#include "extensions/cudnn_convolutions/session.h"
#include "tensor/layout.h"
#include "tensor/ops.h"

namespace lockstep::cuda {
namespace {

constexpr const char* op_names[] = {"conv2d", "conv2d_grad_input", "conv2d_grad_weight"};

/// Sizes and strides of x for cuDNN. x may have any stride in a dim of size 1: cuDNN is given the layout's stride.
ConvProblem::Operand operand(const Tensor& x) {
  const std::array<int64_t, 4> s{x.size(0), x.size(1), x.size(2), x.size(3)};
  const uint64_t address = reinterpret_cast<uint64_t>(x.raw_data());
  ConvProblem::Operand made{
      s, {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}, int64_t(std::min<uint64_t>(16, address & -address))};
  if (is_channels_last(x)) made.stride = {s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
  return made;
}

/// True if x is stored in one of the two image layouts (tensor/layout.h).
bool is_images(const Tensor& x) { return x.is_contiguous() || is_channels_last(x); }

/// Computes a convolution of x to y, or its gradient by x or w. Returns false if cuDNN does not support it.
bool run(ConvDirection direction, const Tensor& x, const Tensor& w, const Tensor& y, const ConvArgs& args) {
  const DType dtype = x.dtype();
  if (!uses_cudnn() || (dtype != f32 && dtype != f16 && dtype != bf16)) return false;
  if (x.numel() == 0 || w.numel() == 0 || y.numel() == 0 || !is_images(x) || !w.is_contiguous() || !is_images(y))
    return false;
  const bool tf32 = dtype == f32 && float32_matmul_precision() == MatmulPrecision::tf32;
  const ConvProblem problem{direction,
                            dtype,
                            tf32,
                            operand(x),
                            operand(w),
                            operand(y),
                            {args.stride[0], args.stride[1]},
                            {args.padding[0], args.padding[1]},
                            {args.dilation[0], args.dilation[1]}};
  const char* const op = op_names[int(direction)];
  CudnnSession* const session = cudnn_session(op);
  if (!session) return false;
  const EnginePlan* const plan = plan_for(session->convolutions, op, problem, [&] {
    return plan_convolution(problem, {.handle = session->handle}, workspace_limit(problem));
  });
  if (!plan) return false;
  const Scratch workspace(size_t(plan->workspace));
  const Descriptor done =
      execute(session->handle, *plan, x.raw_data(), w.raw_data(), y.raw_data(), workspace.as<void>());
  if (!done.ok()) fail_execution(op, text_of(problem), *plan, done);
  return true;
}

bool forward(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvArgs& args, Tensor& out) {
  if (!run(ConvDirection::forward, x, w, out, args)) return false;
  if (bias.defined()) add_(out, bias.view({bias.numel(), 1, 1}));
  return true;
}
bool grad_input(const Tensor& grad, const Tensor& w, const ConvArgs& args, Tensor& grad_x) {
  return run(ConvDirection::grad_input, grad_x, w, grad, args);
}
bool grad_weight(const Tensor& grad, const Tensor& x, const ConvArgs& args, Tensor& grad_w, Tensor& grad_bias) {
  return !grad_bias.defined() && run(ConvDirection::grad_weight, x, grad_w, grad, args);
}

std::vector<std::pair<std::string, std::string>> facts() {
  const size_t version = cudnnGetVersion();  // 91900 is 9.19.0
  return {{"cuDNN", str(version / 10000, ".", version / 100 % 100, ".", version % 100)}};
}

}  // namespace

std::string text_of(const ConvProblem& p) {
  const auto sizes = [](const ConvProblem::Operand& o) {
    return str("(", o.size[0], ", ", o.size[1], ", ", o.size[2], ", ", o.size[3], ")",
               o.stride[1] == 1 ? " channels last" : "");
  };
  const auto pair = [](const std::array<int64_t, 2>& v) { return str("(", v[0], ", ", v[1], ")"); };
  return str(p.dtype, p.tf32 ? " as tf32" : "", ", input ", sizes(p.x), ", weight ", sizes(p.w), ", output ",
             sizes(p.y), ", stride ", pair(p.stride), ", padding ", pair(p.padding), ", dilation ", pair(p.dilation));
}

}  // namespace lockstep::cuda

std::vector<lockstep::ConvBackend> lockstep::cudnn_convolutions() {
  return {{Device::Type::cuda, cuda::forward, cuda::grad_input, cuda::grad_weight, cuda::facts}};
}
