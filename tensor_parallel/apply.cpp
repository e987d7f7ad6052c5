#include "tensor_parallel/apply.h"

#include <algorithm>
#include <map>
#include <set>

#include "autograd/tape.h"
#include "parallel/agreement.h"
#include "parallel/naive_ddp.h"
#include "tensor/memory.h"
#include "tensor/suggest.h"
#include "tensor_parallel/linear.h"
#include "tensor_parallel/vocabulary.h"

namespace lockstep::tensor_parallel {
namespace {

bool glob(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*') return !name.empty() && pattern[0] == name[0] && glob(pattern.substr(1), name.substr(1));
  for (size_t i = 0; i <= name.size(); ++i) if (glob(pattern.substr(1), name.substr(i))) return true;
  return false;
}

/// The name, or the last parts of it; "*.x" also fits x itself.
bool fits(const std::string& pattern, const std::string& name) {
  if (glob(pattern, name) || glob(pattern, "." + name)) return true;
  if (pattern.empty()) return false;
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) if (glob(pattern, std::string_view(name).substr(dot + 1))) return true;
  return false;
}

std::string below(const std::string& module, const std::string& name) { return module.empty() ? name : module + "." + name; }
std::string quoted(const std::string& module) { return module.empty() ? "the module itself" : "\"" + module + "\""; }

/// A logits tensor's whole from everybody's, which need not be of one size.
Variable gather_logits(const Variable& x, int64_t vocab, dist::ProcessGroup& group) {
  Cut cut{.whole = x.shape(), .dim = x.dim() - 1};
  cut.whole[x.dim() - 1] = vocab;
  Tensor out = joined(x.tensor(), cut, group);
  if (!needs_grad({&x})) return out;
  return record("gather_logits", {&x}, std::move(out), [cut, &group](Backward& back) { back.give(0, slice_of(back.grad(), cut, group.size(), group.rank())); });
}

/// What is to be done, found and checked before anything is.
class Application {
 public:
  Application(nn::Module& module, const Plan& plan, dist::ProcessGroup& group) : plan_(plan), group_(group), n_(group.size()), modules_(module.named_modules()) {
    for (auto& [name, m] : modules_) {
      nn::Fields fields;
      m->fields(fields);
      for (auto& entry : fields.entries) if (entry.parameter && entry.parameter->defined()) owners_[entry.parameter->impl().get()].push_back(below(name, entry.name));
    }
    std::vector<bool> used(plan.rules.size());
    const auto rule_for = [&](const std::string& name) {
      const Rule* first = nullptr;
      for (size_t i = 0; i < plan.rules.size(); ++i) {
        if (!fits(plan.rules[i].pattern, name)) continue;
        used[i] = true;
        if (!first) first = &plan.rules[i];
      }
      return first;
    };
    for (auto& [name, m] : modules_) if (const Rule* rule = rule_for(name)) add(*rule, name, *m);
    for (auto& [name, m] : modules_) {
      auto* const gpt = dynamic_cast<nn::GPT*>(m);
      if (!gpt) continue;
      const std::string table = gpt->head.defined() ? "head" : "tokens";
      const Rule* const rule = rule_for(below(name, table));
      if (rule && rule->style == Style::vocabulary) add_head(*gpt, gpt->head.defined() ? below(name, "head") : "");
    }
    for (size_t i = 0; i < used.size(); ++i) {
      const Rule& r = plan.rules[i];
      LOCKSTEP_CHECK(used[i], "[tensor_parallel] pattern \"", r.pattern, "\" (", to_string(r.style), ") fits no module", hint(r.pattern));
    }
    for (const auto& s : slices_) {
      LOCKSTEP_CHECK(!summed_.count(s.parameter.impl().get()), "[tensor_parallel] ", s.name, " is cut, and belongs to a module that sees a part of the sequence; ",
                     "give the modules in there rules of their own");
    }
  }

  std::vector<TensorParallel::Slice> run() {
    for (auto& s : slices_) {
      const MemoryScope scope(Memory::parameter);
      if (n_ > 1) s.parameter.set_tensor(slice_of(s.parameter.tensor(), s.cut, n_, group_.rank()));
    }
    if (n_ > 1) for (auto& change : changes_) change();
    return std::move(slices_);
  }

 private:
  std::string hint(const std::string& pattern) const {
    if (modules_.size() == 1) return "; there are no modules below this one";
    constexpr size_t most = 12;
    std::vector<std::string> known;  // as many last parts of names as the pattern has
    std::string list;
    for (size_t i = 1; i < modules_.size(); ++i) {
      const std::string& name = modules_[i].first;
      size_t at = name.size();
      for (auto parts = std::count(pattern.begin(), pattern.end(), '.') + 1; parts > 0 && at != std::string::npos; --parts) at = at == 0 ? std::string::npos : name.rfind('.', at - 1);
      known.push_back(at == std::string::npos ? name : name.substr(at + 1));
      if (i <= most) list += (i > 1 ? ", " : "") + name;
    }
    return suggestion(pattern, known) + "; its modules are " + list + (known.size() > most ? str(" and ", known.size() - most, " more") : "");
  }

  [[noreturn]] void no_such_form(const Rule& rule, const std::string& name, const nn::Module& m, const char* expected) const {
    fail(str("[tensor_parallel] ", to_string(rule.style), " is for ", expected, ", but ", quoted(name), " (pattern \"", rule.pattern, "\") is a ", m.kind()));
  }

  void cut(const std::string& name, const Variable& parameter, int64_t dim, std::vector<int64_t> blocks = {}) {
    const auto& owners = owners_.at(parameter.impl().get());
    LOCKSTEP_CHECK(owners.size() == 1, "[tensor_parallel] ", owners[0], " is also ", owners.back(), ": a shared parameter cannot be cut");
    LOCKSTEP_CHECK(!parameter.tensor().storage()->is_empty(), "[tensor_parallel] expected whole parameters, but ", name,
                   " is in ZeRO's parts; cut the model before ZeRO does");
    LOCKSTEP_CHECK(cut_.insert(parameter.impl().get()).second, "[tensor_parallel] ", name, " would be cut twice; leave one of the rules out");
    slices_.push_back({name, parameter, {.whole = parameter.shape(), .dim = dim, .blocks = std::move(blocks)}});
  }

  void check_divides(const std::string& name, const char* what, int64_t size) const {
    LOCKSTEP_CHECK(size % n_ == 0, "[tensor_parallel] ", quoted(name), ": expected ", what, " that the ", n_, " ranks of group ", group_.name(),
                   " divide, got ", size);
  }

  void column(const std::string& name, nn::Linear& m, const ColumnOptions& options, std::vector<int64_t> blocks) {
    LOCKSTEP_CHECK(!m.product, "[tensor_parallel] ", quoted(name), " is cut already");
    for (const int64_t size : blocks) check_divides(name, blocks.size() > 1 ? "parts of the outputs" : "outputs", size);
    cut(below(name, "weight"), m.weight, 0, blocks);
    if (m.bias.defined()) cut(below(name, "bias"), m.bias, 0, blocks);
    changes_.push_back([&m, options, &group = group_] {
      m.product = [options, &group](const Variable& x, const Variable& w, const Variable& b, Activation activation) {
        return column_linear(x, w, b, activation, options, group);
      };
    });
  }

  void row(const std::string& name, nn::Linear& m, const RowOptions& options) {
    LOCKSTEP_CHECK(!m.product, "[tensor_parallel] ", quoted(name), " is cut already");
    check_divides(name, "inputs", m.weight.size(1));
    cut(below(name, "weight"), m.weight, 1);
    changes_.push_back([&m, options, &group = group_] {
      m.product = [options, &group](const Variable& x, const Variable& w, const Variable& b, Activation activation) {
        return row_linear(x, w, b, activation, options, group);
      };
    });
  }

  void heads(const std::string& name, nn::MultiHeadAttention& m) {
    LOCKSTEP_CHECK(m.o.all_heads == 0, "[tensor_parallel] ", quoted(name), " is cut already");
    check_divides(name, "heads", m.o.heads);
    check_divides(name, "kv_heads", m.o.kv_heads);
    const int64_t d = m.o.head_size;
    const ColumnOptions options{.sequence = plan_.sequence, .overlap = plan_.overlap};
    column(below(name, "in_proj"), m.in_proj, options, {m.o.heads * d, m.o.kv_heads * d, m.o.kv_heads * d});
    row(below(name, "out_proj"), m.out_proj, {.sequence = plan_.sequence});
    changes_.push_back([&m, n = n_, rank = group_.rank()] {
      m.o.all_heads = m.o.heads;
      m.o.heads /= n;
      m.o.kv_heads /= n;
      m.o.first_head = rank * m.o.heads;
    });
  }

  void sequence(nn::Module& m, bool enters, bool leaves) {
    for (auto& p : m.named_parameters()) {
      if (!summed_.insert(p.variable.impl().get()).second) continue;
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
    changes_.push_back([&m, enters, leaves, n = n_, &group = group_] {
      m.apply([&](nn::Module& inner) {
        if (auto* dropout = dynamic_cast<nn::Dropout*>(&inner)) dropout->part = {.dim = along_sequence, .index = group.rank(), .count = n};
      });
      if (!enters && !leaves) return;
      m.wrap_call([enters, leaves, &group](const std::vector<Variable>& inputs, const auto& run) {
        std::vector<Variable> in = inputs;
        if (enters) in.at(0) = scatter_to(in.at(0), along_sequence, group);
        const Variable out = run(in);
        return leaves ? gather_from(out, along_sequence, group) : out;
      });
    });
  }

  void add(const Rule& rule, const std::string& name, nn::Module& m) {
    const std::string style = to_string(rule.style);
    LOCKSTEP_CHECK(!rule.whole || rule.style == Style::column || rule.style == Style::row, "[tensor_parallel] pattern \"", rule.pattern,
                   "\": whole is for column and row, got ", style);
    LOCKSTEP_CHECK(rule.parts >= 1 && (rule.parts == 1 || rule.style == Style::column), "[tensor_parallel] pattern \"", rule.pattern,
                   "\": expected parts of at least 1, and of a column, got ", rule.parts, " of ", style);
    switch (rule.style) {
      case Style::column: {
        auto* const linear = dynamic_cast<nn::Linear*>(&m);
        if (!linear) no_such_form(rule, name, m, "nn::Linear");
        const int64_t out = linear->weight.size(0);
        LOCKSTEP_CHECK(out % rule.parts == 0, "[tensor_parallel] ", quoted(name), ": expected outputs that ", rule.parts, " parts divide, got ", out);
        const ColumnOptions options{.gather_output = rule.whole, .sequence = plan_.sequence, .overlap = plan_.overlap};
        return column(name, *linear, options, std::vector<int64_t>(size_t(rule.parts), out / rule.parts));
      }
      case Style::row: {
        auto* const linear = dynamic_cast<nn::Linear*>(&m);
        if (!linear) no_such_form(rule, name, m, "nn::Linear");
        return row(name, *linear, {.input_is_parallel = !rule.whole, .sequence = plan_.sequence});
      }
      case Style::vocabulary: {
        auto* const table = dynamic_cast<nn::Embedding*>(&m);
        if (!table) no_such_form(rule, name, m, "nn::Embedding and the head of nn::GPT");
        LOCKSTEP_CHECK(table->padding_index < 0, "[tensor_parallel] ", quoted(name), ": expected an embedding without a padding row, got ",
                       table->padding_index);
        LOCKSTEP_CHECK(!table->lookup, "[tensor_parallel] ", quoted(name), " is cut already");
        cut(below(name, "weight"), table->weight, 0);
        changes_.push_back([table, vocab = table->weight.size(0), &group = group_] {
          table->lookup = [vocab, &group](const Variable& w, const Tensor& index) { return vocab_parallel_embedding(w, index, vocab, group); };
        });
        return;
      }
      case Style::heads: {
        auto* const attention = dynamic_cast<nn::MultiHeadAttention*>(&m);
        if (!attention) no_such_form(rule, name, m, "nn::MultiHeadAttention");
        return heads(name, *attention);
      }
      case Style::features: {
        auto* const dropout = dynamic_cast<nn::Dropout*>(&m);
        if (!dropout) no_such_form(rule, name, m, "nn::Dropout");
        changes_.push_back([dropout, n = n_, rank = group_.rank()] { dropout->part = {.dim = -1, .index = rank, .count = n}; });
        return;
      }
      case Style::sequence: return sequence(m, false, false);
      case Style::enter_sequence: return sequence(m, true, false);
      case Style::leave_sequence: return sequence(m, false, true);
    }
  }

  /// `head`: the name of a table of its own, or "".
  void add_head(nn::GPT& m, const std::string& head) {
    if (!head.empty()) cut(head, m.head, 0);
    const ColumnOptions options{.sequence = plan_.sequence, .overlap = plan_.overlap};
    changes_.push_back([&m, options, vocab = m.o.vocab, &group = group_] {
      m.head_product = [options, vocab, &group](const Variable& x, const Variable& w) {
        return gather_logits(column_linear(x, w, {}, Activation::none, options, group), vocab, group);
      };
      m.head_loss = [options, vocab, &group](const Variable& x, const Variable& w, const Tensor& targets) {
        return vocab_parallel_cross_entropy(column_linear(x, w, {}, Activation::none, options, group), targets, vocab, group);
      };
    });
  }

  const Plan& plan_;
  dist::ProcessGroup& group_;
  int n_;
  std::vector<std::pair<std::string, nn::Module*>> modules_;
  std::map<const void*, std::vector<std::string>> owners_;
  std::set<const void*> cut_;
  std::set<const void*> summed_;
  std::vector<TensorParallel::Slice> slices_;
  std::vector<std::function<void()>> changes_;
};

}  // namespace

const char* to_string(Style style) {
  constexpr const char* names[] = {"column", "row", "vocabulary", "heads", "features", "sequence", "enter_sequence", "leave_sequence"};
  return names[int(style)];
}

Plan block_plan(bool sequence_parallel) {
  Plan plan{.rules = {{"attention", Style::heads}, {"mlp.up", Style::column}, {"mlp.down", Style::row}}, .sequence = sequence_parallel};
  if (sequence_parallel) for (const char* name : {"norm1", "norm2", "dropout"}) plan.rules.push_back({name, Style::sequence});
  return plan;
}

Plan gpt_plan(nn::GPT& model, bool sequence_parallel) {
  Plan plan = block_plan(sequence_parallel);
  // Experts in place of an MLP stay whole: all slices compute them alike.
  const auto sliced = [&model](const Rule& rule) {
    return !rule.pattern.starts_with("mlp.") || std::any_of(model.blocks.items.begin(), model.blocks.items.end(), [](const auto& block) { return !block->feed_forward; });
  };
  std::erase_if(plan.rules, [&](const Rule& rule) { return !sliced(rule); });
  for (Rule& rule : plan.rules) rule.pattern = "blocks.*." + rule.pattern;
  plan.rules.push_back({"tokens", Style::vocabulary});
  if (model.head.defined()) plan.rules.push_back({"head", Style::vocabulary});
  if (sequence_parallel) plan.rules.insert(plan.rules.end(), {{"dropout", Style::enter_sequence}, {"norm", Style::sequence}});
  return plan;
}

TensorParallel apply(nn::Module& module, const Plan& plan, dist::ProcessGroup& group) {
  std::vector<std::string> lines = parallel::describe_model(module);
  for (const Rule& r : plan.rules) {
    lines.push_back(str("rule ", r.pattern, ": ", to_string(r.style), r.whole ? " whole" : "", r.parts > 1 ? str(", parts ", r.parts) : ""));
  }
  lines.push_back(str("sequence ", plan.sequence, ", overlap ", plan.overlap));
  if (group.size() > 1) parallel::check_agreement("tensor_parallel", lines, group);
  Application application(module, plan, group);
  if (group.size() > 1) parallel::broadcast_module(module, group);
  TensorParallel result;
  result.module_ = &module;
  result.group_ = &group;
  result.slices_ = application.run();
  return result;
}

}  // namespace lockstep::tensor_parallel
