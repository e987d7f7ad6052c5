#pragma once
// Chats as prompts. A model's template is a program in Jinja, which is not run here: the templates that are known are
// written out, and a model has one of them when its own is that text, character by character.
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "inference/serve/api.h"

namespace lockstep::serve {

struct ChatTemplate {
  enum class Kind { plain, chatml, llama2, llama3 } kind = Kind::plain;
  std::string system = {};  ///< message in front when there is none
  friend bool operator==(const ChatTemplate&, const ChatTemplate&) = default;
};

/// By name: plain, chatml, llama2 or llama3. Error for others.
ChatTemplate template_by_name(const std::string& name);
/// Of tokenizer_config.json or chat_template.jinja in a folder; none: it says nothing. Error when it is not known.
std::optional<ChatTemplate> template_of_folder(const std::string& folder);
/// By its text; none: not known.
std::optional<ChatTemplate> template_by_text(const std::string& text);

/// Error when the tokenizer has not the special tokens that the template writes.
void check_template(const ChatTemplate& of, const data::Tokenizer& tokenizer);
/// The text of a chat, up to where the assistant answers. BadRequest for an order of roles that it has no place for.
std::string render(const ChatTemplate& of, const std::vector<Message>& messages, const std::string& bos,
                   const std::string& eos);
/// Its ids. BadRequest when a message has the text of a special token, which would be taken for one.
std::vector<int64_t> encode_chat(const ChatTemplate& of, const std::vector<Message>& messages,
                                 const data::Tokenizer& tokenizer);
/// Ends of an answer, besides the model's own.
std::vector<int64_t> ends_of(const ChatTemplate& of, const data::Tokenizer& tokenizer);

}  // namespace lockstep::serve
