#pragma once
// Shared by the tests of ZeRO: a short training under any number of ranks and any stage.
#include <algorithm>
#include <filesystem>
#include <optional>

#include "optim/optim.h"
#include "optim/optimizer.h"
#include "optim/rules.h"
#include "parallel/gradient_sum.h"
#include "tensor/memory.h"
#include "tests/parallel/util.h"
#include "zero/partition.h"
#include "zero/units.h"
#include "zero/zero.h"

namespace testing {

using zero::Zero;

inline const std::string folder = std::filesystem::temp_directory_path().string();  // where offloaded state goes

/// Copies of all parameters, gathered from all ranks.
inline Tensors gathered_parameters(Zero& zero, nn::Module& net) {
  const auto gathered = zero.gathered();
  return copy_parameters(net);
}
/// Bytes of memory categories that this process has.
struct Held {
  int64_t parameters, gradients, optimizer, offload, peak;  ///< peak: the most bytes of parameters
  /// What there is more than in `before`.
  Held operator-(const Held& before) const {
    return {parameters - before.parameters, gradients - before.gradients, optimizer - before.optimizer,
            offload - before.offload, peak - before.parameters};
  }
};
inline Held held() {
  const MemoryReport report = memory_report();
  const auto now = [&](Memory category) { return report.category[size_t(category)].current; };
  return {now(Memory::parameter), now(Memory::gradient), now(Memory::optimizer), now(Memory::offload),
          report.category[size_t(Memory::parameter)].peak};
}
/// A model without values, which ZeRO fills.
template <class Model> Model built_empty() {
  manual_seed(7);
  const nn::BuildEmpty scope;
  return Model();
}
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

/// The optimizers without their owners.
inline std::vector<optim::Optimizer*> pointers_to(const std::vector<std::unique_ptr<optim::Optimizer>>& owners) {
  std::vector<optim::Optimizer*> all;
  for (const auto& owner : owners) all.push_back(owner.get());
  return all;
}

/// Makes an optimizer of class O with these options.
template <class O, class Options> MakeOptimizer maker(Options options) {
  return [options](std::vector<Variable> p) { return std::make_unique<O>(std::move(p), options); };
}

/// Calls a model, or its wrapper.
using Call = std::function<Variable(const Variable& x)>;
using MakeModel = std::function<std::unique_ptr<nn::Module>()>;

/// Stage 3 with optimizer state and parameters in files.
inline zero::ZeroOptions all_in_files(zero::ZeroOptions o = {}, const std::string& path = folder) {
  o.stage = 3;
  o.offload_optimizer = {.device = zero::Offload::nvme, .nvme_path = path};
  o.offload_param = {.device = zero::Offload::nvme, .nvme_path = path, .max_in_cpu = 0};
  return o;
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
  /// several optimizers, instead of make()
  std::function<std::vector<std::unique_ptr<optim::Optimizer>>(nn::Module& net)> make_all = {};
  /// the device of each rank
  std::function<Device(int rank)> device = [](int) { return cpu; };
  /// the model; default: Net, with other values on every rank, of which rank 0's count
  MakeModel model = {};
  /// the loss of a micro-batch; default: loss_of_micro_batch()
  std::function<Variable(nn::Module& net, const Call& call, int step, int64_t micro)> loss = {};
  /// runs after every step of ZeRO
  std::function<void(nn::Module& net, Zero& zero, int step)> after = {};
};

/// The plan with its micro-batches divided among `ranks`, under ZeRO.
inline ZeroPlan divided(ZeroPlan plan, int ranks, const zero::ZeroOptions& options) {
  plan.ranks = ranks;
  plan.accumulation /= ranks;
  plan.options = options;
  return plan;
}

/// The parameters after some steps, which must be equal on all ranks, and the norm of each step.
inline Tensors train(const ZeroPlan& plan) {
  return alike(plan.ranks, [&](int rank) {
    manual_seed(plan.model ? 1 : 1 + uint64_t(rank));
    const std::unique_ptr<nn::Module> model = plan.model ? plan.model() : std::make_unique<Net>();
    nn::Module& net = *model;
    const Device device = plan.device(rank);
    net.to(plan.dtype);
    net.to(device);
    std::vector<Variable> trained;
    for (const Variable& p : net.parameters())
      if (p.requires_grad()) trained.push_back(p);
    std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
    if (plan.make_all) optimizers = plan.make_all(net);
    else optimizers.push_back(plan.make(trained));
    std::optional<Zero> zero;
    std::optional<parallel::GradientSum> sum;
    std::optional<parallel::DistributedDataParallel> ddp;
    if (plan.options) zero.emplace(net, pointers_to(optimizers), *plan.options);
    else if (plan.ddp) ddp.emplace(net, *plan.ddp);
    else sum.emplace(net.parameters());
    const Call call = [&](const Variable& x) { return ddp ? (*ddp)(x) : net.call(x); };
    std::vector<double> norms;
    for (int step = 0; step < plan.steps; ++step) {
      const auto backward = [&](int64_t micro) {
        const Variable loss =
            plan.loss ? plan.loss(net, call, step, micro) : loss_of_micro_batch(call, step, micro, plan.dtype, device);
        loss.backward();
      };
      if (zero) {
        backwards(*zero, plan.accumulation, backward, plan.no_sync);
        norms.push_back(zero->step({.grad_scale = 1. / plan.accumulation, .max_norm = plan.max_norm}).norm);
        if (plan.after) plan.after(net, *zero, step);
        continue;
      }
      for (int i = 0; i < plan.accumulation; ++i) {
        std::optional<parallel::DistributedDataParallel::NoSync> local;
        if (ddp && i + 1 < plan.accumulation) local.emplace(*ddp);
        backward(rank * plan.accumulation + i);
        if (sum) sum->add();
      }
      if (sum) sum->finish();
      for (const Variable& p : trained)
        if (p.grad().defined()) mul_scalar_(p.grad(), 1. / plan.accumulation);
      norms.push_back(plan.max_norm > 0 ? optim::clip_grad_norm(trained, plan.max_norm) : NAN);
      for (const auto& one : optimizers) {
        one->step();
        one->zero_grad();
      }
    }
    std::optional<Zero::Gathered> full;
    if (zero) full.emplace(*zero, net.parameters());
    Tensors result;
    for (auto& [name, tensor] : copy_parameters(net)) result[name] = tensor.to(cpu);
    if (plan.max_norm > 0) result["norms"] = Tensor::from(norms, {int64_t(norms.size())});
    return result;
  });
}

struct ByNormOptions {
  double lr = 1e-3;
  std::vector<optim::OptionRange> table() { return {{"lr", &lr}}; }
};
/// A rule that needs the whole parameter: a step is lr times as long as the parameter.
class ByNorm : public optim::OptimizerOf<ByNormOptions> {
 public:
  ByNorm(std::vector<Variable> parameters, const ByNormOptions& options) { add_group(std::move(parameters), options); }
  const char* name() const override { return "ByNorm"; }
  bool is_elementwise() const override { return false; }
  void update(int group, Tensor& p, const Tensor& grad, optim::ParameterState& state, Tensor& low,
              double grad_scale) override {
    Tensor& m = state.zeros("momentum_buffer", p);
    add_(mul_scalar_(m, 0.9), grad, grad_scale);
    add_(p, m, -options_[group].lr * norm(p).item() / std::max(norm(m).item(), 1e-9));
    optim::round_into(low, p);
  }
};

/// `Rule` for matrices and AdamW for the rest.
template <class Rule> std::vector<std::unique_ptr<optim::Optimizer>> by_shape(nn::Module& net) {
  std::vector<Variable> matrices, others;
  for (const Variable& p : net.parameters()) (p.dim() == 2 ? matrices : others).push_back(p);
  std::vector<std::unique_ptr<optim::Optimizer>> all;
  all.emplace_back(new Rule(matrices, {.lr = 0.01}));
  all.push_back(adamw(others));
  return all;
}
/// Trains with by_shape<Rule>.
template <class Rule = ByNorm> Tensors train_two(int ranks, const zero::ZeroOptions& options, double max_norm = 0) {
  Tensors parameters = train({.ranks = ranks,
                              .accumulation = 4 / ranks,
                              .options = options,
                              .max_norm = max_norm,
                              .steps = 3,
                              .make_all = by_shape<Rule>});
  parameters.erase("norms");
  return parameters;
}

/// Net, an optimizer and ZeRO on this rank. All ranks start with the same values.
struct NetOnZero {
  Net net;
  std::unique_ptr<optim::Optimizer> optimizer;
  Zero zero;
  explicit NetOnZero(const zero::ZeroOptions& options = {}, DType dtype = f32, const MakeOptimizer& make = adamw)
      : net(new_net(dtype)), optimizer(make(net.parameters())), zero(net, *optimizer, options) {}
  static Net new_net(DType dtype) {
    manual_seed(1);
    Net net;
    net.to(dtype);
    return net;
  }
  Tensors parameters() { return gathered_parameters(zero, net); }
  void backward(int step, int64_t micro_batch) {
    loss_of_micro_batch(net, step, micro_batch, net.a.weight.dtype()).backward();
  }
  /// Trains a step of four micro-batches, of which each rank has its share.
  void train(int step) {
    const int accumulation = 4 / zero.group().size();
    backwards(zero, accumulation, [&](int64_t micro) { backward(step, micro); });
    zero.step({.grad_scale = 1. / accumulation});
  }
};
/// The parameters after body(), which must be equal on all ranks.
inline Tensors parameters_after(int ranks, const zero::ZeroOptions& options, DType dtype,
                                const std::function<void(NetOnZero&)>& body) {
  return alike(ranks, [&](int) {
    NetOnZero on(options, dtype);
    body(on);
    return on.parameters();
  });
}

/// The elements of the tensor of this name that a piece of state holds. A tensor that is missing is made, full of NaN.
inline Tensor place_of(Tensors& full_tensors, const zero::StatePiece& piece) {
  Tensor& tensor = full_tensors[piece.name];
  if (!tensor.defined()) tensor = full({numel_of(piece.shape)}, NAN, {.dtype = piece.tensor.dtype()});
  return tensor.narrow(0, piece.range.begin, piece.range.size()).view(piece.tensor.shape());
}
/// Replaces the state of this rank by that of these tensors.
inline void load_from(Zero& zero, Tensors full_tensors, const std::map<std::string, double>& numbers) {
  for (const zero::StatePiece& piece : zero.state(true)) piece.tensor.copy_(place_of(full_tensors, piece));
  zero.load_numbers(numbers);
  zero.loaded();
}

}  // namespace testing
