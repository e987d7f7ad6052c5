// libFuzzer: the first byte chooses config.json or another JSON file of a folder of weights, or all files of a
// tokenizer. Any text in them is read or rejected with an Error; for tokenizers, the Error has one line.
#include <cstdlib>
#include <cstring>

#include "extensions/hugging_face/pretrained.h"
#include "extensions/hugging_face/tokenizer.h"
#include "extensions/hugging_face/weights.h"
#include "nn/models/gpt.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/limits.h"

using namespace lockstep;

namespace {

/// A folder of weights, in which the fuzzer replaces the text files.
const fuzz::Folder& weights() {
  static const fuzz::Folder folder([](const std::string& path) {
    nn::GPT model({.vocab = 8, .context = 4, .layers = 1, .width = 4, .heads = 2});
    nn::save_pretrained(model, path);
  });
  return folder;
}

void read_tokenizer(const std::string& folder, std::string_view text) {
  data::tokenizer_identity(folder);
  const auto tokenizer = data::load_tokenizer(folder);
  const std::vector<int32_t> ids = tokenizer->encode(text);
  for (const int32_t id : ids)
    if (!tokenizer->knows(id)) std::abort();
  tokenizer->decode(ids);
}

/// Reads `text` as the files that `kind` names: C config.json, I an index of weights, G generation_config.json; for
/// other letters, all files of a tokenizer.
void read(char kind, std::string_view text) {
  static const fuzz::Folder texts;
  switch (kind) {
    case 'C':
      weights().write(text, {"config.json"});
      nn::from_pretrained(weights().path());
      break;
    case 'I':
      texts.write(text, {"model.safetensors.index.json"});
      nn::Weights::open(texts.path(), "");
      break;
    case 'G':
      texts.write(text, {"generation_config.json"});
      nn::eos_tokens(texts.path());
      break;
    default:
      texts.write(text, {"vocab.json", "merges.txt", "tokenizer_config.json", "added_tokens.json",
                         "special_tokens_map.json", "tokenizer.json"});
      try {
        read_tokenizer(texts.path(), text);
      } catch (const Error& error) {
        if (std::strchr(error.what(), '\n')) std::abort();
      }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weights();
  return fuzz::read_as(data, size, read);
}
