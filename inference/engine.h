#pragma once
// Inference as DeepSpeed's init_inference() has it: a model, cut over ranks or loaded layer by layer where its
// configuration says so, that answers. See docs/inference.md.
//
//   auto engine = inference::init_inference("folder", R"({"dtype": "bf16", "tensor_parallel": {"tp_size": 2}})");
//   for (const Tensor& batch : batches) {
//     const Variable logits = engine(batch);                       // on every rank
//   }
//   const auto answers = engine.generate(prompts, {.max_new_tokens = 64, .num_beams = 4});
//
// Ranks that share the model (tp_size x ep_size of them) make every call together, with the same prompts and settings:
// calls that differ are an Error that names the rank.
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "inference/config.h"
#include "nn/generate.h"

namespace lockstep::inference {

class InferenceEngine {
 public:
  InferenceEngine(InferenceEngine&&) noexcept;
  ~InferenceEngine();

  /// Logits (B, T, vocab) of tokens i64 (B, T), whole on every rank.
  Variable operator()(const Tensor& tokens);
  /// Mean cross entropy with targets i64 (B, T).
  Variable loss(const Tensor& tokens, const Tensor& targets);
  /// nn::generate(). emit is called on every rank; where it is false on one, the sequence ends on all.
  std::vector<nn::Generated> generate(std::span<const std::vector<int64_t>> prompts,
                                      const nn::Generation& generation = {},
                                      const std::function<bool(size_t sequence, int64_t token)>& emit = {});
  /// One prompt, and its first continuation.
  nn::Generated generate(const std::vector<int64_t>& prompt, const nn::Generation& generation = {});

  /// What runs: of a model that is cut this rank's part.
  nn::GPT& module();
  const Config& config() const;
  /// From here on each run of the model is timed: of operator(), of loss(), of every step of generate().
  void profile_model_time();
  /// Seconds of the runs since the last call.
  std::vector<double> model_times();
  /// Gives memory and groups back; later calls are Errors. A model that was cut stays so, and is not to be run.
  void destroy();

  struct Impl;
  explicit InferenceEngine(std::unique_ptr<Impl> impl);

 private:
  Impl& open(const char* call) const;
  std::unique_ptr<Impl> impl_;
};

struct InitArgs {
  /// The ranks of tensor parallelism, in place of tp_size neighbours of dist::world(). Must outlive the engine.
  dist::ProcessGroup* group = nullptr;
  std::string tokenizer = {};  ///< folder of a tokenizer that save_mp_checkpoint_path gets, too; "": none
  std::function<void(const std::string&)> log = {};  ///< what rank 0 has to say; empty: lines on stderr
};
/// Called by all ranks. The model itself is put into eval mode, converted and cut; it must outlive the engine. With
/// several ranks its values are those of rank 0.
InferenceEngine init_inference(nn::GPT& model, const ConfigSource& config = {}, const InitArgs& args = {});
/// The model of a Hugging Face folder, with its tokenizer: each rank reads its part.
InferenceEngine init_inference(const std::string& folder, const ConfigSource& config = {}, const InitArgs& args = {});

}  // namespace lockstep::inference
