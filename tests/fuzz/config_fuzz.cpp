// libFuzzer: any text as a configuration file is rejected with an Error, or parses to a configuration that survives a
// round trip.
#include <cstdlib>

#include "base/check.h"
#include "engine/config.h"
#include "tests/fuzz/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Limits limits(size);
  using namespace lockstep::engine;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const Config config = config_from_json(text, "fuzz");
    const std::string json = to_json(config).dump();
    if (to_json(config_from_json(json, "again")).dump() != json) std::abort();
    if (to_text(config).empty()) std::abort();
    for (const int ranks : {1, 3, 1 << 20}) {
      try {
        const Config r = resolve(config, ranks);
        if (*r.train_batch_size != *r.train_micro_batch_size_per_gpu * *r.gradient_accumulation_steps * ranks)
          std::abort();
      } catch (const lockstep::Error&) {}
    }
  } catch (const lockstep::Error&) {}
  return 0;
}
