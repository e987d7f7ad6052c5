// libFuzzer: any adapter_config.json beside an adapter's weights is read or rejected with an Error.
#include "extensions/hugging_face/pretrained.h"
#include "extensions/lora/adapter.h"
#include "nn/models/gpt.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/limits.h"

using namespace lockstep;

namespace {

const nn::GPT::Options sizes{.vocab = 8, .context = 4, .layers = 1, .width = 4, .heads = 2};

/// A folder of weights and adapters, in which the fuzzer replaces the text file.
const fuzz::Folder& weights() {
  static const fuzz::Folder folder([](const std::string& path) {
    nn::GPT model(sizes);
    nn::save_pretrained(model, path);
    const nn::Lora lora = nn::add_lora(model, {.r = 2});
    nn::save_adapter(model, lora, path, path);
  });
  return folder;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  weights();
  const fuzz::Limits limits(size);
  try {
    weights().write({reinterpret_cast<const char*>(data), size}, {"adapter_config.json"});
    nn::GPT model(sizes);
    nn::load_adapter(model, weights().path());
  } catch (const Error&) {}
  return 0;
}
