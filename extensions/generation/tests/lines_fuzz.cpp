// libFuzzer: any JSON Lines file is read completely or rejected with an Error of one line.
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "extensions/generation/json_lines.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  const fuzz::Limits limits(size);
  folder.write({reinterpret_cast<const char*>(data), size}, {"file"});
  try {
    lockstep::data::JsonLines lines(folder.path() + "/file");
    while (lines.next()) {}
  } catch (const lockstep::Error& error) {
    if (std::strchr(error.what(), '\n')) std::abort();
  }
  return 0;
}
