// Pointwise operations on the CPU. They walk over tensors of any strides in blocks, and a block function computes each
// block. Operands that are contiguous and have the compute type are read and written in place. Other inputs are first
// converted into a contiguous buffer, and other results are converted from a buffer. The last elements, if they do not
// fill a vector, are padded in a buffer.
#include <cstring>

#include "tensor/cpu/copy_run.h"
#include "tensor/cpu/parallel.h"
#include "tensor/cpu/pointwise_blocks.h"
#include "tensor/kernels.h"

namespace lockstep::on_cpu {
namespace {

constexpr int64_t block = 1024;  // elements; four buffers of f64 are 32 KiB, about the size of an L1 cache
constexpr int max_operands = 5, max_results = 2;

using Buffer = std::byte[2 * block * 8];  // a block, or a block and one period (Operand::period)

// --- conversion of one dtype to another, along a stride ---

using ConvertFn = void (*)(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t n);

template <class From, class To>
void convert_run(const void* source, int64_t from_stride, void* target, int64_t to_stride, int64_t n) {
  copy_run(static_cast<const From*>(source), from_stride, static_cast<To*>(target), to_stride, n);
}

template <class T> struct Computed { using type = T; };
template <> struct Computed<Half> { using type = float; };
template <> struct Computed<BFloat16> { using type = float; };
template <> struct Computed<int8_t> { using type = int32_t; };
template <> struct Computed<bool> { using type = uint8_t; };
template <> struct Computed<uint8_t> { using type = int32_t; };

ConvertFn loader(DType dtype) {
  ConvertFn fn = nullptr;
  dispatch_all(dtype, "pointwise", [&]<class T> {
    if constexpr (std::is_same_v<T, bool>) fn = convert_run<uint8_t, uint8_t>;
    else fn = convert_run<T, typename Computed<T>::type>;
  });
  return fn;
}

ConvertFn storer(DType dtype) {
  ConvertFn fn = nullptr;
  dispatch_all(dtype, "pointwise", [&]<class T> {
    if constexpr (std::is_same_v<T, bool>) fn = convert_run<uint8_t, uint8_t>;
    else fn = convert_run<typename Computed<T>::type, T>;
  });
  return fn;
}

constexpr int64_t computed_size(DType dtype) {
  constexpr int64_t bytes[] = {4, 8, 4, 4, 8, 4, 4, 4, 1};
  return bytes[int(dtype)];
}

// --- planning the loop over the operands ---

struct Operand {
  std::byte* data;
  int64_t size, computed;  // bytes of an element in memory and in the compute type
  bool direct;             // true: contiguous over the whole space and of the compute type, so read or written in place
  int64_t period;          // > 0: this many elements repeat again and again (a scalar, a bias)
  ConvertFn convert;       // loads an input or stores a result
  int64_t stride[Dims::max_rank];
};

struct PointwiseLoop {
  BlockFn fn[max_results];  // one function for each result
  const PointwiseArgs* args;
  int inputs, results = 1, rank = 0;
  int64_t length[Dims::max_rank];
  Operand operand[max_operands];  // the inputs, then the results

  int operands() const { return inputs + results; }
  Operand& out() { return operand[inputs]; }
};

// The stride of `tensor` along dim d after it has been broadcast to `rank` dims.
int64_t broadcast_stride(const Tensor& tensor, int d, int rank) {
  const int own = d - (rank - tensor.dim());
  return own < 0 || tensor.shape()[own] == 1 ? 0 : tensor.strides()[own];
}

// Sets the dims of the loop: those of the first result, without dims of size 1, sorted by the strides of that result.
// Adjacent dims are merged where the strides of all operands allow it.
void make_space(PointwiseLoop& plan, const Tensor* const* tensors) {
  const Tensor& out = *tensors[plan.inputs];
  const int operands = plan.operands(), dims = out.dim();
  for (int d = 0; d < dims; ++d) {
    const int64_t size = out.shape()[d];
    if (size == 1) continue;
    int64_t stride[max_operands];
    for (int i = 0; i < operands; ++i) stride[i] = broadcast_stride(*tensors[i], d, dims);
    int at = plan.rank++;
    for (; at > 0 && plan.out().stride[at - 1] < out.strides()[d]; --at) {
      plan.length[at] = plan.length[at - 1];
      for (int i = 0; i < operands; ++i) plan.operand[i].stride[at] = plan.operand[i].stride[at - 1];
    }
    plan.length[at] = size;
    for (int i = 0; i < operands; ++i) plan.operand[i].stride[at] = stride[i];
  }
  if (plan.rank == 0) {
    plan.rank = 1;
    plan.length[0] = 1;
    for (int i = 0; i < operands; ++i) plan.operand[i].stride[0] = 1;
  }
  int last = 0;
  for (int d = 1; d < plan.rank; ++d) {
    bool joins = true;
    for (int i = 0; i < operands; ++i)
      joins &= plan.operand[i].stride[last] == plan.operand[i].stride[d] * plan.length[d];
    if (joins) {
      plan.length[last] *= plan.length[d];
    } else {
      plan.length[++last] = plan.length[d];
    }
    for (int i = 0; i < operands; ++i) plan.operand[i].stride[last] = plan.operand[i].stride[d];
  }
  plan.rank = last + 1;
}

struct LoopIndex {
  int64_t index[Dims::max_rank];
};

LoopIndex place_of(const PointwiseLoop& plan, int64_t flat) {
  LoopIndex place;
  for (int d = plan.rank - 1; d > 0; --d) {
    place.index[d] = flat % plan.length[d];
    flat /= plan.length[d];
  }
  place.index[0] = flat;
  return place;
}

// Converts n elements of an operand, from index `place` on: into the buffer if `load`, else out of the buffer.
void move_run(const PointwiseLoop& plan, const Operand& operand, LoopIndex place, int64_t n, std::byte* buffer,
              bool load) {
  const int last = plan.rank - 1;
  const int64_t inner = operand.stride[last];
  int64_t offset = 0;
  for (int d = 0; d <= last; ++d) offset += place.index[d] * operand.stride[d];
  while (n > 0) {
    const int64_t run = std::min(n, plan.length[last] - place.index[last]);
    std::byte* at = operand.data + offset * operand.size;
    if (load) operand.convert(at, inner, buffer, 1, run);
    else operand.convert(buffer, 1, at, inner, run);
    buffer += run * operand.computed;
    n -= run;
    offset += run * inner;
    place.index[last] += run;
    for (int d = last; d > 0 && place.index[d] == plan.length[d]; --d) {
      place.index[d] = 0;
      ++place.index[d - 1];
      offset += operand.stride[d - 1] - plan.length[d] * operand.stride[d];
    }
  }
}

int64_t rounded_up(int64_t n) { return (n + block_step - 1) / block_step * block_step; }

// Fills a buffer with n elements by repeating the first operand.period elements of an operand.
void fill_periodic(const Operand& operand, std::byte* buffer, int64_t n) {
  int64_t have = std::min(n, operand.period);
  operand.convert(operand.data, 1, buffer, 1, have);
  for (; have < n; have += std::min(have, n - have))
    std::memcpy(buffer + have * operand.computed, buffer, size_t(std::min(have, n - have) * operand.computed));
}

// Computes elements [begin, end), counted over all dims of the loop.
void run_range(const PointwiseLoop& plan, int64_t begin, int64_t end) {
  alignas(64) Buffer buffers[max_operands];
  bool all_direct = true;
  for (int i = 0; i < plan.operands(); ++i) {
    const Operand& operand = plan.operand[i];
    all_direct &= operand.direct;
    if (operand.period > 0)
      fill_periodic(operand, buffers[i], rounded_up(std::min(block, end - begin)) + operand.period);
  }
  // If only the last elements need a buffer, one call computes all others. With two results, the loop goes block by
  // block, so that the operands stay in cache for the second result.
  const int64_t longest =
      all_direct && plan.results == 1 ? std::max(block, (end - begin) / block_step * block_step) : block;
  for (int64_t at = begin; at < end;) {
    int64_t n = std::min(longest, end - at);
    const bool partial = n % block_step != 0;
    if (partial && n > block_step && all_direct) n = n / block_step * block_step;
    const bool padded = n % block_step != 0;
    const void* in[max_operands];
    LoopIndex place{};
    bool placed = false;
    const auto move = [&](const Operand& operand, std::byte* buffer, bool load) {
      if (operand.direct) {
        std::byte* memory = operand.data + at * operand.size;
        if (load) std::memcpy(buffer, memory, size_t(n * operand.size));
        else std::memcpy(memory, buffer, size_t(n * operand.size));
        return;
      }
      if (!placed) place = place_of(plan, at), placed = true;
      move_run(plan, operand, place, n, buffer, load);
    };
    for (int i = 0; i < plan.inputs; ++i) {
      const Operand& operand = plan.operand[i];
      if (operand.period > 0) {
        in[i] = buffers[i] + at % operand.period * operand.computed;
      } else if (operand.direct && !padded) {
        in[i] = operand.data + at * operand.size;
      } else {
        move(operand, buffers[i], true);
        if (padded) std::memset(buffers[i] + n * operand.computed, 0, size_t((rounded_up(n) - n) * operand.computed));
        in[i] = buffers[i];
      }
    }
    for (int k = plan.results - 1; k >= 0; --k) {  // the first result last, as it may overwrite an input
      const Operand& out = plan.operand[plan.inputs + k];
      if (out.direct && !padded) {
        plan.fn[k](in, out.data + at * out.size, n, *plan.args);
      } else {
        plan.fn[k](in, buffers[plan.inputs + k], rounded_up(n), *plan.args);
        move(out, buffers[plan.inputs + k], false);
      }
    }
    at += n;
  }
}

void set_operand(Operand& operand, const Tensor& tensor, int64_t n) {
  operand.data = static_cast<std::byte*>(tensor.raw_data());
  operand.size = size_of(tensor.dtype());
  operand.computed = computed_size(tensor.dtype());
  operand.period = 0;
  operand.direct = operand.size == operand.computed && tensor.is_contiguous() && tensor.numel() == n;
}

// True if the dims of `shape`, without leading dims of size 1, are the last dims of `full_shape`.
bool is_tail(const Shape& shape, const Shape& full_shape) {
  int first = 0;
  while (first < shape.rank() && shape[first] == 1) ++first;
  const int skip = full_shape.rank() - shape.rank();
  for (int d = first; d < shape.rank(); ++d)
    if (shape[d] != full_shape[d + skip]) return false;
  return true;
}

// True for a tensor like a transposed matrix: each element is stored once, but neighbours in the last dim lie apart.
bool is_across(const Tensor& tensor, int64_t n) {
  if (tensor.is_contiguous() || tensor.numel() != n) return false;
  int last = tensor.dim() - 1;
  while (last >= 0 && tensor.shape()[last] == 1) --last;
  if (last < 0 || tensor.strides()[last] <= 1) return false;
  for (int64_t stride : tensor.strides())
    if (stride == 0) return false;
  return true;
}

// Decides how the loop accesses an operand: in place, as a row of elements that repeats, or through a buffer.
void choose_access(const PointwiseLoop& plan, Operand& operand, bool input, DType dtype) {
  int64_t expected = 1;
  int d = plan.rank - 1;
  for (; d >= 0 && operand.stride[d] == expected; --d) expected *= plan.length[d];
  operand.direct = d < 0 && operand.size == operand.computed;
  while (d >= 0 && operand.stride[d] == 0) --d;
  const bool repeats = d < 0 && operand.stride[0] == 0 && expected <= block;
  operand.period = input && repeats ? expected : 0;
  if (!operand.direct) operand.convert = input ? loader(dtype) : storer(dtype);
}

// Plans the loop if some operand is not `direct`, that is, cannot be read or written in place.
[[gnu::noinline]] void prepare(PointwiseLoop& plan, const Tensor* const* in, Ref<Storage>* copies) {
  const int count = plan.inputs;
  const Tensor& out = *in[count];
  const int64_t n = out.numel();
  bool simple = true;  // true: one loop over the elements in row-major order suffices
  for (int i = 0; i < count; ++i) {
    Operand& operand = plan.operand[i];
    if (operand.direct) continue;
    operand.convert = loader(in[i]->dtype());
    const int64_t own = in[i]->numel();
    if (own < n && own <= block) operand.period = own;
    simple = simple && in[i]->is_contiguous() && (own == n || (own <= block && is_tail(in[i]->shape(), out.shape())));
  }
  for (int i = count; i < plan.operands(); ++i) {
    simple = simple && in[i]->is_contiguous();
    if (!plan.operand[i].direct) plan.operand[i].convert = storer(in[i]->dtype());
  }
  if (simple) {
    plan.rank = 1;
    plan.length[0] = n;
    for (int i = 0; i < plan.operands(); ++i) plan.operand[i].stride[0] = 1;
    return;
  }
  const Tensor* compact[max_operands];
  Tensor made[max_operands];
  for (int i = 0; i < plan.operands(); ++i) {
    compact[i] = in[i];
    if (i < count && n >= 4 * block && out.is_contiguous() && is_across(*in[i], n)) {
      made[i] = in[i]->contiguous();  // a blocked transpose is faster than a strided walk
      compact[i] = &made[i];
      copies[i] = made[i].storage();
      set_operand(plan.operand[i], made[i], n);
    }
  }
  make_space(plan, compact);
  for (int i = 0; i < plan.operands(); ++i) choose_access(plan, plan.operand[i], i < count, in[i]->dtype());
}

/// Plans and runs the loop. `tensors` holds the inputs, then the results.
void walk(PointwiseLoop& plan, const Tensor* const* tensors, bool costly) {
  const int64_t n = tensors[plan.inputs]->numel();
  if (n == 0) return;
  bool all_direct = true;
  for (int i = 0; i < plan.operands(); ++i) {
    set_operand(plan.operand[i], *tensors[i], n);
    all_direct &= plan.operand[i].direct;
  }
  Ref<Storage> copies[max_operands];
  if (!all_direct) prepare(plan, tensors, copies);
  const int64_t grain = costly ? 4 * block : 32 * block;
  if (n < 2 * grain) return run_range(plan, 0, n);
  parallel_for((n + block - 1) / block, grain / block,
               [&](int64_t begin, int64_t end) { run_range(plan, begin * block, std::min(n, end * block)); });
}

}  // namespace

void pointwise(PointwiseOp op, PointwisePart part, const PointwiseArgs& args, const Tensor* const* in, int count,
               Tensor& out) {
  const PointwiseEntry& entry = pointwise_entry(op);
  PointwiseLoop plan;
  plan.fn[0] = entry.functions[int(part)][int(compute_type(in[count - 1]->dtype()))];
  plan.args = &args;
  plan.inputs = count;
  const Tensor* tensors[max_operands];
  *std::copy_n(in, count, tensors) = &out;
  walk(plan, tensors, entry.costly);
}

void pointwise_grads(PointwiseOp op, const Tensor& grad, const Tensor& a, const Tensor& b, Tensor& grad_a,
                     Tensor& grad_b) {
  const PointwiseEntry& entry = pointwise_entry(op);
  const PointwiseArgs none;
  PointwiseLoop plan;
  for (const int part : {1, 2}) plan.fn[part - 1] = entry.functions[part][int(compute_type(grad.dtype()))];
  plan.args = &none;
  plan.inputs = 3;
  plan.results = 2;
  const Tensor* const tensors[] = {&grad, &a, &b, &grad_a, &grad_b};
  walk(plan, tensors, entry.costly);
}

}  // namespace lockstep::on_cpu
