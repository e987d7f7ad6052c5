#pragma once
// Options of the gpt program and its steps.
#include "apps/common/run.h"
#include "data/to_device.h"
#include "data/tokenizer.h"
#include "nn/gpt.h"

namespace apps {

struct GptOptions {
  CommonOptions common;
  std::string text;                 ///< a file; empty: this repository's sources and docs
  std::string tokenizer;            ///< a folder with GPT-2's tokenizer files; empty: bytes
  std::string init;                 ///< a Hugging Face folder to start from
  std::string export_to;            ///< a Hugging Face folder to write at the end
  int64_t layers = 4, width = 128, heads = 4, context = 128;
  double dropout = 0;
  int64_t batch = 16, steps = 1000;
  double lr = 1e-3, min_lr_ratio = 0.1, weight_decay = 0.1, clip = 1;
  int64_t warmup = 100;
  std::vector<double> betas{0.9, 0.99};
  double validation = 0.1;          ///< the last part of the text
  int64_t eval_every = 250, eval_batches = 20, save_every = 0;
  std::string precision = "f32";    ///< or tf32 (on devices that have it); bf16, f16 (autocast)
  bool checkpoint_blocks = false;
  // sample and eval
  std::string model, prompt = "\n", ids;
  int64_t tokens = 300;
  lockstep::nn::Sampling sampling{.temperature = 0.8, .top_k = 50};
  bool greedy = false;
  std::string logits_out;
};

/// A model for use, with its tokenizer: from a run's folder, a checkpoint file, or a Hugging Face folder.
struct LoadedModel {
  std::unique_ptr<lockstep::nn::GPT> model;
  std::unique_ptr<lockstep::data::Tokenizer> tokenizer;
};
LoadedModel load_gpt(const std::string& path);

/// The text of a file, or the repository's own text when `path` is empty.
std::string load_text(const std::string& path);

struct TextLoss { double loss = 0; int64_t tokens = 0; };
/// Mean loss per token over windows of the context's length, one after the other; at most `batches` of them (0: all).
/// The ranks share the work; each gets the same value, whatever their number.
TextLoss evaluate_text(lockstep::nn::GPT& model, const lockstep::Tensor& tokens, int64_t batch, int64_t batches, const Team& team, lockstep::data::ToDevice& to_device);

void gpt_train(const GptOptions& options);
void gpt_eval(const GptOptions& options);
void gpt_sample(const GptOptions& options);
void gpt_logits(const GptOptions& options);

}  // namespace apps
