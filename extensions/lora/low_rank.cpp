// LoRA adapters: selection of Linears, forward, merging. See lora.h.
#include "extensions/lora/low_rank.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "base/suggest.h"
#include "nn/attention.h"
#include "nn/init.h"
#include "nn/named_fields.h"

namespace lockstep::nn {

namespace {

Linear matrix_of(int64_t in, int64_t out) { return Linear({.in = in, .out = out, .bias = false}); }

bool is_meant(const std::string& name, const std::string& target) {
  return name == target || name.ends_with("." + target);
}

/// A Linear of the model, which LoraOptions::targets may select as a whole by its name, or in parts (the q_proj within
/// an in_proj).
struct LoraPlace {
  std::string name;
  Linear* linear;
  Cut cut;
  std::vector<LoraPart> parts;  ///< the q_proj, k_proj and v_proj of an in_proj; else empty
  bool rotary = false;
  std::vector<LoraPart> chosen = {};  ///< the parts that get adapters
};

void find_places(Module& module, const std::string& prefix, std::vector<LoraPlace>& places,
                 std::set<const Module*>& visited) {
  auto* const attention = dynamic_cast<AttentionHeads*>(&module);
  Fields fields;
  module.fields(fields);
  for (const Fields::Entry& entry : fields.entries) {
    if (!entry.module) continue;
    const std::string name = joined(prefix, entry.name);
    auto* const linear = dynamic_cast<Linear*>(entry.module);
    if (!linear) find_places(*entry.module, name, places, visited);
    if (!linear || !visited.insert(linear).second) continue;
    LoraPlace place{name, linear, entry.cut, {}};
    if (attention && linear == &attention->in_proj) {
      const auto& o = attention->o;
      const int64_t q = o.heads * o.head_size, k = o.kv_heads * o.head_size;
      place.parts = {
          {joined(prefix, "q_proj"), 0, q}, {joined(prefix, "k_proj"), q, k}, {joined(prefix, "v_proj"), q + k, k}};
      place.rotary = o.rope != nullptr;
    }
    places.push_back(std::move(place));
  }
}

/// Returns the parts of a Linear (such as the q_proj in in_proj) that o.targets selects for adapters, ordered by row.
std::vector<LoraPart> meant_parts(const LoraPlace& place, const LoraOptions& o, std::set<std::string>& used) {
  const auto wanted = [&](const std::string& name, bool by_default) {
    if (o.targets.empty()) return by_default;
    const auto is_named = [&](const std::string& target) { return is_meant(name, target); };
    std::ranges::copy_if(o.targets, std::inserter(used, used.end()), is_named);
    return std::ranges::any_of(o.targets, is_named);
  };
  const bool of_attention = !place.parts.empty();
  std::vector<LoraPart> parts;
  for (const LoraPart& part : place.parts)
    if (wanted(part.target, place.rotary && !part.target.ends_with("k_proj"))) parts.push_back(part);
  if (!wanted(place.name, of_attention && !place.rotary)) return parts;
  LOCKSTEP_CHECK(parts.empty(), "[add_lora] expected ", place.name, " or parts of it as targets, got it and ",
                 parts[0].target, "; leave one of them out");
  return {{place.name, 0, place.linear->weight.size(0)}};
}

/// The value of the longest name in a pattern that is meant by `target`; nullopt if there is none.
template <class T>
std::optional<T> value_for(const std::map<std::string, T>& pattern, const std::string& target,
                           std::set<std::string>& used) {
  const std::pair<const std::string, T>* best = nullptr;
  for (const auto& one : pattern) {
    if (!is_meant(target, one.first)) continue;
    used.insert(one.first);
    if (!best || one.first.size() > best->first.size()) best = &one;
  }
  return best ? std::optional(best->second) : std::nullopt;
}

/// Sets rank and alpha of the chosen parts by rank_pattern and alpha_pattern.
void apply_patterns(std::vector<LoraPlace>& places, const LoraOptions& o) {
  std::set<std::string> used;
  for (LoraPlace& place : places)
    for (LoraPart& part : place.chosen) {
      part.r = value_for(o.rank_pattern, part.target, used).value_or(o.r);
      part.alpha = value_for(o.alpha_pattern, part.target, used).value_or(o.alpha);
      LOCKSTEP_CHECK(part.r >= 1 && part.r <= 1 << 20, "[add_lora] ", part.target,
                     ": expected a rank in [1, 1048576], got ", part.r);
      LOCKSTEP_CHECK(std::isfinite(part.alpha) && part.alpha > 0, "[add_lora] ", part.target,
                     ": expected a finite alpha > 0, got ", part.alpha);
    }
  const auto check = [&](const char* option, const auto& pattern) {
    for (const auto& [name, value] : pattern)
      LOCKSTEP_CHECK(used.count(name), "[add_lora] ", option, ": expected names of targets, got '", name,
                     "'; name it in targets too, or leave it out");
  };
  check("rank_pattern", o.rank_pattern);
  check("alpha_pattern", o.alpha_pattern);
}

/// Sets what a LowRank's parts leave to the options, and their scales.
std::vector<LoraPart> completed(std::vector<LoraPart> parts, const LoraOptions& o) {
  for (LoraPart& part : parts) {
    if (part.r == 0) part.r = o.r;
    if (part.alpha == 0) part.alpha = o.alpha;
    part.scale = part.alpha / (o.rslora ? std::sqrt(double(part.r)) : double(part.r));
  }
  return parts;
}

int64_t total_rank(const std::vector<LoraPart>& parts) {
  int64_t all = 0;
  for (const LoraPart& part : parts) all += part.r;
  return all;
}

/// True if all parts have one scale.
bool has_one_scale(const std::vector<LoraPart>& parts) {
  return std::ranges::all_of(parts, [&](const LoraPart& part) { return part.scale == parts[0].scale; });
}

void attach(const Lora::Adapter& adapter) {
  adapter.linear->attached.addition = adapter.low_rank;
  adapter.linear->attached.addition_name = "lora";
}

}  // namespace

LowRank::LowRank(const LoraOptions& o, int64_t in, int64_t outputs, std::vector<LoraPart> of, const Cut& cut_of)
    : out(outputs),
      parts(completed(std::move(of), o)),
      cut(cut_of),
      dropout({.p = o.dropout}),
      a(matrix_of(in, total_rank(parts))) {
  for (const LoraPart& part : parts) init::zeros(b.emplace_back(matrix_of(part.r, part.rows)).weight);
}

void LowRank::fields(Fields& f) {
  const bool columns = cut.kind == Cut::Kind::columns, rows = cut.kind == Cut::Kind::rows;
  const Cut beside = columns ? cut::tokens : Cut{};
  f("dropout", dropout, rows && !cut.from_full ? cut::features : beside)("A", a, rows ? cut : beside);
  for (size_t i = 0; i < b.size(); ++i) {
    const std::string& target = parts[i].target;
    Cut own = columns ? cut : rows ? cut::tokens : Cut{};
    if (b.size() > 1 || parts[i].rows < out) own.blocks.clear();  // divided by whole heads, like the rows of the Linear
    f(parts[i].rows == out ? "B" : str("B_", target.substr(target.rfind('.') + 1)), b[i], own);
  }
}

void LowRank::sharded(const PartOf& of) {
  if (of.dim != -1 || cut.kind != Cut::Kind::columns || cut.to_full) return;
  out /= of.count;
  for (LoraPart& part : parts) part.row /= of.count, part.rows /= of.count;
}

std::string LowRank::options() const {
  const bool same = std::ranges::all_of(parts, [&](const LoraPart& part) { return part.r == parts[0].r; });
  return str("r ", same ? parts[0].r : total_rank(parts), same ? "" : " in all", ", ",
             parts.size() > 1 ? str(parts.size(), " parts, ") : "",
             has_one_scale(parts) ? str("scale ", parts[0].scale) : "several scales");
}

Variable LowRank::forward(const Variable& x) {
  LOCKSTEP_CHECK(x.size(-1) == a.weight.size(1), "[lora] expected x (..., ", a.weight.size(1), "), got ", x.shape(),
                 "; was the layer sharded by a rule other than the model's own cut? use that, or reshape x");
  const bool scales_together = has_one_scale(parts);
  const Variable hidden = scales_together ? mul_scalar(a(dropout(x)), parts[0].scale) : a(dropout(x));
  if (parts.size() == 1 && parts[0].rows == out) return b[0](hidden);
  std::vector<Variable> made, all;
  int64_t first = 0;  // column of `hidden`
  for (size_t i = 0; i < parts.size(); first += parts[i++].r) {
    const Variable own = hidden.narrow(-1, first, parts[i].r);
    made.push_back(b[i](scales_together ? own : mul_scalar(own, parts[i].scale)));
  }
  int64_t row = 0;
  const auto skip_to = [&](int64_t next) {
    if (next == row) return;
    Shape gap = made[0].shape();
    gap[gap.rank() - 1] = next - row;
    all.emplace_back(zeros(gap, {.dtype = made[0].dtype(), .device = made[0].device()}));
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    skip_to(parts[i].row);
    all.push_back(made[i]);
    row = parts[i].row + parts[i].rows;
  }
  skip_to(out);
  return cat(all, -1);
}

Lora add_lora(Module& model, const LoraOptions& o) {
  LOCKSTEP_CHECK(o.r >= 1 && o.r <= 1 << 20, "[add_lora] expected r in [1, 1048576], got ", o.r);
  LOCKSTEP_CHECK(std::isfinite(o.alpha) && o.alpha > 0, "[add_lora] expected a finite alpha > 0, got ", o.alpha);
  LOCKSTEP_CHECK(o.dropout >= 0 && o.dropout < 1, "[add_lora] expected dropout from 0 to below 1, got ", o.dropout);
  std::vector<LoraPlace> places;
  std::set<const Module*> visited;
  find_places(model, "", places, visited);
  std::set<std::string> used;
  std::vector<std::string> known;
  const auto last_of = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  for (LoraPlace& place : places) {
    known.push_back(last_of(place.name));
    for (const LoraPart& part : place.parts) known.push_back(last_of(part.target));
    place.chosen = meant_parts(place, o, used);
    LOCKSTEP_CHECK(place.chosen.empty() || !place.linear->attached.addition, "[add_lora] ", place.name,
                   " has an adapter already; merge() that one first");
    LOCKSTEP_CHECK(place.chosen.empty() || !place.linear->attached.place, "[add_lora] ", place.name,
                   " is sharded already; add adapters before tensor parallelism");
  }
  for (const std::string& target : o.targets)
    LOCKSTEP_CHECK(used.count(target), "[add_lora] expected targets that are Linears of this ", model.kind(), ", got '",
                   target, "'", suggestion(target, known));
  std::erase_if(places, [](const LoraPlace& place) { return place.chosen.empty(); });
  apply_patterns(places, o);
  LOCKSTEP_CHECK(!places.empty(),
                 "[add_lora] expected targets for a model without attention; name some of its Linears");
  std::vector<Module*> saved;
  for (const std::string& wanted : o.modules_to_save) {
    const size_t before = saved.size();
    for (const auto& [name, module] : model.named_modules())
      if (!name.empty() && is_meant(name, wanted)) saved.push_back(module);
    LOCKSTEP_CHECK(saved.size() > before, "[add_lora] expected modules_to_save that are in this ", model.kind(),
                   ", got '", wanted, "'; named_modules() lists the names");
  }
  Lora lora;
  lora.options_ = o;
  for (LoraPlace& place : places) {
    const Variable& weight = place.linear->weight;
    auto low_rank = std::make_shared<LowRank>(o, weight.size(1), weight.size(0), std::move(place.chosen), place.cut);
    if (weight.dtype() != f32) low_rank->to(weight.dtype());
    if (weight.device() != cpu) low_rank->to(weight.device());
    low_rank->train(place.linear->is_training());
    lora.adapters_.push_back({place.name, place.linear, std::move(low_rank)});
  }
  model.requires_grad_(false);
  for (const Lora::Adapter& adapter : lora.adapters_) attach(adapter);
  for (Module* const module : saved) module->requires_grad_(true);
  return lora;
}

void Lora::add_to_weights(double times) {
  const NoGrad no_grad;
  for (const Adapter& one : adapters_) {
    LOCKSTEP_CHECK(!one.linear->attached.store, "[Lora] ", one.name,
                   ": expected a floating weight to merge into, this one is quantised; merge into the model that was "
                   "quantised");
    std::vector<Variable> all = one.low_rank->parameters();
    all.push_back(one.linear->weight);
    for (const Variable& p : all)
      LOCKSTEP_CHECK(!p.tensor().storage()->is_empty() && !one.linear->attached.place, "[Lora] ", one.name,
                     ": expected whole parameters to merge, these are empty or sharded; merge in one process");
  }
  for (const Adapter& one : adapters_) {
    const LowRank& low = *one.low_rank;
    int64_t first = 0;  // row of A
    for (size_t i = 0; i < low.parts.size(); first += low.parts[i++].r) {
      const Tensor a = low.a.weight.tensor().narrow(0, first, low.parts[i].r), b = low.b[i].weight.tensor();
      const DType dtype = a.dtype() == f64 ? f64 : f32;
      const Tensor rows = one.linear->weight.tensor().narrow(0, low.parts[i].row, low.parts[i].rows);
      rows.copy_(add(rows.to(dtype), mul_scalar(matmul(b.to(dtype), a.to(dtype)), times * low.parts[i].scale)));
    }
  }
}

void Lora::merge() {
  LOCKSTEP_CHECK(!merged_, "[Lora] expected adapters that are not merged yet, these are; call unmerge() first");
  add_to_weights(1);
  for (const Adapter& one : adapters_) one.linear->attached.addition = nullptr;
  merged_ = true;
}

void Lora::unmerge() {
  LOCKSTEP_CHECK(merged_, "[Lora] expected adapters that are merged, these are not; call merge() first");
  for (const Adapter& one : adapters_) {  // the model may have changed device or dtype since merge()
    const Variable& weight = one.linear->weight;
    one.low_rank->to(weight.dtype()).to(weight.device()).train(one.linear->is_training());
  }
  add_to_weights(-1);
  for (const Adapter& one : adapters_) attach(one);
  merged_ = false;
}

}  // namespace lockstep::nn
