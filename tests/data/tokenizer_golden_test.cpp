// Ids and texts of six tokenizers against Hugging Face's package (tests/golden/tokenizer/cases.json.gz, made by
// tests/interop/tokenizers_golden.py), and decoding as ids come.
#include <zlib.h>

#include "data/bpe.h"
#include "data/draw.h"
#include "data/json.h"
#include "util.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

std::string folder_of(const std::string& name) { return golden("tokenizer/" + name); }

const Json& golden_cases() {
  static const Json cases = [] {
    const std::string path = golden("tokenizer/cases.json.gz");
    std::string text;
    gzFile file = gzopen(path.c_str(), "rb");
    REQUIRE(file);
    std::vector<char> part(1 << 16);
    for (int count; (count = gzread(file, part.data(), unsigned(part.size()))) > 0;)
      text.append(part.data(), size_t(count));
    gzclose(file);
    return parse_json(text, path);
  }();
  return cases;
}

std::vector<int32_t> ids_of(const Json& list) {
  std::vector<int32_t> ids;
  for (const Json& id : list.as_array()) ids.push_back(int32_t(id.as_int()));
  return ids;
}

/// What a Decoder gives, which must be whole characters every time.
std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special) {
  Decoder decoder(tokenizer, skip_special);
  std::string all;
  const auto take = [&](const std::string& part) {
    const ByteTokenizer bytes;
    Decoder nothing_waits(bytes, false);
    all += part;
    for (const char c : part) nothing_waits.push(uint8_t(c));
    CHECK(nothing_waits.flush().empty());
  };
  for (const int32_t id : ids) take(decoder.push(id));
  take(decoder.flush());
  return all;
}

}  // namespace

TEST_CASE("2000 texts in six tokenizers, as the reference has them") {
  const auto& texts = golden_cases().at("texts").as_array();
  CHECK(texts.size() == 2000);
  for (const auto& [name, cases] : golden_cases().at("tokenizers").as_object()) {
    CAPTURE(name);
    const auto tokenizer = Tokenizer::from_folder(folder_of(name));
    int wrong = 0;
    const auto same = [&](const auto& found, const auto& wanted, size_t row) {
      if (found == wanted) return;
      if (++wrong <= 5) {
        CAPTURE(row);
        CHECK(found == wanted);
      }
    };
    const auto decodes = [&](const std::vector<int32_t>& ids, const std::string& text, size_t row) {
      const bool skip = row % 2 == 0;
      same(tokenizer->decode(ids, skip), text, row);
      same(streamed(*tokenizer, ids, skip), text, row);
    };
    const auto key_of = [](size_t row) { return std::to_string(row); };
    for (size_t row = 0; row < texts.size(); ++row) {
      const std::string& text = texts[row].as_string();
      const auto ids = ids_of(cases.at("ids").as_array()[row]);
      same(tokenizer->encode(text, {.add_special = row % 2 == 0}), ids, row);
      const Json *other = cases.at("decoded").find(key_of(row)), *parsed = cases.at("parsed").find(key_of(row));
      decodes(ids, other ? other->as_string() : text, row);
      const auto parsed_ids = parsed ? ids_of(*parsed) : ids;
      same(tokenizer->encode(text, {.add_special = row % 2 == 0, .parse_special = true}), parsed_ids, row);
      if (parsed) decodes(parsed_ids, cases.at("parsed_decoded").at(key_of(row)).as_string(), row);
    }
    const auto& lists = cases.at("any_ids").as_array();
    for (size_t row = 0; row < lists.size(); ++row)
      decodes(ids_of(lists[row]), cases.at("any_decoded").as_array()[row].as_string(), row);
    CHECK(wrong == 0);
    CHECK(lists.size() == 150);
  }
}
