// `lockstep checkpoint`: inspects, verifies, merges and exports checkpoints.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>

#include "apps/commands.h"
#include "base/printable.h"
#include "base/suggest.h"
#include "checkpoint/folder.h"
#include "extensions/checkpoint_tools/checkpoint_tools.h"
#include "extensions/figures/quantity.h"
#include "train/option_group.h"
#include "train/options.h"

namespace apps {

using namespace lockstep;
using data::Json;

namespace {

void warn(const std::string& what) { std::cerr << "warning: " << printable(what) << std::endl; }

int64_t bytes_of(const checkpoints::LogicalTensor& tensor) { return tensor.numel() * size_of(tensor.dtype); }

int64_t bytes_of_files(const checkpoints::Manifest& m) {
  int64_t bytes = 0;
  for (const auto& [name, file] : m.files) bytes += file.bytes;
  return bytes;
}

struct Asked {
  std::string dir, tag, out, dtype = "f32", prefix = "model.";
  bool json = false;
  /// The folder that holds the checkpoints: the subfolder checkpoints/ of a run's folder, or `dir` itself.
  std::string folder() const {
    return std::filesystem::is_directory(dir + "/checkpoints") ? dir + "/checkpoints" : dir;
  }
};

void inspect(const Asked& o) {
  const auto opened = checkpoints::open_checkpoint(o.folder(), o.tag, warn);
  const checkpoints::Manifest& m = opened.manifest;
  int64_t bytes = 0;
  for (const auto& [name, tensor] : m.tensors) bytes += bytes_of(tensor);
  if (o.json) {
    Json::Object tensors, aliases;
    for (const auto& [name, tensor] : m.tensors) {
      tensors.emplace_back(name, Json::Object{{"dtype", std::string(name_of(tensor.dtype))},
                                              {"shape", Json::Array(tensor.shape.begin(), tensor.shape.end())},
                                              {"parts", int64_t(tensor.parts.size())}});
    }
    for (const auto& [name, target] : m.aliases) aliases.emplace_back(name, target);
    std::cout << Json(Json::Object{{"folder", opened.folder},
                                   {"tag", m.tag},
                                   {"sequence", m.sequence},
                                   {"world", m.world},
                                   {"plan", m.plan},
                                   {"bytes", bytes},
                                   {"files", int64_t(m.files.size())},
                                   {"tensors", std::move(tensors)},
                                   {"aliases", std::move(aliases)},
                                   {"numbers", checkpoints::to_json(m.numbers)},
                                   {"client_state", m.client_state}})
                     .dump()
              << std::endl;
    return;
  }
  fmt::print("{:<12}{} ({}), number {}\n", "checkpoint", printable(m.tag), opened.folder, m.sequence);
  fmt::print("{:<12}{}{}\n", "saved by", counted(m.world, "rank"), m.plan.empty() ? "" : ", plan " + printable(m.plan));
  fmt::print("{:<12}{} in {}, {}\n", "tensors", m.tensors.size(), counted(int64_t(m.files.size()), "file"),
             memory_text(bytes_of_files(m)));
  size_t width = 0;
  for (const auto& [name, tensor] : m.tensors) width = std::max(width, name.size());
  for (const auto& [name, tensor] : m.tensors) {
    fmt::print("  {:<{}}  {:<5}{:<20}{:>12}{}\n", printable(name), width, std::string(name_of(tensor.dtype)),
               str(tensor.shape), memory_text(bytes_of(tensor)),
               tensor.parts.size() > 1 ? fmt::format("  {} parts", tensor.parts.size()) : "");
  }
  for (const auto& [name, target] : m.aliases)
    fmt::print("  {:<{}}  is {}\n", printable(name), width, printable(target));
  if (!m.numbers.empty()) fmt::print("numbers\n");
  for (const auto& [name, value] : m.numbers)
    fmt::print("  {}  {}\n", printable(name), printable(checkpoints::text_of(value)));
  if (!m.client_state.is_null()) fmt::print("{:<12}{}\n", "client_state", m.client_state.dump());
  const auto all = checkpoints::list_checkpoints(o.folder());
  std::vector<std::string> folders;
  for (const auto& found : all) folders.push_back(found.folder);
  if (all.size() > 1) fmt::print("{:<12}{}\n", "beside it", list_names(folders, folders.size()));
}

void verify(const Asked& o) {
  const auto opened = checkpoints::open_checkpoint(o.folder(), o.tag, warn);
  const auto problems = checkpoints::verify_checkpoint(opened);
  for (const std::string& problem : problems) std::cout << printable(problem) << "\n";
  if (!problems.empty()) {
    fmt::print("{}: {}\n", opened.folder, counted(int64_t(problems.size()), "problem"));
    throw CLI::RuntimeError(1);
  }
  fmt::print("{}: {} in {}, {}: all as they were saved\n", opened.folder,
             counted(int64_t(opened.manifest.tensors.size()), "tensor"),
             counted(int64_t(opened.manifest.files.size()), "file"), memory_text(bytes_of_files(opened.manifest)));
}

}  // namespace

void add_checkpoint_tools_commands(CLI::App& app, Shared& shared) {
  const auto o = std::make_shared<Asked>();
  CLI::App& command = *app.add_subcommand("checkpoint", "looks at checkpoints, verifies them, merges and exports them");
  command.require_subcommand(1);
  const auto add = [&](const char* name, const char* what) {
    CLI::App& sub = *command.add_subcommand(name, what);
    sub.add_option("folder", o->dir, "folder of a run, of checkpoints, or one of them")->required();
    sub.add_option("--tag", o->tag, "which of them; else the one that `latest` names");
    return &sub;
  };
  CLI::App* inspect_command = add("inspect", "prints what is in a checkpoint");
  inspect_command->add_flag("--json", o->json, "one line, a JSON object");
  inspect_command->callback([o] { inspect(*o); });
  CLI::App* verifying = add("verify", "checks sizes, hashes and headers of all files; exit code 1 when one is damaged");
  verifying->callback([o] { verify(*o); });
  CLI::App* merge = add("merge", "saves the checkpoint as one file into another folder of checkpoints");
  merge->add_option("out", o->out, "that folder")->required();
  merge->callback([o] {
    auto opened = checkpoints::open_checkpoint(o->folder(), o->tag, warn);
    std::cout << checkpoints::merge_checkpoint(opened, o->out, warn) << std::endl;
  });
  CLI::App* to_file = add("export", "writes the model as a plain safetensors file");
  to_file->add_option("out", o->out, "that file")->required();
  const train::OptionGroup exported(*to_file);
  exported("--dtype", o->dtype, "dtype of floating-point tensors", CLI::IsMember({"f32", "bf16", "f16", "f64"}));
  exported("--prefix", o->prefix, "export only tensors with this prefix, and strip it");
  to_file->callback([o, &shared] {
    auto opened = checkpoints::open_checkpoint(o->folder(), o->tag, warn);
    const int64_t tensors = checkpoints::export_checkpoint(
        opened, o->out, {.prefix = o->prefix, .dtype = parse_dtype(o->dtype), .rename = shared.export_name});
    fmt::print("{}: {} tensors\n", o->out, tensors);
  });
}

}  // namespace apps
