#include "signs.h"

#include <lockstep/kernels.h>

#include "sign_step.h"

namespace signs {
using namespace lockstep;

// --- the optimizer ---

void step_on_cpu(Tensor& p, const Tensor& grad, Tensor& m, const SignStep& o) {
  dispatch<float, double>(p.dtype(), "sign_step", [&]<class T> {
    on_cpu::parallel_for(p.numel(), on_cpu::grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sign_step(p.data<T>()[i], m.data<T>()[i], grad.data<T>()[i], o);
    });
  });
}
constinit const Op<SignStepKernel> step_op{"sign_step", step_on_cpu, LOCKSTEP_ON_CUDA(step_on_cuda)};

LOCKSTEP_OPTIMIZER_CONSTRUCTORS(Signum);
void Signum::update(int group, Tensor& p, const Tensor& grad, optim::ParameterState& state, Tensor& low, double scale) {
  const SignumOptions& o = options_[group];
  step_op(p.device(), p, grad, state.zeros("momentum", p), {o.lr, o.momentum, scale});
  optim::round_into(low, p);
}

// --- the compression ---

parallel::CommHook majority_vote() {
  return [](parallel::GradBucket& bucket, dist::ProcessGroup& group) -> std::function<void()> {
    LOCKSTEP_CHECK(group.size() <= 127, "[majority_vote] expected at most 127 ranks, got ", group.size());
    const Tensor votes = sign(bucket.gradients).to(i8);
    dist::Work sum = group.all_reduce(votes, {.tag = "votes of " + bucket.label, .async = true});
    return [votes, sum, gradients = bucket.gradients]() mutable {
      sum.wait();
      gradients.copy_(sign(votes));
    };
  };
}

// --- the weight format ---

static Tensor powers(Device device) { return Tensor::from<float>({1, 2, 4, 8, 16, 32, 64, 128}).to(device); }

/// Stores a layer's weight (out, in) as signs and scales. Matrix products with the weight call linear() or numbers().
struct SignWeight : nn::WeightStore, StoredMatrix, std::enable_shared_from_this<SignWeight> {
  Variable signs, scales;  // u8 (out, in / 8), a bit for each weight; f32 (out)

  Variable weight() const override { return stand_in(shared_from_this(), f32); }
  void fields(nn::Fields& f) override { f.fixed("weight.signs", signs).fixed("weight.scales", scales); }
  void check_cut(const nn::Cut& cut, int ranks, const std::string& where) const override {
    LOCKSTEP_CHECK(cut.kind != nn::Cut::Kind::rows || signs.size(1) % ranks == 0, where, ": expected a multiple of ",
                   ranks * 8, " inputs, got ", signs.size(1) * 8);
  }

  Shape shape() const override { return {signs.size(0), signs.size(1) * 8}; }
  Device device() const override { return signs.tensor().device(); }
  Tensor numbers(DType dtype) const override {
    const Tensor shifted = floor(signs.tensor().to(f32).unsqueeze(2) / powers(device()));
    const Tensor bits = shifted - floor(shifted / 2.0) * 2.0;
    return ((bits * 2.0 - 1.0).view(shape()) * scales.tensor().to(f32).unsqueeze(1)).to(dtype);
  }
  Tensor linear(const Tensor& x, const Tensor& bias, Activation activation) const override {
    return lockstep::linear(x, numbers(x.dtype()), bias, activation);
  }
};

void keep_signs(nn::Linear& layer) {
  const Tensor w = layer.weight.tensor().to(f32);
  LOCKSTEP_CHECK(w.size(1) % 8 == 0, "[keep_signs] expected a multiple of 8 inputs, got ", w.size(1));
  const Tensor bits = ge(w, zeros_like(w)).to(f32).view({w.size(0), w.size(1) / 8, 8});
  const auto store = std::make_shared<SignWeight>();
  store->signs = sum(bits * powers(w.device()), {2}).to(u8);
  store->scales = mean(abs(w), {1});
  layer.attached.store = store;
  layer.weight = store->weight();
}

}  // namespace signs
