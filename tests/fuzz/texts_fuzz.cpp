// libFuzzer: any .tokens file is read completely or rejected with an Error of one line.
#include <zlib.h>

#include <cstdlib>
#include <cstring>

#include "data/text.h"
#include "data/tokenizer.h"
#include "tests/fuzz/folder.h"
#include "tests/fuzz/limits.h"

using namespace lockstep::data;

namespace {

/// A token file with a valid header checksum.
std::string sealed(std::string_view text) {
  std::string file = "LSTOKENS" + std::string(text);
  constexpr size_t crc_at = size_t(tokens_header_bytes) - 4;
  if (file.size() < size_t(tokens_header_bytes)) return file;
  const auto crc = uint32_t(crc32(0, reinterpret_cast<const Bytef*>(file.data()), crc_at));
  std::memcpy(file.data() + crc_at, &crc, sizeof crc);
  return file;
}

void read(std::string_view text) {
  static const fuzz::Folder folder;
  static const ByteTokenizer bytes;
  const std::string file = folder.path() + "/file", full = sealed(text);
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || ::write(fd, full.data(), full.size()) != ssize_t(full.size())) std::abort();
  close(fd);
  if (!is_token_file(file)) std::abort();
  const Tokens tokens = read_tokens(file, bytes, "bytes");
  tokens.checksum();
  tokens.tensor();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::Limits limits(size);
  try {
    read({reinterpret_cast<const char*>(data), size});
  } catch (const lockstep::Error& error) {
    if (std::strchr(error.what(), '\n')) std::abort();
  }
  return 0;
}
