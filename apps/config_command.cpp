// `lockstep config`: explains the settings in a DeepSpeed configuration file.
#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "base/check.h"
#include "engine/config.h"
#include "inference/config.h"
#include "train/cli.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;

void add_config_command(CLI::App& app) {
  struct Asked {
    std::string source;
    int ranks = 1;
    bool json = false, reference = false, inference = false;
  };
  const auto o = std::make_shared<Asked>();
  CLI::App& command = *app.add_subcommand(
      "config", "reads a configuration file (DeepSpeed's), prints its values, or everything that is wrong with it");
  auto* source = command.add_option("file", o->source, "the file, or its text, plain or in base64");
  OptionGroup{command}("--ranks", o->ranks, "data-parallel ranks that will train", whole(1, 1 << 20));
  command.add_flag("--json", o->json, "the values as JSON");
  command.add_flag("--inference", o->inference,
                   "the file is one for inference: of init_inference, gpt sample --config");
  command.add_flag("--reference", o->reference, "prints all keys instead: docs/config.md, docs/inference-config.md")
      ->excludes(source);
  command.callback([o] {
    if (o->reference) {
      std::cout << (o->inference ? inference::config_reference() : engine::config_reference()) << std::flush;
      return;
    }
    const auto print = [&](const auto& config) {
      std::cout << (o->json ? to_json(config).dump(2) + "\n" : to_text(config)) << std::flush;
      for (const std::string& warning : config.warnings) std::cerr << "warning: " << warning << "\n";
    };
    as_usage([&] {
      LOCKSTEP_CHECK(!o->source.empty(), "expected a configuration file, got none; see: lockstep config --help");
      if (o->inference) print(inference::read_config(o->source));
      else print(engine::resolve(engine::read_config(o->source), o->ranks));
    });
  });
}

}  // namespace apps
