// Folders of tokenizers: loads, copies and compares them.
#include <zlib.h>

#include <filesystem>

#include "data/bpe.h"
#include "data/files.h"
#include "data/json.h"

namespace lockstep::data {
namespace {
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "vocab.json", "merges.txt"};
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr int64_t kTokenizerBytes = int64_t(1) << 30;
}  // namespace

bool has_tokenizer(const std::string& folder) {
  namespace fs = std::filesystem;
  return !folder.empty() && (fs::exists(folder + "/tokenizer.json") || fs::exists(folder + "/vocab.json"));
}

std::unique_ptr<Tokenizer> Tokenizer::from_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  const fs::path base(folder);
  LOCKSTEP_CHECK(fs::is_directory(base), "[tokenizer] ", folder,
                 ": expected a folder with tokenizer.json, or vocab.json and merges.txt; there is no such folder");
  const bool whole = fs::exists(base / "tokenizer.json"),
             parts = fs::exists(base / "vocab.json") && fs::exists(base / "merges.txt");
  LOCKSTEP_CHECK(whole || parts || !fs::exists(base / "tokenizer.model"), "[tokenizer] ", folder,
                 ": tokenizer.model is not read; convert it with Transformers: AutoTokenizer.from_pretrained(\"",
                 folder, "\").save_pretrained(\"", folder, "\") writes tokenizer.json");
  LOCKSTEP_CHECK(whole || parts, "[tokenizer] expected tokenizer.json, or vocab.json and merges.txt, in ", folder,
                 ", found neither");
  auto result = std::make_unique<BpeTokenizer>(
      whole ? BpeTokenizer::from_tokenizer_json((base / "tokenizer.json").string())
            : BpeTokenizer::from_files((base / "vocab.json").string(), (base / "merges.txt").string()));
  if (const fs::path config = base / kTokenizerConfig; fs::exists(config))
    result->configure(read_json(config.string()), "[tokenizer] " + config.string());
  return result;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder) {
  return folder.empty() ? std::make_unique<ByteTokenizer>() : Tokenizer::from_folder(folder);
}

std::string tokenizer_identity(const std::string& folder) {
  if (folder.empty()) return "bytes";
  std::string all;
  for (const char* file : kTokenizerFiles) {
    if (!std::filesystem::exists(folder + "/" + file)) continue;
    const std::string text = read_file(folder + "/" + file, kTokenizerBytes);
    all += str(all.empty() ? "" : ", ", file, " ", text.size(), " bytes, crc ",
               crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
  }
  return all;
}

void copy_tokenizer(const std::string& from, const std::string& to) {
  namespace fs = std::filesystem;
  if (from.empty() || (fs::exists(to) && fs::equivalent(from, to))) return;
  fs::create_directories(to);
  for (const char* file : {kTokenizerFiles[0], kTokenizerFiles[1], kTokenizerFiles[2], kTokenizerConfig}) {
    const std::string path = from + "/" + file;
    if (fs::exists(path)) write_atomically(to + "/" + file, read_file(path, kTokenizerBytes));
  }
}

}  // namespace lockstep::data
