// Attention by cuDNN: which calls go there, and in which parts. Handles and cached plans are in cudnn_session.cpp,
// graphs in cudnn_attention_graph.cpp.
//
// lse has the same meaning in cuDNN and in our kernels (the natural logarithm of the sum of exp of scaled scores), so
// either can compute the backward pass of the other's forward pass.
#include "tensor/cuda/cudnn.h"

#if defined(LOCKSTEP_WITH_CUDNN)
#include <algorithm>

#include "tensor/cuda/cudnn_session.h"
#include "tensor/environment.h"

namespace lockstep::cuda {
namespace {

/// Older versions computed a wrong gradient if the number of keys was not a multiple of 128, and had bugs in forward.
constexpr size_t first_version = 91600;
/// Queries and keys must be multiples of this. A plan takes seconds, because its kernels are compiled. Sequence lengths
/// in training recur and are multiples of this; lengths of prompts are not.
constexpr int64_t token_unit = 128;
/// cuDNN's backward writes the whole matrix of scores, however narrow the window is, and multiplies it. Our kernels do
/// not; with windows below a quarter of the keys they should have less work. Calculated, not measured.
constexpr int64_t least_part = 4;

/// Fills in the strides for cuDNN; false if cuDNN's kernels cannot read x. They read 16 bytes at a time, and cuDNN
/// checks neither addresses nor strides.
bool strides_of(const Tensor& x, AttentionProblem::Strides& strides) {
  constexpr int64_t unit = 8;
  if (reinterpret_cast<uintptr_t>(x.raw_data()) % 16 != 0 || x.size(3) % unit != 0 || x.strides()[3] != 1) return false;
  int64_t dense = x.size(3);  // a valid stride for dims of size 1, whose own stride may be anything
  for (int d = 2; d >= 0; --d) {
    strides[size_t(d)] = x.size(d) == 1 ? dense : x.strides()[d];
    if (strides[size_t(d)] <= 0 || strides[size_t(d)] % unit != 0) return false;
    dense = std::max(dense, strides[size_t(d)] * x.size(d));
  }
  return true;
}

/// Fills in the problem; false if our own kernels have to do it.
bool make_problem(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& mask,
                  const AttentionArgs& args, AttentionProblem& problem) {
  if (!uses_cudnn() || cudnnGetVersion() < first_version) return false;
  if ((q.dtype() != f16 && q.dtype() != bf16) || mask.defined() || args.dropout > 0 || args.layout) return false;
  const int64_t queries = q.size(2), keys = k.size(2);
  if (q.numel() == 0 || k.numel() == 0 || queries % token_unit != 0 || keys % token_unit != 0) return false;
  if (args.causal && queries != keys) return false;
  problem = {.backward = false,
             .dtype = q.dtype(),
             .causal = args.causal,
             .window = args.window,
             .batch = q.size(0),
             .heads = q.size(1),
             .groups = k.size(1),
             .queries = queries,
             .keys = keys,
             .width = q.size(3)};
  return strides_of(q, problem.q) && strides_of(k, problem.k) && strides_of(v, problem.v) &&
         strides_of(out, problem.out);
}

/// The address of an entry of the batch and a head in a tensor of 16-bit numbers.
const void* place_in(const Tensor& x, const AttentionProblem::Strides& strides, int64_t entry, int64_t head) {
  return static_cast<const char*>(x.raw_data()) + 2 * (entry * strides[0] + head * strides[1]);
}

}  // namespace

std::string text_of(const AttentionProblem& p) {
  const auto strides = [](const AttentionProblem::Strides& s) { return str("(", s[0], ", ", s[1], ", ", s[2], ")"); };
  return str(p.dtype, p.causal ? ", causal" : "", p.window > 0 ? str(", window ", p.window) : "", ", batch ", p.batch,
             ", heads ", p.heads, " of ", p.width, ", keys' ", p.groups, ", tokens ", p.queries, " and ", p.keys,
             ", strides ", strides(p.q), " ", strides(p.k), " ", strides(p.v));
}

bool cudnn_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const AttentionArgs& args,
                     const Tensor& out, const Tensor& lse) {
  const char* const op = "attention";
  AttentionProblem problem;
  if (!make_problem(q, k, v, out, mask, args, problem)) return false;
  CudnnSession* const session = cudnn_session(op);
  if (!session) return false;
  const EnginePlan* const plan = plan_for(session->attentions, op, problem, [&] {
    return plan_attention(problem, {.handle = session->handle}, workspace_limit(problem, 0));
  });
  if (!plan) return false;
  const Scratch workspace(size_t(plan->workspace));
  const AttentionPointers pointers{q.raw_data(), k.raw_data(), v.raw_data(), out.raw_data(), lse.data<float>()};
  const Descriptor done = execute(session->handle, *plan, problem, pointers, float(args.scale), workspace.as<void>());
  if (!done.ok()) fail_execution(op, text_of(problem), *plan, done);
  return true;
}

bool cudnn_attention_grad(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                          const Tensor& out, const Tensor& lse, const AttentionArgs& args, const Tensor& grad_q,
                          const Tensor& grad_k, const Tensor& grad_v) {
  const char* const op = "attention_grad";
  AttentionProblem all;
  if (args.window > 0 && args.window < k.size(2) / least_part) return false;
  if (!make_problem(q, k, v, out, mask, args, all) || !strides_of(grad, all.grad) || !strides_of(grad_q, all.grad_q) ||
      !strides_of(grad_k, all.grad_k) || !strides_of(grad_v, all.grad_v))
    return false;
  all.backward = true;
  CudnnSession* const session = cudnn_session(op);
  if (!session) return false;
  const int64_t scores = std::stoll(environment("LOCKSTEP_CUDNN_WORKSPACE").value_or("1024")) << 20;
  const AttentionProblem part = part_of(all, scores);
  const EnginePlan* const plan = plan_for(session->attentions, op, part, [&] {
    return plan_attention(part, {.handle = session->handle}, workspace_limit(part, scores));
  });
  if (!plan) return false;
  const Scratch workspace(size_t(plan->workspace)),
      sums(size_t(part.batch * part.heads * part.queries) * sizeof(float));
  for (int64_t b = 0; b < all.batch; b += part.batch) {
    for (int64_t g = 0; g < all.groups; g += part.groups) {
      const int64_t h = g * (all.heads / all.groups);
      const AttentionPointers pointers{.q = place_in(q, all.q, b, h),
                                       .k = place_in(k, all.k, b, g),
                                       .v = place_in(v, all.v, b, g),
                                       .out = place_in(out, all.out, b, h),
                                       .lse = lse.data<float>() + (b * all.heads + h) * all.queries,
                                       .grad = place_in(grad, all.grad, b, h),
                                       .grad_q = place_in(grad_q, all.grad_q, b, h),
                                       .grad_k = place_in(grad_k, all.grad_k, b, g),
                                       .grad_v = place_in(grad_v, all.grad_v, b, g),
                                       .row_sums = sums.as<float>()};
      const Descriptor done = execute(session->handle, *plan, part, pointers, float(args.scale), workspace.as<void>());
      if (!done.ok()) fail_execution(op, text_of(part), *plan, done);
    }
  }
  return true;
}

}  // namespace lockstep::cuda

#else

namespace lockstep::cuda {
bool cudnn_attention(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AttentionArgs&, const Tensor&,
                     const Tensor&) {
  return false;
}
bool cudnn_attention_grad(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&, const AttentionArgs&, const Tensor&, const Tensor&, const Tensor&) {
  return false;
}
}  // namespace lockstep::cuda

#endif
