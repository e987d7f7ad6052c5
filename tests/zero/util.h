#pragma once
// Shared by the tests of ZeRO: a model whose parameters are divided differently by each number of ranks, and a short
// training under any plan.
#include <filesystem>
#include <optional>

#include "optim/clip.h"
#include "optim/optim.h"
#include "parallel/buckets.h"
#include "tests/parallel/util.h"
#include "zero/zero.h"

namespace testing {

using zero::Zero;

inline const std::string folder = std::filesystem::temp_directory_path().string();  // where offloaded state goes

/// 12610 + 780 + ... parameters: b.weight is cut into blocks, the others are smaller than a block.
struct Net : nn::Layer<Net> {
  nn::Linear a = linear(6, 130);
  nn::LayerNorm norm{130};
  nn::Linear b = linear(130, 97), c = linear(97, 3);
  double p = 0.2;
  Variable forward(const Variable& x) {
    return c(dropout(relu(b(dropout(gelu(norm(a(x))), p, is_training()))), p, is_training()));
  }
  void fields(nn::Fields& f) override { f("a", a)("norm", norm)("b", b)("c", c); }
};

/// A Linear(in, out) without bias.
inline nn::Linear matrix(int64_t in, int64_t out) {
  const nn::Linear::Options options{.in = in, .out = out, .bias = false};
  return nn::Linear(options);
}

/// Sizes divisible by eight ranks and by blocks of norms, so there is no padding.
struct Even : nn::Layer<Even> {
  nn::Linear a = matrix(64, 512), b = matrix(512, 512), c = matrix(512, 64);
  Variable forward(const Variable& x) { return c(gelu(b(gelu(a(x))))); }
  void fields(nn::Fields& f) override { f("a", a)("b", b)("c", c); }
};
/// The number of parameters of Even.
constexpr int64_t psi = 64 * 512 + 512 * 512 + 512 * 64;
/// Throws unless `got` bytes are as expected.
inline void expect(const char* what, int64_t got, double wanted) {
  LOCKSTEP_CHECK(double(got) == wanted, what, ": ", got, " bytes, expected ", wanted);
}

/// The loss of a micro-batch. Data and dropout depend on `step` and `micro_batch` only.
template <class Model>
Variable loss_of_micro_batch(Model& net, int step, int64_t micro_batch, DType dtype = f32, Device device = cpu) {
  manual_seed(99);
  set_random_step(1000 + uint64_t(step), uint64_t(micro_batch));
  const Tensor x = randn({4, 6}).to(dtype).to(device), y = randint(0, 3, {4}).to(device);
  manual_seed(5);
  set_random_step(uint64_t(step), uint64_t(micro_batch));
  return cross_entropy(net(x), y);
}

/// Runs the backwards of a step on this rank, with the micro-batches and no_sync scopes of the stage.
inline void backwards(Zero& zero, int accumulation, const std::function<void(int64_t micro_batch)>& backward,
                      bool no_sync = true) {
  for (int i = 0; i < accumulation; ++i) {
    std::optional<Zero::NoSync> local;
    if (zero.stage() < 2 && no_sync && i + 1 < accumulation) local.emplace(zero);
    backward(zero.micro_batch(i, accumulation));
  }
}

/// Creates an optimizer for parameters.
using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(std::vector<Variable>)>;
/// AdamW with lr 1e-2 and weight decay 0.1.
inline std::unique_ptr<optim::Optimizer> adamw(std::vector<Variable> parameters) {
  return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
}

/// A short training.
struct ZeroPlan {
  int ranks = 1, accumulation = 8;
  /// Without: the optimizer's own step, after DDP or, on one rank, a GradientSum.
  std::optional<zero::ZeroOptions> options = {};
  std::optional<parallel::DdpOptions> ddp = {};
  DType dtype = f32;
  double max_norm = 0;
  int steps = 4;
  bool no_sync = true;  // true: skips communication between micro-batches (stages 0 and 1)
  MakeOptimizer make = adamw;
  /// the device of each rank
  std::function<Device(int rank)> device = [](int) { return cpu; };
};

/// The parameters after some steps, which must be equal on all ranks, and the norm of each step.
inline Tensors train(const ZeroPlan& plan) {
  const auto all = on_ranks<Tensors>(plan.ranks, [&](int rank) {
    manual_seed(1 + uint64_t(rank));  // only rank 0's values matter
    Net net;
    const Device device = plan.device(rank);
    net.to(plan.dtype);
    net.to(device);
    const auto optimizer = plan.make(net.parameters());
    std::optional<Zero> zero;
    std::optional<parallel::GradientSum> sum;
    std::optional<parallel::DistributedDataParallel> ddp;
    if (plan.options) zero.emplace(net, *optimizer, *plan.options);
    else if (plan.ddp) ddp.emplace(net, *plan.ddp);
    else sum.emplace(net.parameters());
    Tensors result;
    std::vector<double> norms;
    for (int step = 0; step < plan.steps; ++step) {
      const auto backward = [&](int64_t micro) {
        loss_of_micro_batch(net, step, micro, plan.dtype, device).backward();
      };
      if (zero) {
        backwards(*zero, plan.accumulation, backward, plan.no_sync);
        norms.push_back(zero->step({.grad_scale = 1. / plan.accumulation, .max_norm = plan.max_norm}).norm);
      } else {
        for (int i = 0; i < plan.accumulation; ++i) {
          std::optional<parallel::DistributedDataParallel::NoSync> local;
          if (ddp && i + 1 < plan.accumulation) local.emplace(*ddp);
          if (ddp) loss_of_micro_batch(*ddp, step, rank * plan.accumulation + i, plan.dtype, device).backward();
          else backward(i);
          if (sum) sum->add();
        }
        if (sum) sum->finish();
        for (const Variable& p : net.parameters()) mul_scalar_(p.grad(), 1. / plan.accumulation);
        norms.push_back(plan.max_norm > 0 ? optim::clip_grad_norm(net.parameters(), plan.max_norm) : NAN);
        optimizer->step();
        optimizer->zero_grad();
      }
    }
    std::optional<Zero::Gathered> whole;
    if (zero) whole.emplace(*zero, net.parameters());
    for (auto& [name, tensor] : copy_parameters(net)) result[name] = tensor.to(cpu);
    if (plan.max_norm > 0) result["norms"] = Tensor::from(norms, {int64_t(norms.size())});
    return result;
  });
  for (const Tensors& other : all) CHECK(differing(all[0], other) == "");
  return all[0];
}

/// Trains with `Rule` for matrices and AdamW for the rest.
template <class Rule = optim::LAMB>
Tensors train_two(int ranks, const zero::ZeroOptions& options, double max_norm = 0) {
  return on_ranks<Tensors>(ranks, [&](int) {
    manual_seed(1);
    Net net;
    std::vector<Variable> matrices, others;
    for (const Variable& p : net.parameters()) (p.dim() == 2 ? matrices : others).push_back(p);
    Rule whole_rule(matrices, {.lr = 0.01});
    optim::AdamW adam(others, {.lr = 0.01});
    Zero zero(net, std::vector<optim::Optimizer*>{&whole_rule, &adam}, options);
    for (int step = 0; step < 3; ++step) {
      backwards(zero, 4 / ranks, [&](int64_t micro) { loss_of_micro_batch(net, step, micro).backward(); });
      zero.step({.grad_scale = ranks / 4., .max_norm = max_norm});
    }
    const auto whole = zero.gathered();
    return copy_parameters(net);
  })[0];
}

}  // namespace testing
