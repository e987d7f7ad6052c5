// Known chat templates. See chat.h.
#include "extensions/serving/chat.h"

#include <algorithm>
#include <filesystem>

#include "base/suggest.h"
#include "data/files.h"
#include "dist/fingerprint.h"

namespace lockstep::serve {

using data::Json;
using Kind = ChatTemplate::Kind;

namespace {

/// A known template, recognised by FNV-1a hash and length of its text ("\n" escapes replaced, outer blanks removed).
struct KnownText {
  uint64_t hash;
  size_t length;
  Kind kind;
  const char* system;
};
constexpr KnownText known_texts[] = {
    // Templates of Transformers' documentation, some in variants: with a blank, or with a default system message.
    {0x88bf4138d5c826f0u, 196, Kind::chatml, ""},
    {0xbe10679872d5c79au, 198, Kind::chatml, ""},
    {0x773d13e188afc917u, 291, Kind::chatml, ""},
    {0xd42348f7b797adbdu, 293, Kind::chatml, ""},
    {0x8a87094e0e1e24c5u, 328, Kind::chatml, "You are a helpful assistant."},  // Qwen 2
    {0x0e60067a5537498eu, 389, Kind::llama3, ""},
    {0x4d1512049817743du, 811, Kind::llama2, ""},
    {0x77f52e8441e4e7e7u, 810, Kind::llama2, ""},
};

std::string stripped(const std::string& text) {
  const char* const blanks = " \t\n\r\v\f";
  const size_t begin = text.find_first_not_of(blanks);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

/// The special tokens of a template; the last one ends an answer.
std::vector<const char*> specials_of(Kind kind) {
  if (kind == Kind::chatml) return {"<|im_start|>", "<|im_end|>"};
  if (kind == Kind::llama3) return {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
  return {};
}

std::string spelling(const data::Tokenizer& tokenizer, const std::optional<int32_t>& id) {
  return id ? std::string(tokenizer.token_bytes(*id)) : "";
}

std::string llama2_text(const std::vector<ChatMessage>& messages, const std::string& bos, const std::string& eos) {
  std::string out, system;
  size_t first = 0;
  if (messages[0].role == "system") system = "<<SYS>>\n" + messages[first++].content + "\n<</SYS>>\n\n";
  if (first == messages.size()) throw BadRequest("messages", "messages: expected a user's after the system's; add one");
  for (size_t i = first; i < messages.size(); ++i) {
    const ChatMessage& m = messages[i];
    if (m.role != ((i - first) % 2 ? "assistant" : "user"))
      throw BadRequest("messages", str("messages: expected user and assistant in turn, got ", m.role, " at ", i));
    if (m.role == "user") out += bos + "[INST] " + stripped((i == first ? system : "") + m.content) + " [/INST]";
    else out += " " + stripped(m.content) + " " + eos;
  }
  return out;
}

}  // namespace

ChatTemplate template_by_name(const std::string& name) {
  const std::vector<std::string> names{"plain", "chatml", "llama2", "llama3"};  // in the order of Kind
  const auto found = std::ranges::find(names, name);
  LOCKSTEP_CHECK(found != names.end(), "--template: expected ", listed(names), ", got '", name, "'");
  return {Kind(found - names.begin())};
}

std::optional<ChatTemplate> template_by_text(const std::string& text) {
  std::string t = text;
  for (size_t at = 0; (at = t.find("\\n", at)) != std::string::npos; ++at) t.replace(at, 2, "\n");
  t = stripped(t);
  const uint64_t hash = dist::hash_text(t);
  for (const KnownText& k : known_texts)
    if (k.hash == hash && k.length == t.size()) return ChatTemplate{k.kind, k.system};
  return std::nullopt;
}

std::optional<ChatTemplate> template_of_folder(const std::string& folder) {
  std::string text, path = folder + "/chat_template.jinja";
  if (std::filesystem::exists(path)) {
    text = data::read_file(path, 1 << 20);
  } else {
    path = folder + "/tokenizer_config.json";
    if (!std::filesystem::exists(path)) return std::nullopt;
    const Json config = data::read_json(path, data::python_json);
    const Json* found = config.find("chat_template");
    if (!found || found->is_null()) return std::nullopt;
    if (found->is_array())
      for (const Json& one : found->as_array())
        if (one.at("name", path).as_string(path) == "default") text = one.at("template", path).as_string(path);
    if (found->is_string()) text = found->as_string();
  }
  const auto known = template_by_text(text);
  LOCKSTEP_CHECK(known, path,
                 ": its chat_template is unknown (known: chatml, llama2, llama3), and Jinja templates are not run; set "
                 "--template to the one that the model was trained with, or --template none to serve completions only");
  return known;
}

void check_template(const ChatTemplate& of, const data::Tokenizer& tokenizer) {
  for (const char* special : specials_of(of.kind))
    LOCKSTEP_CHECK(tokenizer.encode(special, {.add_special = false, .parse_special = true}).size() == 1,
                   "--template: expected a tokenizer with the token ", special,
                   ", which this one lacks; choose another template, or --template none");
  LOCKSTEP_CHECK(of.kind != Kind::llama2 || (tokenizer.bos() && tokenizer.eos()),
                 "--template llama2: expected a tokenizer with tokens that begin and end a text, which this one lacks; "
                 "choose another template, or --template none");
}

std::string render(const ChatTemplate& of, const std::vector<ChatMessage>& messages, const std::string& bos,
                   const std::string& eos) {
  if (of.kind == Kind::llama2) return llama2_text(messages, bos, eos);
  std::vector<ChatMessage> all = messages;
  if (!of.system.empty() && all[0].role != "system") all.insert(all.begin(), {"system", of.system});
  const auto head = [&](std::string role) -> std::string {
    if (of.kind == Kind::chatml) return "<|im_start|>" + role + "\n";
    if (of.kind == Kind::llama3) return "<|start_header_id|>" + role + "<|end_header_id|>\n\n";
    role[0] = char(role[0] - 'a' + 'A');
    return role + ":";
  };
  std::string out = of.kind == Kind::llama3 ? bos : "";
  for (const ChatMessage& m : all)
    out += head(m.role) + (of.kind == Kind::chatml   ? m.content + "<|im_end|>\n"
                           : of.kind == Kind::llama3 ? stripped(m.content) + "<|eot_id|>"
                                                     : " " + m.content + "\n");
  return out + head("assistant");
}

std::vector<int64_t> encode_chat(const ChatTemplate& of, const std::vector<ChatMessage>& messages,
                                 const data::Tokenizer& tokenizer) {
  for (size_t i = 0; i < messages.size(); ++i)
    for (const int32_t id : tokenizer.encode(messages[i].content, {.add_special = false, .parse_special = true}))
      if (tokenizer.is_special(id))
        throw BadRequest("messages", str("messages: number ", i, " has the text of the special token ",
                                         tokenizer.token_bytes(id), "; take it out"));
  const std::string text =
      render(of, messages, spelling(tokenizer, tokenizer.bos()), spelling(tokenizer, tokenizer.eos()));
  const auto ids = tokenizer.encode(text, {.add_special = of.kind == Kind::plain, .parse_special = true});
  return {ids.begin(), ids.end()};
}

std::vector<int64_t> ends_of(const ChatTemplate& of, const data::Tokenizer& tokenizer) {
  const std::vector<const char*> specials = specials_of(of.kind);
  if (specials.empty()) return {};
  return {tokenizer.encode(specials.back(), {.add_special = false, .parse_special = true}).at(0)};
}

}  // namespace lockstep::serve
