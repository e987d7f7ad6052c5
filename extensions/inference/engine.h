#pragma once
// Inference with the interface of DeepSpeed's init_inference(): prepares a model as its configuration says (converted,
// quantized, sharded over ranks, loaded block by block), computes logits and generates text. See README.md.
//
//   auto engine = inference::init_inference("folder", R"({"dtype": "bf16", "tensor_parallel": {"tp_size": 2}})");
//   for (const Tensor& batch : batches) {
//     const Variable logits = engine(batch);                       // on every rank
//   }
//   const auto answers = engine.generate(prompts, {.max_new_tokens = 64, .num_beams = 4});
//
// All tp_size x ep_size ranks that share a model must make the same calls with the same prompts and settings; an Error
// names the rank that differs.
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "extensions/generation/generate.h"
#include "extensions/inference/config.h"

namespace lockstep::inference {

/// A model prepared for inference. Created by init_inference().
class InferenceEngine {
 public:
  InferenceEngine(InferenceEngine&&) noexcept;
  ~InferenceEngine();

  /// Logits (B, T, vocab) of tokens i64 (B, T), complete on every rank.
  Variable operator()(const Tensor& tokens);
  /// Mean cross entropy of targets i64 (B, T).
  Variable loss(const Tensor& tokens, const Tensor& targets);
  /// Runs nn::generate(). `emit` is called on every rank; if it returns false on one rank, the sequence ends on all.
  std::vector<nn::Generated> generate(std::span<const std::vector<int64_t>> prompts,
                                      const nn::Generation& generation = {},
                                      const std::function<bool(size_t sequence, int64_t token)>& emit = {});
  /// Generates for one prompt, and returns the first continuation.
  nn::Generated generate(const std::vector<int64_t>& prompt, const nn::Generation& generation = {});

  /// The model that runs; with several ranks, this rank's part of it.
  nn::GPT& module();
  /// The checked configuration.
  const InferenceConfig& config() const;
  /// Starts to time each run of the model: operator(), loss(), and each step of generate().
  void profile_model_time();
  /// Seconds of each run since the last call of model_times().
  std::vector<double> model_times();
  /// Releases memory and process groups. Later calls are Errors. If ranks have shared the model, each keeps only its
  /// shard of the weights, so the model must not be used any more.
  void destroy();

  struct Impl;
  explicit InferenceEngine(std::unique_ptr<Impl> impl);

 private:
  Impl& open(const char* call) const;
  std::unique_ptr<Impl> impl_;
};

/// Arguments of init_inference().
struct InitArgs {
  /// The tensor-parallel ranks; default: tp_size neighbours in dist::world(). Must outlive the engine.
  dist::ProcessGroup* group = nullptr;
  std::string tokenizer = {};  ///< folder with a tokenizer to copy to save_mp_checkpoint_path; "": none
  std::function<void(const std::string&)> log = {};  ///< called on rank 0 with messages; default: lines on stderr
};
/// Prepares `model` in place: sets eval mode and dtype, quantizes it, and shards it over the ranks. Collective. `model`
/// must outlive the engine. With several ranks, all use the weights of rank 0.
InferenceEngine init_inference(nn::GPT& model, const InferenceConfigSource& config = {}, const InitArgs& args = {});
/// Loads the model and the tokenizer of a Hugging Face folder; each rank reads only its part. Collective.
InferenceEngine init_inference(const std::string& folder, const InferenceConfigSource& config = {},
                               const InitArgs& args = {});

}  // namespace lockstep::inference
