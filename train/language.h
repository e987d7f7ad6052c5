#pragma once
// Language models of runs: what a run's folder says of its GPT and tokenizer, and to use one again.
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "inference/engine.h"
#include "train/experts.h"
#include "train/lora.h"

namespace CLI {
class App;
}

namespace lockstep::train {

/// For TrainerOptions::facts. tokenizer: the folder of one; "": bytes.
data::Json facts_of(const nn::GPT& model, const std::string& tokenizer, const std::string& experts = "",
                    const Start& start = {});

/// A model for use, with its tokenizer.
struct LanguageModel {
  std::unique_ptr<nn::GPT> model;
  std::string folder;                                       ///< of its tokenizer; "": bytes
  std::string identity;                                     ///< of the one that it was trained with; "": not known
  std::vector<int64_t> ends;                                ///< tokens that end a text, by the folder
  std::shared_ptr<inference::InferenceEngine> engine = {};  ///< answers, where an inference configuration made one
  bool leads = true;                                        ///< of ranks that share it, the one that prints
  /// Error when the folder has none, or another one; ids need none.
  std::unique_ptr<data::Tokenizer> tokenizer() const;
  Tensor logits(const Tensor& tokens) const;
};
/// From the folder of a run, whose last checkpoint it takes (average: of ema.decay), or from Hugging Face's, which may
/// be of adapters. quantize: a name of nn::quantize_options(); "": floating.
LanguageModel load_language_model(const std::string& path, bool average = false, const std::string& quantize = "");
/// What commands that use a model have. config: the inference configuration (inference/config.h), by which the ranks of
/// a launcher share it; "": it is used by one process.
struct ModelOptions : CommonOptions {
  std::string model, quantize, config;
};
/// The folder, --quantize, and the common options; --config, too, when ranks may share it.
void add_model_options(CLI::App& app, ModelOptions& o, bool shared = false);
/// Runs `body` with the model, on its device and in eval mode, for `command` of a program.
void use_language_model(const ModelOptions& o, const std::string& command,
                        const std::function<void(const LanguageModel&)>& body);
/// Mean loss of the model's windows of the text, one after another, `batch` at a time; and how many tokens these are.
struct TextLoss {
  double loss = 0;
  int64_t tokens = 0;
};
TextLoss loss_of_text(nn::GPT& model, const Tensor& tokens, int64_t batch);

/// Continues a prompt, a text or ids as "5,17,3", and gives back what was made, as it is written to `shown` bit by bit
/// (null: not at all): whole characters, U+FFFD for bytes that are no UTF-8, nothing from a stop string on, nor of the
/// token that ends a text (of ids it is the last).
std::string continue_prompt(const LanguageModel& model, const std::string& prompt, bool by_ids,
                            nn::Generation generation, std::ostream* shown);
/// Draws at temperature 0.8 from the 50 likeliest, 300 tokens, and goes on when the context is full.
nn::Generation drawn_text();
/// --tokens, --temperature, --top-k, --beams, --stop and others of nn::Generation.
void add_generation_options(CLI::App& app, nn::Generation& generation);
/// "5,17,3". Error that names the option.
std::vector<int64_t> whole_numbers(const std::string& option, const std::string& list);

/// The folder of the tokenizer, "" for bytes: `given`, or else that of `model`; of a run that goes on its own copy,
/// when those have moved.
std::string tokenizer_of(const CommonOptions& run, const std::string& given, const std::string& model);
/// Copies it into the run's folder `out`, with its generation_config.json, and a note where `given` has none.
void keep_tokenizer(const std::string& tokenizer, const std::string& given, const std::string& out);

}  // namespace lockstep::train
