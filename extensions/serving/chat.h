#pragma once
// Converts chats to prompts. A model's chat template is a Jinja program, which is not executed: known templates are
// implemented here, and a model's template is recognized by its exact text.
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "extensions/serving/api.h"

namespace lockstep::serve {

/// A known chat template.
struct ChatTemplate {
  /// The implemented templates.
  enum class Kind { plain, chatml, llama2, llama3 } kind = Kind::plain;
  std::string system = {};  ///< system message if a chat has none
  friend bool operator==(const ChatTemplate&, const ChatTemplate&) = default;
};

/// The template with this name: plain, chatml, llama2 or llama3. Error for other names.
ChatTemplate template_by_name(const std::string& name);
/// The template in tokenizer_config.json or chat_template.jinja of a folder; nullopt if there is none. Error if it is
/// unknown.
std::optional<ChatTemplate> template_of_folder(const std::string& folder);
/// The template with this text; nullopt if it is unknown.
std::optional<ChatTemplate> template_by_text(const std::string& text);

/// Error if the tokenizer lacks special tokens of the template.
void check_template(const ChatTemplate& of, const data::Tokenizer& tokenizer);
/// The text of a chat up to the assistant's answer. BadRequest for an order of roles that the template does not allow.
std::string render(const ChatTemplate& of, const std::vector<ChatMessage>& messages, const std::string& bos,
                   const std::string& eos);
/// The token ids of render(). BadRequest when a message contains the text of a special token, which would be parsed as
/// that token.
std::vector<int64_t> encode_chat(const ChatTemplate& of, const std::vector<ChatMessage>& messages,
                                 const data::Tokenizer& tokenizer);
/// Ids of the template's tokens that end an answer. The model's own end tokens (eos) end it, too.
std::vector<int64_t> ends_of(const ChatTemplate& of, const data::Tokenizer& tokenizer);

}  // namespace lockstep::serve
