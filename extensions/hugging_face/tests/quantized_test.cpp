// Folders that are read in 8 and 4 bits.
#include <doctest/doctest.h>

#include "extensions/hugging_face/pretrained.h"
#include "extensions/hugging_face/tests/golden_folders.h"
#include "extensions/quantization/quantize.h"
#include "tests/messages.h"

using namespace lockstep;

TEST_CASE("from_pretrained: in 8 and 4 bits, bit-identical to a model that is quantised later") {
  const std::string folder = std::string(golden_folder()) + "/models/llama_main";
  for (const bool eight : {true, false}) {
    const auto read = nn::from_pretrained(folder, {.load_in_8bit = eight, .load_in_4bit = !eight});
    const auto later = nn::from_pretrained(folder);
    nn::quantize(*later, nn::quantize_options(eight ? "llm_int8" : "group4"));
    CHECK(testing::same(*read, *later));
    CHECK_ERROR(nn::save_pretrained(*read, "/nowhere"), "Transformers cannot read these codes");
    CHECK_ERROR(nn::load_pretrained(*read, folder), "these are quantised");
  }
  CHECK_ERROR(nn::from_pretrained(folder, {.load_in_8bit = true, .load_in_4bit = true}), "got several");
}
