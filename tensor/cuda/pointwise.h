#pragma once
// out = fn(in...) elementwise, for operands of any strides. All pointwise kernels, copies, conversions and fills are
// instances of this kernel. Memory bound: a thread takes a vector of 16 bytes of each operand; the offset follows from
// the index of the vector in the merged dims. If an operand is not contiguous along the innermost dim, all operands are
// accessed element by element.
#include <utility>

#include "tensor/cuda/nest.h"
#include "tensor/cuda/vector.h"

namespace lockstep::on_cuda {

/// The type in which elements of T are computed; bool is a byte of 0 or 1.
template <class T> struct ComputedAs { using type = Compute<T>; };
template <> struct ComputedAs<int8_t> { using type = int32_t; };
template <> struct ComputedAs<uint8_t> { using type = int32_t; };
template <> struct ComputedAs<bool> { using type = uint8_t; };
template <class T> using Computed = typename ComputedAs<T>::type;

/// The loop over vectors of the innermost dim of N operands; the last operand is the output.
template <int N> struct Walk {
  Nest<N> nest;                    // the innermost dim counts vectors
  int64_t vectors = 0, inner = 1;  // vectors in total; elements of the innermost dim
  // The strides of the operands along the innermost dim, in elements.
  int64_t stride[N];
  // True if all operands can be accessed in whole vectors: the elements of a vector are contiguous and aligned or, in
  // an input, all the same (broadcast) element.
  bool in_runs = true;
};

/// Number of threads in a block of these kernels.
constexpr int pointwise_threads = 256;

/// out = fn(in...) elementwise. A thread handles one vector of V elements at a time.
template <class Fn, class Out, class... In>
__global__ void __launch_bounds__(pointwise_threads)
    pointwise_kernel(Fn fn, Walk<sizeof...(In) + 1> walk, Out* out, const In*... in) {
  constexpr int N = sizeof...(In) + 1, V = vector_length<Out, In...>;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < walk.vectors;
       i += int64_t(gridDim.x) * blockDim.x) {
    int64_t at[N] = {};
    const int64_t left = walk.inner - walk.nest.find(i, at) * V;
    [&]<size_t... k>(std::index_sequence<k...>) {
      if (walk.in_runs && left >= V) {
        Vector<Out, V> result;
        const auto each = [&](const Vector<In, V>&... x) {
#pragma unroll
          for (int j = 0; j < V; ++j) result.v[j] = convert<Out>(fn(Computed<In>(x.v[j])...));
        };
        each(load_run<V>(in + at[k], walk.stride[k] == 0)...);
        *reinterpret_cast<Vector<Out, V>*>(out + at[N - 1]) = result;
      } else {  // a rolled loop, because it compiles much faster
#pragma unroll 1
        for (int j = 0; j < V && j < left; ++j)
          out[at[N - 1] + j * walk.stride[N - 1]] = convert<Out>(fn(Computed<In>(in[at[k] + j * walk.stride[k]])...));
      }
    }
    (std::index_sequence_for<In...>());
  }
}

/// Returns the loop over the inputs and the output, which is the last of `tensors`. V elements form a vector.
template <int N> Walk<N> make_walk(const Tensor* const (&tensors)[N], int V) {
  const Tensor& out = *tensors[N - 1];
  Walk<N> walk;
  for (int d = 0; d < out.dim(); ++d) {
    int64_t strides[N];
    for (int i = 0; i < N; ++i) strides[i] = broadcast_stride(*tensors[i], d, out.dim());
    walk.nest.insert(out.shape()[d], strides, N - 1);
  }
  Nest<N>& nest = walk.nest;
  if (nest.rank == 0) {  // one element
    nest.rank = 1, nest.size[0] = 1;
    for (int i = 0; i < N; ++i) nest.stride[0][i] = 1;
  }
  nest.join();
  const int last = nest.rank - 1;
  walk.inner = nest.size[last];
  for (int i = 0; i < N; ++i) {
    const int64_t bytes = size_of(tensors[i]->dtype());
    walk.stride[i] = nest.stride[last][i];
    bool run = walk.stride[i] == 1 && reinterpret_cast<uintptr_t>(tensors[i]->raw_data()) % uintptr_t(V * bytes) == 0;
    for (int d = 0; d < last; ++d) run &= nest.stride[d][i] % V == 0;
    walk.in_runs &= run || (walk.stride[i] == 0 && i + 1 < N);
    nest.stride[last][i] *= V;
  }
  nest.size[last] = (walk.inner + V - 1) / V;
  nest.prepare();
  walk.vectors = nest.count();
  return walk;
}

/// Runs fn over `out` and inputs that broadcast to it; the template arguments are their element types.
template <class Out, class... In, class Fn, class... Inputs>
void run_pointwise(const char* op, const Fn& fn, const Tensor& out, const Inputs&... inputs) {
  static_assert(sizeof...(In) == sizeof...(Inputs));
  if (out.numel() == 0) return;
  const Tensor* const tensors[] = {&inputs..., &out};
  const auto walk = make_walk(tensors, vector_length<Out, In...>);
  cuda::launch({op, dim3(cuda::blocks_for(walk.vectors, pointwise_threads)), dim3(pointwise_threads)},
               pointwise_kernel<Fn, Out, In...>, fn, walk, static_cast<Out*>(out.raw_data()),
               static_cast<const In*>(inputs.raw_data())...);
}

/// (first, second) = fn(a, b, c) elementwise.
template <class Fn, class T>
__global__ void __launch_bounds__(pointwise_threads)
    pointwise_pair_kernel(Fn fn, Walk<5> walk, const T* a, const T* b, const T* c, T* first, T* second) {
  constexpr int V = vector_length<T>;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < walk.vectors;
       i += int64_t(gridDim.x) * blockDim.x) {
    int64_t at[5] = {};
    const int64_t left = walk.inner - walk.nest.find(i, at) * V;
    Computed<T> made[2];
    if (walk.in_runs && left >= V) {
      const auto x = load_run<V>(a + at[0], walk.stride[0] == 0), y = load_run<V>(b + at[1], walk.stride[1] == 0),
                 z = load_run<V>(c + at[2], walk.stride[2] == 0);
      Vector<T, V> results[2];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        fn(Computed<T>(x.v[j]), Computed<T>(y.v[j]), Computed<T>(z.v[j]), made);
        for (int k = 0; k < 2; ++k) results[k].v[j] = convert<T>(made[k]);
      }
      *reinterpret_cast<Vector<T, V>*>(first + at[3]) = results[0];
      *reinterpret_cast<Vector<T, V>*>(second + at[4]) = results[1];
    } else {
#pragma unroll 1
      for (int j = 0; j < V && j < left; ++j) {
        fn(Computed<T>(a[at[0] + j * walk.stride[0]]), Computed<T>(b[at[1] + j * walk.stride[1]]),
           Computed<T>(c[at[2] + j * walk.stride[2]]), made);
        first[at[3] + j * walk.stride[3]] = convert<T>(made[0]);
        second[at[4] + j * walk.stride[4]] = convert<T>(made[1]);
      }
    }
  }
}

/// Runs fn over inputs that broadcast to the results; a result may be one of the inputs.
template <class T, class Fn>
void run_pointwise_pair(const char* op, const Fn& fn, const Tensor& a, const Tensor& b, const Tensor& c, Tensor& first,
                        Tensor& second) {
  if (first.numel() == 0) return;
  const Tensor* const tensors[] = {&a, &b, &c, &first, &second};
  const auto walk = make_walk(tensors, vector_length<T>);
  cuda::launch({op, dim3(cuda::blocks_for(walk.vectors, pointwise_threads)), dim3(pointwise_threads)},
               pointwise_pair_kernel<Fn, T>, fn, walk, a.data<T>(), b.data<T>(), c.data<T>(), first.data<T>(),
               second.data<T>());
}

}  // namespace lockstep::on_cuda
