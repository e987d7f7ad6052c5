// libFuzzer: any config.json, other JSON files of a folder of weights or adapters, chat template or inference
// configuration (chosen by the first byte) is read or rejected with an Error.
#include <cstdlib>

#include "extensions/serving/chat.h"
#include "inference/config.h"
#include "nn/hugging_face/adapter.h"
#include "nn/hugging_face/pretrained.h"
#include "nn/hugging_face/weights.h"
#include "nn/models/gpt.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/limits.h"

using namespace lockstep;

namespace {

const nn::GPT::Options sizes{.vocab = 8, .context = 4, .layers = 1, .width = 4, .heads = 2};

/// A folder of weights and adapters, in which the fuzzer replaces the text files.
const fuzz::Folder& weights() {
  static const fuzz::Folder folder;
  static const bool made = [] {
    nn::GPT model(sizes);
    nn::save_pretrained(model, folder.path());
    const nn::Lora lora = nn::add_lora(model, {.r = 2});
    nn::save_adapter(model, lora, folder.path(), folder.path());
    return true;
  }();
  (void)made;
  return folder;
}

void read(char kind, std::string_view text) {
  static const fuzz::Folder texts;
  switch (kind) {
    case 'C':
      weights().write(text, {"config.json"});
      nn::from_pretrained(weights().path());
      break;
    case 'A': {
      weights().write(text, {"adapter_config.json"});
      nn::GPT model(sizes);
      nn::load_adapter(model, weights().path());
      break;
    }
    case 'I':
      texts.write(text, {"model.safetensors.index.json"});
      nn::Weights::open(texts.path(), "");
      break;
    case 'G':
      texts.write(text, {"generation_config.json"});
      nn::eos_tokens(texts.path());
      break;
    case 'M':
      texts.write(text, {"chat_template.jinja", "tokenizer_config.json"});
      serve::template_of_folder(texts.path());
      break;
    default: inference::to_text(inference::read_config(str("{", text)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  weights();
  const fuzz::Limits limits(size);
  try {
    read(char(data[0]), {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const Error&) {}
  return 0;
}
