// Applies tensor parallelism: finds and checks the shards of all parameters, then makes them. See apply.h.
#include "parallel/tensor_parallel/apply.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "autograd/tape.h"
#include "base/suggest.h"
#include "dist/numbers.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/named_fields.h"
#include "optim/optimizer.h"
#include "parallel/agreement.h"
#include "parallel/naive_ddp.h"
#include "parallel/tensor_parallel/linear.h"
#include "parallel/tensor_parallel/vocabulary.h"
#include "tensor/memory.h"

namespace lockstep::tensor_parallel {
namespace {

using Kind = nn::Cut::Kind;
using Input = const Variable&;

bool glob(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*') return !name.empty() && pattern[0] == name[0] && glob(pattern.substr(1), name.substr(1));
  for (size_t i = 0; i <= name.size(); ++i)
    if (glob(pattern.substr(1), name.substr(i))) return true;
  return false;
}

/// True if the pattern matches the name or its last components; "*.x" also matches x itself.
bool fits(const std::string& pattern, const std::string& name) {
  if (glob(pattern, name) || glob(pattern, "." + name)) return true;
  if (pattern.empty()) return false;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
    if (glob(pattern, std::string_view(name).substr(dot + 1))) return true;
  return false;
}

std::string quoted(const std::string& module) { return module.empty() ? "the module itself" : "\"" + module + "\""; }

/// Joins the ranks' shards of the logits, which may differ in size.
Variable gather_logits(const Variable& x, int64_t vocab, dist::ProcessGroup& group) {
  ShardLayout cut{.full = x.shape(), .dim = x.dim() - 1};
  cut.full[x.dim() - 1] = vocab;
  Tensor out = joined(x.tensor(), cut, group);
  if (!needs_grad({&x})) return out;
  return record("gather_logits", {&x}, std::move(out), [cut, &group](Backward& back) {
    back.give(0, shard_of(back.grad(), cut, group.size(), group.rank()));
  });
}

/// Plans the changes to a model: the constructor finds and checks all of them, run() makes them.
class Application {
 public:
  Application(nn::Module& module, const TensorParallelOptions& options, dist::ProcessGroup& group)
      : options_(options),
        group_(group),
        n_(group.size()),
        modules_(module.named_modules()),
        used_(options.rules.size()) {
    for (const nn::NamedField& f : nn::named_fields(module))
      if (f.parameter) owners_[f.key()].push_back(f.name);
    if (const Rule* rule = rule_for("")) add(rule->cut, {.name = "", .module = &module, .cut = rule->cut}, "");
    visit(module, "");
    for (size_t i = 0; i < used_.size(); ++i) {
      const Rule& r = options.rules[i];
      LOCKSTEP_CHECK(used_[i], "[tensor_parallel] pattern \"", r.pattern, "\" (", to_string(r.cut),
                     ") matches no module", hint(r.pattern));
    }
    LOCKSTEP_CHECK(
        has_any_, "[tensor_parallel] expected a ", module.kind(),
        " whose fields() say how they can be cut (nn/cut.h), or rules that do, got none; set Options::rules");
    for (const auto& s : shards_) {
      const auto& owners = owners_.at(s.parameter.impl().get());
      LOCKSTEP_CHECK(cut_.at(s.parameter.impl().get()).size() == owners.size(), "[tensor_parallel] ", owners[0],
                     " is also ", owners.back(), ": a parameter shared by several modules must be cut in all of them");
      LOCKSTEP_CHECK(
          !summed_.count(s.parameter.impl().get()), "[tensor_parallel] ", s.name,
          " is split over ranks by a rule for its module, but each rank computes a part of the sequence there; ",
          "give each module inside that module a rule of its own, in Options::rules");
    }
  }

  const std::vector<std::string>& partial() const { return partial_; }
  std::vector<TensorParallel::Shard> run() {
    if (n_ == 1) return std::move(shards_);
    for (auto& s : shards_) {
      const MemoryScope scope(Memory::parameter);
      const auto own = [cut = s.cut, n = n_, rank = group_.rank()](const Tensor& full) {
        return shard_of(full, cut, n, rank);
      };
      if (nn::is_built_empty(s.parameter))
        nn::change_start(s.parameter, shard_shape(s.cut, n_, group_.rank()),
                         {.dtype = s.parameter.dtype(), .device = s.parameter.device()}, own);
      else s.parameter.set_tensor(own(s.parameter.tensor()));
    }
    for (auto& change : changes_) change();
    for (nn::Module* m : sharded_) m->sharded({.dim = -1, .index = group_.rank(), .count = n_});
    return std::move(shards_);
  }

 private:
  std::string hint(const std::string& pattern) const {
    if (modules_.size() == 1) return "; leave out this rule: there are no modules below this one";
    // all: the names of all modules. known: the end of each name, with as many components as the pattern has.
    std::vector<std::string> known, all;
    for (size_t i = 1; i < modules_.size(); ++i) {
      const std::string& name = modules_[i].first;
      size_t at = name.size();
      for (auto parts = std::count(pattern.begin(), pattern.end(), '.') + 1; parts > 0 && at != std::string::npos;
           --parts)
        at = at == 0 ? std::string::npos : name.rfind('.', at - 1);
      known.push_back(at == std::string::npos ? name : name.substr(at + 1));
      all.push_back(name);
    }
    return suggestion(pattern, known) + "; name one of its modules: " + list_names(all, 12);
  }

  /// Returns the first rule that matches the name, or null. For a parameter only rules with cut::features count:
  /// its module must work with the shard, without communication.
  const Rule* rule_for(const std::string& name, bool is_module = true) {
    const Rule* first = nullptr;
    for (size_t i = 0; i < used_.size(); ++i) {
      if (!fits(options_.rules[i].pattern, name) || (!is_module && options_.rules[i].cut.kind != Kind::features))
        continue;
      used_[i] = true;
      if (!first) first = &options_.rules[i];
    }
    return first;
  }

  void visit(nn::Module& m, const std::string& prefix) {
    nn::Fields fields;
    m.fields(fields);
    bool own = false;  // true once a field of this module is a shard
    for (nn::Fields::Entry& entry : fields.entries) {
      const std::string name = nn::joined(prefix, entry.name);
      const Rule* const rule = entry.buffer ? nullptr : rule_for(name, entry.module);
      const nn::Cut& cut = rule ? rule->cut : entry.cut;
      if (cut.kind == Kind::experts)
        LOCKSTEP_CHECK(!options_.sequence, "[tensor_parallel] ", quoted(name),
                       ": experts choose among the tokens of whole sequences; leave out sequence");
      if (cut.kind == Kind::full || cut.kind == Kind::experts) continue;
      if (cut.kind != Kind::none) add(cut, entry, name);
      own |= cut.kind != Kind::none && cut.kind != Kind::tokens;
      if (entry.module) visit(*entry.module, name);
    }
    if (own) sharded_.push_back(&m);
  }

  template <class Layer>
  Layer* as(const nn::Cut& cut, const nn::Fields::Entry& entry, const std::string& name, const char* expected) const {
    auto* const layer = dynamic_cast<Layer*>(entry.module);
    LOCKSTEP_CHECK(layer, "[tensor_parallel] ", to_string(cut), " is for ", expected, ", but ", quoted(name), " is a ",
                   entry.module ? entry.module->kind() : "parameter", "; choose another cut");
    return layer;
  }

  /// Records in shards_ that this rank keeps a shard of a parameter, along the dimension that `cut_of` says. Records
  /// nothing if `cut_of` leaves the parameter whole.
  void shard(const nn::Cut& cut_of, const std::string& name, const Variable& parameter) {
    const int dim = dim_of(cut_of, parameter.shape());
    if (dim < 0) return;
    const void* const key = parameter.impl().get();
    std::vector<int64_t> blocks = blocks_of(cut_of, parameter.size(dim),
                                            quoted(name.substr(0, name.rfind('.') == name.npos ? 0 : name.rfind('.'))));
    LOCKSTEP_CHECK(!parameter.tensor().storage()->is_empty() || nn::is_built_empty(parameter),
                   "[tensor_parallel] expected whole parameters, but ", name,
                   " is already sharded by ZeRO; apply tensor parallelism first");
    LOCKSTEP_CHECK(cut_[key].insert(name).second, "[tensor_parallel] ", name,
                   " would be cut twice; remove one of the rules");
    ShardLayout cut{.full = parameter.shape(), .dim = dim, .blocks = std::move(blocks)};
    for (const auto& s : shards_) {
      if (s.parameter.impl().get() != key) continue;
      LOCKSTEP_CHECK(s.cut == cut, "[tensor_parallel] ", s.name, " is also ", name,
                     ", which would be cut differently; give both the same cut");
      return;
    }
    shards_.push_back({name, parameter, std::move(cut)});
  }

  /// shard() for the weight of a Linear or Head, or for the parameters of its store.
  void shard_weight(const nn::Cut& cut_of, const std::string& name, const Variable& weight, nn::WeightStore* store) {
    if (!store) return shard(cut_of, nn::joined(name, "weight"), weight);
    store->check_cut(cut_of, n_, str("[tensor_parallel] ", quoted(name)));
    nn::Fields fields;
    store->fields(fields);
    for (const nn::Fields::Entry& entry : fields.entries) shard(cut_of, nn::joined(name, entry.name), *entry.parameter);
  }

  void check_divides(const std::string& name, const std::string& what, int64_t size) const {
    LOCKSTEP_CHECK(size % n_ == 0, "[tensor_parallel] ", quoted(name), ": expected ", what, " that the ", n_,
                   " ranks of group ", group_.name(), " divide, got ", size, "; change the number of ranks");
  }

  /// Returns a function that computes a layer's matrix product by column_linear().
  auto column_product(bool to_full = false) const {
    return [o = ColumnOptions{.gather_output = to_full,
                              .sequence = options_.sequence,
                              .overlap = options_.overlap,
                              .chunks = options_.chunks},
            &group = group_](const nn::Product& p) {
      return column_linear(p.x, p.weight, p.bias, p.activation, o, group, p.arithmetic, p.training);
    };
  }

  /// Makes run() set `hook`, a member of the module `name`, to fn. Error if the hook is set already.
  template <class Hook, class Fn> void replace(const std::string& name, Hook& hook, const Fn& fn) {
    LOCKSTEP_CHECK(!hook, "[tensor_parallel] ", quoted(name),
                   " is sharded already; apply tensor parallelism to a model once");
    changes_.push_back([&hook, fn] { hook = fn; });
  }

  void add(const nn::Cut& cut, const nn::Fields::Entry& entry, const std::string& name) {
    has_any_ = true;
    nn::Module* const m = entry.module;
    const bool of_sequence = cut.kind == Kind::tokens;
    LOCKSTEP_CHECK(!cut.from_full || cut.kind == Kind::rows || of_sequence, "[tensor_parallel] ", quoted(name),
                   ": from_full is for the cuts rows and tokens, got ", to_string(cut), "; leave it out");
    LOCKSTEP_CHECK(!cut.to_full || cut.kind == Kind::columns || of_sequence, "[tensor_parallel] ", quoted(name),
                   ": to_full is for the cuts columns and tokens, got ", to_string(cut), "; leave it out");
    if (of_sequence) {
      LOCKSTEP_CHECK(m, "[tensor_parallel] ", name,
                     ": the cut tokens is for modules, got a parameter; use the cut features");
      return sequence(*m, name, cut.from_full, cut.to_full);
    }
    if (!m) shard(cut, name, *entry.parameter);
    else if (cut.kind == Kind::features)
      for (auto& p : m->named_parameters()) shard(cut, nn::joined(name, p.name), p.variable);
    switch (cut.kind) {
      case Kind::columns:
      case Kind::rows: {
        auto* const linear = as<nn::Linear>(cut, entry, name, "nn::Linear");
        const bool columns = cut.kind == Kind::columns;
        const RowOptions row{.input_is_parallel = !cut.from_full,
                             .sequence = options_.sequence,
                             .overlap = options_.overlap,
                             .chunks = options_.chunks};
        if (columns) replace(name, linear->attached.place, column_product(cut.to_full));
        else
          replace(name, linear->attached.place, [row, &group = group_](const nn::Product& p) {
            return row_linear(p.x, p.weight, p.bias, p.activation, row, group, p.arithmetic, p.training);
          });
        if (!columns) check_divides(name, "inputs", linear->weight.size(1));
        else if (cut.blocks.empty()) check_divides(name, "outputs", linear->weight.size(0));
        for (const auto& block : cut.blocks)
          check_divides(name, block.unit,
                        block.count > 0 ? block.count : blocks_of(cut, linear->weight.size(0), quoted(name))[0]);
        shard_weight(cut, name, linear->weight, linear->attached.store.get());
        if (linear->bias.defined()) shard(cut, nn::joined(name, "bias"), linear->bias);
        return;
      }
      case Kind::vocabulary: {
        if (auto* const head = dynamic_cast<nn::Head*>(m)) {
          const int64_t vocab = head->weight.size(0);
          replace(name, head->attached.place, column_product());
          replace(name, head->gather,
                  [vocab, &group = group_](Input scores) { return gather_logits(scores, vocab, group); });
          replace(name, head->entropy, [vocab, &group = group_](Input scores, const Tensor& targets) {
            return vocab_parallel_cross_entropy(scores, targets, vocab, group);
          });
          return shard_weight(cut, name, head->weight, head->attached.store.get());
        }
        auto* const table = as<nn::Embedding>(cut, entry, name, "nn::Embedding and nn::Head");
        LOCKSTEP_CHECK(table->padding_index < 0, "[tensor_parallel] ", quoted(name),
                       ": expected an embedding without a padding row, got ", table->padding_index,
                       "; leave out padding_index");
        replace(name, table->lookup, [vocab = table->weight.size(0), &group = group_](Input w, const Tensor& index) {
          return vocab_parallel_embedding(w, index, vocab, group);
        });
        return shard(cut, nn::joined(name, "weight"), table->weight);
      }
      case Kind::features:
        if (m) m->apply([&](nn::Module& inner) { sharded_.push_back(&inner); });
        return;
      default: return;
    }
  }

  void sequence(nn::Module& m, const std::string& name, bool from_full, bool to_full) {
    if (!options_.sequence) return;
    for (auto& p : m.named_parameters()) {
      if (!summed_.insert(p.variable.impl().get()).second) continue;
      partial_.push_back(nn::joined(name, p.name));
      if (options_.sum)
        changes_.push_back([p = p.variable, &group = group_]() mutable {
          const bool trained = p.requires_grad();
          p.requires_grad_();
          p.on_grad([&group](const Tensor& grad) {
            const Tensor sum = empty_like(grad);
            group.all_reduce(sum, grad.contiguous(), {.tag = "gradient of a part of the sequence"});
            return sum;
          });
          p.requires_grad_(trained);
        });
    }
    changes_.push_back([&m, from_full, to_full, n = n_, &group = group_] {
      m.apply([&](nn::Module& inner) { inner.sharded({.dim = along_sequence, .index = group.rank(), .count = n}); });
      if (!from_full && !to_full) return;
      m.wrap_call([from_full, to_full, &group](const std::vector<Variable>& inputs, const auto& run) {
        std::vector<Variable> in = inputs;
        if (from_full) in.at(0) = scatter_to(in.at(0), along_sequence, group);
        std::vector<Variable> out = run(in);
        if (to_full) out.at(0) = gather_from(out.at(0), along_sequence, group);
        return out;
      });
    });
  }

  const TensorParallelOptions& options_;
  dist::ProcessGroup& group_;
  int n_;
  std::vector<std::pair<std::string, nn::Module*>> modules_;
  std::map<const void*, std::vector<std::string>> owners_;
  std::vector<bool> used_;  // true for the rules that matched something
  bool has_any_ = false;
  std::map<const void*, std::set<std::string>> cut_;  // names under which a parameter is cut
  std::set<const void*> summed_;
  std::vector<std::string> partial_;  // names of the parameters of summed_
  std::vector<nn::Module*> sharded_;
  std::vector<TensorParallel::Shard> shards_;
  std::vector<std::function<void()>> changes_;
};

}  // namespace

TensorParallel apply(nn::Module& module, dist::ProcessGroup& group, const TensorParallelOptions& options) {
  LOCKSTEP_CHECK(options.chunks >= 0, "[tensor_parallel] expected chunks >= 0 (0: automatic), got ", options.chunks);
  std::vector<std::string> lines = parallel::describe_model(module);
  for (const Rule& r : options.rules) lines.push_back(str("rule ", r.pattern, ": ", to_string(r.cut)));
  lines.push_back(str("sequence ", options.sequence, ", overlap ", options.overlap, ", chunks ", options.chunks));
  if (group.size() > 1) parallel::check_agreement("tensor_parallel", lines, group);
  Application application(module, options, group);
  std::set<std::string> empty;  // parameters without values yet, which need no broadcast
  for (auto& p : module.named_parameters())
    if (nn::is_built_empty(p.variable)) empty.insert(p.name);
  if (group.size() > 1)
    parallel::broadcast_module(module, group, 0, [&](const std::string& name) { return empty.count(name) > 0; });
  TensorParallel result;
  result.module_ = &module;
  result.group_ = &group;
  result.shards_ = application.run();
  result.partial_ = application.partial();
  return result;
}

const TensorParallel::Shard* TensorParallel::find(const Variable& parameter) const {
  for (const Shard& s : shards_)
    if (s.parameter.impl() == parameter.impl()) return &s;
  return nullptr;
}

double TensorParallel::grad_norm() const {
  std::vector<Variable> counted;
  for (const Variable& p : module_->parameters())
    if (find(p) || group_->rank() == 0) counted.push_back(p);
  const double mine = optim::grad_norm(counted);
  return std::sqrt(dist::all_reduced<double>({mine * mine}, *group_, {.tag = "norm of gradients"})[0]);
}

double TensorParallel::clip_grad_norm(double max_norm) const {
  return optim::clip_to_norm(module_->parameters(), grad_norm(), max_norm);
}

}  // namespace lockstep::tensor_parallel
