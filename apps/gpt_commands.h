#pragma once
// Commands of gpt beside train, sample and logits.
#include <string>
#include <vector>

#include "data/tokens.h"

namespace CLI {
class App;
}

namespace apps {

/// `gpt load`: where a model's parameters come to lie, and in which dtype.
void add_load_command(CLI::App& app);
/// `gpt eval`: the loss of a text.
void add_eval_command(CLI::App& app);
/// `gpt score`: continuations of contexts.
void add_score_command(CLI::App& app);
/// `gpt tokenize`: the tokens of a text, in a file.
void add_tokenize_command(CLI::App& app);
/// Of a text or a .tokens file, or "": the sources of this repository. folder: the tokenizer's; "": bytes.
lockstep::data::Tokens load_tokens(const std::string& path, const lockstep::data::Tokenizer& tokenizer,
                                   const std::string& folder);
/// Error when one of them, of the text at `path`, has no row in a model of `vocab`: its tokenizer may have more ids.
void check_rows(const lockstep::data::Tokens& tokens, const lockstep::data::Tokenizer& tokenizer, int64_t vocab,
                const std::string& path);

/// `gpt finetune`, Hugging Face's run_clm.py by its options: adds it to a program, and reads its command line as the
/// options are named: "--train-file" is "--train_file", and "--fp16 True" "--fp16=True". Lives as long as the App
/// parses.
class Finetune {
 public:
  Finetune(CLI::App& app, int argc, char** argv);
  int argc() const { return int(pointers_.size()); }
  char** argv() { return pointers_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

}  // namespace apps
