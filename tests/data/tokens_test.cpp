// Token files: their size, damaged files, and training data from a mapped file.
#include "data/files.h"
#include "data/text.h"
#include "tensor/ops.h"
#include "util.h"

using namespace lockstep;
using namespace lockstep::data;

namespace {

const std::string text =
    "The quick brown fox; it's 1234 years old!\n\n  Line 2 \t has tabs,\r\nand CRLF. \xc3\xa9\xcc\x81t\xc3\xa9 "
    "\xe6\x97\xa5\xe6\x9c\xac "
    "x\n y <|endoftext|> z<|endoftext|>  end\xff\xfe. I'LL\n\n\nstop  ";

}  // namespace

TEST_CASE("tokens: the tokens of bytes take two bytes each") {
  TempDir dir;
  std::string long_text;
  for (int i = 0; i < 20; ++i) long_text += text.substr(size_t(i * 7) % text.size()) + text;
  const std::string path = dir.write("a.txt", long_text);
  const ByteTokenizer bytes;
  tokenize_file(path, dir / "a.tokens", bytes, "bytes", 100);
  CHECK(std::filesystem::file_size(dir / "a.tokens") == 512 + 2 * long_text.size() + 16);
}

TEST_CASE("tokens: damaged and rejected files") {
  TempDir dir;
  const ByteTokenizer bytes;
  const std::string path = dir / "a.tokens";
  tokenize_file(dir.write("a.txt", "hello, world"), path, bytes, "bytes");
  CHECK(is_token_file(path));
  CHECK(!is_token_file(dir / "a.txt"));
  CHECK(!is_token_file(dir.write("short", "LST")));
  const std::string full = read_file(path, 1 << 20);
  const auto error = [&](const std::string& content) {
    return error_of([&] { read_tokens(dir.write("b.tokens", content), bytes, "bytes"); });
  };
  CHECK(error(full).empty());
  for (size_t at = 0; at < full.size(); ++at) {
    CHECK(error(full.substr(0, at)).find("b.tokens: ") != std::string::npos);
    std::string damaged = full;
    damaged[at] = char(damaged[at] ^ 0x10);
    const bool is_token = at >= 512 && at < full.size() - 16;
    CHECK(error(damaged).empty() == is_token);
  }
  CHECK(error(full + "x").find("(is the file truncated?)") != std::string::npos);
  CHECK_ERROR(read_tokens(path, bytes, "tokenizer.json 5 bytes, crc 7"),
              "expected tokens of the tokenizer (tokenizer.json 5 bytes, crc 7; 256 tokens), got those of (bytes; 256 "
              "tokens); write them again with `gpt tokenize`");
  CHECK_ERROR(tokenize_file(dir.write("none", ""), path, bytes, "bytes"),
              "[tokenize] expected a text, got an empty file");
  CHECK(read_file(path, 1 << 20) == full);  // the old file is unchanged
}

TEST_CASE("tokens: data for training are the same from a tensor and from a file") {
  TempDir dir;
  const ByteTokenizer bytes;
  tokenize_file(dir.write("a.txt", text), dir / "a.tokens", bytes, "bytes");
  const Tensor list = bytes.encode_tensor(text);
  const Tokens mapped = read_tokens(dir / "a.tokens", bytes, "bytes");
  CHECK(equal(mapped.tensor(), list));
  CHECK(equal(Tokens(list.to(u8)).tensor(), list));
  CHECK(equal(Tokens(list.to(i64)).part(3, 5).tensor(), list.narrow(0, 3, 5)));
  const Example a = TokenBatches(list, 4).sample(3, 1, 5, 16), b = TokenBatches(mapped, 4).sample(3, 1, 5, 16);
  CHECK(equal(a.input, b.input));
  CHECK(equal(a.target, b.target));
  const auto [learn, rest] = split_text(mapped, 0.25, 8, "a");
  CHECK(learn.size() + rest.size() == mapped.size());
  CHECK(equal(TextDataset(rest, {.context = 8}).get(2).input, list.narrow(0, learn.size() + 2, 8).to(i64)));
  CHECK(mapped.checksum() == read_tokens(dir / "a.tokens", bytes, "bytes").checksum());
  CHECK(mapped.checksum() != learn.checksum());
  CHECK_ERROR(mapped.part(0, mapped.size() + 1), "[tokens] expected a part of");
  CHECK_ERROR(split_text(mapped, 0.01, 8, "a"), "too few, training and validation each need at least 9");
}
