// Runs of gpt from another source: config.json must match the checkpoint beside it.
#include "train/language.h"

#include <doctest/doctest.h>

#include "checkpoint/checkpoint.h"
#include "data/json.h"
#include "tests/messages.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using data::Json;

TEST_CASE("language model: sizes are held against the checkpoint before there is memory for them") {
  const testing::TempDir dir;
  nn::GPT model({.vocab = 256, .context = 8, .layers = 2, .width = 8, .heads = 2});
  checkpoints::Contents contents;
  for (const auto& [name, tensor] : model.state())
    contents.pieces.push_back(checkpoints::full("model." + name, tensor));
  checkpoints::Saver(dir / "checkpoints").save("step-1", contents);
  const Json facts = train::facts_of(model, "");
  const auto load = [&](const Json& config) {
    dir.write("config.json", config.dump());
    train::load_language_model(dir.str());
  };
  CHECK_ERROR_IS(load(facts), "(no error)");
  const auto draws = [](const std::function<void()>& fn) {
    const uint64_t before = random_state().call;
    fn();
    return random_state().call - before;
  };
  // checking must not advance the random generator
  CHECK(draws([&] { load(facts); }) == draws([&] { nn::GPT one(model.o); }));
  const int64_t much = 1'000'000'000;
  const struct {
    const char* key;
    Json value;
    const char* got;
  } rows[] = {{"layers", much, "1e+09 layers"},
              {"width", 1 << 20, "parameters"},
              {"vocab", much, "parameters"},
              {"context", much, "parameters"},
              {"context", int64_t(1) << 62, "2^63"},
              {"inner", much, "parameters"},
              {"experts", "1000000000,every=1", "layers"},
              {"experts", "16,every=1", "layers"}};
  for (const auto& row : rows) {
    Json config = facts;
    config[row.key] = row.value;
    const std::string said = message([&] { load(config); });
    CAPTURE(row.key);
    CAPTURE(said);
    CHECK(contains(said, row.got));
    if (!contains(said, "2^63")) CHECK(contains(said, "config.json: the weights beside it ("));
  }
}
