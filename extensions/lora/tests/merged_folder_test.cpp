// Folders of merged models keep what the folder of the base model has besides weights.
#include <doctest/doctest.h>

#include "extensions/hugging_face/tests/noted_folders.h"
#include "extensions/lora/low_rank.h"
#include "tests/devices.h"

using namespace lockstep;
using namespace testing;

TEST_CASE("lora: other files of a folder are copied to the folder of the merged model") {
  const OnCpu on_cpu;
  for (const NotedFolder& row : noted_folders()) {
    CAPTURE(row.type);
    Folder folder(row.type);
    row.write(folder);
    const auto model = nn::from_pretrained(folder.at.str()), adapted = nn::from_pretrained(folder.at.str());
    const TempDir merged;
    nn::Lora lora = nn::add_lora(*adapted, {.r = 2});
    lora.merge();  // untrained adapters change nothing
    nn::save_pretrained(*adapted, merged.str());
    row.check(merged.str());
    CHECK(same(*model, *nn::from_pretrained(merged.str())));
  }
}
