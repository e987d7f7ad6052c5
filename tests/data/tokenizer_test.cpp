// Tokenizers: the ids of Hugging Face's tokenizers library (tests/golden/tokenizer), round trips, corrupt files.
// The golden files were made by training a byte-level BPE of 640 tokens with `tokenizers` 0.23.3.
#include "data/bpe.h"
#include "data/draw.h"
#include "data/json.h"
#include "util.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

std::string folder() { return golden("tokenizer"); }
BpeTokenizer from_files() { return BpeTokenizer::from_files(folder() + "/vocab.json", folder() + "/merges.txt"); }

/// What the ids stand for, whole characters or not.
std::string bytes_of(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string all;
  for (const int32_t id : ids) all += tokenizer.token_bytes(id);
  return all;
}

}  // namespace

TEST_CASE("the ids of the reference, from both forms of files") {
  const auto a = from_files();
  const auto b = Tokenizer::from_folder(folder());
  CHECK(a.vocab_size() == 640);
  CHECK(b->vocab_size() == 640);
  int count = 0;
  const Json cases = read_json(folder() + "/cases.json");
  for (const Json& row : cases.as_array()) {
    const std::string& text = row.at("text").as_string();
    CAPTURE(text);
    std::vector<int32_t> want;
    for (const Json& id : row.at("ids").as_array()) want.push_back(int32_t(id.as_int()));
    CHECK(a.encode(text, {.parse_special = true}) == want);
    CHECK(b->encode(text, {.parse_special = true}) == want);
    CHECK(a.decode(want, false) == text);
    ++count;
  }
  CHECK(count > 80);
}

TEST_CASE("no byte is lost") {
  const auto tokenizer = from_files();
  const ByteTokenizer bytes;
  Draws draws({.seed = 1});
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int64_t i = draws.below(60); i >= 0; --i) text += char(draws.below(256));
    CHECK(bytes_of(tokenizer, tokenizer.encode(text)) == text);
    CHECK(bytes_of(bytes, bytes.encode(text)) == text);
  }
  const std::string long_word(200000, 'e');  // one word: quadratic merging would take minutes
  CHECK(tokenizer.decode(tokenizer.encode(long_word)) == long_word);
  CHECK(bytes.encode("aé") == std::vector<int32_t>{97, 195, 169});
  CHECK(tokenizer.encode_tensor("the cat").dtype() == i32);
}

TEST_CASE("words of the pre-tokenisation") {
  const auto words = [](std::string_view text) {
    std::string joined;
    for (const auto word : split_words(text)) (joined += word) += '|';
    return joined;
  };
  const char* rows[][2] = {{"", ""},
                           {"the cat", "the| cat|"},
                           {"it's we'll I'd", "it|'s| we|'ll| I|'d|"},
                           {"a  b", "a| | b|"},
                           {"a   ", "a|   |"},
                           {"a\n\nb", "a|\n|\n|b|"},
                           {" 's", " '|s|"},
                           {"x1y", "x|1|y|"},
                           {"!? 12", "!?| 12|"},
                           {" ", " |"},
                           {"é½ 你", "é|½| 你|"}};
  for (const auto& row : rows) CHECK(words(row[0]) == row[1]);
}

TEST_CASE("special tokens, and ids that are none") {
  const auto tokenizer = from_files();
  const int32_t end = tokenizer.special("<|endoftext|>");
  const auto ids = tokenizer.encode("a<|endoftext|>", {.parse_special = true});
  CHECK(ids.back() == end);
  CHECK(ids.size() == 2);
  CHECK(tokenizer.decode(ids) == "a");
  CHECK(tokenizer.decode(ids, false) == "a<|endoftext|>");
  // What a user types is text; what is trained on is not.
  const auto typed = tokenizer.encode("a<|endoftext|>");
  CHECK(typed.size() > 4);
  CHECK(tokenizer.decode(typed) == "a<|endoftext|>");
  CHECK(tokenizer.encode_tensor("a<|endoftext|>").numel() == 2);
  CHECK(tokenizer.bos() == end);
  CHECK(tokenizer.eos() == end);
  CHECK_ERROR(tokenizer.special("<s>"), "no special token <s>; there are: <|endoftext|>");
  CHECK_ERROR(tokenizer.decode(std::vector<int32_t>{640}), "expected ids from 0 to 639, got 640");
  CHECK_ERROR(tokenizer.decode(std::vector<int32_t>{-1}), "got -1");
  CHECK_ERROR(ByteTokenizer().decode(std::vector<int32_t>{256}), "expected ids from 0 to 255, got 256");
}

TEST_CASE("corrupt files are refused with file and key") {
  TempDir dir;
  const struct {
    const char *vocab, *merges, *message;
  } files[] = {
      {"{", "", "vocab.json:1:2: syntax error"},
      {"[]", "", "vocab.json: expected an object, got a list"},
      {"{}", "", "expected tokens, got none"},
      {R"({"a": "0"})", "", "vocab.json: \"a\": expected an integer, got a string"},
      {R"({"a": 0, "b": 0})", "", "vocab.json: \"b\": id 0 is used twice"},
      {R"({"a": 0, "a": 1})", "", "key \"a\" appears twice"},
      {R"({"a": -1})", "", "expected an id from 0 to 1000000, got -1"},
      {R"({"a": 4000000000})", "", "got 4000000000"},
      {"{\"\xff\": 1}", "", "vocab.json:1:3: syntax error"},
      {R"({"a": 0, "b": 1, "ab": 2})", "#version: 0.2\na b\na c\n",
       "merges.txt:3: token \"c\" is not in the vocabulary"},
      {R"({"a": 0, "b": 1})", "a b\n", "merges.txt:1: token \"ab\" is not in the vocabulary"},
      {R"({"a": 0, "b": 1, "ab": 2})", "a b\na b\n", "merges.txt:2: the pair \"a b\" appears twice"},
      {R"({"a": 0, "b": 1, "ab": 2})", "ab\n", "expected two tokens with a space between, got \"ab\""},
      {R"({"a": 0, "b": 1, "ab": 2})", "a b c\n", "expected two tokens with a space between"},
      {R"({"a": 0, "b": 1, "ab": 2})", "a \xff\n", "expected two tokens of GPT-2's byte alphabet"},
  };
  for (const auto& row : files) {
    CAPTURE(row.message);
    const auto vocab = dir.write("vocab.json", row.vocab), merges = dir.write("merges.txt", row.merges);
    CHECK_ERROR(BpeTokenizer::from_files(vocab, merges), row.message);
  }
  const std::string words = R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false})";
  const auto whole = [&](const std::string& model, const std::string& rest = "") {
    return "{" + words + rest + ", \"model\": {" + model + "}}";
  };
  const auto other = [](const std::string& pre, const std::string& decoders = "") {
    return "{\"pre_tokenizer\": " + pre +
           (decoders.empty() ? "" : ", \"decoder\": {\"type\": \"Sequence\", \"decoders\": " + decoders + "}") +
           R"(, "model": {"vocab": {"a": 0}, "merges": []}})";
  };
  const struct {
    std::string text;
    const char* message;
  } jsons[] = {
      {"{}", "expected a key \"model\", found none"},
      {whole(R"("type": "WordPiece")"), "model.type: expected BPE, got WordPiece"},
      {whole(R"("vocab": {"a": 0})"), "model: expected a key \"merges\""},
      {whole(R"("vocab": {"a": 0}, "merges": [1])"), "model.merges[0]: expected a string, got an integer"},
      {whole(R"("vocab": {"a": 0}, "merges": [["a"]])"), "model.merges[0]: expected two tokens, got 1"},
      {whole(R"("vocab": {"a": 0}, "merges": [], "byte_fallback": true)"), "byte_fallback true is not supported"},
      {whole(R"("vocab": {"a": 0}, "merges": [])", R"(, "normalizer": {"type": "NFKC"})"),
       "normalizer: NFKC is not supported (NFC, Prepend and Replace are)"},
      {whole(R"("vocab": {"a": 0}, "merges": [])",
             R"(, "normalizer": {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""})"),
       "normalizer: Replace: expected a pattern of String, got {\"Regex\": \"a\"}"},
      {whole(R"("vocab": {"a": 0}, "merges": [], "dropout": 0.1)"), "dropout 0.1 is not supported"},
      {whole(R"("vocab": {"a": 0}, "merges": [], "unk_token": "u")"), "unk_token: \"u\" is not in the vocabulary"},
      {whole(R"("vocab": {"a": 0}, "merges": [])", R"(, "decoder": {"type": "WordPiece"})"),
       "decoder: WordPiece is not supported"},
      {whole(R"("vocab": {"a": 0}, "merges": [])", R"(, "post_processor": {"type": "BertProcessing"})"),
       "post_processor: BertProcessing is not supported (TemplateProcessing is)"},
      {whole(R"("vocab": {"a": 0}, "merges": [])",
             R"(, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}],
                 "special_tokens": {"x": {"ids": [5]}}})"),
       "TemplateProcessing: id 5 of x is not in the vocabulary"},
      {whole(R"("vocab": {"a": 0}, "merges": [])", R"(, "added_tokens": [{"id": 0, "content": "<s>"}])"),
       "id 0 is used twice"},
      {whole(R"("vocab": {"a": 0}, "merges": [])",
             R"(, "added_tokens": [{"id": 1, "content": "<s>", "single_word": true}])"),
       "added_tokens[0]: single_word true is not supported"},
      {whole(R"("vocab": {"a": 0}, "merges": [])", R"(, "added_tokens": [{"id": 3, "content": "a"}])"),
       "token \"a\" has id 3 here, and 0 in the vocabulary"},
      {whole(R"("vocab": {"a": 0}, "merges": [])", R"(, "added_tokens": [{"id": 99999999, "content": "b"}])"),
       "expected an id from 0 to 1000000, got 99999999"},
      {whole(R"("vocab": {"a": 0}, "merges": [])", R"(, "added_tokens": [{"id": 1, "content": ""}])"),
       "expected a token, got an empty one"},
      {whole(R"("vocab": {"a": 0}, "merges": [])",
             R"(, "added_tokens": [{"id": 1, "content": "<s>"}, {"id": 1, "content": "<s>"}])"),
       "added token \"<s>\" appears twice"},
      {whole(R"("vocab": {"a": 0}, "merges": [])",
             R"(, "added_tokens": [{"id": 1, "content": "<s>"}, {"id": 2, "content": "<s>"}])"),
       "token \"<s>\" has id 2 here, and 1"},
      {other(R"({"type": "Digits"})"), "pre_tokenizer: Digits is not supported"},
      {other(R"({"type": "ByteLevel", "add_prefix_space": true})"), "add_prefix_space true is not supported"},
      {other(R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "[a-z]+|."}}]})"),
       "pre_tokenizer: Split: expected the regular expression of GPT-2, Llama 3 or Qwen 2, got [a-z]+|."},
      {other(R"({"type": "Split", "pattern": {"String": " "}})"), "expected one, with a pattern of Regex"},
      {other(R"({"type": "Metaspace", "replacement": "ab"})"), "expected one character as replacement, got \"ab\""},
      {other(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})"), "prepend_scheme last"},
      {other("null"), "decoder: expected Replace, ByteFallback, Fuse, Strip, got none"},
      {other("null", R"([{"type": "Fuse"}, {"type": "Replace"}])"), "in this order, once each"},
      {other("null", R"([{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}])"),
       "Strip: expected spaces at the start"},
      {other(std::string(100, '[') + std::string(100, ']')), "nested deeper than 64 levels"},
      {"[1]", "expected an object, got a list"},
  };
  for (const auto& row : jsons) {
    CAPTURE(row.message);
    CHECK_ERROR(BpeTokenizer::from_tokenizer_json(dir.write("t.json", row.text)), row.message);
  }
  const auto pairs = BpeTokenizer::from_tokenizer_json(
      dir.write("t.json", whole(R"("vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]])")));
  CHECK(pairs.encode("abab") == std::vector<int32_t>{2, 2});
  // Files that would fill the memory, or take for ever.
  std::string doubling;
  for (int i = 0; i < 40; ++i)
    doubling += str(i ? ", " : "", R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})");
  const auto grows = BpeTokenizer::from_tokenizer_json(
      dir.write("t.json", whole(R"("vocab": {"a": 0}, "merges": [])",
                                R"(, "normalizer": {"type": "Sequence", "normalizers": [)" + doubling + "]}")));
  CHECK_ERROR(grows.encode("a"), "expected a normalised text of at most 64 times");
  const auto spaces = BpeTokenizer::from_tokenizer_json(
      dir.write("t.json", whole(R"("vocab": {"a": 0}, "merges": [])",
                                R"(, "added_tokens": [{"id": 1, "content": " ", "lstrip": true, "rstrip": true}])")));
  CHECK(spaces.encode("a" + std::string(1'000'000, ' ') + "a").size() == 1'000'002);
  CHECK_ERROR(pairs.encode("c"), "the vocabulary has no token for byte 99");
  CHECK_ERROR(Tokenizer::from_folder(dir / "none"), "there is no such folder");
}
