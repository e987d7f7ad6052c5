// Reads, checks and lists the options of optimizers and schedules. See params.h.
#include "engine/params.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/suggest.h"

namespace lockstep::engine {

using data::Json;

Params& Params::add(ParamInfo option, const std::string& wants, bool required,
                    const std::function<std::optional<Json>(const Json&)>& take) {
  const Json* said = given.find(option.name);
  const std::string where = where_ + "." + option.name + ": ";
  if (const std::optional<Json> taken = said ? take(*said) : std::nullopt) {
    if (!option.doc.empty() && *said != option.value)
      warnings.push_back(where + "accepted, and has no effect: " + option.doc + "; leave it out");
    option.value = *taken;
  } else if (said) {
    const bool automatic = said->is_string() && said->as_string() == "auto";
    problems.push_back(str(where, "expected ", wants, ", got ", printed(*said),
                           automatic ? ", which Hugging Face's Trainer fills in; write the value" : "",
                           automatic && !required && !option.value.is_null()
                               ? ", such as " + printed(option.value) + " (the default)"
                               : ""));
  } else if (required) {
    option.value = "required";
    problems.push_back(str(where, "expected ", wants, ", as ", type, " needs it; got none"));
  }
  option.given = said != nullptr;
  infos.push_back(std::move(option));
  return *this;
}

Params& Params::add_field(const char* name, const FieldPointer& field, const ValueRange& range, bool required) {
  return add({name, json_of(field)}, expected(field, range), required, [&](const Json& value) {
    return assign(field, value, range) ? std::optional(json_of(field)) : std::nullopt;
  });
}

Params& Params::without_effect(const char* name, const Json& fallback, const char* why) {
  return add({name, fallback, false, why}, expected(fallback, {}), false,
             [&](const Json& value) { return coerced(value, fallback, {}) ? std::optional(value) : std::nullopt; });
}

Params& Params::fixed(const char* name, const Json& only, const char* why) {
  return add({name, only}, printed(only) + ", as " + why, false,
             [&](const Json& value) { return coerced(value, only, {}) == only ? std::optional(only) : std::nullopt; });
}

void Params::check(const std::function<void()>& together) {
  std::vector<std::string> known;
  for (const ParamInfo& info : infos) known.push_back(info.name);
  for (const auto& [name, value] : given.as_object())
    if (std::find(known.begin(), known.end(), name) == known.end())
      problems.push_back(str(where_, ".", name, ": ", type, " has no such option",
                             name == "max_grad_norm"           ? "; write gradient_clipping at the top level"
                             : suggestion(name, known).empty() ? "; write one of " + list_names(known)
                                                               : suggestion(name, known)));
  if (!problems.empty()) return;
  try {
    together();
  } catch (const Error& error) {  // remove the prefix of a text such as "[AdamW] expected lr ..."
    const std::string text = error.what();
    const size_t end = text.find("] ");
    problems.push_back(where_ + ": " + text.substr(end == text.npos ? 0 : end + 2));
  }
}

namespace {

const std::vector<NamedType>& list_of(ParamsKind kind) {
  return kind == ParamsKind::optimizer ? optimizer_types() : schedule_types();
}
std::string section_of(ParamsKind kind) { return kind == ParamsKind::optimizer ? "optimizer" : "scheduler"; }

/// Returns the type with this name, ignoring case. The Error for an unknown name lists all types.
const NamedType& find_type(ParamsKind kind, const std::string& name) {
  std::vector<std::string> known;
  for (const NamedType& type : list_of(kind)) {
    if (lower(type.name) == lower(name)) return type;
    known.push_back(type.name);
  }
  fail(str(section_of(kind), ".type: expected one of ", fmt::format("{}", fmt::join(known, ", ")), ", got ",
           printed(Json(name)), suggestion(name, known)));
}

}  // namespace

std::vector<Variable> variables(const NamedParameters& parameters) {
  std::vector<Variable> all;
  for (const auto& p : parameters) all.push_back(p.variable);
  return all;
}

std::vector<ParamInfo> defaults_of(const NamedType& type) {
  const Json nothing = Json::Object();
  Params params("", type.name, nothing);
  type.read(params);
  return std::move(params.infos);
}

std::vector<ParamInfo> check_params(ParamsKind kind, const NamedConfig& config, std::vector<std::string>& problems,
                                    std::vector<std::string>& warnings) {
  if (config.type.empty()) return {};
  try {
    const NamedType& type = find_type(kind, config.type);
    Params params(section_of(kind) + ".params", type.name, config.params);
    type.read(params);
    problems.insert(problems.end(), params.problems.begin(), params.problems.end());
    warnings.insert(warnings.end(), params.warnings.begin(), params.warnings.end());
    return std::move(params.infos);
  } catch (const Error& error) { problems.push_back(error.what()); }
  return {};
}

Make read_named(ParamsKind kind, const NamedConfig& config) {
  const NamedType& type = find_type(kind, config.type);
  Params params(section_of(kind) + ".params", type.name, config.params);
  Make make = type.read(params);
  fail_if_any(section_of(kind), params.problems);
  return make;
}

}  // namespace lockstep::engine
