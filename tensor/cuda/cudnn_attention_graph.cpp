// The graphs of attention. Scores form a matrix that no engine ever holds as a whole (i: a query's row, j: a key's
// column):
//
//   forward    s = q k^T * scale, -inf where j > i or j + window <= i;  m = max_j s;  e = exp(s - m);  l = sum_j e
//              lse = m + log l;  out = (e / l) v
//   backward   d = sum over the width of grad * out;  p = exp(s - lse);  grad_v = p^T grad
//              r = (grad v^T - d) * p * scale;  grad_k = r^T q;  grad_q = r k
//
// The engines recognise exactly this form: the order of operations, transpositions as reshapes with swapped strides,
// and a factor of one after d. If heads share keys, the gradients of k and v are summed over these heads. cuDNN also
// has a form of backward that sums grad_q in f32 with atomics; this one writes r and multiplies it in a second kernel,
// so it is deterministic.
#include "tensor/cuda/cudnn_attention_graph.h"

#include <algorithm>
#include <deque>
#include <limits>

namespace lockstep::cuda {
namespace {

using Four = std::array<int64_t, 4>;

/// Ids of the tensors in the variant pack. Tensors inside the graph have numbers from inner_id on.
enum AttentionId : int64_t {
  id_q = 1,
  id_k,
  id_v,
  id_out,
  id_lse,
  id_grad,
  id_grad_q,
  id_grad_k,
  id_grad_v,
  id_sums,
  id_scale,
  id_hidden,
  id_one,
  id_window,
  inner_id = 100
};

/// A tensor of a graph.
struct Node {
  const Descriptor* tensor;
  Four size, stride;
  cudnnDataType_t type;
};

Four packed(const Four& s) { return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}; }
/// The last two dims swapped: sizes or strides of the transpose.
Four turned(const Four& s) { return {s[0], s[1], s[3], s[2]}; }

/// Builds a graph: each function adds a tensor or an operation and returns the resulting tensor.
class GraphMaker {
 public:
  explicit GraphMaker(DType dtype) : short_type(dtype == f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16) {}

  const cudnnDataType_t short_type;

  /// A tensor in memory.
  Node stored(int64_t id, cudnnDataType_t type, const Four& size, const Four& stride) {
    return tensor(id, type, size, stride, false, false);
  }
  /// A scalar passed by the host.
  Node number(int64_t id, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return tensor(id, type, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
  }
  /// A virtual tensor, which only operations of the graph see.
  Node inner(const Four& size, cudnnDataType_t type = CUDNN_DATA_FLOAT) { return inner(size, packed(size), type); }
  Node inner(const Four& size, const Four& stride, cudnnDataType_t type) {
    return tensor(next_id_++, type, size, stride, true, false);
  }

  Node matmul(const Node& a, const Node& b, const Node& to) {
    Descriptor how(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT).finalize();
    Descriptor& made = operations_.emplace_back(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how).set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, *a.tensor);
    made.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, *b.tensor).set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, *to.tensor);
    made.finalize();
    return to;
  }
  Node reduce(cudnnReduceTensorOp_t op, const Node& x, const Node& to) {
    Descriptor how(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op).finalize();
    Descriptor& made = operations_.emplace_back(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how).set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, *x.tensor);
    made.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, *to.tensor).finalize();
    return to;
  }
  /// The memory of x with the strides of `to`.
  Node reshape(const Node& x, const Node& to) {
    Descriptor& made = operations_.emplace_back(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, *x.tensor).set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, *to.tensor);
    made.finalize();
    return to;
  }
  /// mode(x), mode(x, b), or a selection: x where `where` is true, else b.
  Node pointwise(cudnnPointwiseMode_t mode, const Node& x, const Node* b, const Node* where, const Node& to,
                 int64_t axis = -1) {
    const bool compares = mode == CUDNN_POINTWISE_CMP_GE || mode == CUDNN_POINTWISE_CMP_GT;
    const cudnnDataType_t computes = compares                      ? CUDNN_DATA_BOOLEAN
                                     : mode == CUDNN_POINTWISE_ADD ? to.type
                                                                   : CUDNN_DATA_FLOAT;
    Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
    how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, computes);
    if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
    how.finalize();
    Descriptor& made = operations_.emplace_back(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, *x.tensor).set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, *to.tensor);
    if (b) made.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b->tensor);
    if (where) made.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *where->tensor);
    made.finalize();
    return to;
  }
  Node pointwise(cudnnPointwiseMode_t mode, const Node& x) {
    return pointwise(mode, x, nullptr, nullptr, inner(x.size));
  }
  Node pointwise(cudnnPointwiseMode_t mode, const Node& x, const Node& b) {
    return pointwise(mode, x, &b, nullptr, inner(x.size));
  }

  /// The finalized graph.
  Descriptor finish(const PlanTarget& target) const { return graph_of(operations_, target); }

 private:
  Node tensor(int64_t id, cudnnDataType_t type, const Four& size, const Four& stride, bool is_inner, bool is_number) {
    Descriptor& made = tensors_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id)
        .set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
    made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, size.data())
        .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride.data());
    made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t(16));
    if (is_inner) made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, true);
    if (is_number) made.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, true);
    made.finalize();
    return {&made, size, stride, type};
  }

  std::deque<Descriptor> tensors_;  // a deque, because nodes point to its elements
  std::vector<Descriptor> operations_;
  int64_t next_id_ = inner_id;
};

Four stride_of(const AttentionProblem::Strides& s) { return {s[0], s[1], s[2], 1}; }

/// The scaled scores q k^T.
Node scores_of(GraphMaker& make, const AttentionProblem& p, const Node& q, const Node& k_turned, const Node& scale) {
  const Node products = make.matmul(q, k_turned, make.inner({p.batch, p.heads, p.queries, p.keys}));
  return make.pointwise(CUDNN_POINTWISE_MUL, products, scale);
}

/// x, with minus infinity where a query does not see a key.
Node hide(GraphMaker& make, const AttentionProblem& p, const Node& x) {
  const auto place = [&](int64_t axis) {
    return make.pointwise(CUDNN_POINTWISE_GEN_INDEX, x, nullptr, nullptr, make.inner(x.size, CUDNN_DATA_INT32), axis);
  };
  const Node hidden = make.number(id_hidden);
  const auto only_where = [&](const Node& scores, cudnnPointwiseMode_t mode, const Node& a, const Node& b) {
    const Node seen = make.pointwise(mode, a, &b, nullptr, make.inner(x.size, CUDNN_DATA_BOOLEAN));
    return make.pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, &hidden, &seen, make.inner(x.size));
  };
  const Node row = place(2), past = only_where(x, CUDNN_POINTWISE_CMP_GE, row, place(3));
  if (p.window == 0) return past;
  const Node window = make.number(id_window, CUDNN_DATA_INT32), first = place(2);
  const Node end =
      make.pointwise(CUDNN_POINTWISE_ADD, place(3), &window, nullptr, make.inner(x.size, CUDNN_DATA_INT32));
  return only_where(past, CUDNN_POINTWISE_CMP_GT, end, first);
}

Descriptor forward_graph(const AttentionProblem& p, const PlanTarget& target) {
  GraphMaker make(p.dtype);
  const Four of_q{p.batch, p.heads, p.queries, p.width}, of_k{p.batch, p.groups, p.keys, p.width},
      of_scores{p.batch, p.heads, p.queries, p.keys}, of_rows{p.batch, p.heads, p.queries, 1};
  const Node q = make.stored(id_q, make.short_type, of_q, stride_of(p.q)),
             k_turned = make.stored(id_k, make.short_type, turned(of_k), turned(stride_of(p.k))),
             v = make.stored(id_v, make.short_type, of_k, stride_of(p.v)),
             out = make.stored(id_out, make.short_type, of_q, stride_of(p.out)),
             lse = make.stored(id_lse, CUDNN_DATA_FLOAT, of_rows, packed(of_rows));

  Node s = scores_of(make, p, q, k_turned, make.number(id_scale));
  if (p.causal) s = hide(make, p, s);
  const Node most = make.reduce(CUDNN_REDUCE_TENSOR_MAX, s, make.inner(of_rows));
  const Node e = make.pointwise(CUDNN_POINTWISE_EXP, make.pointwise(CUDNN_POINTWISE_SUB, s, most));
  const Node sum = make.reduce(CUDNN_REDUCE_TENSOR_ADD, e, make.inner(of_rows));
  const Node log = make.pointwise(CUDNN_POINTWISE_LOG, sum);
  make.pointwise(CUDNN_POINTWISE_ADD, most, &log, nullptr, lse);
  const Node weights = make.inner(of_scores, make.short_type);
  make.matmul(make.pointwise(CUDNN_POINTWISE_DIV, e, &sum, nullptr, weights), v, out);
  return make.finish(target);
}

Descriptor backward_graph(const AttentionProblem& p, const PlanTarget& target) {
  GraphMaker make(p.dtype);
  const Four of_q{p.batch, p.heads, p.queries, p.width}, of_k{p.batch, p.groups, p.keys, p.width},
      of_scores{p.batch, p.heads, p.queries, p.keys}, of_rows{p.batch, p.heads, p.queries, 1},
      of_all_heads{p.batch, p.heads, p.keys, p.width};
  const auto stored = [&](int64_t id, const Four& size, const AttentionProblem::Strides& stride) {
    return make.stored(id, make.short_type, size, stride_of(stride));
  };
  const auto stored_turned = [&](int64_t id, const Four& size, const AttentionProblem::Strides& stride) {
    return make.stored(id, make.short_type, turned(size), turned(stride_of(stride)));
  };
  const Node q = stored(id_q, of_q, p.q), k_turned = stored_turned(id_k, of_k, p.k),
             v_turned = stored_turned(id_v, of_k, p.v), out = stored(id_out, of_q, p.out),
             grad = stored(id_grad, of_q, p.grad), grad_q = stored(id_grad_q, of_q, p.grad_q),
             grad_k = stored(id_grad_k, of_k, p.grad_k), grad_v = stored(id_grad_v, of_k, p.grad_v),
             lse = make.stored(id_lse, CUDNN_DATA_FLOAT, of_rows, packed(of_rows)),
             sums = make.stored(id_sums, CUDNN_DATA_FLOAT, of_rows, packed(of_rows));
  const Node scale = make.number(id_scale), one = make.number(id_one);
  // The gradient of k or v, summed over the heads that share it.
  const auto to_groups = [&](const Node& scores, const Node& rows, const Node& to) {
    const Node across = make.reshape(scores, make.inner(turned(of_scores), turned(packed(of_scores)), make.short_type));
    if (p.heads == p.groups) make.matmul(across, rows, to);
    else make.reduce(CUDNN_REDUCE_TENSOR_ADD, make.matmul(across, rows, make.inner(of_all_heads, make.short_type)), to);
  };

  const Node d =
      make.reduce(CUDNN_REDUCE_TENSOR_ADD, make.pointwise(CUDNN_POINTWISE_MUL, grad, out), make.inner(of_rows));
  make.pointwise(CUDNN_POINTWISE_MUL, d, &one, nullptr, sums);
  Node s = make.pointwise(CUDNN_POINTWISE_SUB, scores_of(make, p, q, k_turned, scale), lse);
  if (p.causal) s = hide(make, p, s);
  const Node weights = make.pointwise(CUDNN_POINTWISE_EXP, s);
  to_groups(weights, grad, grad_v);
  const Node slopes = make.pointwise(CUDNN_POINTWISE_SUB, make.matmul(grad, v_turned, make.inner(of_scores)), sums);
  const Node r = make.pointwise(CUDNN_POINTWISE_MUL, make.pointwise(CUDNN_POINTWISE_MUL, slopes, weights), scale);
  to_groups(r, q, grad_k);
  make.matmul(r, make.reshape(k_turned, make.inner(of_k, stride_of(p.k), make.short_type)), grad_q);
  return make.finish(target);
}

/// Bytes of the 16-bit scores of one head of k and all heads of q that share it, padded to the kernels' tiles.
int64_t scores_of_group(const AttentionProblem& p) {
  const auto tiles = [](int64_t n) { return (n + 127) / 128 * 128; };
  return p.heads / p.groups * tiles(p.queries) * tiles(p.keys) * 2;
}

}  // namespace

int64_t workspace_limit(const AttentionProblem& p, int64_t scores) {
  const int64_t heads = p.batch * p.heads;  // gradients of k and v for all heads, in f32 at most
  return (int64_t(64) << 20) + (p.backward ? scores + 2 * 4 * heads * p.keys * p.width : 0);
}

AttentionProblem part_of(const AttentionProblem& problem, int64_t scores) {
  AttentionProblem part = problem;
  const int64_t fit = scores / scores_of_group(problem);
  const auto largest_divisor = [](int64_t n, int64_t most) {
    int64_t d = std::clamp<int64_t>(most, 1, n);
    while (n % d != 0) --d;
    return d;
  };
  part.batch = fit == 0 ? 0 : largest_divisor(problem.batch, fit / problem.groups);
  if (fit < problem.groups) part.groups = largest_divisor(problem.groups, fit);
  part.heads = problem.heads / problem.groups * part.groups;
  return part;
}

EnginePlan plan_attention(const AttentionProblem& problem, const PlanTarget& target, int64_t most_workspace) {
  EnginePlan none;
  none.refusal = str("the scores of one key head and its query heads need ", scores_of_group(problem) >> 20,
                     " MiB of workspace, more than LOCKSTEP_CUDNN_WORKSPACE allows");
  if (problem.batch == 0) return none;
  return choose_plan(problem.backward ? backward_graph(problem, target) : forward_graph(problem, target), target, false,
                     most_workspace);
}

Descriptor execute(cudnnHandle_t handle, const EnginePlan& plan, const AttentionProblem& problem,
                   const AttentionPointers& at, float scale, void* workspace) {
  static constexpr float hidden = -std::numeric_limits<float>::infinity(), one = 1;
  std::vector<Placed> all{{id_q, at.q},     {id_k, at.k},     {id_v, at.v},
                          {id_out, at.out}, {id_lse, at.lse}, {id_scale, &scale}};
  const auto window = int32_t(problem.window);
  if (problem.causal) all.push_back({id_hidden, &hidden});
  if (problem.window > 0) all.push_back({id_window, &window});
  if (problem.backward)
    all.insert(all.end(), {{id_grad, at.grad},
                           {id_grad_q, at.grad_q},
                           {id_grad_k, at.grad_k},
                           {id_grad_v, at.grad_v},
                           {id_sums, at.row_sums},
                           {id_one, &one}});
  return execute(handle, plan, all, workspace);
}

}  // namespace lockstep::cuda
