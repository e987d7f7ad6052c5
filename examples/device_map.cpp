// Model parallelism by a device map: a GPT from a file is spread over devices, host memory and disk, and is never whole
// in one place.
//   LOCKSTEP_CPU_DEVICES=2 device_map                                               half the model on each device
//   LOCKSTEP_CPU_DEVICES=2 device_map sequential cpu:0=64KiB cpu:1=40KiB cpu=30KiB  limits; the rest stays on disk
//   ... --svg FILE                                                                  draws the map
#include <lockstep.h>
#include <lockstep/device_map.h>
#include <lockstep/generation.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>

namespace ls = lockstep;

int main(int argc, char** argv) try {
  std::string mode = "auto", svg;
  ls::device_map::DeviceMapOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const size_t equals = arg.find('=');
    if (arg == "--svg" && i + 1 < argc) svg = argv[++i];
    else if (equals != arg.npos) options.max_memory.emplace(arg.substr(0, equals), arg.substr(equals + 1));
    else mode = arg;
  }
  const ls::nn::GPT::Options shape{.vocab = 65, .context = 32, .layers = 6, .width = 24, .heads = 2};
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("device_map-" + std::to_string(::getpid()) + ".safetensors");
  struct Remove {
    const std::filesystem::path& file;
    ~Remove() { std::filesystem::remove(file); }
  } at_end{file};
  {
    ls::manual_seed(1);
    ls::nn::GPT trained(shape);  // stands for a trained model
    ls::data::save_safetensors(file.string(), trained.state());
  }

  std::optional<ls::nn::GPT> model;
  {
    const ls::nn::BuildEmpty scope;  // makes parameters without memory; dispatch() reads them
    model.emplace(shape);
  }
  const ls::device_map::Placement plan = ls::device_map::infer(*model, mode, options);
  auto dispatched = ls::device_map::dispatch(*model, plan, {.weights = file.string()});
  std::cout << plan.text();
  if (!svg.empty()) std::ofstream(svg, std::ios::binary) << ls::device_map::draw_svg(plan);

  int i = 0;
  for (const auto& p : model->named_parameters())
    std::cout << i++ << ",\t" << p.name << "\t" << p.variable.device() << "\t" << p.variable.dtype() << "\n";

  const ls::NoGrad no_grad;
  // A call of a layer brings that layer's tensors to its device. generate() calls the layers but not the model. Other
  // tensors, which belong to the model itself, are therefore brought to their devices by hold().
  const auto own = dispatched.hold();
  ls::manual_seed(2);
  const ls::nn::Generated said =
      ls::nn::generate(*model, std::vector<int64_t>{0}, {.max_new_tokens = 8, .do_sample = true, .top_k = 0});
  std::cout << "says";
  for (const int64_t token : said.tokens) std::cout << " " << token;
  std::cout << "; parts came " << dispatched.loads() << " times\n";
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
