// A fake of cuDNN's descriptors: the attributes of each kind, and the conditions checked when one is finalized.
#include "tests/cudasim/cudnn_descriptors.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace fake::dnn {
namespace {

using Kind = cudnnBackendDescriptorType_t;
using Name = cudnnBackendAttributeName_t;
using Type = cudnnBackendAttributeType_t;

struct Object {
  std::shared_ptr<Content> content;
};
Object& object(cudnnBackendDescriptor_t descriptor) { return *static_cast<Object*>(descriptor); }

/// An attribute of a kind of descriptor: its type, whether it is required, and the most values it takes.
struct Rule {
  Kind kind;
  Name name;
  Type type;
  bool needed;
  int64_t most = 1;
  Kind of = CUDNN_BACKEND_TENSOR_DESCRIPTOR;  ///< the kind of descriptor values; a graph takes operations instead
};
constexpr Rule rules[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, true, 4},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, true, 4},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, false},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, false},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, false},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, true, 1, CUDNN_BACKEND_POINTWISE_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     false},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     false},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     true},
    {CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, true},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, true,
     1, CUDNN_BACKEND_MATMUL_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, true},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, true},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, true},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, true},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, true},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     true, 1, CUDNN_BACKEND_REDUCTION_DESCRIPTOR},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     true},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     true},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     true},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     true},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, true},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, true, 100},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, true, 1,
     CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, true},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, true},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     true, 1, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, true, 100},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, true, 100},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, true},
};

size_t bytes_of(Type type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    default: return 4;  // enums
  }
}

bool is_operation(Kind kind) {
  return kind == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR || kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ||
         kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR || kind == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
}

cudnnStatus_t bad(const std::string& why) { return refuse(CUDNN_STATUS_BAD_PARAM, why); }
cudnnStatus_t misshaped(const std::string& why) { return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, why); }

bool is_short(cudnnDataType_t type) { return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16; }
bool is_float(cudnnDataType_t type) { return type == CUDNN_DATA_FLOAT || is_short(type); }

cudnnStatus_t check_tensor(const Content& c) {
  for (const Name name : {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES}) {
    const auto numbers = c.all<int64_t>(name);
    if (numbers.size() != 4)
      return refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "tensor: the emulator supports only 4 dims");
    if (std::ranges::any_of(numbers, [](int64_t n) { return n < 1; })) return bad("tensor: sizes and strides below 1");
  }
  const Tensor t(c);
  if (t.alignment < 1 || (t.alignment & (t.alignment - 1)) != 0) return bad("tensor: alignment is not a power of two");
  if (t.is_inner && t.is_number) return bad("tensor: virtual and by value");
  const bool counts = t.type == CUDNN_DATA_INT32;
  if (t.is_number && (t.span() != 1 || !(t.type == CUDNN_DATA_FLOAT || counts)))
    return bad("tensor: by value, the emulator supports only one f32 or i32");
  if (!is_float(t.type) && !(t.is_number && counts) && !(t.is_inner && (counts || t.type == CUDNN_DATA_BOOLEAN)))
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "tensor: type");
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_pointwise(const Content& c, const Operation& op) {
  const cudnnPointwiseMode_t mode = op.mode;
  const bool selects = mode == CUDNN_POINTWISE_BINARY_SELECT,
             compares = mode == CUDNN_POINTWISE_CMP_GE || mode == CUDNN_POINTWISE_CMP_GT,
             indexes = mode == CUDNN_POINTWISE_GEN_INDEX,
             unary = mode == CUDNN_POINTWISE_EXP || mode == CUDNN_POINTWISE_LOG || indexes;
  const Tensor &x = op.inputs[0], &y = op.output;
  if (c.has(CUDNN_ATTR_OPERATION_POINTWISE_BDESC) == unary || c.has(CUDNN_ATTR_OPERATION_POINTWISE_TDESC) != selects)
    return bad("pointwise: the operands do not fit the mode");
  for (const Tensor& input : op.inputs)
    for (int d = 0; d < 4; ++d)
      if (input.size[d] != y.size[d] && (input.size[d] != 1 || &input == op.inputs.data()))
        return misshaped("pointwise: an input does not broadcast to the output");
  if (indexes && (op.axis < 0 || op.axis > 3)) return bad("pointwise: axis");
  const bool counts = mode == CUDNN_POINTWISE_ADD && y.type == CUDNN_DATA_INT32;
  const cudnnDataType_t made = compares ? CUDNN_DATA_BOOLEAN : indexes ? CUDNN_DATA_INT32 : y.type;
  const bool right_inputs = compares ? x.type == op.inputs[1].type
                            : counts ? x.type == y.type && op.inputs[1].type == y.type
                                     : is_float(x.type) && (unary || is_float(op.inputs[1].type));
  if (y.type != made || !(compares || indexes || counts || is_float(y.type)) || !right_inputs ||
      (selects && op.inputs[2].type != CUDNN_DATA_BOOLEAN))
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "pointwise: types");
  const auto precision =
      c.other(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR).get<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC);
  if (precision != (compares ? CUDNN_DATA_BOOLEAN : counts ? y.type : CUDNN_DATA_FLOAT))
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "pointwise: precision");
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_operation(const Content& c, const Operation& op) {
  const Tensor &x = op.inputs[0], &y = op.output;
  if (y.is_number) return bad("operation: its output is passed by value");
  switch (op.kind) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return check_pointwise(c, op);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: {
      const Tensor& b = op.inputs[1];
      if (x.size[0] != b.size[0] || y.size[0] != x.size[0] || x.size[1] % b.size[1] != 0 || y.size[1] != x.size[1] ||
          y.size[2] != x.size[2] || x.size[3] != b.size[2] || y.size[3] != b.size[3])
        return misshaped("matmul: sizes");
      if (!is_short(b.type) || (x.type != b.type && !(x.is_inner && x.type == CUDNN_DATA_FLOAT)))
        return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "matmul: types");
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      for (int d = 0; d < 4; ++d)
        if (x.size[d] % y.size[d] != 0) return misshaped("reduction: sizes");
      if (op.reduction != CUDNN_REDUCE_TENSOR_ADD && op.reduction != CUDNN_REDUCE_TENSOR_MAX)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "reduction: operator");
      return CUDNN_STATUS_SUCCESS;
    default: {
      const auto elements = [](const Tensor& t) { return t.size[0] * t.size[1] * t.size[2] * t.size[3]; };
      if (elements(x) != elements(y) || x.span() != y.span() || !y.is_inner) return misshaped("reshape: sizes");
      return CUDNN_STATUS_SUCCESS;
    }
  }
}

Operation operation_of(const Content& c) {
  const auto tensor = [&](Name name) { return Tensor(c.other(name)); };
  switch (c.kind) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      const Content& how = c.other(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
      Operation op{.kind = c.kind,
                   .inputs = {tensor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)},
                   .output = tensor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC),
                   .mode = how.get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE)};
      if (how.has(CUDNN_ATTR_POINTWISE_AXIS)) op.axis = how.get<int64_t>(CUDNN_ATTR_POINTWISE_AXIS);
      for (const Name name : {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC})
        if (c.has(name)) op.inputs.push_back(tensor(name));
      return op;
    }
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      return {.kind = c.kind,
              .inputs = {tensor(CUDNN_ATTR_OPERATION_MATMUL_ADESC), tensor(CUDNN_ATTR_OPERATION_MATMUL_BDESC)},
              .output = tensor(CUDNN_ATTR_OPERATION_MATMUL_CDESC)};
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      return {
          .kind = c.kind,
          .inputs = {tensor(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)},
          .output = tensor(CUDNN_ATTR_OPERATION_REDUCTION_YDESC),
          .reduction =
              c.other(CUDNN_ATTR_OPERATION_REDUCTION_DESC).get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR)};
    default:
      return {.kind = c.kind,
              .inputs = {tensor(CUDNN_ATTR_OPERATION_RESHAPE_XDESC)},
              .output = tensor(CUDNN_ATTR_OPERATION_RESHAPE_YDESC)};
  }
}

/// Builds the graph. Operations must be in executable order; each virtual tensor is produced once and used.
cudnnStatus_t make_graph(Content& c) {
  auto graph = std::make_shared<Graph>();
  std::set<int64_t> made, used;
  for (const auto& each : c.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).others) {
    Operation op = operation_of(*each);
    for (const Tensor& input : op.inputs) {
      used.insert(input.id);
      if (input.is_inner && !made.count(input.id)) return bad("graph: a virtual tensor is used before it is made");
    }
    if (!made.insert(op.output.id).second) return bad("graph: two operations write one tensor");
    for (const Tensor& t : op.inputs)
      if (!(graph->tensors.emplace(t.id, t).first->second == t)) return bad("graph: two tensors have the same id");
    if (!(graph->tensors.emplace(op.output.id, op.output).first->second == op.output))
      return bad("graph: two tensors have the same id");
    graph->operations.push_back(std::move(op));
  }
  for (const auto& [id, tensor] : graph->tensors)
    if (tensor.is_inner && !used.count(id)) return bad("graph: a virtual tensor is not used");
  c.graph = graph;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize(Content& c) {
  for (const Rule& rule : rules)
    if (rule.kind == c.kind && rule.needed && !c.has(rule.name))
      return bad("finalize: attribute " + std::to_string(rule.name) + " is not set");
  switch (c.kind) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: return check_tensor(c);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: return make_graph(c);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      c.graph = c.other(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).graph;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      c.graph = c.other(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).graph;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      return c.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).size() ==
                     c.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size()
                 ? CUDNN_STATUS_SUCCESS
                 : bad("variant pack: ids and pointers");
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR: return bad("finalize: in the emulator, only heuristics create these");
    default: return is_operation(c.kind) ? check_operation(c, operation_of(c)) : CUDNN_STATUS_SUCCESS;
  }
}

/// True for graphs that cuDNN's attention engines support: heads of at most 256 elements, a multiple of 8.
bool has_engine(const Graph& graph) {
  for (const Operation& op : graph.operations)
    if (op.kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
      return op.inputs[0].size[3] % 8 == 0 && op.inputs[0].size[3] <= 256;  // the first product is that of the queries
  return false;
}

template <class T> cudnnStatus_t answer(const T& value, int64_t* count, void* values) {
  *count = 1;
  if (values) std::memcpy(values, &value, sizeof value);
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

const Content& content(cudnnBackendDescriptor_t descriptor) { return *object(descriptor).content; }

int64_t Graph::workspace() const {
  int64_t largest = 0;
  bool reshapes = false;
  for (const Operation& op : operations) reshapes |= op.kind == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
  for (const auto& [id, tensor] : tensors)
    if (reshapes && tensor.is_inner) largest = std::max(largest, tensor.span());
  return 256 + 2 * largest;
}

}  // namespace fake::dnn

using namespace fake::dnn;

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t kind, cudnnBackendDescriptor_t* descriptor) {
  const bool known = kind == CUDNN_BACKEND_ENGINE_DESCRIPTOR || kind == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR ||
                     std::ranges::any_of(rules, [&](const Rule& rule) { return rule.kind == kind; });
  if (!known)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "the emulator has no descriptors of kind " + std::to_string(kind));
  *descriptor = new Object{std::make_shared<Content>(Content{kind})};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Object*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  if (!descriptor || !values) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "set: null");
  Content& c = *object(descriptor).content;
  const std::string what = "set: attribute " + std::to_string(name);
  if (c.finalized) return refuse(CUDNN_STATUS_NOT_INITIALIZED, what + " of a finalized descriptor");
  const auto rule = std::ranges::find_if(rules, [&](const Rule& r) { return r.kind == c.kind && r.name == name; });
  if (rule == std::end(rules)) return bad(what + " does not belong to kind " + std::to_string(c.kind));
  if (rule->type != type) return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, what);
  if (count < 1 || count > rule->most) return refuse(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, what);
  Attribute attribute{type, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t i = 0; i < count; ++i) {
      const auto other = static_cast<const cudnnBackendDescriptor_t*>(values)[i];
      if (!other) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, what);
      const std::shared_ptr<Content>& there = object(other).content;
      if (!there->finalized) return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, what);
      const bool wanted =
          c.kind == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR ? is_operation(there->kind) : there->kind == rule->of;
      if (!wanted) return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, what);
      attribute.others.push_back(there);
    }
  } else {
    const auto* const bytes = static_cast<const char*>(values);
    attribute.bytes.assign(bytes, bytes + size_t(count) * bytes_of(type));
  }
  c.attributes[name] = std::move(attribute);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  if (!descriptor) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "finalize: null");
  Content& c = *object(descriptor).content;
  if (c.finalized) return bad("finalize: called twice");
  const cudnnStatus_t status = finalize(c);
  c.finalized = status == CUDNN_STATUS_SUCCESS;
  return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t* count, void* values) {
  if (!descriptor || !count) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "get: null");
  const Content& c = content(descriptor);
  if (!c.finalized) return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "get");
  // Descriptor values are written into descriptors that the caller has created.
  const auto answer_with = [&](Kind kind) {
    if (values && wanted > 0) {
      Object& to = object(*static_cast<cudnnBackendDescriptor_t*>(values));
      if (to.content->kind != kind) return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "get");
      to.content = std::make_shared<Content>(Content{.kind = kind, .finalized = true, .graph = c.graph});
    }
    *count = 1;
    return CUDNN_STATUS_SUCCESS;
  };
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    *count = 0;
    if (c.get<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE) != CUDNN_HEUR_MODE_A || !has_engine(*c.graph))
      return CUDNN_STATUS_SUCCESS;
    return answer_with(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  }
  if (name == CUDNN_ATTR_ENGINECFG_ENGINE && type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    return answer_with(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  if (name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX && type == CUDNN_TYPE_INT64) return answer(int64_t(0), count, values);
  if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE)
    return answer(CUDNN_NUMERICAL_NOTE_TENSOR_CORE, count, values);
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64)
    return answer(c.graph->workspace(), count, values);
  return bad("get: attribute " + std::to_string(name));
}

}  // extern "C"
