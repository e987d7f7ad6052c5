// Reading and writing of peft adapter folders. See adapter.h.
#include "extensions/lora/adapter.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <set>

#include "base/suggest.h"
#include "data/files.h"
#include "data/safetensors.h"
#include "extensions/hugging_face/config.h"
#include "extensions/hugging_face/names.h"
#include "extensions/hugging_face/pretrained.h"
#include "nn/init.h"

namespace lockstep::nn {

using data::Json;

namespace {

constexpr const char *config_file = "/adapter_config.json", *tensors_file = "/adapter_model.safetensors",
                     *all_names = "base_model.model.", *weight_end = ".weight", *a_end = ".lora_A.weight",
                     *b_end = ".lora_B.weight";

std::string without(const std::string& name, const std::string& end) {
  return name.substr(0, name.size() - end.size());
}
bool fits_any(const std::string& name, const std::vector<std::string>& wanted) {
  return std::ranges::any_of(wanted, [&](const auto& w) { return name == w || name.ends_with("." + w); });
}

/// True if `name` ends with one of `wanted`, even within a word: "head" matches "lm_head". peft matches the names in
/// modules_to_save in this way.
bool ends_as_any(const std::string& name, const std::vector<std::string>& wanted) {
  return std::ranges::any_of(wanted, [&](const std::string& w) { return name.ends_with(w); });
}

/// A Linear of Hugging Face's model, such as q_proj. In the GPT it may be some rows of another Linear (in_proj).
struct TheirLinear {
  std::string target;  ///< the Linear's name for add_lora()
  int64_t in = 0, out = 0;
};

/// All Linears by Hugging Face's names, e.g. "model.layers.0.self_attn.q_proj".
std::map<std::string, TheirLinear> linears_of(GPT& model) {
  std::map<std::string, TheirLinear> all;
  for (const auto& [name, module] : model.named_modules()) {
    const auto* const linear = dynamic_cast<const Linear*>(module);
    if (!linear || name.find(".lora.") != name.npos) continue;
    for (const PretrainedPiece& piece : pretrained_pieces(model.o, name + weight_end)) {
      const std::string theirs = without(piece.name, weight_end);
      const std::string target =
          piece.rows < 0 ? name : name.substr(0, name.rfind('.')) + theirs.substr(theirs.rfind('.'));
      all[theirs] = {target, linear->weight.size(1), piece.rows < 0 ? linear->weight.size(0) : piece.rows};
    }
  }
  return all;
}

std::vector<std::string> words_of(const ConfigReader& c, const char* key) {
  std::vector<std::string> words;
  if (const Json* value = c.find(key))
    for (const Json& word : value->as_array(c.where() + ": " + key)) words.push_back(word.as_string(c.where()));
  return words;
}

bool says_nothing(const Json& value) {
  return value.is_null() || value == Json(false) || value == Json(Json::Object{}) || value == Json(Json::Array{});
}

/// Reads r, alpha, dropout and rslora. Error for options that are not supported.
LoraOptions options_of_adapter(const Json& config, const std::string& path) {
  LOCKSTEP_CHECK(config.is_object(), path, ": expected an object, got ", config.kind(), "; fetch the file again");
  static const std::set<std::string> read = {
      "peft_type",      "task_type",       "r",    "lora_alpha",        "lora_dropout", "use_rslora",
      "target_modules", "modules_to_save", "bias", "init_lora_weights", "rank_pattern", "alpha_pattern"};
  // Keys that do not affect the values: location of the base model, layout of Conv1D, options of unsupported features.
  static const std::set<std::string> beside = {
      "base_model_name_or_path", "revision",      "inference_mode",   "peft_version", "auto_mapping",
      "fan_in_fan_out",          "megatron_core", "qalora_group_size"};
  for (const auto& [key, value] : config.as_object())
    LOCKSTEP_CHECK(read.count(key) || beside.count(key) || says_nothing(value), path, ": ", key, " ", value.dump(),
                   " is not supported; use an adapter that was trained without it (absent, null or false)");
  const ConfigReader c(config, path);
  LOCKSTEP_CHECK(c.word("peft_type", "") == "LORA", path, ": expected peft_type LORA, got '", c.word("peft_type", ""),
                 "'; use an adapter that was trained with LoRA");
  LOCKSTEP_CHECK(c.word("task_type", "CAUSAL_LM") == "CAUSAL_LM", path, ": expected task_type CAUSAL_LM, got '",
                 c.word("task_type", ""), "'; use an adapter of a language model");
  LOCKSTEP_CHECK(c.word("bias", "none") == "none", path, ": bias '", c.word("bias", ""),
                 "' is not supported; use an adapter that was trained with bias 'none'");
  const Json* const start = c.find("init_lora_weights");  // all but true, false and "gaussian" modify base weights
  LOCKSTEP_CHECK(!start || start->is_bool() || *start == Json("gaussian"), path, ": init_lora_weights ",
                 start ? start->dump() : "", " is not supported; train with true, false or \"gaussian\"");
  return {.r = c.integer("r", 8),
          .alpha = c.number("lora_alpha", 8),
          .dropout = c.number("lora_dropout", 0),
          .rslora = c.flag("use_rslora", false)};
}

/// A regular expression of peft, which must fit a whole name. Error for what C++ lacks of Python's expressions.
class NamePattern {
 public:
  NamePattern(const std::string& pattern, const std::string& where) {
    LOCKSTEP_CHECK(pattern.size() <= 1024, where, ": expected a regular expression of at most 1024 characters, got ",
                   pattern.size(), "; use a list of names");
    auto flags = std::regex::ECMAScript;
#ifdef __GLIBCXX__
    flags |= std::regex_constants::__polynomial;  // no expression takes exponential time
#endif
    try {
      expression_.assign(pattern, flags);
    } catch (const std::regex_error&) {
      fail(str(where, ": expected a regular expression that C++ knows too, got '", pattern, "'; use a list of names"));
    }
  }
  bool fits(const std::string& name) const { return std::regex_match(name, expression_); }

 private:
  std::regex expression_;
};

/// The value for a Linear in rank_pattern or alpha_pattern: that of the first expression that fits the end of its name,
/// as in peft.
template <class T, class Read>
std::optional<T> in_pattern(const ConfigReader& c, const char* key, const std::string& name, const Read& read) {
  const Json* const patterns = c.find(key);
  const std::string where = c.where() + ": " + key;
  if (patterns)
    for (const auto& [pattern, value] : patterns->as_object(where))
      if (NamePattern("(.*\\.)?(" + pattern + ")", where).fits(name)) return read(value, where + ": " + pattern);
  return std::nullopt;
}

/// Returns Hugging Face's names of the Linears that the key target_modules of the adapter's config selects.
std::set<std::string> meant_by(const ConfigReader& c, const std::map<std::string, TheirLinear>& linears) {
  const Json* const targets = c.find("target_modules");
  LOCKSTEP_CHECK(targets && (targets->is_array() || targets->is_string()), c.where(),
                 ": target_modules: expected a list of names, a regular expression or \"all-linear\", got ",
                 targets ? targets->dump() : "none", "; correct the file");
  std::set<std::string> meant;
  if (targets->is_string() && *targets != Json("all-linear")) {
    const NamePattern pattern(targets->as_string(), c.where() + ": target_modules");
    for (const auto& [name, linear] : linears)
      if (pattern.fits(name)) meant.insert(name);
    LOCKSTEP_CHECK(!meant.empty(), c.where(), ": target_modules: '", targets->as_string(),
                   "' fits no Linear of this model; use the model that the adapter was trained on");
    return meant;
  }
  const std::vector<std::string> names =
      targets->is_array() ? words_of(c, "target_modules") : std::vector<std::string>();
  for (const auto& [name, linear] : linears)
    if (!targets->is_array() || fits_any(name, names)) meant.insert(name);
  for (const std::string& wanted : names)
    LOCKSTEP_CHECK(std::ranges::any_of(meant, [&](const auto& name) { return fits_any(name, {wanted}); }), c.where(),
                   ": target_modules: '", wanted,
                   "' is not a Linear of this model; use the model that the adapter was trained on");
  return meant;
}

/// A parameter of the base model that an adapter file replaces, and the file's tensors with the new values.
struct TheirParameter {
  Variable parameter;
  std::vector<PretrainedPiece> pieces;
};

/// Returns target_modules of an adapter: the last part of each name in `names`, such as "q_proj", or the full name if
/// the last part would also select a Linear that is not in `names`.
Json shortest(const std::set<std::string>& names, const std::map<std::string, TheirLinear>& linears) {
  std::set<std::string> all;
  for (const std::string& name : names) {
    const std::string last = name.substr(name.rfind('.') + 1);
    const bool unique = std::ranges::all_of(
        linears, [&](const auto& other) { return !fits_any(other.first, {last}) || names.count(other.first) > 0; });
    all.insert(unique ? last : name);
  }
  return Json::Array(all.begin(), all.end());
}

}  // namespace

bool is_adapter(const std::string& folder) { return std::filesystem::exists(folder + config_file); }

std::string adapter_base(const std::string& folder, const std::string& given) {
  if (!given.empty()) {
    LOCKSTEP_CHECK(is_pretrained(given), "expected the folder of a model as the base of ", folder, ", got '", given,
                   "', which has no model.safetensors; check the path");
    return given;
  }
  const std::string path = folder + config_file;
  const Json config = data::read_json(path, data::python_json);
  const std::string base = ConfigReader(config, path).word("base_model_name_or_path", "");
  for (const std::string& at : {base, folder + "/" + base})
    if (!base.empty() && is_pretrained(at)) return at;
  fail(str(path, ": expected base_model_name_or_path to be the folder of a model, got '", base,
           "'; download it, and give its folder (--base-model)"));
}

Lora load_adapter(GPT& model, const std::string& folder) {
  const std::string path = folder + config_file, file_path = folder + tensors_file;
  const Json config = data::read_json(path, data::python_json);
  LoraOptions options = options_of_adapter(config, path);
  const ConfigReader c(config, path);
  const auto linears = linears_of(model);
  const std::set<std::string> meant = meant_by(c, linears);
  LOCKSTEP_CHECK(std::filesystem::exists(file_path), folder, ": expected ", tensors_file + 1,
                 ", there is none; fetch it");
  const auto file = std::make_shared<const data::SafeTensors>(data::SafeTensors::open(file_path));
  std::map<std::string, data::SafeTensorsEntry> left;  // keyed by Hugging Face's names
  for (const auto& entry : file->entries()) {
    LOCKSTEP_CHECK(entry.name.starts_with(all_names) && is_floating(entry.dtype), file_path,
                   ": expected floating tensors whose names begin with ", all_names, ", got ", entry.name, " of ",
                   entry.dtype, "; write the file by peft's save_pretrained()");
    left[entry.name.substr(std::string(all_names).size())] = entry;
  }
  const auto take = [&](const std::string& name, const Shape& shape) {
    const auto found = left.find(name);
    LOCKSTEP_CHECK(found != left.end(), file_path, ": expected a tensor '", all_names, name,
                   "', there is none; use the model that the adapter was trained on");
    LOCKSTEP_CHECK(found->second.shape == shape, file_path, ": expected ", all_names, name, " of shape ", shape,
                   ", got ", found->second.shape, "; use the model that the adapter was trained on");
    left.erase(found);
  };
  std::map<std::string, std::string> theirs;  // Hugging Face's name of each target
  for (const std::string& name : meant) {
    const TheirLinear& linear = linears.at(name);
    const auto rank = in_pattern<int64_t>(c, "rank_pattern", name,
                                          [](const Json& value, const std::string& at) { return value.as_int(at); });
    const auto alpha = in_pattern<double>(c, "alpha_pattern", name,
                                          [](const Json& value, const std::string& at) { return value.as_number(at); });
    const int64_t r = rank.value_or(options.r);
    LOCKSTEP_CHECK(r >= 1 && r <= 1 << 20, path, ": rank_pattern: expected ranks from 1 to 1048576, got ", r, " for ",
                   name, "; correct the file");
    if (rank) options.rank_pattern[linear.target] = r;
    if (alpha) options.alpha_pattern[linear.target] = *alpha;
    take(name + a_end, {r, linear.in});
    take(name + b_end, {linear.out, r});
    options.targets.push_back(linear.target);
    theirs[linear.target] = name;
  }
  const std::vector<std::string> saved = words_of(c, "modules_to_save");
  const auto layer_of = [](const std::vector<PretrainedPiece>& pieces) {
    return pieces[0].name.substr(0, pieces[0].name.rfind('.'));
  };
  std::vector<TheirParameter> full;
  for (const NamedParameter& p : model.named_parameters()) {
    if (p.keeps_dtype) continue;  // codes of a quantised weight
    const auto pieces = pretrained_pieces(model.o, p.name);
    if (!ends_as_any(layer_of(pieces), saved)) continue;
    for (const PretrainedPiece& piece : pieces) {
      Shape shape = p.variable.shape();
      if (piece.rows >= 0) shape[0] = piece.rows;
      if (piece.transposed) std::swap(shape[0], shape[1]);
      take(piece.name, shape);
    }
    full.push_back({p.variable, pieces});
    options.modules_to_save.push_back(p.name.substr(0, p.name.rfind('.')));
  }
  for (const std::string& wanted : saved)
    LOCKSTEP_CHECK(std::ranges::any_of(full, [&](const auto& p) { return layer_of(p.pieces).ends_with(wanted); }), path,
                   ": modules_to_save: '", wanted,
                   "' is not a layer of this model, or is tied; use the model that the adapter was trained on");
  LOCKSTEP_CHECK(left.empty(), file_path, ": unexpected tensors for ", path, " in this ", model.options(), ": ",
                 left.begin()->first, "; name their layers in target_modules or modules_to_save");
  const Lora lora = add_lora(model, options);
  const auto read = [&file](const Variable& parameter, const std::vector<PretrainedPiece>& pieces) {
    start_with(parameter, pieces[0].name + " of a file", [file, pieces] {
      std::vector<Tensor> parts;
      for (const PretrainedPiece& piece : pieces) {
        const Tensor tensor = file->tensor(all_names + piece.name);
        parts.push_back(piece.transposed ? tensor.t() : tensor);
      }
      return parts.size() == 1 ? parts[0] : cat(parts, 0);
    });
  };
  for (const Lora::Adapter& one : lora.adapters()) {
    std::vector<PretrainedPiece> of_a;
    for (const LoraPart& part : one.low_rank->parts) of_a.push_back({theirs.at(part.target) + a_end});
    read(one.low_rank->a.weight, of_a);
    for (size_t i = 0; i < of_a.size(); ++i)
      read(one.low_rank->b[i].weight, {{theirs.at(one.low_rank->parts[i].target) + b_end}});
  }
  for (const TheirParameter& p : full) read(p.parameter, p.pieces);
  data::check_mapped_files();
  return lora;
}

void save_adapter(GPT& model, const Lora& lora, const std::string& folder, const std::string& base) {
  LOCKSTEP_CHECK(!lora.is_merged(), "[save_adapter] expected adapters that are not merged; call unmerge() first");
  for (const NamedParameter& p : model.named_parameters())
    LOCKSTEP_CHECK(!p.variable.requires_grad() || !p.variable.tensor().storage()->is_empty(),
                   "[save_adapter] expected whole parameters, ", p.name,
                   " is sharded or empty; gather it, or save in one process");
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::set<std::string> targets, saved;
  const LoraOptions& o = lora.options();
  Json ranks(Json::Object{}), alphas(Json::Object{});
  const auto linears = linears_of(model);
  for (const Lora::Adapter& one : lora.adapters()) {
    int64_t row = 0;  // of A
    for (size_t i = 0; i < one.low_rank->parts.size(); row += one.low_rank->parts[i++].r) {
      const LoraPart& part = one.low_rank->parts[i];
      const std::string& target = part.target;
      const auto found =
          std::ranges::find_if(linears, [&](const auto& their) { return their.second.target == target; });
      LOCKSTEP_CHECK(
          found != linears.end(), "[save_adapter] ", target, " has no name in Transformers' ",
          is_gpt2(model.o) ? "GPT-2, whose c_attn is not split; use in_proj" : "Llama; use q_proj, k_proj and v_proj");
      const std::string& name = found->first;
      targets.insert(name);
      tensors.emplace_back(all_names + name + a_end,
                           one.low_rank->a.weight.tensor().to(cpu).narrow(0, row, part.r).contiguous());
      if (part.r != o.r) ranks[name] = part.r;
      if (part.alpha != o.alpha) alphas[name] = part.alpha;
      tensors.emplace_back(all_names + name + b_end, one.low_rank->b[i].weight.tensor().to(cpu));
    }
  }
  for (const NamedParameter& p : model.named_parameters()) {
    if (!p.variable.requires_grad() || p.name.find(".lora.") != p.name.npos) continue;
    LOCKSTEP_CHECK(!model.o.tied || p.name != "tokens.weight",
                   "[save_adapter] the table of tokens is tied to the head: peft's modules_to_save would untie them; "
                   "freeze it (requires_grad), or make the model with tied = false");
    for (const PretrainedPiece& piece : pretrained_pieces(model.o, p.name)) {
      Tensor t = p.variable.tensor().to(cpu);
      if (piece.rows >= 0) t = t.narrow(0, piece.row, piece.rows);
      tensors.emplace_back(all_names + piece.name, piece.transposed ? t.t().contiguous() : t.contiguous());
      saved.insert(piece.name.substr(0, piece.name.rfind('.')));
    }
  }
  Json config(Json::Object{});
  config["peft_type"] = "LORA";
  config["task_type"] = "CAUSAL_LM";
  config["base_model_name_or_path"] = base;
  config["r"] = o.r;
  config["lora_alpha"] = o.alpha == double(int64_t(o.alpha)) ? Json(int64_t(o.alpha)) : Json(o.alpha);
  config["rank_pattern"] = ranks, config["alpha_pattern"] = alphas;
  config["lora_dropout"] = o.dropout;
  config["use_rslora"] = o.rslora;
  config["bias"] = "none";
  config["fan_in_fan_out"] = is_gpt2(model.o);
  config["inference_mode"] = true;
  config["target_modules"] = shortest(targets, linears);
  config["modules_to_save"] = saved.empty() ? Json() : Json(Json::Array(saved.begin(), saved.end()));
  std::filesystem::create_directories(folder);
  data::save_safetensors(folder + tensors_file, tensors, {{"format", "pt"}});
  data::write_atomically(folder + config_file, config.dump(2) + "\n");
}

}  // namespace lockstep::nn
