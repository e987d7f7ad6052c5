#pragma once
// What a request may say: the fields of OpenAI's completions and chat that are honoured, from the text of its body.
#include <optional>
#include <string>
#include <vector>

#include "data/json.h"
#include "nn/sampling.h"
#include "tensor/check.h"

namespace lockstep::serve {

/// The request is at fault: status 400, or 404 for a model that is not here.
struct BadRequest : Error {
  BadRequest(const std::string& param_, const std::string& message, int status_ = 400)
      : Error(message), param(param_), status(status_) {}
  std::string param;  ///< the field; "": the whole
  int status;
};

struct Message {
  std::string role, content;  ///< a developer is the system; a content in parts is joined by new lines
};

enum class Endpoint { completions, chat };

struct Request {
  std::vector<std::string> texts;         ///< prompts of completions, or
  std::vector<std::vector<int64_t>> ids;  ///< the same as ids
  std::vector<Message> messages;          ///< of chat
  std::optional<int64_t> max_tokens;      ///< completions: 16
  int64_t n = 1;
  int logprobs = -1;  ///< so many likeliest tokens beside each; -1: none
  bool stream = false, echo = false;
  bool parse_special = true;   ///< special tokens that stand in a prompt are these; else their text is text
  bool include_usage = false;  ///< a stream ends with a piece that counts tokens
  nn::Generation generation;   ///< what else was said
};

/// Error (BadRequest) for unknown fields that are not null and ask for something, for values out of range, for more
/// than 1 MiB or a depth above 32. `model`: the only one there is.
Request parse_request(Endpoint endpoint, std::string_view body, const std::string& model);
/// /tokenize: {"prompt": TEXT, "parse_special": true}, of which a Request has only these.
Request parse_tokenize(std::string_view body);
/// {"error": {"message", "type", "param"}}
data::Json error_json(const std::string& message, const std::string& type, const std::string& param = "");

}  // namespace lockstep::serve
