// libFuzzer: any chat_template.jinja and tokenizer_config.json are read or rejected with an Error.
#include "extensions/serving/chat.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/limits.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Folder folder;
  const fuzz::Limits limits(size);
  try {
    folder.write({reinterpret_cast<const char*>(data), size}, {"chat_template.jinja", "tokenizer_config.json"});
    lockstep::serve::template_of_folder(folder.path());
  } catch (const lockstep::Error&) {}
  return 0;
}
