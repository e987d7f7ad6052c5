// libFuzzer: any inference configuration is read or rejected with an Error.
#include "extensions/inference/config.h"
#include "tests/fuzz/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  if (size == 0) return 0;
  const fuzz::Limits limits(size);
  try {
    // begins with a brace: otherwise it would be the name of a file
    inference::to_text(
        inference::read_config(str("{", std::string(reinterpret_cast<const char*>(data) + 1, size - 1))));
  } catch (const Error&) {}
  return 0;
}
