// Optimizer steps (tensor/optim_steps.h) on flat memory, and the search for infinities. Bound by memory: a thread takes
// 16 bytes of the parameter, its gradient and each state, and writes the 16-bit copy of the parameter beside it.
#include "tensor/backend.h"
#include "tensor/cuda/cuda_kernels.h"
#include "tensor/cuda/vector.h"
#include "tensor/optim_steps.h"

namespace lockstep::on_cuda {

using namespace optim_steps;

namespace {

constexpr int threads = 256;

template <class A> struct Flat {
  A* p;
  A* state[3];
  void* low;  // of low_type, or null
  DType low_type;
  int64_t n;
  Access access;
};

template <class L, int V, class A>
__device__ void store_low(void* low, int64_t at, const Vector<A, V>& p, Access access, int count) {
  Vector<L, V> rounded;
#pragma unroll
  for (int j = 0; j < V; ++j) rounded.v[j] = L(float(p.v[j]));
  store_vector<V>(static_cast<L*>(low) + at, rounded, access, 1, count);
}

template <class Step, class A, class G>
__global__ void __launch_bounds__(threads) step_kernel(Step step, Flat<A> flat, const G* grad) {
  constexpr int V = vector_length<A>, states = Step::states;
  for (int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * V; i < flat.n;
       i += int64_t(gridDim.x) * blockDim.x * V) {
    const int count = flat.n - i < V ? int(flat.n - i) : V;
    Vector<A, V> p = load_vector<V>(flat.p + i, flat.access, 1, count), s[states + 1];
    const Vector<G, V> g = load_vector<V>(grad + i, flat.access, 1, count);
#pragma unroll
    for (int k = 0; k < states; ++k) s[k] = load_vector<V>(flat.state[k] + i, flat.access, 1, count);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      A of_element[states + 1];
#pragma unroll
      for (int k = 0; k < states; ++k) of_element[k] = s[k].v[j];
      step(p.v[j], A(Compute<G>(g.v[j])), of_element);
#pragma unroll
      for (int k = 0; k < states; ++k) s[k].v[j] = of_element[k];
    }
    store_vector<V>(flat.p + i, p, flat.access, 1, count);
#pragma unroll
    for (int k = 0; k < states; ++k) store_vector<V>(flat.state[k] + i, s[k], flat.access, 1, count);
    if (!flat.low) continue;
    if (flat.low_type == f16) store_low<Half>(flat.low, i, p, flat.access, count);
    else store_low<BFloat16>(flat.low, i, p, flat.access, count);
  }
}

/// make.template operator()<A>() is the step; the gradient may be of 16 bits where p is f32.
template <class Make>
void update(const char* op, Tensor& p, const Tensor& grad, std::initializer_list<const Tensor*> states,
            const Tensor* low, const Make& make) {
  if (low && !low->defined()) low = nullptr;
  if (low)
    LOCKSTEP_CHECK(low->dtype() == f16 || low->dtype() == bf16, "[", op, "] expected a copy of f16 or bf16, got ",
                   low->dtype());
  dispatch<float, double>(p.dtype(), op, [&]<class A> {
    constexpr int V = vector_length<A>;
    const auto step = make.template operator()<A>();
    Flat<A> flat{p.data<A>(), {}, low ? low->raw_data() : nullptr, low ? low->dtype() : f16, p.numel(), Access::run};
    bool aligned = is_aligned(flat.p, V) && (!low || reinterpret_cast<uintptr_t>(flat.low) % (V * 2) == 0);
    int k = 0;
    for (const Tensor* state : states) {
      flat.state[k] = state->data<A>();
      aligned &= is_aligned(flat.state[k++], V);
    }
    const auto run = [&]<class G> {
      const G* gradient = grad.data<G>();
      flat.access = aligned && is_aligned(gradient, V) ? Access::run : Access::apart;
      cuda::launch({op, dim3(cuda::blocks_for(flat.n, threads, V)), dim3(threads)},
                   step_kernel<std::decay_t<decltype(step)>, A, G>, step, flat, gradient);
    };
    if constexpr (std::is_same_v<A, float>) dispatch<float, Half, BFloat16>(grad.dtype(), op, run);
    else dispatch<double>(grad.dtype(), op, run);
  });
}

/// A number is not finite when all bits of its exponent are set.
template <class Bits>
__global__ void __launch_bounds__(threads)
    find_infinite_kernel(const Bits* x, int64_t n, Bits exponent, Access access, int* found) {
  constexpr int V = vector_length<Bits>;
  int bad = 0;
  for (int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * V; i < n;
       i += int64_t(gridDim.x) * blockDim.x * V) {
    const Vector<Bits, V> v = load_vector<V>(x + i, access, 1, n - i < V ? int(n - i) : V);
#pragma unroll
    for (int j = 0; j < V; ++j) bad |= (v.v[j] & exponent) == exponent;
  }
  if (bad) atomicMax(found, 1);
}

}  // namespace

void adam(Tensor& p, const Tensor& grad, Tensor& m, Tensor& v, Tensor& v_max, Tensor& low, const AdamArgs& args) {
  if (v_max.defined()) update("adam", p, grad, {&m, &v, &v_max}, &low, [&]<class A>() { return Adam<A, true>(args); });
  else update("adam", p, grad, {&m, &v}, &low, [&]<class A>() { return Adam<A, false>(args); });
}

void sgd(Tensor& p, const Tensor& grad, Tensor& momentum, Tensor& low, const SgdArgs& args) {
  if (args.momentum != 0) update("sgd", p, grad, {&momentum}, &low, [&]<class A>() { return Sgd<A, true>(args); });
  else update("sgd", p, grad, {}, &low, [&]<class A>() { return Sgd<A, false>(args); });
}

void rmsprop(Tensor& p, const Tensor& grad, Tensor& square_average, Tensor& grad_average, Tensor& momentum,
             const RmspropArgs& args) {
  const bool moving = args.momentum != 0;
  if (args.centered && moving)
    update("rmsprop", p, grad, {&square_average, &grad_average, &momentum}, nullptr,
           [&]<class A>() { return Rmsprop<A, true, true>(args); });
  else if (args.centered)
    update("rmsprop", p, grad, {&square_average, &grad_average}, nullptr,
           [&]<class A>() { return Rmsprop<A, true, false>(args); });
  else if (moving)
    update("rmsprop", p, grad, {&square_average, &momentum}, nullptr,
           [&]<class A>() { return Rmsprop<A, false, true>(args); });
  else
    update("rmsprop", p, grad, {&square_average}, nullptr, [&]<class A>() { return Rmsprop<A, false, false>(args); });
}

void adagrad(Tensor& p, const Tensor& grad, Tensor& sum, const AdagradArgs& args) {
  update("adagrad", p, grad, {&sum}, nullptr, [&]<class A>() { return Adagrad<A>(args); });
}

void lion(Tensor& p, const Tensor& grad, Tensor& m, const LionArgs& args) {
  update("lion", p, grad, {&m}, nullptr, [&]<class A>() { return Lion<A>(args); });
}

bool all_finite(const Tensor& x) {
  if (!is_floating(x.dtype()) || x.numel() == 0) return true;
  const Tensor values = x.contiguous();
  const cuda::Scratch found(sizeof(int));
  cuda::check("all_finite", cudaMemsetAsync(found.as<int>(), 0, sizeof(int), cuda::current_stream()));
  const auto search = [&]<class Bits>(Bits exponent) {
    const Bits* p = static_cast<const Bits*>(values.raw_data());
    constexpr int V = vector_length<Bits>;
    cuda::launch({"all_finite", dim3(cuda::blocks_for(values.numel(), threads, V)), dim3(threads)},
                 find_infinite_kernel<Bits>, p, values.numel(), exponent,
                 is_aligned(p, V) ? Access::run : Access::apart, found.as<int>());
  };
  switch (x.dtype()) {
    case f32: search(uint32_t(0x7f800000)); break;
    case f64: search(uint64_t(0x7ff0000000000000)); break;
    case f16: search(uint16_t(0x7c00)); break;
    default: search(uint16_t(0x7f80)); break;
  }
  int bad = 0;
  backend(x.device())->copy_bytes(&bad, cpu, found.as<int>(), x.device(), sizeof bad, true);
  return bad == 0;
}

}  // namespace lockstep::on_cuda
