// libFuzzer: any text as a checkpoint's manifest is rejected with an Error, or describes complete tensors and survives
// a round trip.
#include <cstdlib>

#include "checkpoint/manifest.h"
#include "tests/fuzz/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Limits limits(size);
  using namespace lockstep::checkpoints;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    parse_manifest(text, "fuzz");
  } catch (const lockstep::Error&) {}
  try {
    const Manifest manifest = parse_manifest(seal_manifest(text), "fuzz");
    for (const auto& [name, tensor] : manifest.tensors) {
      int64_t reached = 0;
      for (const StoredPiece& part : tensor.parts) {
        if (part.begin != reached || !manifest.files.count(part.file) || part.file.find('/') != part.file.npos)
          std::abort();
        reached = part.end;
      }
      if (reached != tensor.numel()) std::abort();
    }
    const std::string again = to_text(manifest);
    if (to_text(parse_manifest(again, "again")) != again) std::abort();
  } catch (const lockstep::Error&) {}
  return 0;
}
