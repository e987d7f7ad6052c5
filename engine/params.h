#pragma once
// Internal to engine/: options of optimizers and schedules as rows, so that one list reads, checks, prints and
// documents them.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/config_table.h"
#include "optim/schedule.h"
#include "tensor/check.h"
#include "tensor/suggest.h"

namespace lockstep::engine {

/// A field's type: from and to JSON. from() gives nothing when it is of another type or out of range.
template <class T> struct ParamType {
  static data::Json to(const T& value) { return data::Json(value); }
  static std::optional<T> from(const data::Json& json, const Range& range) {
    const auto good = coerced(json, data::Json(T{}), range);
    if (!good) return std::nullopt;
    if constexpr (std::is_same_v<T, bool>) return good->as_bool();
    else if constexpr (std::is_same_v<T, int64_t>) return good->as_int();
    else if constexpr (std::is_same_v<T, double>) return good->as_number();
    else return good->as_string();
  }
  static std::string wants(const Range& range) { return expected(data::Json(T{}), range); }
};
template <class T> struct ParamType<std::optional<T>> {
  static data::Json to(const std::optional<T>& value) { return value ? ParamType<T>::to(*value) : data::Json(); }
  static std::optional<std::optional<T>> from(const data::Json& json, const Range& range) {
    if (json.is_null()) return std::optional<T>();
    auto value = ParamType<T>::from(json, range);
    return value ? std::optional(std::optional<T>(std::move(*value))) : std::nullopt;
  }
  static std::string wants(const Range& range) { return ParamType<T>::wants(range) + ", or null"; }
};
template <> struct ParamType<std::vector<int64_t>> {
  static data::Json to(const std::vector<int64_t>& value) {
    return data::Json(data::Json::Array(value.begin(), value.end()));
  }
  static std::optional<std::vector<int64_t>> from(const data::Json& json, const Range& range) {
    if (!json.is_array()) return std::nullopt;
    std::vector<int64_t> all;
    for (const data::Json& item : json.as_array()) {
      const auto value = ParamType<int64_t>::from(item, range);
      if (!value) return std::nullopt;
      all.push_back(*value);
    }
    return all;
  }
  static std::string wants(const Range&) { return "a list of integers"; }
};
template <> struct ParamType<optim::PerGroup> {
  static data::Json to(const optim::PerGroup& value) {
    if (value.count() == 1) return value[0];
    data::Json::Array all;
    for (int g = 0; g < value.count(); ++g) all.push_back(value[g]);
    return all;
  }
  static std::optional<optim::PerGroup> from(const data::Json& json, const Range& range) {
    if (!json.is_array()) {
      const auto one = ParamType<double>::from(json, range);
      return one ? std::optional(optim::PerGroup(*one)) : std::nullopt;
    }
    std::vector<double> all;
    for (const data::Json& item : json.as_array()) {
      const auto value = ParamType<double>::from(item, range);
      if (!value) return std::nullopt;
      all.push_back(*value);
    }
    return all.empty() ? std::nullopt : std::optional(optim::PerGroup(std::move(all)));
  }
  static std::string wants(const Range& range) {
    return ParamType<double>::wants(range) + ", or a list with one for each group";
  }
};
template <> struct ParamType<optim::Warmup> {
  static data::Json to(optim::Warmup value) { return value == optim::Warmup::log ? "log" : "linear"; }
  static std::optional<optim::Warmup> from(const data::Json& json, const Range&) {
    const auto word = coerced(json, "", words({"log", "linear"}));
    return word ? std::optional(optim::parse_warmup(word->as_string())) : std::nullopt;
  }
  static std::string wants(const Range&) { return "log or linear"; }
};

/// One option of O.
template <class O> struct ParamRow {
  std::string name, wants, doc;  ///< doc: why it has no effect
  bool required = false;
  std::function<data::Json(const O&)> get;
  std::function<bool(O&, const data::Json&)> set;
};

/// A field. B is O or a base of it.
template <class O, class B, class T> ParamRow<O> row(const char* name, T B::*field, const Range& range = {}) {
  return {name,
          ParamType<T>::wants(range),
          "",
          false,
          [=](const O& o) { return ParamType<T>::to(o.*field); },
          [=](O& o, const data::Json& json) {
            auto value = ParamType<T>::from(json, range);
            if (value) o.*field = std::move(*value);
            return value.has_value();
          }};
}
template <class O, class B, class T> ParamRow<O> required(const char* name, T B::*field, const Range& range = {}) {
  ParamRow<O> made = row<O>(name, field, range);
  made.required = true;
  return made;
}
/// Two fields that the file writes as a list.
template <class O, class B> ParamRow<O> pair_of(const char* name, double B::*first, double B::*second) {
  return {name,
          "a list of two numbers",
          "",
          false,
          [=](const O& o) {
            return data::Json(data::Json::Array{o.*first, o.*second});
          },
          [=](O& o, const data::Json& json) {
            if (!json.is_array() || json.as_array().size() != 2 || !json.as_array()[0].is_number() ||
                !json.as_array()[1].is_number())
              return false;
            o.*first = json.as_array()[0].as_number();
            o.*second = json.as_array()[1].as_number();
            return true;
          }};
}
/// Accepted, and has no effect.
template <class O> ParamRow<O> without_effect(const char* name, data::Json fallback, const char* why) {
  return {name,
          expected(fallback, {}),
          why,
          false,
          [=](const O&) { return fallback; },
          [=](O&, const data::Json& json) { return coerced(json, fallback, {}).has_value(); }};
}
/// Accepted at its default only.
template <class O> ParamRow<O> fixed(const char* name, data::Json only, const char* why) {
  return {name,
          shown(only) + ", as " + why,
          "",
          false,
          [=](const O&) { return only; },
          [=](O&, const data::Json& json) {
            const auto good = coerced(json, only, {});
            return good && *good == only;
          }};
}

/// Reads `params` into `options`; what is wrong goes to problems, as "optimizer.params.lr: ...".
template <class O>
std::vector<ParamInfo> read_params(const std::string& where, const std::string& type,
                                   const std::vector<ParamRow<O>>& rows, const data::Json& params, O& options,
                                   std::vector<std::string>& problems, std::vector<std::string>& warnings) {
  for (const auto& [name, value] : params.as_object()) {
    const auto found =
        std::find_if(rows.begin(), rows.end(), [&, &n = name](const ParamRow<O>& r) { return r.name == n; });
    if (found == rows.end()) {
      std::vector<std::string> known;
      for (const ParamRow<O>& r : rows) known.push_back(r.name);
      problems.push_back(
          str(where, ".", name, ": ", type, " has no such option",
              name == "max_grad_norm" ? "; write gradient_clipping at the top level" : suggestion(name, known)));
      continue;
    }
    const data::Json fallback = found->get(options);
    if (!found->set(options, value)) {
      const bool automatic = value.is_string() && value.as_string() == "auto";
      problems.push_back(str(where, ".", name, ": expected ", found->wants, ", got ", shown(value),
                             !automatic ? "" : ", which Hugging Face's Trainer fills in; write the value",
                             automatic && !found->required && !fallback.is_null()
                                 ? ", such as " + shown(fallback) + " (the default)"
                                 : ""));
    } else if (!found->doc.empty() && value != fallback) {
      warnings.push_back(str(where, ".", name, ": accepted, and has no effect: ", found->doc));
    }
  }
  std::vector<ParamInfo> all;
  for (const ParamRow<O>& r : rows) {
    const data::Json* given = params.find(r.name);
    if (r.required && !given)
      problems.push_back(str(where, ".", r.name, ": expected ", r.wants, ", as ", type, " needs it; got none"));
    all.push_back({r.name,
                   r.required && !given      ? data::Json("required")
                   : given && !r.doc.empty() ? *given
                                             : r.get(options),
                   given != nullptr, r.doc});
  }
  return all;
}

/// The entry of `list` with that name, whatever its case; null when there is none, or no name.
template <class Entry> const Entry* find_type(const std::vector<Entry>& list, const std::string& name) {
  const auto same = [&](const Entry& entry) {
    return std::equal(entry.name.begin(), entry.name.end(), name.begin(), name.end(),
                      [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
  };
  const auto found = std::find_if(list.begin(), list.end(), same);
  return found == list.end() ? nullptr : &*found;
}
template <class Entry>
std::string unknown_type(const std::vector<Entry>& list, const std::string& where, const std::string& name) {
  std::vector<std::string> known;
  std::string all;
  for (const Entry& entry : list) {
    known.push_back(entry.name);
    all += (all.empty() ? "" : ", ") + entry.name;
  }
  return str(where, ": expected one of ", all, ", got ", shown(data::Json(name)), suggestion(name, known));
}

// The two halves of check_params() and types_of().
std::vector<TypeInfo> optimizer_types();
std::vector<TypeInfo> schedule_types();
std::vector<ParamInfo> check_optimizer(const NamedConfig& config, std::vector<std::string>& problems,
                                       std::vector<std::string>& warnings);
std::vector<ParamInfo> check_schedule(const NamedConfig& config, std::vector<std::string>& problems,
                                      std::vector<std::string>& warnings);

}  // namespace lockstep::engine
