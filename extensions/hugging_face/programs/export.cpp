// `lockstep checkpoint export --hugging-face`.
#include "apps/commands.h"
#include "extensions/hugging_face/names.h"

namespace apps {

using namespace lockstep;

void add_hugging_face_commands(CLI::App& app, Shared& shared) {
  CLI::App& command = *app.get_subcommand("checkpoint")->get_subcommand("export");
  const auto choose = [&shared] {
    shared.export_name = [](const std::string& name) {
      nn::PretrainedPiece theirs = nn::gpt2_piece(name);
      return std::pair(std::move(theirs.name), theirs.transposed);
    };
  };
  command.add_flag_callback("--hugging-face", choose, "names and layout of Transformers' GPT2LMHeadModel");
}

}  // namespace apps
