// Reads tokenizer.json and tokenizer_config.json. Anything that affects ids or text and is not implemented is an Error
// that names it. Truncation and padding are left to the caller, as in Transformers.
#include <algorithm>

#include "data/files.h"
#include "data/json.h"
#include "data/utf8.h"
#include "extensions/hugging_face/bpe.h"

namespace lockstep::data {
namespace {

constexpr int64_t max_json_bytes = int64_t(64) << 20;

bool has_value(const Json* value) {
  return value && !value->is_null() && !(value->is_bool() && !value->as_bool()) &&
         !(value->is_string() && value->as_string().empty()) && !(value->is_number() && value->as_number() == 0);
}

/// Error if one of these settings, which change the ids, differs from its neutral value.
void expect_neutral(const Json& settings, std::initializer_list<const char*> keys, const std::string& where) {
  for (const char* key : keys)
    LOCKSTEP_CHECK(!has_value(settings.find(key)), where, ": ", key, " ", settings.find(key)->dump().substr(0, 200),
                   " is not supported; unset it, or use another tokenizer");
}

/// The text of a pattern of the form {"String": text}.
const std::string& string_of(const Json& part, const std::string& where) {
  const Json& pattern = part.at("pattern", where);
  LOCKSTEP_CHECK(pattern.find("String") && !pattern.find("String")->as_string(where).empty(), where,
                 ": expected a pattern of String, got ", pattern.dump().substr(0, 200), "; use another tokenizer");
  return pattern.find("String")->as_string();
}

/// The replacement text of a Replace step.
const std::string& content_of(const Json& part, const std::string& where) {
  const std::string& content = part.at("content", where).as_string(where + ".content");
  LOCKSTEP_CHECK(content.size() <= 64, where, ": expected content of at most 64 bytes, got ", content.size(),
                 "; shorten it");
  return content;
}

}  // namespace

/// Fills the rules from a tokenizer.json.
struct RulesReader {
  BpeTokenizer::Rules& rules;
  const Json& file;
  std::string where;

  struct Part {
    const Json& json;
    std::string type, where;
    const Json& at(const char* key) const { return json.at(key, where); }
  };
  /// Adds the parts of a Sequence, and of Sequences in it. Another value is the only part; null has none.
  static void add_parts(const Json& value, const char* list, const std::string& where, std::vector<Part>& parts) {
    if (value.is_null()) return;
    const std::string& type = value.at("type", where).as_string(where + ".type");
    if (type != "Sequence") return parts.push_back({value, type, where + ": " + type});
    for (const Json& part : value.at(list, where).as_array(where + "." + list)) add_parts(part, list, where, parts);
  }
  std::vector<Part> parts(const char* key, const char* list) const {
    std::vector<Part> all;
    if (const Json* value = file.find(key)) add_parts(*value, list, where + ": " + key, all);
    return all;
  }

  void normalizers() {
    using Kind = BpeTokenizer::Normalizer::Kind;
    for (const Part& part : parts("normalizer", "normalizers")) {
      if (part.type == "NFC") rules.normalizers.push_back({Kind::nfc, "", ""});
      else if (part.type == "Prepend")
        rules.normalizers.push_back({Kind::prepend, part.at("prepend").as_string(part.where), ""});
      else if (part.type == "Replace")
        rules.normalizers.push_back(
            {Kind::replace, string_of(part.json, part.where), content_of(part.json, part.where)});
      else fail(str(part.where, " is not supported (NFC, Prepend and Replace are); use another tokenizer"));
    }
  }

  void words() {
    rules.byte_level = false;
    rules.words.reset();
    for (const Part& part : parts("pre_tokenizer", "pretokenizers")) {
      LOCKSTEP_CHECK(
          !rules.byte_level && !rules.metaspace, part.where,
          ": expected ByteLevel or Metaspace as the last part; a part behind it is not supported, use another file");
      if (part.type == "ByteLevel") byte_level(part);
      else if (part.type == "Split") expression(part);
      else if (part.type == "Metaspace") metaspace(part);
      else
        fail(str(part.where,
                 " is not supported (ByteLevel, Split before it, and Metaspace are); use another tokenizer"));
    }
    LOCKSTEP_CHECK(rules.byte_level || !rules.words, where,
                   ": pre_tokenizer: Split is supported before ByteLevel only; use another tokenizer");
  }

  void byte_level(const Part& part) {
    const Json* regex = part.json.find("use_regex");
    const bool cuts = !regex || regex->as_bool(part.where + ".use_regex");
    expect_neutral(part.json, {"add_prefix_space"}, part.where);
    LOCKSTEP_CHECK(!cuts || !rules.words, part.where,
                   ": expected use_regex false after Split, got true; correct the file");
    rules.byte_level = true;
    if (cuts) rules.words = WordPattern::gpt2;
  }

  void expression(const Part& part) {
    const Json* regex = part.at("pattern").find("Regex");
    LOCKSTEP_CHECK(regex && !rules.words, part.where, ": expected a single Split, with a Regex pattern, got ",
                   part.json.dump().substr(0, 400), "; use another tokenizer");
    rules.words = word_pattern(regex->as_string(part.where));
    LOCKSTEP_CHECK(rules.words, part.where, ": expected the regular expression of GPT-2, Llama 3 or Qwen 2, got ",
                   regex->as_string().substr(0, 1000), "; use another tokenizer");
    const Json& behavior = part.at("behavior");
    LOCKSTEP_CHECK(behavior == Json("Isolated"), part.where, ": behavior ", behavior.dump(),
                   " is not supported (Isolated is); use another tokenizer");
    expect_neutral(part.json, {"invert"}, part.where);
  }

  void metaspace(const Part& part) {
    rules.metaspace = true;
    rules.space = part.at("replacement").as_string(part.where + ".replacement");
    LOCKSTEP_CHECK(!rules.space.empty() && size_t(decode_utf8(rules.space, 0).bytes) == rules.space.size(), part.where,
                   ": expected one character as replacement, got \"", rules.space, "\"; use another tokenizer");
    const Json *scheme = part.json.find("prepend_scheme"), *old = part.json.find("add_prefix_space"),
               *split = part.json.find("split");
    // Older files have add_prefix_space instead of prepend_scheme.
    std::string name = old && !old->as_bool(part.where + ".add_prefix_space") ? "never" : "always";
    if (scheme) name = scheme->as_string(part.where + ".prepend_scheme");
    using Prepend = BpeTokenizer::Prepend;
    LOCKSTEP_CHECK(name == "first" || name == "always" || name == "never", part.where, ": prepend_scheme ", name,
                   " is not supported (first, always and never are); use another tokenizer");
    rules.prepend = name == "first" ? Prepend::first : name == "always" ? Prepend::always : Prepend::never;
    rules.split = !split || split->as_bool(part.where + ".split");
  }

  void decoders() {
    const std::vector<Part> all = parts("decoder", "decoders");
    if (rules.byte_level) {
      for (const Part& part : all)
        LOCKSTEP_CHECK(part.type == "ByteLevel", part.where, " is not supported after ByteLevel tokens; leave it out");
      return;
    }
    const std::vector<std::string> order{"Replace", "ByteFallback", "Fuse", "Strip"};
    auto next = order.begin();
    bool fused = false;
    for (const Part& part : all) {
      const auto found = std::ranges::find(order, part.type);
      LOCKSTEP_CHECK(found != order.end(), part.where, " is not supported; use Replace, ByteFallback, Fuse or Strip");
      LOCKSTEP_CHECK(found >= next, part.where,
                     ": expected Replace, ByteFallback, Fuse, Strip in this order, once each; reorder them");
      next = found + 1;
      if (part.type == "Replace") {
        rules.decode_from = string_of(part.json, part.where);
        rules.decode_to = content_of(part.json, part.where);
      } else if (part.type == "ByteFallback") rules.decode_bytes = true;
      else if (part.type == "Fuse") fused = true;
      else {
        const int64_t start = part.at("start").as_int(part.where + ".start");
        LOCKSTEP_CHECK(part.at("content") == Json(" ") && part.at("stop") == Json(0) && start >= 0 && start <= 1000,
                       part.where, ": expected 0 to 1000 spaces at the start, none at the end, got ",
                       part.json.dump().substr(0, 200), "; correct the file");
        rules.strip = int(start);
      }
    }
    LOCKSTEP_CHECK(fused, where, ": decoder: expected Replace, ByteFallback, Fuse, Strip, got ",
                   file.find("decoder") ? file.find("decoder")->dump().substr(0, 200) : "none",
                   "; use another tokenizer");
  }

  /// Reads the post_processor. Call it after all tokens are known.
  void template_processing(const Tokenizer& tokens) {
    for (const Part& part : parts("post_processor", "processors")) {
      if (part.type == "ByteLevel") continue;  // affects offsets only
      LOCKSTEP_CHECK(part.type == "TemplateProcessing", part.where,
                     " is not supported (TemplateProcessing is); use another tokenizer");
      std::vector<int32_t> before;
      int texts = 0;
      for (const Json& item : part.at("single").as_array(part.where + ".single")) {
        const Json* special = item.find("SpecialToken");
        texts += item.find("Sequence") != nullptr;
        LOCKSTEP_CHECK(special || item.find("Sequence"), part.where, ": expected SpecialToken or Sequence, got ",
                       item.dump().substr(0, 200), "; use another tokenizer");
        if (!special) continue;
        const std::string& name = special->at("id", part.where).as_string(part.where);
        const Json& token = part.at("special_tokens").at(name, part.where + ".special_tokens");
        for (const Json& value : token.at("ids", part.where).as_array(part.where)) {
          const int64_t id = value.as_int(part.where);
          LOCKSTEP_CHECK(tokens.knows(id), part.where, ": id ", id, " of ", name, " is not in the vocabulary; add it");
          (texts == 0 ? before : rules.after).push_back(int32_t(id));
        }
      }
      LOCKSTEP_CHECK(texts == 1, part.where, ": expected one Sequence in single, got ", texts, "; keep one");
      rules.before.insert(rules.before.begin(), before.begin(), before.end());
    }
  }
};

BpeTokenizer BpeTokenizer::from_tokenizer_json(const std::string& path) {
  return from_json(read_json(path, {.bytes = max_json_bytes, .python = true}), "[tokenizer] " + path);
}

BpeTokenizer BpeTokenizer::from_json(const Json& file, const std::string& where) {
  BpeTokenizer result;
  const Json& model = file.at("model", where);
  const std::string of_model = where + ": model";
  if (const Json* type = model.find("type"))
    LOCKSTEP_CHECK(type->as_string(of_model + ".type") == "BPE", of_model, ".type: expected BPE, got ",
                   type->as_string(), "; use another tokenizer");
  expect_neutral(model, {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}, of_model);
  Rules& rules = result.rules_;
  RulesReader reader{rules, file, where};
  reader.normalizers();
  reader.words();
  reader.decoders();
  const auto flag = [&](const char* key) {
    return has_value(model.find(key)) && model.find(key)->as_bool(of_model + "." + key);
  };
  rules.ignore_merges = flag("ignore_merges");
  rules.fuse_unknown = flag("fuse_unk");
  if (rules.byte_level) expect_neutral(model, {"byte_fallback"}, of_model);
  rules.byte_fallback = flag("byte_fallback");

  result.add_vocab(model.at("vocab", of_model), of_model + ".vocab");
  int64_t index = 0;
  for (const Json& merge : model.at("merges", of_model).as_array(of_model + ".merges")) {
    const std::string place = str(of_model, ".merges[", index++, "]");
    if (merge.is_array()) {
      LOCKSTEP_CHECK(merge.as_array().size() == 2, place, ": expected two tokens, got ", merge.as_array().size());
      result.add_merge(merge.as_array()[0].as_string(place), merge.as_array()[1].as_string(place), place);
    } else result.add_merge(merge.as_string(place), place);
  }
  result.add_tokens(file, where);
  if (has_value(model.find("unk_token"))) {
    const std::string& name = model.find("unk_token")->as_string(of_model + ".unk_token");
    const std::optional<int32_t> id = result.id_of(name);
    LOCKSTEP_CHECK(id, of_model, ".unk_token: \"", name, "\" is not in the vocabulary; add it there");
    rules.unknown = *id;
  }
  reader.template_processing(result);
  // Default bos and eos: the token put in front of texts, else one with a usual name. tokenizer_config.json may name
  // others.
  if (!rules.before.empty()) result.bos_ = rules.before[0];
  for (const char* name : {"<s>", "<|endoftext|>"})
    if (!result.bos_) result.bos_ = result.id_of(name);
  for (const char* name : {"</s>", "<|endoftext|>"})
    if (!result.eos_) result.eos_ = result.id_of(name);
  result.finish(where);
  return result;
}

void BpeTokenizer::configure(const Json& config, const std::string& where) {
  const auto token = [&](const char* key) -> std::optional<int32_t> {
    const Json* value = config.find(key);
    if (!has_value(value)) return std::nullopt;
    const std::string place = where + ": " + key;
    const std::string& name =
        value->is_object() ? value->at("content", place).as_string(place) : value->as_string(place);
    const std::optional<int32_t> id = id_of(name);
    LOCKSTEP_CHECK(id, place, ": \"", name, "\" is not in the vocabulary; add it there, or name another");
    return id;
  };
  if (config.find("bos_token")) bos_ = token("bos_token");
  if (config.find("eos_token")) eos_ = token("eos_token");
  const auto put = [&](const char* key, const std::optional<int32_t>& id, std::vector<int32_t>& ids, bool in_front) {
    const Json* value = config.find(key);
    if (!value || value->is_null()) return;
    const bool wanted = value->as_bool(where + ": " + key);
    LOCKSTEP_CHECK(!wanted || id, where, ": ", key,
                   " true: there is no such token; name it in this file, or write false");
    if (!id) return;
    if (wanted && !std::ranges::count(ids, *id)) ids.insert(in_front ? ids.begin() : ids.end(), *id);
    if (!wanted) std::erase(ids, *id);
  };
  put("add_bos_token", bos_, rules_.before, true);
  put("add_eos_token", eos_, rules_.after, false);
}

}  // namespace lockstep::data
