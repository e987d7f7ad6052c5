#include "engine/plan.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "tensor/check.h"
#include "tensor/ops.h"

namespace lockstep::engine {

namespace {

// --- the optimizer, asked with parameters of one element each ---

struct Asked {
  std::string name;
  std::vector<int64_t> bytes;     ///< that it keeps for an element
  std::vector<bool> elementwise;  ///< false: a parameter has one owner
};

Asked ask_optimizer(Config config, const ModelShape& model, DType dtype) {
  if (config.optimizer.type.empty()) config.optimizer.type = "AdamW";
  Asked asked;
  std::string type = config.optimizer.type;
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool one_bit = type.starts_with("onebit") || type == "zerooneadam";
  if (one_bit)
    config.optimizer = {.type = type == "onebitsgd"    ? "SGD"
                                : type == "onebitlamb" ? "Lamb"
                                                       : "AdamW"};  // and two errors, added below
  if (type == "onebitsgd") config.optimizer.params["momentum"] = 0.9;
  NamedParameters tiny;
  for (const auto& p : model.parameters)
    tiny.push_back({p.name,
                    Variable(p.shape.size() == 1 ? ones({1}, {.dtype = dtype}) : ones({1, 1}, {.dtype = dtype}), true),
                    p.is_table});
  const auto optimizers = make_optimizers(config, tiny);
  for (const auto& p : tiny) p.variable.grad() = ones(p.variable.shape(), {.dtype = dtype});
  for (const auto& o : optimizers) {
    o->step();
    asked.name += (asked.name.empty() ? "" : " and ") + std::string(o->name());
  }
  if (one_bit) asked.name += " with error feedback";
  for (const auto& p : tiny) {
    for (const auto& o : optimizers) {
      const auto all = o->parameters();
      if (std::none_of(all.begin(), all.end(), [&](const Variable& v) { return v.impl() == p.variable.impl(); }))
        continue;
      int64_t bytes = one_bit ? 8 : 0;
      for (const auto& [key, tensor] : o->state_of(p.variable).tensors)
        if (tensor.defined()) bytes += size_of(tensor.dtype());
      asked.bytes.push_back(bytes);
      asked.elementwise.push_back(o->is_elementwise());
      break;
    }
  }
  return asked;
}

void add_bytes(Forecast& plan, const zero::ZeroOptions& o, int sharing) {
  const int64_t width = size_of(plan.parameter_dtype), gradient_width = size_of(plan.gradient_dtype);
  int64_t largest = 0;
  for (const zero::PlannedUnit& u : plan.units) largest = std::max(largest, u.layout.whole() * gradient_width);
  for (int rank = 0; rank < plan.ranks; ++rank) {
    RankBytes& b = plan.bytes[size_t(rank)];
    int64_t in_memory = 0;
    for (const zero::PlannedUnit& u : plan.units) {
      const int among = rank / (plan.ranks / u.ranks * sharing) * sharing + rank % sharing,
                number = o.stage == 0 ? 0 : among;  // of those that have it
      const int64_t part = u.layout.range(number).size();
      b.gradients += (o.stage >= 2 ? part : u.layout.whole()) * gradient_width;
      if (u.persistent) {
        b.parameters += (o.stage == 0 ? u.layout.numel() : u.layout.whole()) * width;
      } else {
        in_memory += u.layout.shard;
        const bool moved = o.offload_param.device == zero::Offload::cpu ||
                           (o.offload_param.device == zero::Offload::nvme && in_memory > o.offload_param.max_in_cpu);
        (moved ? b.parameters_elsewhere : b.parameters) += part * width;
      }
      for (size_t place = 0; place < u.parameters.size(); ++place)
        b.optimizer += u.layout.owned(place, number).size() * plan.state_bytes[u.parameters[place]];
    }
    if (o.offload_optimizer.device != zero::Offload::none) {
      b.optimizer_elsewhere = int64_t(double(b.optimizer) * o.offload_optimizer.ratio);
      b.optimizer -= b.optimizer_elsewhere;
    }
    if (o.stage >= 2) b.buffers = (o.overlap_comm && plan.units.size() > 1 ? 2 : 1) * largest;
  }
}

/// A rank sends (N-1)/N of what is reduced and scattered, or gathered; twice that for an all-reduce.
void add_traffic(Forecast& plan, const zero::ZeroOptions& o) {
  const double width = double(size_of(plan.parameter_dtype)), gradient_width = double(size_of(plan.gradient_dtype));
  const double passes = double(*plan.config.gradient_accumulation_steps);
  for (const zero::PlannedUnit& u : plan.units) {
    const double n = double(u.layout.whole()) * double(u.ranks - 1) / double(u.ranks);
    const double times = (o.stage >= 2 ? passes : 1) * (o.stage == 0 || (!o.reduce_scatter && u.layout.owner < 0)
                                                            ? 2
                                                            : 1);  // from stage 2 on every micro-batch is reduced
    plan.gradient_traffic += n * gradient_width * times;
    if (o.stage >= 1) plan.parameter_traffic += n * width * (u.persistent ? 1 : 2 * passes);
  }
}

}  // namespace

Forecast plan(const Config& asked, const ModelShape& model, int ranks, int sharing, int expert_parallel) {
  Forecast p{.config = resolve(asked, ranks / sharing), .model = model, .ranks = ranks};
  const zero::ZeroOptions options = zero_options(p.config);
  p.parameter_dtype = parameter_dtype(p.config);
  p.gradient_dtype = options.communication_data_type.value_or(p.parameter_dtype);
  const Asked optimizer = ask_optimizer(p.config, model, p.parameter_dtype);
  p.optimizer = optimizer.name;
  p.state_bytes = optimizer.bytes;
  std::vector<zero::PlannedParameter> parameters;
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    const ModelShape::Parameter& one = model.parameters[i];
    parameters.push_back({.name = one.name,
                          .numel = one.numel(),
                          .ranks = one.expert < 0 ? ranks : ranks / expert_parallel,
                          .elementwise = optimizer.elementwise[i]});
  }
  p.units = zero::plan_units(parameters, options);
  for (const zero::PlannedUnit& u : p.units) {
    p.padding += u.layout.padding();
    if (!u.persistent) p.largest_module = std::max(p.largest_module, u.layout.whole());
  }
  double state = 0;
  for (size_t i = 0; i < model.parameters.size(); ++i)
    state += double(p.state_bytes[i]) * double(model.parameters[i].numel());
  const double psi = double(model.numel());
  p.formula = zero::model_state(options.stage, psi, ranks, double(size_of(p.parameter_dtype)), state / psi);
  p.formula.gradients *= double(size_of(p.gradient_dtype)) / double(size_of(p.parameter_dtype));
  p.bytes.resize(size_t(ranks));
  add_bytes(p, options, sharing);
  add_traffic(p, options);
  return p;
}

// --- time ---

Speeds measure_speeds(DType dtype) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point since) {
    return std::chrono::duration<double>(Clock::now() - since).count();
  };
  /// Work of one call over its best time within a third of a second.
  const auto best = [&](double work, auto&& call) {
    double least = INFINITY;
    call();
    for (const auto start = Clock::now(); seconds(start) < 0.33;) {
      const auto begin = Clock::now();
      call();
      least = std::min(least, seconds(begin));
    }
    return work / least;
  };
  const int64_t n = 768;
  const Tensor a = ones({n, n}, {.dtype = dtype}), b = ones({n, n}, {.dtype = dtype});
  const size_t bytes = size_t(32) << 20;
  std::vector<char> from(bytes, 1), to(bytes, 2);
  const Tensor x = ones({int64_t(bytes / 4)});
  return {.flops = best(2. * double(n) * double(n) * double(n), [&] { matmul(a, b); }),
          .bandwidth = best(double(bytes), [&] { std::memcpy(to.data(), from.data(), bytes); }),
          .memory = best(2 * double(bytes), [&] { mul_scalar_(x, 1); })};
}

}  // namespace lockstep::engine
