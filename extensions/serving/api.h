#pragma once
// Parses requests: the supported fields of OpenAI's completions and chat endpoints, from the body of a request.
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "data/json.h"
#include "extensions/generation/sampling.h"

namespace lockstep::serve {

/// An invalid request: status 400, or 404 for an unknown model.
struct BadRequest : Error {
  BadRequest(const std::string& param_, const std::string& message, int status_ = 400)
      : Error(message), param(param_), status(status_) {}
  std::string param;  ///< the wrong field; "": the whole request
  int status;         ///< HTTP status of the response
};

/// A message of a chat.
struct ChatMessage {
  std::string role, content;  ///< role "developer" becomes "system"; parts of a content are joined by newlines
};

/// The kinds of requests.
enum class Endpoint { completions, chat };

/// A parsed request.
struct Request {
  std::vector<std::string> texts;         ///< prompts of completions that were given as texts
  std::vector<std::vector<int64_t>> ids;  ///< prompts that were given as token ids
  std::vector<ChatMessage> messages;      ///< messages of a chat
  /// Largest number of new tokens; default: 16 for completions, the rest of the context for chats.
  std::optional<int64_t> max_tokens;
  int64_t n = 1;
  int logprobs = -1;  ///< number of likeliest tokens listed for each token; -1: no log probabilities
  bool stream = false, echo = false;
  bool parse_special = true;   ///< true: parse special tokens in a prompt; false: treat them as text
  bool include_usage = false;  ///< true: end a stream with a chunk that counts tokens
  nn::Generation generation;   ///< all other settings
};

/// Parses the body of a request. BadRequest for unsupported fields (unless null or without effect), values out of
/// range, bodies above 1 MiB and nesting deeper than 32. `model`: name of the only model.
Request parse_request(Endpoint endpoint, std::string_view body, const std::string& model);
/// Parses a body of /tokenize, {"prompt": TEXT, "parse_special": true}; only these fields of the Request are set.
Request parse_tokenize(std::string_view body);
/// The body of an error: {"error": {"message", "type", "param"}}.
data::Json error_json(const std::string& message, const std::string& type, const std::string& param = "");

}  // namespace lockstep::serve
