// Tokenizer folders: loading, copying, comparing. See tokenizer.h.
#include "extensions/hugging_face/tokenizer.h"

#include <zlib.h>

#include <filesystem>
#include <map>
#include <set>

#include "base/printable.h"
#include "data/files.h"
#include "data/json.h"
#include "extensions/hugging_face/bpe.h"

namespace lockstep::data {
namespace {
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "vocab.json", "merges.txt"};
constexpr const char *kTokenizerConfig = "tokenizer_config.json", *kAddedTokens = "added_tokens.json",
                     *kSpecialTokens = "special_tokens_map.json", *kTemplates = "additional_chat_templates";
constexpr int64_t kTokenizerBytes = int64_t(1) << 30;

/// The merged content of a folder's files.
struct TokenizerFolder {
  Json file;                // tokenizer.json, or the same structure built from vocab.json
  Json config;              // tokenizer_config.json
  std::string beside = {};  // " id token" of each token defined outside tokenizer.json
};

/// Merges the tokens of all files in the order of Transformers: first added_tokens_decoder, then tokenizer.json. A
/// folder from before Transformers 4.34 has added_tokens.json and special_tokens_map.json in place of
/// added_tokens_decoder. Special tokens that only the vocabulary contains come last.
TokenizerFolder read_tokenizer(const std::string& folder) {
  std::string where;
  const auto read = [&](const char* name) {
    const std::string path = folder + "/" + name;
    where = "[tokenizer] " + path;
    Json json = std::filesystem::exists(path) ? read_json(path, {.bytes = int64_t(64) << 20, .python = true})
                                              : Json(Json::Object{});
    json.as_object(where);
    return json;
  };
  TokenizerFolder found{read(kTokenizerFiles[0]), read(kTokenizerConfig)};
  Json &file = found.file, &config = found.config;
  const bool has_file = !file.as_object().empty();
  Json::Array all;
  std::map<std::string, Json> ids;
  const auto add = [&](Json token, const std::string& name, const Json& id) {
    const auto [at, fresh] = ids.emplace(name, id);
    LOCKSTEP_CHECK(at->second == id, where, ": token \"", name, "\" has id ", id.dump(), " here, and ",
                   at->second.dump(), " before; give it one id");
    token["content"] = name, token["id"] = id;
    if (fresh) all.push_back(std::move(token));
  };
  const Json* const decoder = config.find("added_tokens_decoder");
  where += ": added_tokens_decoder";
  if (decoder)
    for (const auto& [id, token] : decoder->as_object(where))
      add(token, token.at("content", where).as_string(where), parse_json(id, where));
  std::set<std::string> own{has_file ? "" : "<|endoftext|>"};
  where = "[tokenizer] " + folder + "/tokenizer.json: added_tokens";
  if (const Json* tokens = file.find("added_tokens"); tokens && !tokens->is_null())
    for (const Json& token : tokens->as_array(where)) {
      const std::string& name = token.at("content", where).as_string(where);
      add(token, name, token.at("id", where)), own.insert(name);
    }
  const Json none(Json::Object{}), named = decoder ? none : read(kSpecialTokens),
                                   more = decoder ? none : read(kAddedTokens);
  for (const auto& [key, value] : named.as_object()) config[key] = value;
  where = "[tokenizer] " + folder + "/" + kTokenizerConfig;
  std::map<std::string, Json> special;  // special tokens and their flags, keyed by name
  const auto note = [&](const Json& value) {
    if (value.is_string()) special.emplace(value.as_string(), Json::Object{});
    else if (const Json* name = value.find("content")) special.emplace(name->as_string(where), value);
  };
  for (const auto& [key, value] : config.as_object())
    if (key.ends_with("_token")) note(value);
    else if ((key == "additional_special_tokens" || key == "extra_special_tokens") && value.is_array())
      for (const Json& one : value.as_array()) note(one);
  for (const auto& [name, id] : more.as_object()) {
    const bool is_special = special.count(name) > 0;
    add(Json::Object{{"special", is_special}, {"normalized", !is_special}}, name, id);
  }
  if (!has_file) file["model"]["vocab"] = read(kTokenizerFiles[1]);
  const Json *const model = file.find("model"), *const vocab = model ? model->find("vocab") : nullptr;
  for (auto& [name, said] : special) {
    const Json* const id = vocab && !ids.count(name) ? vocab->find(name) : nullptr;
    said["special"] = true;
    if (id) add(said, name, *id);
  }
  for (const Json& token : all)
    if (const std::string& name = token.find("content")->as_string(); !own.count(name))
      found.beside += str(" ", token.find("id")->dump(), " ", name);
  file["added_tokens"] = std::move(all);
  return found;
}

/// Runs `read`, and makes its Error one line: the Error may quote names of tokens, which may contain newlines.
template <class Read> auto with_error_in_one_line(const Read& read) {
  try {
    return read();
  } catch (const Error& error) { fail(one_line(error.what())); }
}
}  // namespace

bool has_tokenizer(const std::string& folder) {
  namespace fs = std::filesystem;
  return !folder.empty() && (fs::exists(folder + "/tokenizer.json") || fs::exists(folder + "/vocab.json"));
}

static std::unique_ptr<Tokenizer> load_files(const std::string& folder) {
  if (folder.empty()) return std::make_unique<ByteTokenizer>();
  namespace fs = std::filesystem;
  const fs::path base(folder);
  LOCKSTEP_CHECK(fs::is_directory(base), "[tokenizer] ", folder,
                 ": there is no such folder; give one with tokenizer.json, or vocab.json and merges.txt");
  const bool has_file = fs::exists(base / "tokenizer.json"),
             parts = fs::exists(base / "vocab.json") && fs::exists(base / "merges.txt");
  LOCKSTEP_CHECK(has_file || parts || !fs::exists(base / "tokenizer.model"), "[tokenizer] ", folder,
                 ": tokenizer.model is not supported; convert it with Transformers: AutoTokenizer.from_pretrained(\"",
                 folder, "\").save_pretrained(\"", folder, "\") writes tokenizer.json");
  LOCKSTEP_CHECK(has_file || parts, "[tokenizer] expected tokenizer.json, or vocab.json and merges.txt, in ", folder,
                 ", found neither; fetch the tokenizer's files");
  const TokenizerFolder found = read_tokenizer(folder);
  const std::string config = "[tokenizer] " + (base / kTokenizerConfig).string();
  if (!has_file) {
    const Json *const kind = found.config.find("tokenizer_class"), *const prefix =
                                                                       found.config.find("add_prefix_space");
    LOCKSTEP_CHECK(!kind || kind->is_null() || kind->as_string(config).starts_with("GPT2Tokenizer"), config,
                   ": expected a GPT2Tokenizer for vocab.json and merges.txt, got ", kind ? kind->dump() : "",
                   "; write tokenizer.json by AutoTokenizer's save_pretrained()");
    LOCKSTEP_CHECK(!prefix || *prefix != Json(true), config,
                   ": add_prefix_space true is not supported; set it to false, and begin texts with a space");
  }
  auto result = std::make_unique<BpeTokenizer>(
      has_file ? BpeTokenizer::from_json(found.file, "[tokenizer] " + (base / "tokenizer.json").string())
               : BpeTokenizer::from_vocab(found.file, (base / "vocab.json").string(), (base / "merges.txt").string()));
  result->configure(found.config, config);
  return result;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder) {
  return with_error_in_one_line([&] { return load_files(folder); });
}

std::string tokenizer_identity(const std::string& folder) {
  if (folder.empty()) return "bytes";
  std::string all;
  const auto add = [&](const char* what, const std::string& text) {
    all += str(all.empty() ? "" : ", ", what, " ", text.size(), " bytes, crc ",
               crc32_z(0, reinterpret_cast<const Bytef*>(text.data()), text.size()));
  };
  for (const char* file : kTokenizerFiles)
    if (std::filesystem::exists(folder + "/" + file)) add(file, read_file(folder + "/" + file, kTokenizerBytes));
  const std::string beside = with_error_in_one_line([&] { return read_tokenizer(folder).beside; });
  if (!beside.empty()) add("tokens beside", beside);
  return all;
}

void copy_tokenizer(const std::string& from, const std::string& to) {
  namespace fs = std::filesystem;
  if (from.empty() || (fs::exists(to) && fs::equivalent(from, to))) return;
  fs::create_directories(to);
  for (const char* file : {kTokenizerFiles[0], kTokenizerFiles[1], kTokenizerFiles[2], kTokenizerConfig, kAddedTokens,
                           kSpecialTokens, "tokenizer.model", "chat_template.jinja"}) {
    const std::string path = from + "/" + file;
    if (fs::exists(path)) write_atomically(to + "/" + file, read_file(path, kTokenizerBytes));
    else fs::remove(to + "/" + file);  // left by an earlier tokenizer; it would be loaded
  }
  fs::remove_all(fs::path(to) / kTemplates);
  if (fs::exists(fs::path(from) / kTemplates)) fs::copy(fs::path(from) / kTemplates, fs::path(to) / kTemplates);
}

}  // namespace lockstep::data
