#include "inference/serve/api.h"

#include <algorithm>

#include "tensor/suggest.h"

namespace lockstep::serve {

using data::Json;

namespace {

constexpr int64_t most_tokens = int64_t(1) << 31, most_answers = 128;

Json parsed_body(std::string_view body) {
  try {
    Json json = data::parse_json(body, "body", {.bytes = 1 << 20, .depth = 32});
    if (!json.is_object())
      throw BadRequest("", "expected the body to be a JSON object, got " + std::string(json.kind()));
    return json;
  } catch (const BadRequest&) { throw; } catch (const Error& error) {
    throw BadRequest("", error.what());
  }
}

/// Fields by name; those that nobody asks for are refused at the end.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}

  /// Null when it is not there, or null.
  const Json* find(const std::string& name) {
    known_.push_back(name);
    const Json* value = json_.find(name);
    return value && !value->is_null() ? value : nullptr;
  }
  template <class Fn> void with(const std::string& name, const Fn& fn) {
    const Json* value = find(name);
    if (!value) return;
    try {
      fn(*value);
    } catch (const BadRequest&) { throw; } catch (const Error& error) {
      throw BadRequest(name, error.what());
    }
  }
  void number(const std::string& name, double& to, double least, double most) {
    with(name, [&](const Json& value) {
      const double x = value.as_number(name);
      LOCKSTEP_CHECK(x >= least && x <= most, name, ": expected a number from ", least, " to ", most, ", got ", x);
      to = x;
    });
  }
  std::optional<int64_t> whole(const std::string& name, int64_t least, int64_t most) {
    std::optional<int64_t> out;
    with(name, [&](const Json& value) {
      const int64_t x = value.as_int(name);
      LOCKSTEP_CHECK(x >= least && x <= most, name, ": expected a whole number from ", least, " to ", most, ", got ",
                     x);
      out = x;
    });
    return out;
  }
  bool flag(const std::string& name) {
    bool out = false;
    with(name, [&](const Json& value) { out = value.as_bool(name); });
    return out;
  }
  void refuse_others() const {
    for (const auto& [name, value] : json_.as_object()) {
      if (value.is_null() || std::count(known_.begin(), known_.end(), name)) continue;
      throw BadRequest(name,
                       "'" + name.substr(0, 100) + "' is not supported" + suggestion(name.substr(0, 100), known_));
    }
  }

 private:
  const Json& json_;
  std::vector<std::string> known_;
};

std::vector<int64_t> ids_of(const Json& list) {
  std::vector<int64_t> ids;
  for (const Json& id : list.as_array("prompt")) ids.push_back(id.as_int("prompt"));
  LOCKSTEP_CHECK(!ids.empty(), "prompt: expected at least one token");
  return ids;
}

void read_prompt(const Json& prompt, Request& r) {
  if (prompt.is_string()) {
    r.texts = {prompt.as_string()};
    return;
  }
  LOCKSTEP_CHECK(prompt.is_array() && !prompt.as_array().empty(),
                 "prompt: expected a text, a list of token ids, or a list of these, got ",
                 prompt.is_array() ? "an empty list" : prompt.kind());
  const Json::Array& list = prompt.as_array();
  if (list[0].is_int()) {
    r.ids = {ids_of(prompt)};
    return;
  }
  for (const Json& one : list) {
    LOCKSTEP_CHECK(one.kind() == std::string_view(list[0].kind()), "prompt: expected a list of one kind, got ",
                   list[0].kind(), " and ", one.kind());
    if (one.is_array()) r.ids.push_back(ids_of(one));
    else r.texts.push_back(one.as_string("prompt"));
  }
}

void read_messages(const Json& messages, Request& r) {
  for (const Json& m : messages.as_array("messages")) {
    Fields fields(m);
    LOCKSTEP_CHECK(m.is_object(), "messages: expected objects, got ", m.kind());
    Message message;
    fields.with("role", [&](const Json& value) { message.role = value.as_string("role"); });
    fields.with("content", [&](const Json& value) { message.content = value.as_string("content"); });
    LOCKSTEP_CHECK(message.role == "system" || message.role == "user" || message.role == "assistant",
                   "messages: expected role system, user or assistant, got '", message.role.substr(0, 100), "'");
    LOCKSTEP_CHECK(m.find("content"), "messages: expected content");
    fields.refuse_others();
    r.messages.push_back(std::move(message));
  }
  LOCKSTEP_CHECK(!r.messages.empty(), "messages: expected at least one");
}

void read_stop(const Json& stop, nn::Generation& g) {
  if (stop.is_string()) g.stop = {stop.as_string()};
  else
    for (const Json& one : stop.as_array("stop")) g.stop.push_back(one.as_string("stop"));
  LOCKSTEP_CHECK(g.stop.size() <= 4, "stop: expected at most 4 texts, got ", g.stop.size());
  for (const std::string& s : g.stop) LOCKSTEP_CHECK(!s.empty(), "stop: expected texts that are not empty");
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
      throw BadRequest("model", "the model '" + name.substr(0, 100) + "' is not here, only '" + model + "'", 404);
  });
  if (chat) {
    fields.with("messages", [&](const Json& value) { read_messages(value, r); });
    if (r.messages.empty()) throw BadRequest("messages", "messages: expected a list of messages");
  } else {
    fields.with("prompt", [&](const Json& value) { read_prompt(value, r); });
    if (r.texts.empty() && r.ids.empty()) throw BadRequest("prompt", "prompt: expected a text or token ids");
    r.echo = fields.flag("echo");
  }
  nn::Generation& g = r.generation;
  r.max_tokens = fields.whole("max_tokens", 0, most_tokens);
  fields.number("temperature", g.temperature, 0, 100);
  fields.number("top_p", g.top_p, 0, 1);
  if (g.top_p == 0) throw BadRequest("top_p", "top_p: expected more than 0");
  fields.number("min_p", g.min_p, 0, 1);
  fields.number("presence_penalty", g.presence_penalty, -2, 2);
  fields.number("frequency_penalty", g.frequency_penalty, -2, 2);
  fields.number("repetition_penalty", g.repetition_penalty, 0.01, 100);
  g.top_k = fields.whole("top_k", 0, most_tokens).value_or(0);
  r.n = fields.whole("n", 1, most_answers).value_or(1);
  if (const auto seed = fields.whole("seed", INT64_MIN, INT64_MAX)) g.seed = uint64_t(*seed);
  fields.with("stop", [&](const Json& value) { read_stop(value, g); });
  if (chat) {
    const bool wanted = fields.flag("logprobs");
    const auto top = fields.whole("top_logprobs", 0, 5);
    if (top && !wanted) throw BadRequest("top_logprobs", "top_logprobs: expected logprobs true with it");
    if (wanted) r.logprobs = int(top.value_or(0));
  } else if (const auto top = fields.whole("logprobs", 0, 5)) {
    r.logprobs = int(*top);
  }
  r.stream = fields.flag("stream");
  if (r.stream && r.echo) throw BadRequest("echo", "echo: not with stream");
  fields.with("user", [](const Json& value) { value.as_string("user"); });
  fields.refuse_others();
  const auto prompts = int64_t(std::max<size_t>(1, std::max(r.texts.size(), r.ids.size())));
  if (prompts * r.n > most_answers)
    throw BadRequest("n", str("n: expected at most ", most_answers, " answers, got ", prompts, " times ", r.n));
  return r;
}

std::string parse_tokenize(std::string_view body) {
  const Json json = parsed_body(body);
  Fields fields(json);
  std::optional<std::string> text;
  fields.with("prompt", [&](const Json& value) { text = value.as_string("prompt"); });
  fields.refuse_others();
  if (!text) throw BadRequest("prompt", "prompt: expected a text");
  return *text;
}

Json error_json(const std::string& message, const std::string& type, const std::string& param) {
  return Json::Object{
      {"error", Json::Object{{"message", message}, {"type", type}, {"param", param.empty() ? Json() : Json(param)}}}};
}

}  // namespace lockstep::serve
