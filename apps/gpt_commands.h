#pragma once
// Commands of gpt other than train, sample and logits.
#include <string>
#include <vector>

#include "data/tokens.h"

namespace CLI {
class App;
}

namespace apps {

/// `gpt load`: loads a Hugging Face folder and prints the device and dtype of each parameter.
void add_load_command(CLI::App& app);
/// `gpt eval`: the loss of a model on a text.
void add_eval_command(CLI::App& app);
/// `gpt score`: log probabilities of continuations.
void add_score_command(CLI::App& app);
/// `gpt tokenize`: writes the tokens of a text to a file.
void add_tokenize_command(CLI::App& app);
/// Loads the tokens of a text or of a .tokens file; path "": of the sources of this repository. folder: the folder of
/// the tokenizer; "": bytes are the tokens.
lockstep::data::Tokens load_tokens(const std::string& path, const lockstep::data::Tokenizer& tokenizer,
                                   const std::string& folder);
/// Error if a token has no row in a model of `vocab` tokens: the tokenizer may have more ids. `path` is the text's
/// name.
void check_rows(const lockstep::data::Tokens& tokens, const lockstep::data::Tokenizer& tokenizer, int64_t vocab,
                const std::string& path);

/// `gpt finetune`, with the options of Hugging Face's run_clm.py. Adds the command to a program and normalizes its
/// command line: "--train-file" becomes "--train_file", and "--fp16 True" becomes "--fp16=True". Must outlive the
/// parsing.
class Finetune {
  /// Adds the command and copies the arguments.
 public:
  Finetune(CLI::App& app, int argc, char** argv);
  int argc() const { return int(pointers_.size()); }  ///< number of normalized arguments
  char** argv() { return pointers_.data(); }          ///< the normalized arguments

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

}  // namespace apps
