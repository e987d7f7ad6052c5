#pragma once
// Options of the gpt program and its steps.
#include <optional>
#include <set>

#include "apps/common/optimizer.h"
#include "apps/common/run.h"
#include "data/to_device.h"
#include "data/tokenizer.h"
#include "engine/config.h"
#include "moe/expert_parallel.h"
#include "nn/gpt.h"
#include "parallel/activation_checkpoints.h"

namespace apps {

struct GptOptions {
  CommonOptions common;
  OptimizerOptions optimizer;
  std::string text;                 ///< a file; empty: this repository's sources and docs
  std::string tokenizer;            ///< a folder with GPT-2's tokenizer files; empty: bytes
  std::string init;                 ///< a Hugging Face folder to start from
  std::string export_to;            ///< a Hugging Face folder to write at the end
  std::string config;               ///< a configuration file for the engine
  std::set<std::string> given;      ///< options that the command line has
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
  lockstep::parallel::CheckpointOptions checkpoints;  ///< of the blocks
  int pipeline = 0;                 ///< stages; 0: every rank has the whole model
  std::string plan;                 ///< of ranks: "dp2+pp2+tp2+zero1"; empty: as the other options say
  std::string schedule = "1f1b", split = "parameters";
  int chunks = 0;
  int tensor_parallel = 0;          ///< ranks that share each model; 0: every rank has a whole one
  bool sequence_parallel = false;
  int context_parallel = 1;         ///< ranks that share each sequence
  std::string context_attention = "ring", context_order;
  int64_t experts = 0, expert_every = 2;  ///< in every so many-th block; 0: none
  int expert_parallel = 1;          ///< ranks that share the experts
  lockstep::moe::Options expert;    ///< the rest of them
  std::string gate_noise = "none";
  // sample and eval
  std::string model, prompt = "\n", ids;
  int64_t tokens = 300;
  lockstep::nn::Sampling sampling{.temperature = 0.8, .top_k = 50};
  bool greedy = false;
  std::string logits_out;
};

/// What the file of --config says, with what only the command line says; and the options as the file has them. Error when they
/// contradict each other.
lockstep::engine::Config read_engine_config(GptOptions& options);

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
/// in_step: all of them run the model as often as the others (experts of other ranks answer only then).
TextLoss evaluate_text(lockstep::nn::GPT& model, const lockstep::Tensor& tokens, int64_t batch, int64_t batches, const Team& team, lockstep::data::ToDevice& to_device, bool in_step = false);

void gpt_train(GptOptions options);
void gpt_eval(const GptOptions& options);
void gpt_sample(const GptOptions& options);
void gpt_logits(const GptOptions& options);

}  // namespace apps
