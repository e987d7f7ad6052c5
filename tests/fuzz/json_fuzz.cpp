// libFuzzer: any text as JSON is rejected with an Error, or survives being written and parsed again.
#include <cstdlib>

#include "base/check.h"
#include "data/json.h"
#include "tests/fuzz/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Limits limits(size);
  using namespace lockstep::data;
  try {
    const Json json = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz", {.bytes = 1 << 20});
    if (!(parse_json(json.dump(), "again", {.bytes = 1 << 24}) == json)) std::abort();
    if (!(parse_json(json.dump(1), "again", {.bytes = 1 << 26}) == json)) std::abort();
  } catch (const lockstep::Error&) {}
  return 0;
}
