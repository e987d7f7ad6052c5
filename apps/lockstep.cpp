// lockstep: the command line tool. `lockstep env` describes this build and this machine, for bug reports. The other
// commands have files of their own.
#include <fmt/core.h>
#include <omp.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <sstream>

#include "apps/build_info.h"
#include "apps/commands.h"
#include "apps/source_folder.h"
#include "base/environment.h"
#include "base/threads.h"
#include "data/json.h"
#include "dist/native_group.h"
#include "tensor/backend.h"
#include "tensor/bf16_products.h"
#include "tensor/conv_backend.h"
#include "tensor/cpu/parallel.h"
#include "train/cli.h"

namespace {

using lockstep::data::Json;

/// Finds the first line "KEY: TEXT" of a file and returns its text, or "" if there is none. An empty key returns the
/// file's first line.
std::string line_of(const char* file, const std::string& key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t start = line.find_first_not_of(" \t:", key.size());
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

/// The processor's instruction sets that matter for kernels.
std::string cpu_instructions() {
  std::string all;
#if defined(__x86_64__)
// clang-format off
#define LOCKSTEP_HAS(name) if (__builtin_cpu_supports(name)) all += all.empty() ? name : " " name;
  LOCKSTEP_HAS("sse4.2") LOCKSTEP_HAS("avx") LOCKSTEP_HAS("avx2") LOCKSTEP_HAS("fma") LOCKSTEP_HAS("avx512f")
  LOCKSTEP_HAS("avx512bw") LOCKSTEP_HAS("avx512vl") LOCKSTEP_HAS("avx512vnni") LOCKSTEP_HAS("avx512bf16");
#undef LOCKSTEP_HAS
  // clang-format on
  const std::string flags = " " + line_of("/proc/cpuinfo", "flags") + " ";
  for (const char* name : {"avx512_fp16", "amx_bf16", "amx_int8"})
    if (flags.find(std::string(" ") + name + " ") != std::string::npos) all += std::string(" ") + name;
#endif
  return all;
}

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

/// The devices of this machine: "cpu", then one line per GPU, as the CUDA backend describes it.
Json devices() {
  Json::Array all{Json("cpu")};
  const lockstep::Backend* cuda = lockstep::backend(lockstep::Device::Type::cuda);
  std::istringstream lines(cuda ? cuda->describe() : "no cuda in this build");
  for (std::string line; std::getline(lines, line);)
    all.push_back(Json((cuda && !line.starts_with("cuda") ? "cuda: " : "") + line));
  return all;
}

Json collect() {
  Json e(Json::Object{});
  e["version"] = LOCKSTEP_VERSION;
  e["revision"] = apps::revision;
  Json& build = e["build"];
  build["type"] = LOCKSTEP_BUILD_TYPE;
  build["compiler"] = compiler();
  build["cpu"] = LOCKSTEP_BUILD_CPU;
  build["flags"] = LOCKSTEP_BUILD_FLAGS;
  build["instructions"] = LOCKSTEP_BUILD_INSTRUCTIONS;
  build["sanitizers"] = LOCKSTEP_BUILD_SANITIZERS;
  Json& machine = e["machine"];
  machine["processor"] = line_of("/proc/cpuinfo", "model name");
  machine["instructions"] = cpu_instructions();
  machine["bf16_products"] = std::string(name_of(lockstep::bf16_products()));
  machine["cores"] = int64_t(sysconf(_SC_NPROCESSORS_ONLN));
  machine["page_bytes"] = int64_t(sysconf(_SC_PAGESIZE));
  const std::string huge = line_of("/sys/kernel/mm/transparent_hugepage/enabled", "");
  const size_t open = huge.find('['), close = huge.find(']');
  machine["huge_pages"] = close == std::string::npos ? "unknown" : huge.substr(open + 1, close - open - 1);
  machine["memory_mib"] = int64_t(std::atoll(line_of("/proc/meminfo", "MemTotal").c_str()) / 1024);
  machine["memory_free_mib"] = int64_t(std::atoll(line_of("/proc/meminfo", "MemAvailable").c_str()) / 1024);
  Json& threads = e["threads"];
  threads["operations"] = lockstep::get_threads();
  threads["openmp"] = omp_get_max_threads();
  threads["openmp_version"] = lockstep::on_cpu::openmp_version();
  Json& libraries = e["libraries"];
  libraries["oneDNN"] = "not in this build";
  for (const lockstep::ConvBackend& library : lockstep::conv_backends())
    if (library.device == lockstep::Device::Type::cpu)
      for (const auto& [name, value] : library.facts()) libraries[name] = value;
  libraries["NCCL"] = lockstep::dist::describe_nccl();
  libraries["zlib"] = zlibVersion();
  libraries["nlohmann_json"] = LOCKSTEP_JSON_VERSION;
  libraries["CLI11"] = CLI11_VERSION;
  libraries["fmt"] = fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100);
  e["devices"] = devices();
  return e;
}

std::string text_of(const Json& value) {
  if (value.is_string()) return value.as_string().empty() ? "none" : value.as_string();
  if (!value.is_array()) return value.dump();
  std::string all;
  for (const Json& item : value.as_array()) all += (all.empty() ? "" : ", ") + text_of(item);
  return all;
}

void print_env(bool json) {
  const Json e = collect();
  if (json) return void(std::cout << e.dump() << "\n");
  for (const auto& [key, value] : e.as_object()) {
    if (!value.is_object()) {
      fmt::print("{:<24}{}\n", key, text_of(value));
      continue;
    }
    fmt::print("{}\n", key);
    for (const auto& [name, item] : value.as_object()) {
      std::string label = name;
      std::replace(label.begin(), label.end(), '_', ' ');
      fmt::print("  {:<22}{}\n", label, text_of(item));
    }
  }
}

/// Removes the user's program and its arguments from the words of a command line, and returns them.
apps::Program take_program(const CLI::App& app, const apps::Shared& shared, std::vector<std::string>& words) {
  const std::string command = words.size() < 2 ? "" : words[1];
  const auto own_start = shared.program_start.find(command);
  size_t at = words.size();
  if (own_start != shared.program_start.end()) at = own_start->second(*app.get_subcommand(command), words);
  else if (std::find(shared.with_program.begin(), shared.with_program.end(), command) != shared.with_program.end())
    at = size_t(std::find(words.begin(), words.end(), "--") - words.begin());
  const bool dashes = at < words.size() && words[at] == "--";
  apps::Program program(words.begin() + long(std::min(at + dashes, words.size())), words.end());
  words.resize(std::min(at, words.size()));
  return program;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Lockstep's command line", "lockstep");
  app.set_version_flag("--version", lockstep::str("lockstep " LOCKSTEP_VERSION " (", apps::revision, ")"));
  bool json = false, variables = false;
  CLI::App& env = *app.add_subcommand("env", "version, build, processor, libraries and threads");
  env.add_flag("--json", json, "one line, a JSON object");
  env.add_flag("--variables", variables, "the LOCKSTEP_* variables instead: docs/environment.md");
  env.callback([&] { variables ? void(std::cout << lockstep::environment_reference()) : print_env(json); });
  apps::Shared shared;
  apps::add_config_command(app, shared);
  apps::add_commands_of_extensions(app, shared);
  std::vector<std::string> words(argv, argv + argc);
  shared.program = take_program(app, shared, words);
  return lockstep::train::run_cli(app, std::move(words));
}
