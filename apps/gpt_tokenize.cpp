// `gpt tokenize`: the tokens of a text of any size in a file, that the other commands then read without a tokenizer's
// work.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "apps/gpt_commands.h"
#include "data/files.h"
#include "data/text.h"
#include "train/cli.h"
#include "train/team.h"

namespace apps {

using namespace lockstep;

data::Tokens load_tokens(const std::string& path, const data::Tokenizer& tokenizer, const std::string& folder) {
  if (!path.empty() && data::is_token_file(path))
    return data::read_tokens(path, tokenizer, data::tokenizer_identity(folder));
  return tokenizer.encode_tensor(path.empty() ? data::read_sources(LOCKSTEP_SOURCE_DIR)
                                              : data::read_file(path, int64_t(4) << 30));
}

namespace {

struct TokenizeCommand {
  std::string text, to, tokenizer;
  bool json = false;

  void operator()() const {
    train::check_alone("tokenize");
    LOCKSTEP_CHECK(!data::is_token_file(text), "[tokenize] expected a text, got a .tokens file: ", text);
    LOCKSTEP_CHECK(!std::filesystem::exists(to) || !std::filesystem::equivalent(text, to),
                   "[tokenize] expected --to another file than the text: ", to);
    const bool shows = ::isatty(STDERR_FILENO);
    const auto whole = double(std::filesystem::file_size(text));
    const auto known = data::load_tokenizer(tokenizer);
    const data::Tokenized done = data::tokenize_file(
        text, to, *known, data::tokenizer_identity(tokenizer), int64_t(8) << 20, [&](const data::Tokenized& so_far) {
          if (shows) fmt::print(stderr, "\r{:3.0f} %  {} tokens", 100 * double(so_far.bytes) / whole, so_far.tokens);
        });
    if (shows) fmt::print(stderr, "\n");
    train::print_result(data::Json::Object{{"tokens", done.tokens},
                                           {"bytes", done.bytes},
                                           {"vocabulary", known->vocab_size()},
                                           {"tokenizer", data::tokenizer_identity(tokenizer)}},
                        json);
  }
};

}  // namespace

void add_tokenize_command(CLI::App& app) {
  const auto o = std::make_shared<TokenizeCommand>();
  CLI::App& sub = *app.add_subcommand("tokenize", "write the tokens of a text to a file, for train --text");
  sub.add_option("text", o->text, "text, of any size")->required();
  sub.add_option("--to", o->to, "file to write: NAME.tokens")->required();
  sub.add_option("--tokenizer", o->tokenizer,
                 "folder of a tokenizer.json, or GPT-2's vocab.json and merges.txt (default: bytes)");
  sub.add_flag("--json", o->json, "end with one line that is a JSON object of all final figures");
  sub.callback([o] { (*o)(); });
}

}  // namespace apps
