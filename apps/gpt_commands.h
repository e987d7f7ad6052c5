#pragma once
// Commands of gpt that have a file of their own.
#include <string>

namespace CLI {
class App;
}

namespace apps {

/// `gpt load`: where a model's parameters come to lie, and in which dtype.
void add_load_command(CLI::App& app);
/// `gpt serve`: completions and chats over HTTP.
void add_serve_command(CLI::App& app);
/// `gpt eval`: the loss of a text.
void add_eval_command(CLI::App& app);
/// `gpt score`: continuations of contexts.
void add_score_command(CLI::App& app);
/// A file, or "": the sources of this repository.
std::string load_text(const std::string& path);

}  // namespace apps
