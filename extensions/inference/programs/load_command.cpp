// `gpt load`: prints the device of each of a model's parameters.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>

#include "apps/gpt_commands.h"
#include "extensions/device_map/dispatch.h"
#include "extensions/figures/quantity.h"
#include "extensions/hugging_face/pretrained.h"
#include "nn/init.h"
#include "train/cli.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;
using data::Json;

namespace {

struct LoadCommand {
  std::string folder, mode = "auto", offload;
  bool eight = false, four = false;
  std::vector<std::string> limits;

  void operator()() const {
    device_map::DeviceMapOptions options;
    for (const std::string& limit : limits) {
      const size_t equals = limit.find('=');
      if (equals == limit.npos)
        throw UsageError("--max-memory: expected PLACE=BYTES such as cpu:0=10GiB, got '" + limit + "'");
      options.max_memory.emplace(limit.substr(0, equals), limit.substr(equals + 1));
    }
    std::unique_ptr<nn::GPT> model;
    {
      const nn::BuildEmpty scope;  // unquantized weights are loaded directly to their place
      model = nn::from_pretrained(folder, {.load_in_8bit = eight, .load_in_4bit = four});
    }
    const device_map::Placement plan = device_map::infer(*model, mode, options);
    const auto dispatched = device_map::dispatch(*model, plan, {.offload_folder = offload});
    std::map<std::string, std::string> places;
    for (size_t i = 0; i < plan.parts.size(); ++i)
      for (const std::string& name : plan.parts[i].tensors) places[name] = plan.places[i].name;
    int64_t number = 0;
    for (const auto& p : model->named_parameters())
      fmt::print("{},\t{}\t{}\t{}\n", number++, p.name, places.at(p.name), name_of(p.variable.dtype()));
    for (const auto& [place, bytes] : plan.held) fmt::print("{} on {}\n", memory_text(bytes), place);
  }
};

}  // namespace

void add_inference_training_commands(CLI::App& app, std::vector<std::string>&) {
  if (app.get_name() != "gpt") return;
  CLI::App& loading = *app.add_subcommand("load", "load a Hugging Face folder, and say where each parameter is");
  const auto command = std::make_shared<LoadCommand>();
  loading.add_option("model", command->folder, "Hugging Face folder")->required();
  auto* const eight = loading.add_flag("--load-in-8bit", command->eight, "weights in 8 bits (LLM.int8)");
  loading.add_flag("--load-in-4bit", command->four, "weights in 4 bits (group4)")->excludes(eight);
  loading.add_option("--device-map", command->mode, "auto, balanced, balanced_low_0 or sequential")
      ->capture_default_str();
  loading.add_option("--max-memory", command->limits, "bytes of a place, as cpu:0=10GiB; can be given several times")
      ->allow_extra_args(false);
  loading.add_option("--offload-folder", command->offload, "folder for offloaded parameters");
  loading.callback([command] { (*command)(); });
}

}  // namespace apps
