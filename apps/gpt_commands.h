#pragma once
// Commands of gpt that have a file of their own.
#include <string>

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

}  // namespace apps
