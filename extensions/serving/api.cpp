// Parses requests. See api.h.
#include "extensions/serving/api.h"

#include <algorithm>
#include <cmath>

#include "base/suggest.h"

namespace lockstep::serve {

using data::Json;

namespace {

constexpr int64_t max_answers = 128;
constexpr size_t longest_stop = 1024;  // limited, because every answer is searched for each stop text

/// Unsupported fields that clients often send, each with the values that have no effect and are therefore accepted.
const char* const no_requests = R"({"tools": [[]], "functions": [[]], "tool_choice": ["none", "auto"], "best_of": [1],
  "function_call": ["none", "auto"], "parallel_tool_calls": [true, false], "tool_calls": [[]], "annotations": [[]],
  "response_format": [{"type": "text"}], "modalities": [["text"]], "logit_bias": [{}], "suffix": [""], "metadata": [{}],
  "store": [false], "service_tier": ["auto", "default"], "include_obfuscation": [false]})";

/// Runs fn, and turns its Errors into BadRequests about the field `param`.
auto as_request(const std::string& param, const auto& fn) {
  try {
    return fn();
  } catch (const BadRequest&) { throw; } catch (const Error& error) {
    throw BadRequest(param, error.what());
  }
}

Json parsed_body(std::string_view body) {
  const Json json = as_request("", [&] { return data::parse_json(body, "body", {.bytes = 1 << 20, .depth = 32}); });
  if (!json.is_object()) throw BadRequest("", "expected the body to be a JSON object, got " + std::string(json.kind()));
  return json;
}

/// The fields of a request by name. refuse_others() rejects fields that were not read, unless they have no effect.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}

  /// Returns the value of a field, or nullptr if the field is missing or its value is null.
  const Json* find(const std::string& name) {
    known_.push_back(name);
    const Json* value = json_.find(name);
    return value && !value->is_null() ? value : nullptr;
  }
  template <class Fn> void with(const std::string& name, const Fn& fn) {
    if (const Json* value = find(name)) as_request(name, [&] { fn(*value); });
  }
  /// Reads an option of nn::Generation.
  void option(const std::string& name, double& to) {
    with(name, [&](const Json& value) {
      const std::string wrong = nn::wrong_option(name, value.as_number(name));
      LOCKSTEP_CHECK(wrong.empty(), wrong);
      to = value.as_number(name);
    });
  }
  /// Reads an integer. 5.0 counts as 5, since some clients have only one type of numbers.
  std::optional<int64_t> integer(const std::string& name, int64_t least, int64_t greatest) {
    std::optional<int64_t> out;
    with(name, [&](const Json& value) {
      const double number = value.is_number() ? value.as_number() : 0.5;
      const int64_t x = std::abs(number) < 1e15 && number == std::floor(number) ? int64_t(number) : value.as_int(name);
      LOCKSTEP_CHECK(x >= least && x <= greatest, name, ": expected a whole number from ", least, " to ", greatest,
                     ", got ", x);
      out = x;
    });
    return out;
  }
  bool flag(const std::string& name, bool usual = false) {
    bool out = usual;
    with(name, [&](const Json& value) { out = value.as_bool(name); });
    return out;
  }
  void refuse_others() const {
    for (const auto& [name, value] : json_.as_object()) {
      if (value.is_null() || std::count(known_.begin(), known_.end(), name)) continue;
      static const Json all_nothing = data::parse_json(no_requests, "no_requests");
      const Json* const nothing = all_nothing.find(name);
      if (nothing && std::ranges::count(nothing->as_array(), value)) continue;
      const std::string shortened = name.substr(0, 100);
      std::string advice = nothing ? ", except as one of " + nothing->dump() : suggestion(shortened, known_);
      if (nothing || advice.empty()) advice += "; leave it out";
      throw BadRequest(name, "'" + shortened + "' is not supported" + advice);
    }
  }

 private:
  const Json& json_;
  std::vector<std::string> known_;
};

std::vector<int64_t> ids_of(const Json& list) {
  std::vector<int64_t> ids;
  for (const Json& id : list.as_array("prompt")) ids.push_back(id.as_int("prompt"));
  LOCKSTEP_CHECK(!ids.empty(), "prompt: expected at least one token, got an empty list");
  return ids;
}

void read_prompt(const Json& prompt, Request& r) {
  if (prompt.is_string()) return void(r.texts = {prompt.as_string()});
  LOCKSTEP_CHECK(prompt.is_array() && !prompt.as_array().empty(),
                 "prompt: expected a text, a list of texts, a list of token ids, or a list of such lists, got ",
                 prompt.is_array() ? "an empty list" : prompt.kind());
  const Json::Array& list = prompt.as_array();
  if (list[0].is_int()) return void(r.ids = {ids_of(prompt)});
  for (const Json& one : list) {
    LOCKSTEP_CHECK(one.kind() == std::string_view(list[0].kind()),
                   "prompt: expected only texts in the list, or only lists of token ids, got ", list[0].kind(), " and ",
                   one.kind());
    if (one.is_array()) r.ids.push_back(ids_of(one));
    else r.texts.push_back(one.as_string("prompt"));
  }
}

/// The text of a message: `content` is a string, or a list of parts, [{"type": "text", "text": "..."}], which are
/// joined by newlines.
std::string content_of(const Json& content) {
  if (!content.is_array()) return content.as_string("content");
  std::string text;
  for (const Json& part : content.as_array()) {
    const std::string& type = part.at("type", "content").as_string("content: type");
    LOCKSTEP_CHECK(type == "text", "content: expected parts of type text, got '", type.substr(0, 100), "'");
    text += (text.empty() ? "" : "\n") + part.at("text", "content").as_string("content: text");
  }
  return text;
}

void read_messages(const Json& messages, Request& r) {
  for (const Json& m : messages.as_array("messages")) {
    Fields fields(m);
    LOCKSTEP_CHECK(m.is_object(), "messages: expected objects, got ", m.kind());
    ChatMessage message;
    fields.with("role", [&](const Json& value) { message.role = value.as_string("role"); });
    fields.with("content", [&](const Json& value) { message.content = content_of(value); });
    fields.with("name", [](const Json& value) { value.as_string("name"); });
    if (message.role == "developer") message.role = "system";
    LOCKSTEP_CHECK(message.role == "system" || message.role == "user" || message.role == "assistant",
                   "messages: expected role system, developer, user or assistant, got '", message.role.substr(0, 100),
                   "'");
    LOCKSTEP_CHECK(m.find("content"), "messages: expected a field content in every message, got one without");
    fields.refuse_others();
    r.messages.push_back(std::move(message));
  }
  LOCKSTEP_CHECK(!r.messages.empty(), "messages: expected at least one, got an empty list");
}

void read_stop(const Json& stop, nn::Generation& g) {
  if (stop.is_string()) g.stop = {stop.as_string()};
  else
    for (const Json& one : stop.as_array("stop")) g.stop.push_back(one.as_string("stop"));
  LOCKSTEP_CHECK(g.stop.size() <= 4, "stop: expected at most 4 texts, got ", g.stop.size());
  for (const std::string& s : g.stop)
    LOCKSTEP_CHECK(!s.empty() && s.size() <= longest_stop, "stop: expected texts that are not empty, of at most ",
                   longest_stop, " bytes, got ", s.size());
}

}  // namespace

Request parse_request(Endpoint endpoint, std::string_view body, const std::string& model) {
  const Json json = parsed_body(body);
  Fields fields(json);
  const bool chat = endpoint == Endpoint::chat;
  Request r;
  r.generation.do_sample = true;
  r.generation.top_k = 0;
  fields.with("model", [&](const Json& value) {
    const std::string& name = value.as_string("model");
    if (name != model)
      throw BadRequest("model", "unknown model '" + name.substr(0, 100) + "'; expected '" + model + "'", 404);
  });
  if (chat) {
    fields.with("messages", [&](const Json& value) { read_messages(value, r); });
    if (r.messages.empty()) throw BadRequest("messages", "messages: expected a list of messages");
  } else {
    fields.with("prompt", [&](const Json& value) { read_prompt(value, r); });
    if (r.texts.empty() && r.ids.empty()) throw BadRequest("prompt", "prompt: expected a text or token ids");
    r.echo = fields.flag("echo");
    r.parse_special = fields.flag("parse_special", true);
  }
  nn::Generation& g = r.generation;
  // Two names for the same field; the newer one takes precedence.
  for (const char* name : {"max_tokens", "max_completion_tokens"})
    if (const auto given = fields.integer(name, 0, int64_t(nn::max_of_option("max_new_tokens")))) r.max_tokens = given;
  for (const auto& [name, to] : {std::pair{"temperature", &g.temperature},
                                 {"top_p", &g.top_p},
                                 {"min_p", &g.min_p},
                                 {"presence_penalty", &g.presence_penalty},
                                 {"frequency_penalty", &g.frequency_penalty},
                                 {"repetition_penalty", &g.repetition_penalty}})
    fields.option(name, *to);
  g.top_k = std::max<int64_t>(0, fields.integer("top_k", -1, int64_t(nn::max_of_option("top_k"))).value_or(0));
  r.n = fields.integer("n", 1, max_answers).value_or(1);
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX)) g.seed = uint64_t(*seed);
  fields.with("stop", [&](const Json& value) { read_stop(value, g); });
  if (chat) {
    const bool wanted = fields.flag("logprobs");
    const auto top = fields.integer("top_logprobs", 0, 5);
    if (top && !wanted) throw BadRequest("top_logprobs", "top_logprobs: expected logprobs true with it");
    if (wanted) r.logprobs = int(top.value_or(0));
  } else if (const auto top = fields.integer("logprobs", 0, 5)) {
    r.logprobs = int(*top);
  }
  r.stream = fields.flag("stream");
  if (r.stream && r.echo) throw BadRequest("echo", "echo: not with stream; leave one of them out");
  fields.with("stream_options", [&](const Json& value) {
    LOCKSTEP_CHECK(r.stream && value.is_object(),
                   "stream_options: expected an object, in a request with stream true; else leave stream_options out");
    Fields of_stream(value);
    r.include_usage = of_stream.flag("include_usage");
    of_stream.refuse_others();
  });
  fields.with("user", [](const Json& value) { value.as_string("user"); });
  fields.refuse_others();
  const auto prompts = int64_t(std::max<size_t>(1, std::max(r.texts.size(), r.ids.size())));
  if (prompts * r.n > max_answers)
    throw BadRequest("n", str("n: expected at most ", max_answers, " answers, got ", prompts, " prompts, n ", r.n));
  return r;
}

Request parse_tokenize(std::string_view body) {
  const Json json = parsed_body(body);
  Fields fields(json);
  Request r;
  fields.with("prompt", [&](const Json& value) { r.texts = {value.as_string("prompt")}; });
  r.parse_special = fields.flag("parse_special", true);
  fields.refuse_others();
  if (r.texts.empty()) throw BadRequest("prompt", "prompt: expected a text");
  return r;
}

Json error_json(const std::string& message, const std::string& type, const std::string& param) {
  return Json::Object{
      {"error", Json::Object{{"message", message}, {"type", type}, {"param", param.empty() ? Json() : Json(param)}}}};
}

}  // namespace lockstep::serve
