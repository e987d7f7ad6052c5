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
/// Loads the tokens of a text or .tokens file. An empty `path` stands for a text of this repository's sources. `folder`
/// is the folder that the tokenizer was loaded from, or empty for a tokenizer of bytes.
lockstep::data::Tokens load_tokens(const std::string& path, const lockstep::data::Tokenizer& tokenizer,
                                   const std::string& folder);
/// Error if a token's id is `vocab` or more: a model of `vocab` tokens has no row for it in the embedding table. `path`
/// is the text's name.
void check_rows(const lockstep::data::Tokens& tokens, const lockstep::data::Tokenizer& tokenizer, int64_t vocab,
                const std::string& path);

/// `gpt finetune`, with the options of Hugging Face's run_clm.py. Adds the command to a program and normalizes the
/// command line: "--train-file" becomes "--train_file", and "--fp16 True" becomes "--fp16=True". A Finetune must live
/// until the command line is parsed.
class Finetune {
 public:
  /// Adds the command and copies the arguments.
  Finetune(CLI::App& app, int argc, char** argv);
  int argc() const { return int(pointers_.size()); }  ///< number of normalized arguments
  char** argv() { return pointers_.data(); }          ///< the normalized arguments

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

}  // namespace apps
