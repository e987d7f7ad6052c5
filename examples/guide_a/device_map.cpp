// A port of a Python script that uses Accelerate's device maps: loads a Llama in 8 bits on two devices, and prints the
// device and dtype of every parameter.
//
//   LOCKSTEP_CPU_DEVICES=2 guide_a_device_map FOLDER --load-in-8bit
#include <lockstep.h>
#include <lockstep/device_map.h>
#include <lockstep/hugging_face.h>

#include <CLI/CLI.hpp>
#include <iostream>

namespace ls = lockstep;

int run(const std::string& folder, const ls::nn::PretrainedOptions& options, const std::string& mode) {
  std::unique_ptr<ls::nn::GPT> model;
  {
    const ls::nn::BuildEmpty scope;  // makes parameters without memory; dispatch() reads them
    model = ls::nn::from_pretrained(folder, options);
  }
  const auto dispatched = ls::device_map::dispatch(*model, ls::device_map::infer(*model, mode));
  int64_t i = 0;
  for (const auto& para : model->named_parameters())
    std::cout << i++ << ",\t" << para.name << "\t" << para.variable.device() << "\t" << para.variable.dtype() << "\n";
  return 0;
}

int main(int argc, char** argv) {
  CLI::App app("Loads a model over several devices by a device map", "guide_a_device_map");
  std::string folder, mode = "auto", dtype;
  ls::nn::PretrainedOptions options;
  app.add_option("folder", folder, "Hugging Face folder")->required();
  app.add_flag("--load-in-8bit", options.load_in_8bit, "load matrices in 8 bits");
  app.add_option("--device-map", mode, "auto, balanced, balanced_low_0 or sequential")->capture_default_str();
  app.add_option("--dtype", dtype, "fp32, fp16 or bf16 instead of the file's dtype")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
  CLI11_PARSE(app, argc, argv);
  if (!dtype.empty()) options.dtype = dtype == "fp32" ? ls::f32 : dtype == "fp16" ? ls::f16 : ls::bf16;
  return run(folder, options, mode);
}
