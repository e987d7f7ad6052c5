#pragma once
// Language models in other forms than the core's: folders of other libraries, files of tokenizers, changes of a model
// such as adapters, and other ways to run one. The core itself knows only runs of gpt and the byte tokenizer.
//
// Extensions add them: an extension's meson.build sets model_formats, tokenizer_formats, model_changes or model_runners
// to names of functions such as ['NAME'], and one of its sources defines std::vector<ModelFormat>
// lockstep::train::NAME(). If several formats fit, the one whose extension comes last in meson.build's table is used.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/json.h"
#include "data/tokenizer.h"
#include "nn/models/gpt.h"

namespace lockstep::train {

class TrainJob;

/// Runs a loaded model by other means than its forward().
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  /// Logits of a (batch, length) tensor of tokens. Called without gradients.
  virtual Tensor logits(const Tensor& tokens) = 0;
};

/// A loaded model with its tokenizer.
struct LanguageModel {
  std::unique_ptr<nn::GPT> model;
  std::string folder;                        ///< the tokenizer's folder; "": bytes
  std::string identity;                      ///< tokenizer_identity() in training; "": unknown
  std::vector<int64_t> ends;                 ///< end-of-text tokens, from the folder
  std::shared_ptr<ModelRunner> runner = {};  ///< null: the model runs itself
  bool leads = true;                         ///< true: this rank prints
  /// Loads the tokenizer. Error if it is missing or differs from that of the training.
  std::unique_ptr<data::Tokenizer> tokenizer() const;
  /// Logits of a (batch, length) tensor of tokens, without gradients.
  Tensor logits(const Tensor& tokens) const;
};

/// The starting point of a training (--init).
struct Start {
  std::string folder;                         ///< a folder of some ModelFormat; "": none
  data::Json changes = data::Json::Object();  ///< by the keys of their ModelChange
};

/// A kind of change to a model, such as adapters, and its key in config.json of runs.
struct ModelChange {
  std::string key;
  /// Makes the change if `facts` (config.json of a run, or Start::changes) has the key. The model has no values from a
  /// checkpoint yet. where: the beginning of Errors.
  void (*apply)(nn::GPT& model, const data::Json& facts, const std::string& where);
  /// True: apply() adds parameters, which are counted when the sizes in config.json are compared with the checkpoint.
  bool adds_parameters = false;
  /// Help of the option --KEY, by which commands that use a model take the key's value as text; "": no such option.
  std::string help = {};
  /// Error if the text of --KEY is wrong.
  void (*check)(const std::string& text) = nullptr;
  /// Words that --init takes after the folder: "FOLDER,lora=8,alpha=16".
  std::vector<std::string> start_words = {};
  std::string start_help = {};  ///< added to the help of --init
  /// Puts the changes that these words describe into `changes`. said: the option and its text, for Errors.
  void (*start)(const data::Json& words, const std::string& said, const std::string& option,
                data::Json& changes) = nullptr;
};

/// How a model is loaded.
struct ModelLoadOptions {
  std::optional<DType> dtype = {};            ///< default: that of the files
  data::Json changes = data::Json::Object();  ///< changes to make, by their keys
};

/// A kind of folder with a model.
struct ModelFormat {
  std::string name;                             ///< for help and Errors: "Hugging Face folder"
  bool (*is_model)(const std::string& folder);  ///< true if the folder is of this kind
  /// Loads the model and makes the changes. Under nn::BuildEmpty, the model stays empty if loads_empty is true.
  LanguageModel (*load)(const std::string& folder, const ModelLoadOptions& options);
  bool loads_empty = false;
  std::string files = {};       ///< the files by which is_model() recognises the folder, for Errors
  std::string start_help = {};  ///< help of --init; "": a training cannot start from this format
  /// Reads the sizes of a model from the file or folder that --model names; nullopt if that is not of this format.
  /// Null: the format has no sizes.
  std::optional<nn::GPT::Options> (*sizes)(const std::string& path) = nullptr;
  std::string sizes_help = {};   ///< what sizes() reads, for Errors: "a config.json"
  std::string export_help = {};  ///< added to the help of --export
  /// True if the format can store a model that was trained from `start`. Null: it stores none.
  bool (*exports)(const Start& start) = nullptr;
  /// Warns, before training, about settings that the format cannot store.
  void (*prepare_export)(const TrainJob& job, const std::string& folder) = nullptr;
  /// Writes a trained model and its tokenizer. state: tensors of the whole model.
  void (*save)(const nn::GPT::Options& sizes, const Start& start, const nn::State& state, const std::string& folder,
               const std::string& tokenizer) = nullptr;
};

/// A format of tokenizer files.
struct TokenizerFormat {
  std::string help;                          ///< what --tokenizer takes: "folder of a tokenizer.json"
  bool (*is_in)(const std::string& folder);  ///< true if the folder has such files
  /// Loads the tokenizer of a folder. Error if it has none.
  std::unique_ptr<data::Tokenizer> (*load)(const std::string& folder);
  /// A text that differs for different tokenizers.
  std::string (*identity)(const std::string& folder);
  /// Copies the files, and the generation settings in the folder.
  void (*copy)(const std::string& from, const std::string& to);
  std::vector<int64_t> (*ends)(const std::string& folder);  ///< ids of end-of-text tokens
};

/// The runner that a command-line option asks for.
struct OpenedRunner {
  bool on_host = false;  ///< true: the model stays on the host until make() is called
  /// Returns the runner of a model.
  std::function<std::shared_ptr<ModelRunner>(LanguageModel& model)> make;
};

/// A way to run models, chosen by a command-line option. The ranks of a launched job may share the model.
struct ModelRunnerOption {
  std::string option, help;                        ///< "--config"
  OpenedRunner (*open)(const std::string& value);  ///< reads and checks the option's value
};

// The lists of all extensions that are built.
const std::vector<ModelChange>& model_changes();          ///< all changes
const std::vector<ModelFormat>& model_formats();          ///< all kinds of folders
const std::vector<ModelRunnerOption>& model_runners();    ///< all ways to run a model
const std::vector<TokenizerFormat>& tokenizer_formats();  ///< all kinds of tokenizers' files

/// Makes the changes whose keys `facts` has, in the order of model_changes(). where: the beginning of Errors.
void make_changes(nn::GPT& model, const data::Json& facts, const std::string& where);
/// The format of a folder; nullptr if no extension knows it.
const ModelFormat* model_format_of(const std::string& folder);

/// The kinds of files that model_options() reads besides names: ", or a config.json"; "": none.
std::string model_files_help();
/// Returns the options of the model that `text` names: "gpt:LAYERSxWIDTHxHEADS" or "llama:LAYERSxWIDTHxHEADS", with all
/// other options taken from `usual`; or a file or folder whose sizes a ModelFormat reads.
nn::GPT::Options model_options(const std::string& text, const nn::GPT::Options& usual = {});

// Tokenizers by their folder; "" stands for bytes.
std::string tokenizer_help();  ///< returns the help of --tokenizer; "" if this build reads no tokenizers' files
bool has_tokenizer(const std::string& folder);  ///< returns false for ""
/// Loads a tokenizer. Error if the folder has none.
std::unique_ptr<data::Tokenizer> load_tokenizer(const std::string& folder);
/// Returns a text that differs for different tokenizers.
std::string tokenizer_identity(const std::string& folder);
/// Returns the ids of end-of-text tokens.
std::vector<int64_t> end_tokens(const std::string& folder);
/// Copies the files of a tokenizer, and the generation settings in its folder.
void copy_tokenizer(const std::string& from, const std::string& to);

/// Parses "FOLDER" or "FOLDER,KEY=VALUE,...". The keys are the start_words of model_changes(). Error for an unknown key
/// or a wrong value.
Start read_start(const std::string& text, const std::string& option = "--init");
/// Help of --init; "" if no format can be started from.
std::string start_help();
/// Loads the folder's model in f32 and makes the changes.
std::unique_ptr<nn::GPT> from_start(const Start& start);

/// Help of --export; "" if no format can be written.
std::string export_help();
/// Checks, before training, that --export can write to the folder. Warns about settings that the format cannot store.
void prepare_export(const TrainJob& job, const Start& start, const std::string& folder);
/// Writes a trained model and its tokenizer. state: tensors of the whole model.
void export_model(const nn::GPT::Options& sizes, const Start& start, const nn::State& state, const std::string& folder,
                  const std::string& tokenizer);

}  // namespace lockstep::train
