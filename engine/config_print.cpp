// Prints a config as text and as JSON, and generates docs/config.md.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "engine/params.h"
#include "engine/section.h"

namespace lockstep::engine {

using data::Json;

namespace {

/// Prints an optimizer or schedule as its type and all of its params.
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
  std::string out =
      R"(# The configuration file

A configuration file says how to train: batch sizes, optimizer, learning rate, precision, ZeRO and
more. `ls::engine::initialize()` reads it ([engine](engine.md)), and so does
`gpt train --config FILE`. It is DeepSpeed's file, read as it is; this page lists all of its keys.

Most files need only these ten:

| key | what to write |
|---|---|
| `train_batch_size` | samples of one optimizer step, over all ranks |
| `train_micro_batch_size_per_gpu` | samples of one forward and backward, as many as fit into memory |
| `optimizer` | type and parameters, see [Optimizers](#optimizers) |
| `scheduler` | type and parameters, see [Schedules](#schedules) |
| `gradient_clipping` | the largest norm of all gradients; 1.0 unless you write another |
| `bf16.enabled` | true: parameters and activations in bf16, with f32 master weights ([mixed precision](mixed-precision.md)) |
| `zero_optimization.stage` | 1, 2 or 3: shard optimizer state, gradients, parameters over the ranks ([ZeRO](zero.md)) |
| `activation_checkpointing.enabled` | true: less memory for more time ([how](activation-checkpointing.md)) |
| `steps_per_print` | report progress every N steps |
| `checkpoint.keep` | how many checkpoints to keep |

```json
{
  "train_batch_size": 32,
  "train_micro_batch_size_per_gpu": 4,   // on 2 ranks: 4 accumulation steps
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupCosineLR",
                "params": {"warmup_num_steps": 100, "total_num_steps": 2000}},
  "gradient_clipping": 1.0,
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2},
  "activation_checkpointing": {"enabled": true},
  "steps_per_print": 10,
  "checkpoint": {"keep": 3},
}
```

## How a file is read

- **Check a file** with `lockstep config FILE --ranks N`. It prints every key with its value and
  where the value comes from, or everything that is wrong. `lockstep config --reference` prints this
  page.
- **Change one key** of a program with `--set zero_optimization.stage=2`.
- **Syntax:** comments (`//`, `/* */`, `#`) and a comma before a closing bracket are accepted, and
  `1e9` counts as an integer.
- **Errors** come before a rank starts, all of them at once: an unknown key, a key that is written
  twice, a wrong type, a value out of range, keys that contradict each other.
- **Batch sizes:** `train_batch_size` = `train_micro_batch_size_per_gpu` x
  `gradient_accumulation_steps` x data-parallel ranks. Two of the three keys give the third. One of
  the first two is enough; then there is one accumulation step.
- **`"auto"`** is accepted where the table says "or auto". Elsewhere it is an error that tells you
  what to write.

## Groups of keys

A key `a.b` is written `{"a": {"b": ...}}`. The table below has the groups in this order:

| group | for | more |
|---|---|---|
| `train_*`, `gradient_accumulation_steps` | batch sizes | [engine](engine.md#a-step) |
| `optimizer`, `scheduler`, `ema` | update rule, learning rate, averaged parameters | [optimizers](optimizers.md) |
| `gradient_*`, `communication_data_type` | clipping, and how gradients are summed | [engine](engine.md#a-step) |
| `fp16`, `bf16`, `data_types` | precision | [mixed precision](mixed-precision.md) |
| `zero_optimization`, `aio` | sharding over ranks, offload to host memory or files | [ZeRO](zero.md) |
| `activation_checkpointing` | memory of activations | [activation checkpointing](activation-checkpointing.md) |
| `dataloader_drop_last`, `seed` | the data loader, and all random numbers | [engine](engine.md#a-step) |
| `steps_per_print` … `dump_state` | what a run prints | [engine](engine.md#what-a-run-says) |
| `checkpoint` | saving | [checkpoints](checkpoints.md) |
| `pipeline`, `tensor_parallel`, `context_parallel` | plans that cut the model or its sequences | [mesh](mesh.md) |
)";
  for (const Section& section : sections())
    if (!section.about.empty()) out += "| `" + section.name + "` | " + section.about + " | " + section.page + " |\n";
  std::string appendix;
  for (const Section& section : sections())
    if (section.appendix) appendix += section.appendix();
  if (!appendix.empty())
    out += "\nKeys of DeepSpeed that have no effect here, or that are refused, are listed at the end.\n";
  out +=
      R"(
## Keys

Sizes of buckets, buffers and parameters are in elements, not in bytes.

)" + table_of(config_keys());
  for (const Section& section : sections())
    if (section.reference) out += section.reference();
  add_types(out, "Optimizers", optimizer_types());
  add_types(out, "Schedules", schedule_types());
  return out + appendix;
}

}  // namespace lockstep::engine
