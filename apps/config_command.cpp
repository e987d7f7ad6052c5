#include "apps/config_command.h"

#include <iostream>

#include "apps/common/cli.h"
#include "engine/config.h"
#include "tensor/check.h"

namespace apps {

using namespace lockstep;

ConfigCommand::ConfigCommand(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("config", "reads a configuration file (DeepSpeed's), prints what it means, or all that is wrong with it");
  auto* source = command.add_option("file", source_, "the file, or its text, plain or in base64");
  command.add_option("--ranks", ranks_, "data-parallel ranks that will train")->check(whole(1, 1 << 20))->capture_default_str();
  command.add_flag("--json", json_, "the values as JSON");
  command.add_flag("--reference", reference_, "prints all keys instead: docs/config.md")->excludes(source);
  command.callback([this] { run(); });
}

void ConfigCommand::run() {
  if (reference_) {
    std::cout << engine::config_reference() << std::flush;
    return;
  }
  try {
    LOCKSTEP_CHECK(!source_.empty(), "expected a configuration file, got none; see: lockstep config --help");
    const engine::Config config = engine::resolve(engine::read_config(source_), ranks_);
    std::cout << (json_ ? engine::to_json(config).dump(2) + "\n" : engine::to_text(config)) << std::flush;
    for (const std::string& warning : config.warnings) std::cerr << "warning: " << warning << "\n";
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << "\n";
    exit_code_ = 2;
  }
}

}  // namespace apps
