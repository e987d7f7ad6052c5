// libFuzzer: parse_request() rejects a body with BadRequest, or returns a request within the limits. Each chat template
// turns the messages of such a request into a prompt, or rejects them with BadRequest.
#include <cstdlib>

#include "extensions/serving/chat.h"
#include "tests/fuzz/limits.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Limits limits(size);
  using namespace lockstep;
  using namespace lockstep::serve;
  static const data::ByteTokenizer tokenizer;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  for (const Endpoint endpoint : {Endpoint::completions, Endpoint::chat}) {
    try {
      Request r = parse_request(endpoint, body, "m");
      r.generation.text = [](int64_t) { return std::string(); };
      r.generation.check(1 << 30);
      check(r.n >= 1 && r.n <= 128 && r.logprobs >= -1 && r.logprobs <= 5 && r.generation.stop.size() <= 4);
      check(endpoint == Endpoint::chat ? !r.messages.empty() && r.texts.empty() && r.ids.empty()
                                       : r.messages.empty() && r.texts.empty() != r.ids.empty());
      for (const auto& ids : r.ids) check(!ids.empty());
      if (endpoint == Endpoint::chat)
        for (const char* name : {"plain", "chatml", "llama2", "llama3"}) {
          try {
            check(!encode_chat(template_by_name(name), r.messages, tokenizer).empty());
          } catch (const BadRequest&) {}
        }
    } catch (const BadRequest& error) { check(error.status == 400 || error.status == 404); }
  }
  try {
    parse_tokenize(body);
  } catch (const BadRequest&) {}
  return 0;
}
