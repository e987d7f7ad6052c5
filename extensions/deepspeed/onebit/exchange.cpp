// The Exchange of engines with a 1-bit optimizer: their steps and checkpoints. These engines run without ZeRO. See
// engine/exchange.h.
#include "engine/exchange.h"

#include <algorithm>
#include <set>

#include "base/suggest.h"
#include "dist/numbers.h"
#include "extensions/deepspeed/onebit/optimizer.h"
#include "nn/init.h"
#include "parallel/agreement.h"
#include "parallel/gradient_sum.h"
#include "parallel/naive_ddp.h"
#include "tensor/memory.h"
#include "tensor/ops.h"

namespace lockstep::engine {

namespace {

Tensor flat(const Tensor& tensor) { return tensor.view({tensor.numel()}); }

constexpr int64_t none = std::numeric_limits<int64_t>::max();
// Names of the two saved tensors of compression errors, which only the same number of ranks can load. All other tensors
// have ZeRO's names.
const std::string owed = "optimizer.onebit.", worker = owed + "worker", server = owed + "server";

/// Accumulates gradients, runs the optimizer's step, and saves its state.
class OneBit : public Exchange {
 public:
  /// Broadcasts rank 0's frozen parameters and buffers; the optimizer's constructor has done so for trained parameters.
  /// Collective.
  OneBit(nn::Module& model, onebit::OneBitOptimizer& optimizer, dist::ProcessGroup& group, Options options)
      : model_(model), optimizer_(optimizer), group_(group), options_(std::move(options)) {
    LOCKSTEP_CHECK(&optimizer.group() == &group, "[engine] expected ", optimizer.name(), " on the engine's group of ",
                   group.size(), " ranks, got one on another group, of ", optimizer.group().size(),
                   "; construct it with the engine's group (default: dist::world())");
    const std::vector<Variable> in_optimizer = optimizer.parameters();
    std::vector<std::pair<std::string, Variable>> names;
    std::vector<Variable> variables;
    std::vector<std::string> without;
    for (const nn::NamedParameter& p : model.named_parameters()) {
      nn::fill(p.variable);
      names.emplace_back(p.name, p.variable);
      (p.variable.requires_grad() ? trained_ : untrained_).push_back(p);
      if (!p.variable.requires_grad()) continue;
      if (std::none_of(in_optimizer.begin(), in_optimizer.end(),
                       [&](const Variable& v) { return v.impl() == p.variable.impl(); }))
        without.push_back(p.name);
      variables.push_back(p.variable);
    }
    LOCKSTEP_CHECK(without.empty(), "[engine] expected every parameter that requires grad in ", optimizer.name(),
                   ", these are missing: ", lockstep::list_names(without),
                   "; give them to the optimizer, or freeze them (requires_grad_(false))");
    optimizer.name_parameters(names);
    parallel::broadcast_module(model, group);
    if (options_.accumulates) sum_.emplace(variables);
  }

  void add() override {
    if (sum_) sum_->add();
  }
  void discard() override {
    if (sum_) sum_->discard();
  }
  int64_t steps() const override { return optimizer_.steps(); }
  std::string kind() const override { return "onebit"; }
  zero::StepReport step(const zero::StepOptions& o) override {
    const NoGrad no_grad;
    std::vector<std::string> frozen;
    for (const nn::NamedParameter& p : untrained_)
      if (p.variable.requires_grad()) parallel::fail_unfrozen("engine", p.name, &group_);
    for (const nn::NamedParameter& p : trained_)
      if (!p.variable.requires_grad()) frozen.push_back(p.name);
    frozen_.agree("engine", frozen, group_);
    if (sum_) sum_->finish();
    const bool check = options_.nonfinite != zero::NonFinite::propagate;
    // Look for nonfinite gradients before the step: it may replace each rank's gradients by their mean over ranks,
    // which does not show the rank that they come from.
    const int64_t bad = check ? first_nonfinite() : none;
    const onebit::OneBitStepReport done =
        optimizer_.step({.grad_scale = o.scaler ? o.grad_scale / o.scaler->scale() : o.grad_scale,
                         .max_norm = o.max_norm,
                         .skip_nonfinite = check,
                         .want_norm = o.want_norm});
    zero::StepReport report;
    report.skipped = done.skipped;
    if (!done.skipped) report.norm = done.norm;
    if (done.skipped) name_nonfinite(bad, report);
    optimizer_.zero_grad();
    return report;
  }

  /// With 0/1 Adam, the ranks first synchronize.
  std::vector<zero::StatePiece> state() override {
    optimizer_.synchronize();
    std::vector<zero::StatePiece> all = model_state();
    for (const auto& [name, tensor] : optimizer_.state().tensors)
      all.push_back({saved_name(name), tensor.shape(), {0, tensor.numel()}, flat(tensor)});
    const onebit::Errors errors = optimizer_.errors();
    if (errors.worker.defined()) add_errors(all, errors.worker, errors.server);
    return all;
  }
  std::map<std::string, double> numbers() const override {
    std::map<std::string, double> all;
    for (const auto& [name, value] : optimizer_.state().numbers) all[saved_name(name)] = value;
    return all;
  }
  std::vector<zero::StatePiece> state_to_load(const checkpoints::Info& saved, bool with_optimizer) override {
    optimizer_.synchronize();
    loading_.clear();
    std::vector<zero::StatePiece> all = model_state();
    std::map<std::string, Variable> by_name;
    for (const nn::NamedParameter& p : trained_) by_name.emplace(p.name, p.variable);
    const MemoryScope scope(Memory::optimizer);
    const auto add = [&](const std::string& name, const Shape& shape, DType dtype, Device device) {
      const Tensor tensor = empty(shape, {.dtype = dtype, .device = device});
      all.push_back({name, shape, {0, tensor.numel()}, flat(tensor)});
      loading_[name] = tensor;
    };
    for (const auto& [name, p] : by_name) {  // master weights are the model in f32: both are always loaded together
      const std::string master = "optimizer.master." + name;
      auto& tensors = optimizer_.state_of(p).tensors;
      if (with_optimizer && size_of(p.dtype()) < 4) add(master, p.shape(), f32, p.device());
      else if (!with_optimizer && tensors.count("master"))
        all.push_back({master, p.shape(), {0, p.numel()}, flat(tensors.at("master"))});
    }
    if (!with_optimizer) return all;
    for (const auto& [name, info] : saved.tensors) {
      if (!name.starts_with("optimizer.") || name.starts_with("optimizer.master.")) continue;
      const auto p = by_name.find(parameter_of(name));
      if (p != by_name.end()) add(name, p->second.shape(), info.dtype, p->second.device());
    }
    const auto errors = saved.tensors.find(worker);
    if (errors == saved.tensors.end()) return all;
    const Shape& shape = errors->second.shape;
    if (shape.size() != 2 || shape[0] != group_.size() || shape[1] != optimizer_.error_size()) {
      options_.note(str("note: ", saved.path, " was saved by ", shape[0],
                        " ranks: compression errors start at zero, because ", group_.size(),
                        " ranks partition gradients differently"));
      return all;
    }
    loading_[worker] = empty({shape[1]}, {.device = cpu});
    loading_[server] = empty({shape[1] / group_.size()}, {.device = cpu});
    add_errors(all, loading_[worker], loading_[server]);
    return all;
  }
  void load_state(const std::map<std::string, double>& numbers) override {
    optim::OptimizerState state;
    std::set<std::string> trained;
    for (const nn::NamedParameter& p : trained_) trained.insert(p.name);
    for (const auto& [name, value] : numbers)
      if (name.starts_with("optimizer.group.") || (name.starts_with("optimizer.") && trained.count(parameter_of(name))))
        state.numbers[state_name(name)] = value;
    for (const auto& [name, tensor] : loading_) {
      if (!name.starts_with(owed)) state.tensors.emplace_back(state_name(name), tensor);
    }
    optimizer_.load_state(state);
    if (loading_.count(worker)) optimizer_.load_errors({loading_.at(worker), loading_.at(server)});
    loading_.clear();
  }
  void loaded() override {
    for (const Variable& p : model_.parameters()) p.tensor().storage()->bump_version("load");
  }

  /// Includes compression errors.
  double bytes_per_parameter() const override {
    double bytes = 0, elements = 0;
    for (const nn::NamedParameter& p : trained_) {
      elements += double(p.variable.numel());
      for (const auto& [key, tensor] : optimizer_.state_of(p.variable).tensors)
        bytes += double(tensor.numel() * size_of(tensor.dtype()));
    }
    const onebit::Errors errors = optimizer_.errors();
    if (errors.worker.defined()) bytes += 4 * double(errors.worker.numel() + errors.server.numel());
    return elements > 0 ? bytes / elements : 0;
  }
  bool is_synchronized() const override { return optimizer_.is_synchronized(); }
  std::vector<std::pair<std::string, int64_t>> totals() const override {
    const onebit::Volume& v = optimizer_.volume();
    return {{"exact_steps", v.exact_steps},
            {"bytes_of_exact_step", v.exact_bytes / std::max<int64_t>(v.exact_steps, 1)},
            {"compressed_steps", v.compressed_steps},
            {"bytes_of_compressed_step", v.compressed_bytes / std::max<int64_t>(v.compressed_steps, 1)}};
  }

 private:
  int64_t first_nonfinite() const {
    for (size_t i = 0; i < trained_.size(); ++i) {
      const Tensor& grad = trained_[i].variable.grad();
      if (grad.defined() && !all_finite(grad)) return int64_t(i);
    }
    return none;
  }
  /// Finds the first parameter with a nonfinite gradient on any rank, and stores its name and that rank in `report`.
  /// If every rank's gradients are finite, takes the first parameter whose gradient became nonfinite in the sum over
  /// ranks. mine: index of this rank's first nonfinite gradient, or `none`.
  void name_nonfinite(int64_t mine, zero::StepReport& report) const {
    const int64_t count = int64_t(trained_.size()), ranks = group_.size();
    if (mine == none) {
      const int64_t sum = first_nonfinite();
      mine = sum == none ? 2 * count : count + sum;
    }
    mine = mine * ranks + group_.rank();
    const int64_t first = dist::all_reduced<int64_t>(
        {mine}, group_, {.op = dist::ReduceOp::min, .tag = "first gradient that is not finite"})[0];
    report.first_nonfinite =
        first / ranks < 2 * count ? trained_[size_t(first / ranks % count)].name : "all parameters together";
    report.rank = group_.world_rank(int(first % ranks));
  }
  std::vector<zero::StatePiece> model_state() const {
    std::vector<zero::StatePiece> all;
    for (const nn::NamedParameter& p : model_.named_parameters())
      all.push_back({"model." + p.name, p.variable.shape(), {0, p.variable.numel()}, flat(p.variable.tensor())});
    return all;
  }
  void add_errors(std::vector<zero::StatePiece>& to, const Tensor& mine, const Tensor& served) const {
    const int64_t rank = group_.rank(), n = mine.numel(), part = served.numel();
    to.push_back({worker, {group_.size(), n}, {rank * n, (rank + 1) * n}, mine});
    to.push_back({server, {n}, {rank * part, (rank + 1) * part}, served});
  }

  nn::Module& model_;
  onebit::OneBitOptimizer& optimizer_;
  dist::ProcessGroup& group_;
  Options options_;
  std::vector<nn::NamedParameter> trained_, untrained_;  // by requires_grad at construction
  std::optional<parallel::GradientSum> sum_;
  parallel::FrozenSince frozen_;
  std::map<std::string, Tensor> loading_;  // tensors of state_to_load(), by name in the checkpoint
};

}  // namespace

}  // namespace lockstep::engine

namespace lockstep::onebit {

std::unique_ptr<engine::Exchange> OneBitOptimizer::exchange(nn::Module& model, dist::ProcessGroup& group,
                                                            engine::Exchange::Options options) {
  return std::make_unique<engine::OneBit>(model, *this, group, std::move(options));
}

OneBitOptimizer* optimizer_of(const engine::EngineBase& engine) {
  return dynamic_cast<OneBitOptimizer*>(&engine.optimizer());
}

}  // namespace lockstep::onebit
