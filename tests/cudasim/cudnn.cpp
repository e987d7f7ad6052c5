// A fake of cuDNN's backend API for graphs of products, pointwise operations, reductions and reshapes (attention). It
// checks descriptors as strictly as the real one, proposes one engine for any supported graph, and runs its operations
// one after the other in f32. Convolution descriptors are not supported.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cudnn_graph.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "tests/cudasim/cudnn_descriptors.h"
#include "tests/cudasim/runtime.h"

using namespace fake::dnn;

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace fake::dnn {
namespace {

thread_local std::string last_error;

}  // namespace

cudnnStatus_t refuse(cudnnStatus_t status, const std::string& why) {
  last_error = why;
  return status;
}

Tensor::Tensor(const Content& c)
    : id(c.get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
      type(c.get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
      size(c.get<Four>(CUDNN_ATTR_TENSOR_DIMENSIONS)),
      stride(c.get<Four>(CUDNN_ATTR_TENSOR_STRIDES)),
      alignment(c.get<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)),
      is_inner(c.get<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL)),
      is_number(c.get<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE)) {}

int64_t Tensor::span() const {
  int64_t last = 1;
  for (int d = 0; d < 4; ++d) last += (size[d] - 1) * stride[d];
  return last;
}

namespace {

size_t bytes_of(cudnnDataType_t type) { return type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16 ? 2 : 4; }

float rounded(cudnnDataType_t type, float x) {
  return type == CUDNN_DATA_HALF       ? __half2float(__float2half(x))
         : type == CUDNN_DATA_BFLOAT16 ? __bfloat162float(__float2bfloat16(x))
                                       : x;
}

/// A tensor while a graph runs. A virtual tensor has its own f32 memory, with its strides.
struct Value {
  const Tensor* tensor;
  void* memory;
  std::vector<float> own;

  float load(int64_t i) const {
    if (tensor->is_inner || tensor->is_number) return own[size_t(i)];
    switch (tensor->type) {
      case CUDNN_DATA_HALF: return __half2float(static_cast<const __half*>(memory)[i]);
      case CUDNN_DATA_BFLOAT16: return __bfloat162float(static_cast<const __nv_bfloat16*>(memory)[i]);
      default: return static_cast<const float*>(memory)[i];
    }
  }
  void store(int64_t i, float x) {
    if (tensor->is_inner) {
      own[size_t(i)] = rounded(tensor->type, x);
      return;
    }
    switch (tensor->type) {
      case CUDNN_DATA_HALF: static_cast<__half*>(memory)[i] = __float2half(x); break;
      case CUDNN_DATA_BFLOAT16: static_cast<__nv_bfloat16*>(memory)[i] = __float2bfloat16(x); break;
      default: static_cast<float*>(memory)[i] = x;
    }
  }
};

template <class Fn> void for_each(const Four& size, Fn&& fn) {
  Four i;
  for (i[0] = 0; i[0] < size[0]; ++i[0])
    for (i[1] = 0; i[1] < size[1]; ++i[1])
      for (i[2] = 0; i[2] < size[2]; ++i[2])
        for (i[3] = 0; i[3] < size[3]; ++i[3]) fn(i);
}

/// Offset of an element; dims of size 1 are broadcast.
int64_t place(const Tensor& t, const Four& i) {
  int64_t at = 0;
  for (int d = 0; d < 4; ++d) at += (t.size[d] == 1 ? 0 : i[d]) * t.stride[d];
  return at;
}

/// A row-major copy, broadcast to this size; with the last two dims swapped if turned.
std::vector<float> dense(const Value& x, const Four& size, bool turned = false) {
  std::vector<float> all;
  all.reserve(size_t(size[0] * size[1] * size[2] * size[3]));
  for_each(turned ? Four{size[0], size[1], size[3], size[2]} : size, [&](const Four& i) {
    all.push_back(x.load(place(*x.tensor, turned ? Four{i[0], i[1], i[3], i[2]} : i)));
  });
  return all;
}

float pointwise(cudnnPointwiseMode_t mode, float x, float b, float where) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return std::exp(x);
    case CUDNN_POINTWISE_LOG: return std::log(x);
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_CMP_GT: return x > b;
    default: return where != 0 ? x : b;  // BINARY_SELECT
  }
}

using Values = std::map<int64_t, Value>;

void run_pointwise(const Operation& op, Values& values) {
  const Tensor& y = op.output;
  const Value& x = values.at(op.inputs[0].id);
  Value& to = values.at(y.id);
  const auto other = [&](size_t n) {
    return op.inputs.size() > n ? dense(values.at(op.inputs[n].id), y.size) : std::vector<float>();
  };
  const std::vector<float> b = other(1), where = other(2);
  size_t n = 0;
  for_each(y.size, [&](const Four& i) {
    const float value =
        op.mode == CUDNN_POINTWISE_GEN_INDEX
            ? float(i[size_t(op.axis)])
            : pointwise(op.mode, x.load(place(*x.tensor, i)), b.empty() ? 0 : b[n], where.empty() ? 0 : where[n]);
    to.store(place(y, i), value), ++n;
  });
}

void run_matmul(const Operation& op, Values& values) {
  const Tensor &a = op.inputs[0], &b = op.inputs[1], &y = op.output;
  // Tensor cores take both factors in 16 bits.
  const cudnnDataType_t type = b.type;
  std::vector<float> left = dense(values.at(a.id), a.size), right = dense(values.at(b.id), b.size, true);
  for (float& x : left) x = rounded(type, x);
  const int64_t inner = a.size[3], shared = a.size[1] / b.size[1];
  Value& to = values.at(y.id);
  for_each(y.size, [&](const Four& i) {
    const float* const row = left.data() + ((i[0] * a.size[1] + i[1]) * a.size[2] + i[2]) * inner;
    const float* const column = right.data() + ((i[0] * b.size[1] + i[1] / shared) * b.size[3] + i[3]) * inner;
    float sum = 0;
    for (int64_t k = 0; k < inner; ++k) sum += row[k] * column[k];
    to.store(place(y, i), sum);
  });
}

void run_reduction(const Operation& op, Values& values) {
  const Tensor &x = op.inputs[0], &y = op.output;
  const Value& from = values.at(x.id);
  Value& to = values.at(y.id);
  Four run;  // how many neighbours are reduced to one, along each dim
  for (int d = 0; d < 4; ++d) run[d] = x.size[d] / y.size[d];
  for_each(y.size, [&](const Four& i) {
    float result = op.reduction == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0;
    for_each(run, [&](const Four& j) {
      Four at;
      for (int d = 0; d < 4; ++d) at[d] = i[d] * run[d] + j[d];
      const float value = from.load(place(x, at));
      result = op.reduction == CUDNN_REDUCE_TENSOR_MAX ? std::fmax(result, value) : result + value;
    });
    to.store(place(y, i), result);
  });
}

/// Runs a reshape: a view of the input's memory with other sizes and strides.
void run_reshape(const Operation& op, Values& values) {
  const Value& x = values.at(op.inputs[0].id);
  Value& to = values.at(op.output.id);
  for (size_t i = 0; i < to.own.size(); ++i) to.store(int64_t(i), x.load(int64_t(i)));
}

void run_graph(const Graph& graph, const std::map<int64_t, const void*>& placed,
               const std::map<int64_t, float>& numbers) {
  Values values;
  for (const auto& [id, tensor] : graph.tensors) {
    Value value{&tensor, nullptr, {}};
    if (tensor.is_inner) value.own.assign(size_t(tensor.span()), NAN);
    else if (tensor.is_number) value.own.assign(1, numbers.at(id));
    else value.memory = const_cast<void*>(placed.at(id));
    values.emplace(id, std::move(value));
  }
  for (const Operation& op : graph.operations) {
    switch (op.kind) {
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: run_pointwise(op, values); break;
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: run_matmul(op, values); break;
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: run_reduction(op, values); break;
      default: run_reshape(op, values);
    }
  }
}

}  // namespace
}  // namespace fake::dnn

extern "C" {

size_t cudnnGetVersion() { return CUDNN_VERSION; }
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (fake::settings().driver != cudaSuccess) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = new cudnnContext;
  if (__lsan_ignore_object) __lsan_ignore_object(*handle);  // handles are never destroyed
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (!handle) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS"
         : status < 2000                ? "CUDNN_STATUS_NOT_INITIALIZED"
         : status < 3000                ? "CUDNN_STATUS_BAD_PARAM"
         : status < 4000                ? "CUDNN_STATUS_NOT_SUPPORTED"
         : status < 5000                ? "CUDNN_STATUS_INTERNAL_ERROR"
                                        : "CUDNN_STATUS_EXECUTION_FAILED";
}
void cudnnGetLastErrorString(char* message, size_t size) {
  if (size == 0) return;
  const size_t length = std::min(size - 1, last_error.size());
  std::memcpy(message, last_error.data(), length);
  message[length] = 0;
  last_error.clear();
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  if (!handle || !plan || !pack) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "execute: null");
  if (fake::step() != cudaSuccess) return refuse(CUDNN_STATUS_EXECUTION_FAILED, "execute: the device has failed");
  const Content &what = content(plan), &where = content(pack);
  if (!what.finalized || !where.finalized) return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "execute");
  if (what.kind != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || where.kind != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
    return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "execute");
  if (what.get<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) != handle)
    return refuse(CUDNN_STATUS_BAD_PARAM, "execute: the plan belongs to another handle");
  const std::shared_ptr<const Graph> graph = what.graph;
  const auto ids = where.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = where.all<const void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<int64_t, const void*> placed;
  std::map<int64_t, float> numbers;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto known = graph->tensors.find(ids[i]);
    const std::string name = "execute: tensor " + std::to_string(ids[i]);
    if (known == graph->tensors.end() || known->second.is_inner)
      return refuse(CUDNN_STATUS_BAD_PARAM, name + " does not belong to the graph");
    if (!pointers[i]) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, name);
    if (placed.count(ids[i])) return refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, name);
    const Tensor& tensor = known->second;
    placed[ids[i]] = pointers[i];
    if (tensor.is_number) {  // read by the call, on the host
      if (fake::device_of(pointers[i]) >= 0)
        return refuse(CUDNN_STATUS_BAD_PARAM, name + " is passed by value and needs a host pointer");
      numbers[ids[i]] = tensor.type == CUDNN_DATA_INT32 ? float(*static_cast<const int32_t*>(pointers[i]))
                                                        : *static_cast<const float*>(pointers[i]);
    } else if (fake::device_of(pointers[i]) != fake::current_device()) {
      return refuse(CUDNN_STATUS_BAD_PARAM, name + " is not on the device");
    } else if (reinterpret_cast<uintptr_t>(pointers[i]) % uintptr_t(tensor.alignment) != 0) {
      return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, name);
    } else if (!fake::is_inside(pointers[i], size_t(tensor.span()) * bytes_of(tensor.type))) {
      fake::fail_device(cudaErrorIllegalAddress, name + " does not lie in one allocation");
      return refuse(CUDNN_STATUS_EXECUTION_FAILED, name);
    }
  }
  for (const auto& [id, tensor] : graph->tensors)
    if (!tensor.is_inner && !placed.count(id))
      return refuse(CUDNN_STATUS_BAD_PARAM, "execute: tensor " + std::to_string(id) + " has no address");
  void* const workspace = where.get<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  const size_t needed = size_t(graph->workspace());
  if (!fake::is_inside(workspace, needed)) return refuse(CUDNN_STATUS_BAD_PARAM, "execute: too little workspace");
  if (fake::launch_failure.next() != cudaSuccess) return refuse(CUDNN_STATUS_EXECUTION_FAILED, "a launch failed");
  fake::note_launch("cudnn");
  fake::enqueue(handle->stream, [=] {
    std::memset(workspace, 0xff, needed);
    run_graph(*graph, placed, numbers);
  });
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
