#pragma once
// Language models: the facts about model and tokenizer that a run's config.json keeps; loading a model and using it.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "train/experts.h"
#include "train/model_format.h"
#include "train/options.h"

namespace CLI {
class App;
}

namespace lockstep::train {

/// Describes the model for a run's config.json, in the form of TrainerOptions::facts. tokenizer: folder of the
/// tokenizer, or "" for bytes. experts: text of --experts. start: value of --init.
data::Json facts_of(const nn::GPT& model, const std::string& tokenizer, const std::string& experts = "",
                    const Start& start = {});

/// Loads the last checkpoint of a run's folder (average: the parameters averaged by ema.decay), or a folder of a
/// ModelFormat. changes: the changes to make; each key is that of a ModelChange, each value its text.
LanguageModel load_language_model(const std::string& path, bool average = false,
                                  const data::Json& changes = data::Json::Object());
/// Options of commands that use a model.
struct ModelOptions : CommonOptions {
  std::string model = {};
  std::map<std::string, std::string> changes = {};  ///< by the key of their ModelChange; "": none
  std::map<std::string, std::string> runners = {};  ///< values of the options of model_runners(); "": not given
};
/// Adds the model's folder, the options of changes and the common options to a command. With `shared`, also adds the
/// options of model_runners(), by which the ranks of a launched job share the model.
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

/// Parses "5,17,3". For any other text, throws an Error that names the option.
std::vector<int64_t> integers(const std::string& option, const std::string& list);

/// Returns the folder of the tokenizer: `given`, else `model` if it has a tokenizer, else "" for bytes. If that folder
/// has no tokenizer, a resumed run uses the copy in its own folder.
std::string tokenizer_of(const CommonOptions& run, const std::string& given, const std::string& model);
/// Copies the tokenizer, and the generation settings in its folder, into the run's folder `out`. Prints a note if the
/// folder `given` by --tokenizer has no tokenizer; then `tokenizer` is the run's own copy.
void keep_tokenizer(const std::string& tokenizer, const std::string& given, const std::string& out);

}  // namespace lockstep::train
