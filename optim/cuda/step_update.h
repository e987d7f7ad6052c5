#pragma once
// Runs an update rule (optim/step_rules.h) over flat memory, for one tensor or for all tensors that a StepBatch has
// collected. Memory bound: a thread reads 16 bytes of the parameter, its gradient and each state, and also writes the
// 16-bit copy of the parameter.
#include <initializer_list>
#include <type_traits>

#include "optim/cuda/step_pieces.h"
#include "optim/step_rules.h"
#include "tensor/backend.h"
#include "tensor/cuda/vector.h"

namespace lockstep::on_cuda {

inline constexpr int step_threads = 256;  ///< threads of a block

/// Stores the 16-bit copy of the parameter.
template <class L, int V, class A>
__device__ void store_low(void* low, int64_t at, const Vector<A, V>& p, Access access, int count) {
  Vector<L, V> rounded;
#pragma unroll
  for (int j = 0; j < V; ++j) rounded.v[j] = L(float(p.v[j]));
  store_vector<V>(static_cast<L*>(low) + at, rounded, access, 1, count);
}

/// Updates elements i to i + count - 1 of the tensor that `piece` describes. factor(g) converts and scales a gradient.
template <class A, class G, class Step, class Factor>
__device__ void step_vector(const Step& step, const StepPiece& piece, int64_t i, int count, const Factor& factor) {
  constexpr int V = vector_length<A>, states = Step::states;
  const Access access = piece.is_aligned ? Access::run : Access::apart;
  A* const parameter = static_cast<A*>(piece.p) + i;
  Vector<A, V> p = load_vector<V>(parameter, access, 1, count), s[states + 1];
  const Vector<G, V> g = load_vector<V>(static_cast<const G*>(piece.grad) + i, access, 1, count);
#pragma unroll
  for (int k = 0; k < states; ++k) s[k] = load_vector<V>(static_cast<A*>(piece.state[k]) + i, access, 1, count);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    A of_element[states + 1];
#pragma unroll
    for (int k = 0; k < states; ++k) of_element[k] = s[k].v[j];
    step(p.v[j], factor(Compute<G>(g.v[j])), of_element);
#pragma unroll
    for (int k = 0; k < states; ++k) s[k].v[j] = of_element[k];
  }
  store_vector<V>(parameter, p, access, 1, count);
#pragma unroll
  for (int k = 0; k < states; ++k) store_vector<V>(static_cast<A*>(piece.state[k]) + i, s[k], access, 1, count);
  if (!piece.low) return;
  if (piece.low_type == f16) store_low<Half>(piece.low, i, p, access, count);
  else store_low<BFloat16>(piece.low, i, p, access, count);
}

/// Updates one tensor.
template <class Step, class A, class G>
__global__ void __launch_bounds__(step_threads) step_kernel(Step step, StepPiece piece) {
  constexpr int V = vector_length<A>;
  for (int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * V; i < piece.n;
       i += int64_t(gridDim.x) * blockDim.x * V)
    step_vector<A, G>(step, piece, i, piece.n - i < V ? int(piece.n - i) : V, [](Compute<G> g) { return A(g); });
}

/// Updates all tensors, unless control->skip is set. Tensors with the same options and step count share a slot. A
/// block computes a rule (Step) from its first tensor's slot, and another one when a tensor has another slot.
template <class Step, class Args, class A, class G>
__global__ void __launch_bounds__(step_threads) step_all_kernel(const StepPiece* pieces, int count, int64_t chunks,
                                                                const StepControl* control, const StepSlot* slots) {
  constexpr int V = vector_length<A>;
  LOCKSTEP_SHARED(double, room, [(sizeof(Step) + 7) / 8]);
  const StepControl now = *control;
  if (now.skip) return;
  const auto factor = [scale = Compute<G>(now.scale), clip = Compute<G>(now.clip), wide_scale = A(now.scale),
                       wide_clip = A(now.clip), rounds = now.rounds](Compute<G> g) {
    return rounds ? A(rounded<G>(rounded<G>(g * scale, 1) * clip, 1)) : A(g) * wide_scale * wide_clip;
  };
  int32_t held = -1;
  for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    const StepPiece& piece = piece_of(pieces, count, c);
    if (piece.slot != held) {
      __syncthreads();
      if (threadIdx.x == 0) {
        const StepSlot& slot = slots[piece.slot];
        Args args = *reinterpret_cast<const Args*>(slot.args);
        if (now.skipped > 0) args = optim_steps::of_step(args, slot.step - now.skipped);
        *reinterpret_cast<Step*>(room) = Step(args);
      }
      __syncthreads();
      held = piece.slot;
    }
    const Step& step = *reinterpret_cast<const Step*>(room);  // stays in shared memory, to save registers
    const int64_t begin = (c - piece.first_chunk) * StepBatch::chunk, end = min(begin + StepBatch::chunk, piece.n);
    for (int64_t i = begin + int64_t(threadIdx.x) * V; i < end; i += int64_t(step_threads) * V)
      step_vector<A, G>(step, piece, i, end - i < V ? int(end - i) : V, factor);
  }
}

/// Starts step_all_kernel(); a StepBatch::Launch.
template <class Step, class Args, class A, class G>
void launch_steps(const std::byte* pieces, int count, int64_t chunks, const std::byte* numbers) {
  cuda::launch({"optimizer step", dim3(cuda::blocks_for(chunks, 1)), dim3(step_threads)},
               step_all_kernel<Step, Args, A, G>, reinterpret_cast<const StepPiece*>(pieces), count, chunks,
               reinterpret_cast<const StepControl*>(numbers),
               reinterpret_cast<const StepSlot*>(numbers + sizeof(StepControl)));
}

/// Updates p by the rule Step<A>(args), where A is the type of p. The gradient may have 16 bits if p is f32.
/// If this thread collects a StepBatch, the update is added to it instead.
template <template <class> class Step, class Args>
void update_flat(const char* op, Tensor& p, const Tensor& grad, std::initializer_list<const Tensor*> states,
                 const Tensor& low, const Args& args) {
  StepBatch* const batch = StepBatch::collecting();
  if (batch && batch->add_numbers(args)) return;
  StepPiece piece{};
  piece.n = p.numel();
  if (low.defined()) {
    LOCKSTEP_CHECK(low.dtype() == f16 || low.dtype() == bf16, "[", op, "] expected a copy in f16 or bf16, got ",
                   low.dtype(), "; pass the model's copy of the parameter in one of these dtypes");
    piece.low = low.raw_data(), piece.low_type = low.dtype();
  }
  dispatch<float, double>(p.dtype(), op, [&]<class A> {
    constexpr int V = vector_length<A>;
    A* const parameter = p.data<A>();
    piece.p = parameter;
    piece.is_aligned = is_aligned(parameter, V) && reinterpret_cast<uintptr_t>(piece.low) % (V * 2) == 0;
    int k = 0;
    for (const Tensor* state : states) {
      A* const values = state->data<A>();
      piece.state[k++] = values;
      piece.is_aligned &= is_aligned(values, V);
    }
    const auto run = [&]<class G> {
      const G* gradient = grad.data<G>();
      piece.grad = gradient;
      piece.is_aligned &= is_aligned(gradient, V);
      if (batch) return batch->add(launch_steps<Step<A>, Args, A, G>, piece, grad);
      cuda::launch({op, dim3(cuda::blocks_for(piece.n, step_threads, V)), dim3(step_threads)},
                   step_kernel<Step<A>, A, G>, Step<A>(args), piece);
    };
    if constexpr (std::is_same_v<A, float>) dispatch<float, Half, BFloat16>(grad.dtype(), op, run);
    else dispatch<double>(grad.dtype(), op, run);
  });
}

}  // namespace lockstep::on_cuda
