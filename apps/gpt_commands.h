#pragma once
// Commands of gpt other than train and logits.
//
// Extensions may add commands to gpt, mlp and cnn, and options to their commands. An extension's meson.build sets
// `training_commands = files(...)`, which are compiled into these programs. One of the files defines
//
//   void apps::add_NAME_training_commands(CLI::App& app, std::vector<std::string>& words);
//
// app.get_name() is the program's name. `words` is the command line, the program's name first; the function may change
// it before it is parsed. meson generates the function that calls it (extension_commands.cpp.in).
#include <functional>
#include <string>
#include <vector>

#include "data/text.h"
#include "train/model_format.h"

namespace CLI {
class App;
}

namespace apps {

/// `gpt eval`: the loss of a model on a text.
void add_eval_command(CLI::App& app);
/// Computes metrics of a text, and returns them by name. They replace the loss and perplexity that `gpt eval` prints.
using Measure =
    std::function<lockstep::data::Json(const lockstep::train::LanguageModel& model,
                                       const lockstep::data::Tokenizer& tokenizer, const lockstep::Tensor& tokens)>;
/// The measure that an option of `gpt eval` asked for; empty: none. Options of extensions set it.
inline Measure eval_measure;
/// A model that runs on several devices of this process (--parallel dp).
struct OnDevices {
  std::function<lockstep::Variable(const lockstep::Tensor& input)> forward;
  std::function<std::string()> traffic;  ///< returns a table of the bytes that each device moved
};
/// Copies a model to these devices. Empty without the extension data_parallel, which sets it.
inline std::function<OnDevices(lockstep::nn::GPT& model, const std::vector<lockstep::Device>& devices)> copy_to_devices;
/// `gpt tokenize`: writes the tokens of a text to a file.
void add_tokenize_command(CLI::App& app);
/// Loads the tokens of a text or .tokens file. An empty `path` stands for a text of this repository's sources. `folder`
/// is the folder that the tokenizer was loaded from, or empty for a tokenizer of bytes.
lockstep::data::Tokens load_tokens(const std::string& path, const lockstep::data::Tokenizer& tokenizer,
                                   const std::string& folder);
/// Error if a token's id is `vocab` or more: a model of `vocab` tokens has no row for it in the embedding table. `path`
/// is the text's name.
void check_rows(const lockstep::data::Tokens& tokens, const lockstep::data::Tokenizer& tokenizer, int64_t vocab,
                const std::string& path);

/// Adds the commands of all extensions in this build. words: the command line, which an extension may change before it
/// is parsed.
void add_training_commands_of_extensions(CLI::App& app, std::vector<std::string>& words);

}  // namespace apps
