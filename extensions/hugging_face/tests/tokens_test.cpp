// Token files of tokenizers from folders: the same ids however the text is split.
#include "data/text.h"

#include "extensions/hugging_face/tokenizer.h"
#include "tests/data/util.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

std::vector<int64_t> ids_of(const Tokens& tokens) {
  std::vector<int64_t> all(static_cast<size_t>(tokens.size()));
  tokens.copy(0, tokens.size(), all.data());
  return all;
}

const std::string text =
    "The quick brown fox; it's 1234 years old!\n\n  Line 2 \t has tabs,\r\nand CRLF. \xc3\xa9\xcc\x81t\xc3\xa9 "
    "\xe6\x97\xa5\xe6\x9c\xac "
    "x\n y <|endoftext|> z<|endoftext|>  end\xff\xfe. I'LL\n\n\nstop  ";

}  // namespace

TEST_CASE("tokens: a text in pieces has the ids of the whole") {
  TempDir dir;
  std::string long_text;
  for (int i = 0; i < 20; ++i) long_text += text.substr(size_t(i * 7) % text.size()) + text;
  const std::string path = dir.write("a.txt", long_text);
  int cut = 0, folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(::golden("tokenizer"))) {
    if (!entry.is_directory() || !has_tokenizer(entry.path().string())) continue;
    const std::string folder = entry.path().string();
    CAPTURE(folder);
    const auto tokenizer = load_tokenizer(folder);
    const std::string identity = tokenizer_identity(folder);
    std::vector<int64_t> want;
    const std::string error = error_of([&] { want = tokenizer->encode_tensor(long_text).to_vector<int64_t>(); });
    if (!error.empty()) continue;  // this vocabulary lacks bytes of the text
    ++folders;
    for (const int64_t piece : {1, 5, 64, 1 << 20}) {
      int64_t pieces = 0;
      const Tokenized done =
          tokenize_file(path, dir / "a.tokens", *tokenizer, identity, piece, [&](auto&) { ++pieces; });
      CHECK(done.bytes == int64_t(long_text.size()));
      CHECK(done.tokens == int64_t(want.size()));
      CHECK(ids_of(read_tokens(dir / "a.tokens", *tokenizer, identity)) == want);
      cut += pieces > 10;
    }
  }
  CHECK(folders >= 3);
  CHECK(cut >= 3);  // byte-level tokenizers read the text in pieces
}
