// `gpt serve`: starts the program gpt-serve (gpt_serve.cpp), which is installed beside gpt.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "apps/gpt_commands.h"
#include "train/cli.h"

namespace apps {

namespace {

/// Replaces this process by gpt-serve, which gets the words after "gpt".
[[noreturn]] void serve(std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (size_t i = 1; i < words.size(); ++i) arguments.push_back(words[i].data());
  arguments.push_back(nullptr);
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gpt-serve";
  execv(program.c_str(), arguments.data());
  fmt::print(stderr, "gpt: {}: {}; expected the program beside gpt: build all, or install it there\n", program.string(),
             std::strerror(errno));
  std::_Exit(2);
}

}  // namespace

void add_serving_training_commands(CLI::App& app, std::vector<std::string>& words) {
  if (app.get_name() != "gpt") return;
  if (words.size() > 1 && words[1] == "serve") serve(words);
  app.add_subcommand("serve", "answer completions and chats over HTTP, many at a time");
}

}  // namespace apps
