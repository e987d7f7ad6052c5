// `gpt sample --config FILE`: a model runs as an inference configuration says.
#include "extensions/generation/generate.h"
#include "extensions/inference/engine.h"
#include "train/model_format.h"

namespace lockstep::train {

namespace {

class EngineRunner : public ModelRunner, public nn::Generates {
 public:
  EngineRunner(const LanguageModel& m, const inference::InferenceConfig& config)
      : engine_(inference::init_inference(*m.model, config, {.tokenizer = m.folder})) {}
  Tensor logits(const Tensor& tokens) override { return engine_(tokens).tensor(); }
  std::vector<nn::Generated> generate(std::span<const std::vector<int64_t>> prompts, const nn::Generation& generation,
                                      const std::function<bool(size_t, int64_t)>& emit) override {
    return engine_.generate(prompts, generation, emit);
  }

 private:
  inference::InferenceEngine engine_;
};

OpenedRunner open_runner(const std::string& file) {
  const inference::InferenceConfig config = inference::read_config(file);
  return {.on_host = config.keep_module_on_host,
          .make = [config](LanguageModel& m) { return std::make_shared<EngineRunner>(m, config); }};
}

}  // namespace

std::vector<ModelRunnerOption> inference_runners() {
  return {{.option = "--config",
           .help = "inference configuration, by which ranks may share the model",
           .open = open_runner}};
}

}  // namespace lockstep::train
