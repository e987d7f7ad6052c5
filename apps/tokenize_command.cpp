// `gpt tokenize`: writes the tokens of a text of any size to a file, which other commands read faster than the text.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "apps/gpt_commands.h"
#include "data/text.h"
#include "train/cli.h"
#include "train/language.h"
#include "train/team.h"

namespace apps {

using namespace lockstep;
using namespace lockstep::train;
using data::Json;

namespace {

struct TokenizeCommand {
  std::string text, to, tokenizer;
  bool json = false;

  void operator()() const {
    check_single_process("tokenize");
    LOCKSTEP_CHECK(!data::is_token_file(text), "[tokenize] expected the text itself, got a .tokens file: ", text);
    LOCKSTEP_CHECK(!std::filesystem::exists(to) || !std::filesystem::equivalent(text, to),
                   "[tokenize] expected --to to name another file than the text, got ", to);
    const bool is_terminal = ::isatty(STDERR_FILENO);
    const auto total = double(std::filesystem::file_size(text));
    const auto known = load_tokenizer(tokenizer);
    const data::Tokenized done = data::tokenize_file(
        text, to, *known, tokenizer_identity(tokenizer), int64_t(8) << 20, [&](const data::Tokenized& so_far) {
          if (is_terminal)
            fmt::print(stderr, "\r{:3.0f} %  {} tokens", 100 * double(so_far.bytes) / total, so_far.tokens);
        });
    if (is_terminal) fmt::print(stderr, "\n");
    print_result(Json::Object{{"tokens", done.tokens},
                              {"bytes", done.bytes},
                              {"vocabulary", known->vocab_size()},
                              {"tokenizer", tokenizer_identity(tokenizer)}},
                 json);
  }
};

}  // namespace

void add_tokenize_command(CLI::App& app) {
  const auto o = std::make_shared<TokenizeCommand>();
  CLI::App& sub = *app.add_subcommand("tokenize", "write the tokens of a text to a file, for train --text");
  sub.add_option("text", o->text, "text, of any size")->required();
  sub.add_option("--to", o->to, "file to write: NAME.tokens")->required();
  if (const std::string help = tokenizer_help(); !help.empty()) sub.add_option("--tokenizer", o->tokenizer, help);
  sub.add_flag("--json", o->json, "print all final figures as one line of JSON");
  sub.callback([o] { (*o)(); });
}

}  // namespace apps
