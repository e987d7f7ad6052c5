#include "inference/serve/service.h"

#include <algorithm>
#include <ctime>
#include <random>

#include "nn/text_stream.h"

namespace lockstep::serve {

using data::Json;

namespace {

/// The text of a token, or "bytes:\xe2\x80" where it is no text.
std::string token_name(std::string_view bytes) {
  nn::TextStream stream;
  std::string text = stream.push(std::string(bytes));
  text += stream.flush();
  if (text == bytes) return text;
  std::string out = "bytes:";
  for (const char c : bytes) {
    const char* const digits = "0123456789abcdef";
    (out += "\\x") += {digits[uint8_t(c) >> 4], digits[uint8_t(c) & 15]};
  }
  return out;
}

}  // namespace

/// An answer on its way to text. What `pieces` hands out is taken from it.
struct Reply::One {
  int64_t index = 0;
  std::vector<int64_t> prompt;
  std::shared_ptr<Answer> answer;
  data::Decoder decoder;
  nn::TextStream stream;
  std::string text;  // since the last piece
  std::vector<Token> tokens;
  int64_t made = 0, echoed = 0;
  bool begun = false, ended = false;
  std::string reason;

  One(const data::Tokenizer& tokenizer, const std::vector<std::string>& stop) : decoder(tokenizer), stream(stop) {}
};

Service::Service(nn::GPT& model, const data::Tokenizer& tokenizer, const ServiceOptions& options)
    : tokenizer_(tokenizer), options_(options), created_(std::time(nullptr)), batcher_(model, options.batcher) {
  LOCKSTEP_CHECK(tokenizer.vocab_size() <= model.o.vocab, "[serve] the tokenizer has ", tokenizer.vocab_size(),
                 " tokens, the model only ", model.o.vocab);
  if (options_.chat) check_template(*options_.chat, tokenizer);
}

std::vector<int64_t> Service::encode(const std::string& text) const {
  std::vector<int64_t> ids;
  for (const int32_t id : tokenizer_.encode(text)) ids.push_back(id);
  if (ids.empty()) throw BadRequest("prompt", "prompt: expected at least one token");
  return ids;
}

std::unique_ptr<Reply> Service::answer(Endpoint endpoint, std::string_view body) {
  if (endpoint == Endpoint::chat && !options_.chat)
    throw BadRequest("", "this model has no chat template; ask /v1/completions, or start the server with --template");
  return std::unique_ptr<Reply>(new Reply(*this, endpoint, parse_request(endpoint, body, options_.name)));
}

Json Service::models() const {
  Json::Array all{
      Json::Object{{"id", options_.name}, {"object", "model"}, {"created", created_}, {"owned_by", "lockstep"}}};
  return Json::Object{{"object", "list"}, {"data", std::move(all)}};
}

Json Service::tokenize(std::string_view body) const {
  Json::Array ids;
  for (const int32_t id : tokenizer_.encode(parse_tokenize(body))) ids.push_back(int64_t(id));
  const auto count = int64_t(ids.size());
  return Json::Object{{"tokens", std::move(ids)}, {"count", count}, {"max_model_len", batcher_.context()}};
}

std::string Service::metrics() {
  const Figures f = batcher_.figures();
  std::string out;
  const auto line = [&](const char* name, const char* type, const char* help, const auto& value) {
    out += str("# HELP lockstep_", name, " ", help, "\n# TYPE lockstep_", name, " ", type, "\nlockstep_", name, " ",
               value, "\n");
  };
  line("requests_total", "counter", "Sequences that were asked for.", f.requests);
  line("requests_cancelled_total", "counter", "Sequences whose client went away.", f.cancelled);
  line("requests_running", "gauge", "Sequences that have blocks.", f.running);
  line("requests_waiting", "gauge", "Sequences that wait.", f.waiting);
  line("prompt_tokens_total", "counter", "Tokens of the prompts of sequences that have ended.", f.prompt_tokens);
  line("generated_tokens_total", "counter", "Tokens that were made, of sequences that have ended.", f.tokens);
  line("shared_tokens_total", "counter", "Prompt tokens whose blocks were there already.", f.shared_tokens);
  line("preemptions_total", "counter", "Sequences that had to give their blocks back.", f.put_back);
  line("steps_total", "counter", "Steps of the schedule.", f.steps);
  line("rows_total", "counter", "Rows of all steps, one a token.", f.rows);
  line("step_seconds_total", "counter", "Time within steps.", f.seconds);
  line("blocks", "gauge", "Blocks of 32 tokens for keys and values.", f.blocks);
  line("blocks_used", "gauge", "Those in use.", f.blocks_used);
  return out;
}

Reply::Reply(Service& service, Endpoint endpoint, Request request)
    : service_(service), endpoint_(endpoint), request_(std::move(request)), created_(std::time(nullptr)) {
  const bool chat = endpoint == Endpoint::chat;
  id_ = str(chat ? "chatcmpl-" : "cmpl-", ++service.numbers_);
  std::vector<std::vector<int64_t>> prompts = request_.ids;
  for (const std::string& text : request_.texts) prompts.push_back(service.encode(text));
  if (chat) prompts = {encode_chat(*service.options_.chat, request_.messages, service.tokenizer_)};
  nn::Generation& g = request_.generation;
  if (!g.seed) g.seed = uint64_t(std::random_device()()) << 32 | std::random_device()();
  g.eos_token_id = service.options_.eos;
  if (chat)
    for (const int64_t end : ends_of(*service.options_.chat, service.tokenizer_)) g.eos_token_id.push_back(end);
  g.text = [&tokenizer = service.tokenizer_](int64_t id) { return std::string(tokenizer.token_bytes(int32_t(id))); };
  const int64_t context = service.batcher_.context();
  for (size_t p = 0; p < prompts.size(); ++p) {
    const auto length = int64_t(prompts[p].size()), room = context - length;
    if (room < request_.max_tokens.value_or(1))
      throw BadRequest(chat ? "messages" : "prompt",
                       str("the prompt has ", length, " tokens and max_tokens is ", request_.max_tokens.value_or(1),
                           ", the model's context is ", context));
    for (const int64_t id : prompts[p])
      if (id < 0 || id >= service.tokenizer_.vocab_size())
        throw BadRequest("prompt",
                         str("prompt: token ", id, " is not one of the tokenizer's ", service.tokenizer_.vocab_size()));
    g.max_new_tokens = request_.max_tokens.value_or(chat ? room : std::min<int64_t>(16, room));
    for (int64_t i = 0; i < request_.n; ++i) {
      auto one = std::make_unique<One>(service.tokenizer_, g.stop);
      one->index = int64_t(all_.size());
      one->prompt = prompts[p];
      for (const int64_t id : prompts[p]) {
        const std::string text = one->decoder.push(int32_t(id));  // what comes is not taken for the beginning
        if (request_.echo) one->text += text;
      }
      const std::string rest = one->decoder.flush();
      if (request_.echo) one->text = p < request_.texts.size() ? request_.texts[p] : one->text + rest;
      try {
        one->answer = service.batcher_.submit({.prompt = prompts[p],
                                               .generation = g,
                                               .sequence = uint64_t(i),
                                               .logprobs = request_.logprobs,
                                               .prompt_logprobs = request_.echo && request_.logprobs >= 0});
      } catch (const Error& error) { throw BadRequest("", error.what()); }
      if (request_.echo && request_.logprobs >= 0) {
        one->echoed = length;
        one->tokens.push_back({.id = prompts[p][0]});  // nothing is in front of it
      }
      all_.push_back(std::move(one));
    }
  }
}

Reply::~Reply() {
  for (const auto& one : all_)
    if (one->answer) one->answer->cancel();
}

bool Reply::ended() const {
  return std::all_of(all_.begin(), all_.end(), [](const auto& one) { return one->ended; });
}

void Reply::take(One& one, const Token& token) {
  if (request_.logprobs >= 0) one.tokens.push_back(token);
  if (int64_t(one.tokens.size()) <= one.echoed && one.made == 0 && one.echoed > 0) return;  // of the prompt
  ++one.made;
  const auto& eos = request_.generation.eos_token_id;
  if (std::count(eos.begin(), eos.end(), token.id)) return;
  one.text += one.stream.push(one.decoder.push(int32_t(token.id)));
}

void Reply::close(One& one) {
  one.ended = true;
  const Answer::Reason reason = one.answer->reason();
  one.reason = reason == Answer::Reason::length || reason == Answer::Reason::context ? "length" : "stop";
  one.text += one.stream.push(one.decoder.flush());
  one.text += one.stream.flush();
}

std::vector<Json> Reply::pieces(int milliseconds) {
  std::vector<Json> out;
  const char* const object = endpoint_ == Endpoint::chat ? "chat.completion.chunk" : "text_completion";
  int wait = milliseconds;
  for (const auto& one : all_) {
    if (one->ended) continue;
    while (const auto token = one->answer->next(std::exchange(wait, 0))) {
      take(*one, *token);
      wait = 0;
    }
    if (one->answer->ended()) close(*one);
    if (!request_.stream) continue;
    const bool first = !one->begun && endpoint_ == Endpoint::chat;
    if (one->text.empty() && !one->ended && !first) continue;
    out.push_back(envelope(object, {choice(*one, true)}));
    one->begun = true;
    one->text.clear();
    one->tokens.clear();
  }
  return out;
}

Json Reply::whole() const {
  Json::Array choices;
  int64_t prompt = 0, made = 0;
  for (const auto& one : all_) {
    choices.push_back(choice(*one, false));
    if (one->index % request_.n == 0) prompt += int64_t(one->prompt.size());
    made += one->made;
  }
  Json out = envelope(endpoint_ == Endpoint::chat ? "chat.completion" : "text_completion", std::move(choices));
  out["usage"] = Json::Object{{"prompt_tokens", prompt}, {"completion_tokens", made}, {"total_tokens", prompt + made}};
  return out;
}

Json Reply::envelope(const char* object, Json::Array choices) const {
  return Json::Object{{"id", id_},
                      {"object", object},
                      {"created", created_},
                      {"model", service_.options_.name},
                      {"choices", std::move(choices)}};
}

Json Reply::choice(const One& one, bool delta) const {
  Json out = Json::Object{{"index", one.index}};
  const auto name_of = [&](int64_t id) { return token_name(service_.tokenizer_.token_bytes(int32_t(id))); };
  Json logprobs;
  if (endpoint_ == Endpoint::chat) {
    Json message = Json::Object{};
    if (!delta || !one.begun) message["role"] = "assistant";
    message["content"] = one.text;
    out[delta ? "delta" : "message"] = std::move(message);
    if (request_.logprobs >= 0) {
      Json::Array content;
      for (const Token& t : one.tokens) {
        Json::Array top;
        for (const auto& [id, logprob] : t.likeliest)
          top.push_back(Json::Object{{"token", name_of(id)}, {"logprob", logprob}});
        content.push_back(
            Json::Object{{"token", name_of(t.id)}, {"logprob", t.logprob}, {"top_logprobs", std::move(top)}});
      }
      logprobs = Json::Object{{"content", std::move(content)}};
    }
  } else {
    out["text"] = one.text;
    if (request_.logprobs >= 0) {
      Json::Array tokens, values, tops, offsets;
      int64_t offset = 0;
      for (size_t i = 0; i < one.tokens.size(); ++i) {
        const Token& t = one.tokens[i];
        const bool nothing = i == 0 && one.echoed > 0;
        Json top = Json::Object{};
        for (const auto& [id, logprob] : t.likeliest)
          if (!top.find(name_of(id))) top[name_of(id)] = logprob;
        tokens.push_back(name_of(t.id));
        values.push_back(nothing ? Json() : Json(t.logprob));
        tops.push_back(nothing ? Json() : std::move(top));
        offsets.push_back(offset);
        offset += int64_t(service_.tokenizer_.token_bytes(int32_t(t.id)).size());
      }
      logprobs = Json::Object{{"tokens", std::move(tokens)},
                              {"token_logprobs", std::move(values)},
                              {"top_logprobs", std::move(tops)},
                              {"text_offset", std::move(offsets)}};
    }
  }
  out["logprobs"] = std::move(logprobs);
  out["finish_reason"] = one.ended ? Json(one.reason) : Json();
  return out;
}

}  // namespace lockstep::serve
