// Device maps of models with quantized weights.
#include <doctest/doctest.h>

#include "extensions/device_map/dispatch.h"
#include "extensions/quantization/tests/models.h"
#include "tests/temp_dir.h"

using namespace lockstep;
using namespace testing;

TEST_CASE("device maps count the bytes of codes, and move them") {
  const auto model = seeded(testing::small()), plain = seeded(testing::small());
  const auto report = nn::quantize(*model);
  const Tensor wanted = (*model)(testing::some_tokens()).tensor();
  const auto all = device_map::infer(*model, "auto");
  CHECK(all.held.at("cpu:0") == report.bytes_after);
  const TempDir at;
  const auto plan =
      device_map::infer(*model, device_map::DeviceMap{{"", "cpu:0"}, {"blocks.0", "cpu"}, {"blocks.1", "disk"}});
  auto dispatched = device_map::dispatch(*model, plan, {.offload_folder = at.str()});
  const NoGrad no_grad;
  CHECK(equal((*model)(testing::some_tokens()).tensor(), wanted));
  CHECK(dispatched.loads() > 0);
}
