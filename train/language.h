#pragma once
// Language models: the facts about model and tokenizer that a run's config.json keeps; loading a model and using it.
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

/// Describes the model for a run's config.json, in the form of TrainerOptions::facts. tokenizer: folder of the
/// tokenizer, or "" for bytes. experts: text of --experts. start: value of --init.
data::Json facts_of(const nn::GPT& model, const std::string& tokenizer, const std::string& experts = "",
                    const Start& start = {});

/// A loaded model with its tokenizer.
struct LanguageModel {
  std::unique_ptr<nn::GPT> model;
  std::string folder;                                       ///< the tokenizer's folder; "": bytes
  std::string identity;                                     ///< tokenizer_identity() in training; "": unknown
  std::vector<int64_t> ends;                                ///< end-of-text tokens, from the folder
  std::shared_ptr<inference::InferenceEngine> engine = {};  ///< set if there is an inference configuration
  bool leads = true;                                        ///< true: this rank prints
  /// Loads the tokenizer. Error if it is missing or differs from that of the training.
  std::unique_ptr<data::Tokenizer> tokenizer() const;
  /// Logits of a (batch, length) tensor of tokens, without gradients.
  Tensor logits(const Tensor& tokens) const;
};
/// Loads the last checkpoint of a run's folder (average: the parameters averaged by ema.decay), or a Hugging Face
/// folder, possibly of adapters. quantize: a name of nn::quantize_options(), or "" for none.
LanguageModel load_language_model(const std::string& path, bool average = false, const std::string& quantize = "");
/// Options of commands that use a model. config: the inference configuration (inference/config.h) by which the ranks of
/// a launched job share the model; "": one process has the whole model.
struct ModelOptions : CommonOptions {
  std::string model, quantize, config;
};
/// Adds the model's folder, --quantize and the common options to a command; with `shared` also --config.
void add_model_options(CLI::App& app, ModelOptions& o, bool shared = false);
/// Loads the model, moves it to its device in eval mode, and runs `body`. `command`: the command's name in Errors.
void use_language_model(const ModelOptions& o, const std::string& command,
                        const std::function<void(const LanguageModel&)>& body);
/// The mean loss over consecutive windows of a text, and the number of tokens that it covers.
struct TextLoss {
  double loss = 0;
  int64_t tokens = 0;
};
/// Computes the loss of a text, `batch` windows at a time, each as long as the context. Error for less than 2 tokens.
TextLoss loss_of_text(nn::GPT& model, const Tensor& tokens, int64_t batch);

/// Continues a prompt: a text or, with by_ids, token ids such as "5,17,3". Returns the new text (or ids). If `shown` is
/// not null, also writes the prompt's text and the new text (or ids) to `shown` during generation. Text comes in whole
/// characters, with U+FFFD for invalid UTF-8. Text ends before a stop string. Ids include the end-of-text token, text
/// does not.
std::string continue_prompt(const LanguageModel& model, const std::string& prompt, bool by_ids,
                            nn::Generation generation, std::ostream* shown);
/// Returns options that sample 300 tokens at temperature 0.8 from the 50 likeliest, and drop the oldest tokens when the
/// context window is full.
nn::Generation drawn_text();
/// Adds --tokens, --temperature, --top-k, --beams, --stop and other options of nn::Generation.
void add_generation_options(CLI::App& app, nn::Generation& generation);
/// Parses "5,17,3". Error naming the option for anything else.
std::vector<int64_t> whole_numbers(const std::string& option, const std::string& list);

/// Returns the folder of the tokenizer: `given`, else `model` if it has a tokenizer, else "" for bytes. If that folder
/// has no tokenizer, a resumed run uses the copy in its own folder.
std::string tokenizer_of(const CommonOptions& run, const std::string& given, const std::string& model);
/// Copies the tokenizer and its generation_config.json into the run's folder `out`. Prints a note if the folder `given`
/// by --tokenizer has no tokenizer, so that `tokenizer`, the run's own copy, is used.
void keep_tokenizer(const std::string& tokenizer, const std::string& given, const std::string& out);

}  // namespace lockstep::train
