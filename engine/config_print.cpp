// Prints a config as text and as JSON, and generates docs/config.md from docs/config.md.in.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "engine/config_page.h"
#include "engine/params.h"
#include "engine/section.h"

namespace lockstep::engine {

using data::Json;

namespace {

/// Prints an optimizer or schedule as its type and its params. Params without effect are printed if the file has them.
void add_named(std::vector<Line>& lines, const Config& config, ParamsKind kind) {
  const std::string name = kind == ParamsKind::optimizer ? "optimizer" : "scheduler";
  const NamedConfig& named = kind == ParamsKind::optimizer ? config.optimizer : config.scheduler;
  lines.push_back({name + ".type", named.type.empty() ? "none" : printed(named.type),
                   config.has(name + ".type") ? "(from file)"
                   : named.type.empty()       ? "(default)"
                                              : "(set by the program)"});
  std::vector<std::string> problems, warnings;
  for (const ParamInfo& p : check_params(kind, named, problems, warnings)) {
    if (p.given || p.doc.empty())
      lines.push_back({name + ".params." + p.name, printed(p.value),
                       !p.given        ? "(default)"
                       : p.doc.empty() ? "(from file)"
                                       : "(no effect: " + p.doc + ")"});
  }
}

/// Escapes text for a cell of a table.
std::string cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != text.npos; at += 2) text.insert(at, "\\");
  return text;
}

void add_types(std::string& out, const std::string& title, const std::vector<NamedType>& types) {
  out += "\n## " + title + "\n\n| type | | params, with their defaults | |\n|---|---|---|---|\n";
  for (const NamedType& type : types) {
    std::string working, idle;
    for (const ParamInfo& p : defaults_of(type)) {
      const std::string text =
          "`" + p.name + "`" + (p.value == Json("required") ? " (required)" : " " + printed(p.value));
      std::string& list = p.doc.empty() ? working : idle;
      list += (list.empty() ? "" : ", ") + (p.doc.empty() ? text : "`" + p.name + "`");
    }
    out += "| `" + type.name + "` | " + cell(type.doc) + " | " + cell(working) + " | " +
           (idle.empty() ? "" : "without effect: " + idle) + " |\n";
  }
}

}  // namespace

std::string brief(const Json& value) {
  if (value == Json("")) return "`\"\"`";
  if (value.is_int() && std::abs(value.as_int()) >= 1'000'000) {
    if (value.as_int() == std::numeric_limits<int64_t>::max()) return "no limit";
    int64_t mantissa = value.as_int(), zeros = 0;
    while (mantissa % 10 == 0) mantissa /= 10, ++zeros;
    const std::string digits = str(mantissa);
    if (zeros >= 5)
      return "`" + digits.substr(0, 1) + (digits.size() > 1 ? "." + digits.substr(1) : "") + "e" +
             str(zeros + int64_t(digits.size()) - 1) + "`";
  }
  return "`" + printed(value) + "`";
}

Json& at_path(Json& root, const std::string& path) {
  const size_t dot = path.find('.');
  Json& member = root[path.substr(0, dot)];
  return dot == path.npos ? member : at_path(member, path.substr(dot + 1));
}

Json json_of(const std::vector<Key>& keys, const void* config, const std::map<std::string, Json>& inert) {
  Json root = Json::Object();
  for (const Key& key : keys) {
    if (!key.take) at_path(root, key.path) = value_of(key, config);
    else if (const auto found = inert.find(key.path); found != inert.end()) at_path(root, key.path) = found->second;
  }
  return root;
}

std::optional<Line> line_of(const Key& key, const void* config, const std::set<std::string>& given,
                            const std::map<std::string, Json>& inert) {
  if (const auto found = inert.find(key.path); found != inert.end())
    return Line{key.path, printed(found->second), "(no effect: " + key.doc + ")"};
  if (key.take) return {};
  const Json value = value_of(key, config);
  const std::string mark = given.count(key.path)   ? "(from file)"
                           : value != key.fallback ? (key.automatic ? "(inferred)" : "(set by the program)")
                           : key.theirs.empty()    ? "(default)"
                                                   : "(default here; DeepSpeed: " + key.theirs + ")";
  return Line{key.path, printed(value), mark};
}

std::string aligned(const std::vector<Line>& lines) {
  size_t width = 0, value_width = 0;
  for (const Line& line : lines) {
    width = std::max(width, line.key.size());
    value_width = std::max(value_width, std::min<size_t>(line.value.size(), 30));
  }
  std::string out;
  for (const Line& line : lines)
    out += fmt::format("{:<{}}  {:<{}}  {}\n", line.key, width, line.value, value_width, line.mark);
  return out;
}

std::string table_of(const std::vector<Key>& keys) {
  std::string out = "| key | is | default | |\n|---|---|---|---|\n";
  for (const Key& key : keys) {
    if (!key.take)
      out += "| `" + key.path + "` | " + cell(expected(key)) + (key.automatic ? ", or auto" : "") + " | " +
             brief(key.fallback) + (key.theirs.empty() ? "" : " (DeepSpeed: " + key.theirs + ")") + " | " +
             cell(key.doc) + " |\n";
  }
  return out;
}

std::string to_text(const Config& config) {
  std::vector<Line> lines;
  for (const Key& key : config_keys()) {
    if (key.path == "optimizer.type") add_named(lines, config, ParamsKind::optimizer);
    else if (key.path == "scheduler.type") add_named(lines, config, ParamsKind::schedule);
    else if (key.path == "optimizer.params" || key.path == "scheduler.params") continue;
    else if (const auto line = line_of(key, &config, config.given, config.inert)) lines.push_back(*line);
  }
  return aligned(lines);
}

Json to_json(const Config& config) {
  Json root = json_of(config_keys(), &config, config.inert);
  for (const char* name : {"optimizer", "scheduler"}) {
    Json& section = root[name];
    if (section.at("type").as_string().empty()) section = Json();
  }
  return root;
}

std::string config_reference() {
  std::string groups, tables = table_of(config_keys()), appendix;
  for (const Section& section : sections()) {
    if (!section.about.empty()) groups += "| `" + section.name + "` | " + section.about + " | " + section.page + " |\n";
    if (section.reference) tables += section.reference();
    if (section.appendix) appendix += section.appendix();
  }
  if (!appendix.empty())
    groups += "\nKeys of DeepSpeed that have no effect here, or that are refused, are listed at the end.\n";
  add_types(tables, "Optimizers", optimizer_types());
  add_types(tables, "Schedules", schedule_types());
  std::string page(config_page);
  const std::string_view place = "{groups}\n";
  return page.replace(page.find(place), place.size(), groups) + tables + appendix;
}

}  // namespace lockstep::engine
