#include "engine/plan.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <map>
#include <set>

#include "tensor/check.h"
#include "tensor/ops.h"

namespace lockstep::engine {

// --- shapes ---

int64_t ModelShape::Parameter::numel() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}
std::string ModelShape::Parameter::module() const { return name.substr(0, name.rfind('.') == name.npos ? 0 : name.rfind('.')); }

int64_t ModelShape::numel() const {
  int64_t n = 0;
  for (const Parameter& p : parameters) n += p.numel();
  return n;
}

int64_t half_block_of(const std::string& name) {
  if (!name.starts_with("blocks.")) return -1;
  const bool second = name.find(".mlp.") != name.npos || name.find(".norm2.") != name.npos;
  return 2 * std::stoll(name.substr(7)) + second;
}

double ModelShape::products(const Parameter& p) const {
  if (p.shape.size() != 2) return 0;
  return p.expert < 0 ? double(p.numel()) : double(p.numel()) * double(top_k) / double(experts);
}

double ModelShape::forward_flops() const {
  double sum = double(vocab) * double(width);  // the head; its table is looked up, not multiplied, at the beginning
  for (const Parameter& p : parameters) if (p.name.starts_with("blocks.")) sum += products(p);
  return 2 * sum + double(layers) * 2 * 2 * double(context) / 2 * double(width);
}

ModelShape gpt_shape(const nn::GPT::Options& o, const ExpertShape& e) {
  LOCKSTEP_CHECK(o.vocab > 0 && o.context > 0 && o.layers > 0 && o.width > 0, "[GPT] expected vocab, context, layers and width > 0, got ", o.vocab, ", ", o.context, ", ", o.layers, ", ", o.width);
  LOCKSTEP_CHECK(o.heads > 0 && o.width % o.heads == 0, "[GPT] expected a width that is a multiple of heads, got ", o.width, " and ", o.heads);
  LOCKSTEP_CHECK(e.experts == 0 || (e.top_k >= 1 && e.top_k <= e.experts && e.every >= 1 && e.every <= o.layers), "[GPT] expected top_k from 1 to the ", e.experts, " experts, in every 1st to ", o.layers, ". block, got top_k ",
                 e.top_k, ", every ", e.every);
  ModelShape m{.name = str("GPT of ", o.layers, " layers, width ", o.width, ", ", o.heads, " heads, ", o.vocab, " tokens, context ", o.context,
                           e.experts ? str(", ", e.experts, " experts in every ", e.every, ". block, ", e.top_k, " a token") : ""), .parameters = {},
               .layers = o.layers, .width = o.width, .context = o.context, .vocab = o.vocab, .experts = e.experts, .top_k = e.experts ? e.top_k : 0};
  const int64_t w = o.width, inner = o.inner == 0 ? 4 * w : o.inner;
  const auto add = [&](const std::string& name, Shape shape, int64_t expert = -1) { m.parameters.push_back({name, std::move(shape), expert}); };
  const auto layer = [&](const std::string& name, Shape weight, int64_t expert = -1) {
    add(name + ".weight", weight, expert);
    if (o.bias) add(name + ".bias", {weight[0]}, expert);
  };
  const auto mlp = [&](const std::string& name, int64_t expert = -1) {
    layer(name + ".up", {inner, w}, expert);
    layer(name + ".down", {w, inner}, expert);
  };
  add("tokens.weight", {o.vocab, w});
  add("positions.weight", {o.context, w});
  for (int64_t i = 0; i < o.layers; ++i) {
    const std::string block = str("blocks.", i, ".");
    layer(block + "norm1", {w});
    layer(block + "attention.in_proj", {3 * w, w});
    layer(block + "attention.out_proj", {w, w});
    layer(block + "norm2", {w});
    if (e.experts == 0 || (i + 1) % e.every != 0) {
      mlp(block + "mlp");
      continue;
    }
    add(block + "mlp.gate", {e.experts, w});
    for (int64_t k = 0; k < e.experts; ++k) mlp(str(block, "mlp.experts.", k), k);
  }
  layer("norm", {w});
  if (!o.tied) add("head", {o.vocab, w});
  return m;
}

ModelShape parse_model(const std::string& text, int64_t vocab, int64_t context, const ExpertShape& experts) {
  std::vector<int64_t> numbers;
  bool good = text.starts_with("gpt:");
  for (size_t begin = 4; good && begin <= text.size();) {
    const size_t end = std::min(text.find('x', begin), text.size());
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, value);
    good = error == std::errc() && stop == text.data() + end && value >= 1 && value <= 1'000'000;
    numbers.push_back(value);
    begin = end + 1;
  }
  LOCKSTEP_CHECK(good && numbers.size() == 3, "expected a model as gpt:LAYERSxWIDTHxHEADS, such as gpt:12x768x12, got \"", text, "\"");
  return gpt_shape({.vocab = vocab, .context = context, .layers = numbers[0], .width = numbers[1], .heads = numbers[2]}, experts);
}

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
  if (one_bit) config.optimizer = {.type = type == "onebitsgd" ? "SGD" : type == "onebitlamb" ? "Lamb" : "AdamW"};  // and two errors, added below
  if (type == "onebitsgd") config.optimizer.params["momentum"] = 0.9;
  NamedParameters tiny;
  for (const auto& p : model.parameters) tiny.push_back({p.name, Variable(p.shape.size() == 1 ? ones({1}, {.dtype = dtype}) : ones({1, 1}, {.dtype = dtype}), true)});
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
      if (std::none_of(all.begin(), all.end(), [&](const Variable& v) { return v.impl() == p.variable.impl(); })) continue;
      int64_t bytes = one_bit ? 8 : 0;
      for (const auto& [key, tensor] : o->state_of(p.variable).tensors) if (tensor.defined()) bytes += size_of(tensor.dtype());
      asked.bytes.push_back(bytes);
      asked.elementwise.push_back(o->is_elementwise());
      break;
    }
  }
  return asked;
}

// --- units: what zero::Stage::plan() and Stage3::plan() make of modules, from names alone ---

class Planner {
 public:
  Planner(const Plan& plan, const zero::ZeroOptions& options, const std::vector<bool>& elementwise, int expert_parallel)
      : model_(plan.model.parameters), options_(options), world_(plan.ranks), expert_parallel_(expert_parallel), owners_(model_.size(), -1), taken_(model_.size(), false) {
    for (const int ranks : std::set{world_, world_ / expert_parallel}) {
      std::vector<size_t> uncut;
      std::vector<int64_t> sizes;
      for (size_t i = 0; i < model_.size(); ++i) if (!elementwise[i] && ranks_of(i) == ranks) uncut.push_back(i), sizes.push_back(model_[i].numel());
      const std::vector<int> assigned = zero::assign_owners(sizes, shards(ranks));
      for (size_t k = 0; k < uncut.size(); ++k) owners_[uncut[k]] = assigned[k];
    }
  }

  std::vector<PlannedUnit> units() {
    std::vector<size_t> flat;
    if (options_.stage < 3) {
      for (size_t i = model_.size(); i-- > 0;) flat.push_back(i);
    } else {
      int64_t kept = 0;
      for (size_t i = 0; i < model_.size(); ++i) {
        const int64_t n = model_[i].numel();
        if (n >= options_.param_persistence_threshold || n > options_.model_persistence_threshold - kept) continue;
        kept += n;
        taken_[i] = true;
        flat.push_back(i);
      }
      std::vector<PlannedUnit> claims;
      claim("", claims);
      std::reverse(claims.begin(), claims.end());
      units_ = std::move(claims);
    }
    std::vector<int64_t> sizes;
    std::vector<std::string> kinds;
    for (const size_t i : flat) {
      sizes.push_back(model_[i].numel());
      kinds.push_back(kind_of(i));
    }
    for (const std::vector<size_t>& places : zero::plan_units(sizes, kinds, options_.reduce_bucket_size)) {
      std::vector<size_t> members;
      for (const size_t place : places) members.push_back(flat[place]);
      units_.push_back(unit(members, ""));
      units_.back().persistent = true;
    }
    return std::move(units_);
  }

 private:
  PlannedUnit unit(const std::vector<size_t>& members, const std::string& module) const {
    std::vector<int64_t> sizes;
    for (const size_t i : members) sizes.push_back(model_[i].numel());
    const int owner = owners_[members[0]], ranks = ranks_of(members[0]), parts = shards(ranks);
    return {module, members, owner < 0 || parts == 1 ? zero::lay_out(sizes, parts) : zero::lay_out_at(sizes, parts, owner), false, ranks};
  }
  int ranks_of(size_t i) const { return model_[i].expert < 0 ? world_ : world_ / expert_parallel_; }
  int shards(int ranks) const { return options_.stage == 0 ? 1 : ranks; }
  std::string kind_of(size_t i) const { return str(owners_[i], " of ", ranks_of(i)); }

  bool is_below(size_t i, const std::string& module) const { return module.empty() || model_[i].name.starts_with(module + "."); }

  /// A module takes its own parameters, or all below it when it is small.
  void claim(const std::string& module, std::vector<PlannedUnit>& claims) {
    int64_t below = 0;
    for (size_t i = 0; i < model_.size(); ++i) if (is_below(i, module)) below += model_[i].numel();
    const bool coarse = options_.module_size > 0 && below <= options_.module_size;
    std::map<std::string, std::vector<size_t>> kinds;
    std::vector<std::string> children;
    for (size_t i = 0; i < model_.size(); ++i) {
      if (!is_below(i, module)) continue;
      if (coarse || model_[i].module() == module) {
        if (!taken_[i]) kinds[kind_of(i)].push_back(i);
        taken_[i] = true;
      } else {
        const size_t begin = module.empty() ? 0 : module.size() + 1;
        const std::string child = model_[i].name.substr(0, model_[i].name.find('.', begin));
        if (children.empty() || children.back() != child) children.push_back(child);
      }
    }
    for (const auto& [kind, members] : kinds) claims.push_back(unit(members, module.empty() ? "(model)" : module));
    for (const std::string& child : children) claim(child, claims);
  }

  const std::vector<ModelShape::Parameter>& model_;
  const zero::ZeroOptions& options_;
  int world_, expert_parallel_;
  std::vector<int> owners_;
  std::vector<bool> taken_;
  std::vector<PlannedUnit> units_;
};

void add_bytes(Plan& plan, const zero::ZeroOptions& o, int sharing) {
  const int64_t width = size_of(plan.parameter_dtype), gradient_width = size_of(plan.gradient_dtype);
  int64_t largest = 0;
  for (const PlannedUnit& u : plan.units) largest = std::max(largest, u.layout.whole() * gradient_width);
  for (int rank = 0; rank < plan.ranks; ++rank) {
    RankBytes& b = plan.bytes[size_t(rank)];
    int64_t in_memory = 0;
    for (const PlannedUnit& u : plan.units) {
      const int among = rank / (plan.ranks / u.ranks * sharing) * sharing + rank % sharing, number = o.stage == 0 ? 0 : among;  // of those that have it
      const int64_t part = u.layout.range(number).size();
      b.gradients += (o.stage >= 2 ? part : u.layout.whole()) * gradient_width;
      if (u.persistent) {
        b.parameters += (o.stage == 0 ? u.layout.numel() : u.layout.whole()) * width;
      } else {
        in_memory += u.layout.shard;
        const bool moved = o.offload_param.device == zero::Offload::cpu || (o.offload_param.device == zero::Offload::nvme && in_memory > o.offload_param.max_in_cpu);
        (moved ? b.parameters_elsewhere : b.parameters) += part * width;
      }
      for (size_t place = 0; place < u.parameters.size(); ++place) b.optimizer += u.layout.owned(place, number).size() * plan.state_bytes[u.parameters[place]];
    }
    if (o.offload_optimizer.device != zero::Offload::none) {
      b.optimizer_elsewhere = int64_t(double(b.optimizer) * o.offload_optimizer.ratio);
      b.optimizer -= b.optimizer_elsewhere;
    }
    if (o.stage >= 2) b.buffers = (o.overlap_comm && plan.units.size() > 1 ? 2 : 1) * largest;
  }
}

/// A rank sends (N-1)/N of what is reduced and scattered, or gathered; twice that for an all-reduce.
void add_traffic(Plan& plan, const zero::ZeroOptions& o) {
  const double width = double(size_of(plan.parameter_dtype)), gradient_width = double(size_of(plan.gradient_dtype));
  const double passes = double(*plan.config.gradient_accumulation_steps);
  for (const PlannedUnit& u : plan.units) {
    const double n = double(u.layout.whole()) * double(u.ranks - 1) / double(u.ranks);
    const double times = (o.stage >= 2 ? passes : 1) * (o.stage == 0 || (!o.reduce_scatter && u.layout.owner < 0) ? 2 : 1);  // from stage 2 on every micro-batch is reduced
    plan.gradient_traffic += n * gradient_width * times;
    if (o.stage >= 1) plan.parameter_traffic += n * width * (u.persistent ? 1 : 2 * passes);
  }
}

}  // namespace

Plan plan(const Config& asked, const ModelShape& model, int ranks, int sharing, int expert_parallel) {
  Plan p{.config = resolve(asked, ranks / sharing), .model = model, .ranks = ranks};
  const zero::ZeroOptions options = zero_options(p.config);
  p.parameter_dtype = parameter_dtype(p.config);
  p.gradient_dtype = options.communication_data_type.value_or(p.parameter_dtype);
  const Asked optimizer = ask_optimizer(p.config, model, p.parameter_dtype);
  p.optimizer = optimizer.name;
  p.state_bytes = optimizer.bytes;
  p.units = Planner(p, options, optimizer.elementwise, expert_parallel).units();
  for (const PlannedUnit& u : p.units) {
    p.padding += u.layout.padding();
    if (!u.persistent) p.largest_module = std::max(p.largest_module, u.layout.whole());
  }
  double state = 0;
  for (size_t i = 0; i < model.parameters.size(); ++i) state += double(p.state_bytes[i]) * double(model.parameters[i].numel());
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
  const auto seconds = [](Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); };
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
  return {.flops = best(2. * double(n) * double(n) * double(n), [&] { matmul(a, b); }), .bandwidth = best(double(bytes), [&] { std::memcpy(to.data(), from.data(), bytes); }),
          .memory = best(2 * double(bytes), [&] { mul_scalar_(x, 1); })};
}

PredictedTime predict(const Plan& plan, const Speeds& speeds) {
  PredictedTime t;
  const double tokens = double(*plan.config.train_batch_size) * double(plan.model.context);
  const double passes = plan.config.activation_checkpointing.enabled ? 4 : 3;  // backward is twice forward; checkpointed blocks run forward again
  t.compute = passes * plan.model.forward_flops() * tokens / plan.ranks / speeds.flops;
  t.communication = (plan.gradient_traffic + plan.parameter_traffic) / speeds.bandwidth;
  double most = 0;  // state is read and written, parameters written, gradients read
  for (const RankBytes& b : plan.bytes) most = std::max(most, 2 * double(b.optimizer + b.optimizer_elsewhere));
  const double own = double(plan.model.numel()) / (plan.config.zero_optimization.stage == 0 ? 1 : plan.ranks);
  t.optimizer = (most + own * double(size_of(plan.parameter_dtype) + size_of(plan.gradient_dtype))) / speeds.memory;
  t.step = (plan.config.zero_optimization.overlap_comm.value_or(true) ? std::max(t.compute, t.communication) : t.compute + t.communication) + t.optimizer;
  t.tokens = tokens / t.step;
  return t;
}

}  // namespace lockstep::engine
