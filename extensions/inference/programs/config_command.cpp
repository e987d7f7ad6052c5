// `lockstep config --inference`: explains the settings of an inference configuration.
#include "apps/commands.h"
#include "extensions/inference/config.h"

namespace apps {

using namespace lockstep;

void add_inference_commands(CLI::App& app, Shared& shared) {
  app.get_subcommand("config")
      ->add_flag("--inference")
      ->description("the file is one for inference: of init_inference, gpt sample --config");
  shared.configs["--inference"] = {.reference = inference::config_reference,
                                   .print = [](const std::string& source, bool json) {
                                     const inference::InferenceConfig config = inference::read_config(source);
                                     print_config(to_json(config), to_text(config), config.warnings, json);
                                   }};
}

}  // namespace apps
