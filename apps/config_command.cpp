// `lockstep config`: explains the settings in a DeepSpeed configuration file.
#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "base/check.h"
#include "engine/config.h"
#include "train/cli.h"
#include "train/option_group.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;

void print_config(const data::Json& values, const std::string& lines, const std::vector<std::string>& warnings,
                  bool json) {
  std::cout << (json ? values.dump(2) + "\n" : lines) << std::flush;
  for (const std::string& warning : warnings) std::cerr << "warning: " << warning << "\n";
}

void add_config_command(CLI::App& app, const Shared& shared) {
  struct Asked {
    std::string source;
    int ranks = 1;
    bool json = false, reference = false;
  };
  const auto o = std::make_shared<Asked>();
  CLI::App& command = *app.add_subcommand(
      "config", "reads a configuration file (DeepSpeed's), prints its values, or everything that is wrong with it");
  auto* source = command.add_option("file", o->source, "the file, or its text, plain or in base64");
  OptionGroup{command}("--ranks", o->ranks, "data-parallel ranks that will train", integer(1, 1 << 20));
  command.add_flag("--json", o->json, "the values as JSON");
  command.add_flag("--reference", o->reference, "prints all keys instead: docs/config.md")->excludes(source);
  command.callback([o, &command, &shared] {
    const OtherConfig* other = nullptr;
    for (const auto& [flag, kind] : shared.configs)
      if (command.count(flag) > 0) other = &kind;
    if (o->reference) {
      std::cout << (other ? other->reference() : engine::config_reference()) << std::flush;
      return;
    }
    as_usage([&] {
      LOCKSTEP_CHECK(!o->source.empty(), "expected a configuration file, got none; see: lockstep config --help");
      if (other) return other->print(o->source, o->json);
      const engine::Config config = engine::resolve(engine::read_config(o->source), o->ranks);
      print_config(to_json(config), to_text(config), config.warnings, o->json);
    });
  });
}

}  // namespace apps
