// Folders of gpt runs with adapters, from an untrusted source: config.json must match the checkpoint beside it.
#include <doctest/doctest.h>

#include "checkpoint/checkpoint.h"
#include "data/json.h"
#include "tests/devices.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"
#include "train/language.h"

using namespace lockstep;
using data::Json;

TEST_CASE("lora: the rank in config.json is held against the checkpoint before there is memory for it") {
  const OnCpu on_cpu;
  const testing::TempDir dir;
  nn::GPT model({.vocab = 256, .context = 8, .layers = 2, .width = 8, .heads = 2});
  checkpoints::Contents contents;
  for (const auto& [name, tensor] : model.state())
    contents.pieces.push_back(checkpoints::full("model." + name, tensor));
  checkpoints::Saver(dir / "checkpoints").save("step-1", contents);
  Json config = train::facts_of(model, "");
  config["lora"] = Json::Object{{"r", 1 << 20}};
  dir.write("config.json", config.dump());
  const std::string said = message([&] { train::load_language_model(dir.str()); });
  CAPTURE(said);
  CHECK(contains(said, "parameters"));
  CHECK(contains(said, "config.json: the weights beside it ("));
}
