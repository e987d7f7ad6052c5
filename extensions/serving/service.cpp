// Answers requests with a model. See service.h.
#include "extensions/serving/service.h"

#include <algorithm>
#include <ctime>
#include <random>

#include "base/classic_text.h"
#include "extensions/generation/text_stream.h"

namespace lockstep::serve {

using data::Json;

namespace {

// The largest number of prompt tokens in a request. If n answers are requested, each prompt counts n times.
constexpr int64_t max_prompt_tokens = 1 << 18;

/// Number of characters in UTF-8 text.
int64_t characters_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (uint8_t(c) & 0xc0) != 0x80; });
}

/// Number of characters that the decoder outputs before those of a token with these `bytes`. If earlier tokens end with
/// an incomplete character that this token does not continue, the decoder outputs U+FFFD for that character.
int64_t before_own(data::Decoder decoder, std::string_view bytes) {
  return !bytes.empty() && (uint8_t(bytes[0]) & 0xc0) == 0x80 ? 0 : characters_of(decoder.flush());
}

/// JSON has no infinity; OpenAI uses this number for tokens that are never sampled.
double readable(double logprob) { return std::max(logprob, -9999.0); }

/// The text of a token, or "bytes:\xe2\x80" if it is not valid UTF-8.
std::string token_name(std::string_view bytes) {
  std::string text(bytes);
  if (!data::not_utf8(text)) return text;
  text = "bytes:";
  for (const char c : bytes) text += format("\\x%02x", unsigned(uint8_t(c)));
  return text;
}

}  // namespace

/// One answer of a reply, while its tokens are converted to text. Reply::pieces() removes the text and tokens that it
/// returns.
struct Reply::One {
  int64_t index = 0;
  std::vector<int64_t> prompt;
  std::shared_ptr<Answer> answer;
  data::Decoder decoder;
  nn::TextStream stream;
  std::string text;                               // text that is not sent yet
  int64_t sent_chars = 0, decoded = 0, made = 0;  // characters sent before; characters decoded; tokens generated
  std::vector<int64_t> prompt_offsets;            // used when the prompt's log probabilities are wanted
  struct Placed : Token {
    int64_t offset;  // where its text begins in the answer, in characters
  };
  std::vector<Placed> tokens;
  /// Number of `tokens` that can be sent. A token can be sent once `text` contains at least its first character, or
  /// once the answer has ended.
  size_t ready() const {
    const int64_t end = sent_chars + characters_of(text);
    const auto is_ready = [&](const Placed& t) { return ended || t.offset < end; };
    return size_t(std::find_if_not(tokens.begin(), tokens.end(), is_ready) - tokens.begin());
  }
  bool begun = false, ended = false;
  std::string reason;

  One(const data::Tokenizer& tokenizer, const std::vector<std::string>& stop) : decoder(tokenizer), stream(stop) {}
};

Service::Service(nn::GPT& model, const data::Tokenizer& tokenizer, const ServiceOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      created_(std::time(nullptr)),
      vocab_(model.o.vocab),
      padding_(tokenizer.unknown(vocab_)),
      batcher_(model, options.batcher) {
  if (options_.chat) check_template(*options_.chat, tokenizer);
}

std::vector<int64_t> Service::encode(const std::string& text, bool parse_special) const {
  const std::vector<int32_t> ids = tokenizer_.encode(text, {.parse_special = parse_special});
  if (ids.empty()) throw BadRequest("prompt", "prompt: expected at least one token");
  return {ids.begin(), ids.end()};
}

std::unique_ptr<Reply> Service::answer(Endpoint endpoint, std::string_view body) {
  if (endpoint == Endpoint::chat && !options_.chat)
    throw BadRequest("", "this model has no chat template; ask /v1/completions, or start the server with --template");
  return std::unique_ptr<Reply>(new Reply(*this, endpoint, parse_request(endpoint, body, options_.name)));
}

Json Service::model(const std::string& id) const {
  if (id != options_.name)
    throw BadRequest("model", "unknown model '" + id.substr(0, 100) + "'; this server has '" + options_.name + "'",
                     404);
  return Json::Object{{"id", id}, {"object", "model"}, {"created", created_}, {"owned_by", "lockstep"}};
}

Json Service::models() const { return Json::Object{{"object", "list"}, {"data", Json::Array{model(options_.name)}}}; }

Json Service::tokenize(std::string_view body) const {
  const Request r = parse_tokenize(body);
  const auto ids = tokenizer_.encode(r.texts[0], {.parse_special = r.parse_special});
  return Json::Object{{"tokens", Json::Array(ids.begin(), ids.end())},
                      {"count", int64_t(ids.size())},
                      {"max_model_len", batcher_.context()}};
}

std::string Service::metrics() {
  const Figures f = batcher_.figures();
  std::string out;
  const auto line = [&](const char* name, const char* type, const char* help, const auto& value) {
    out += str("# HELP lockstep_", name, " ", help, "\n# TYPE lockstep_", name, " ", type, "\nlockstep_", name, " ",
               value, "\n");
  };
  line("requests_total", "counter", "Sequences that clients have asked for.", f.requests);
  line("requests_cancelled_total", "counter", "Sequences that ended because their client went away.", f.cancelled);
  line("requests_running", "gauge", "Sequences that have blocks, and are computed.", f.running);
  line("requests_waiting", "gauge", "Sequences that wait to start.", f.waiting);
  line("prompt_tokens_total", "counter", "Prompt tokens of the sequences that have ended.", f.prompt_tokens);
  line("generated_tokens_total", "counter", "Generated tokens of the sequences that have ended.", f.tokens);
  line("shared_tokens_total", "counter", "Prompt tokens found in blocks of earlier sequences, and not computed again.",
       f.shared_tokens);
  line("preemptions_total", "counter",
       "Times that a sequence had to give its blocks back to another one, and to be computed again.", f.put_back);
  line("steps_total", "counter", "Steps of the model, each for all running sequences.", f.steps);
  line("rows_total", "counter", "Rows of all steps; a row is one token of one sequence.", f.rows);
  line("step_seconds_total", "counter", "Seconds spent in steps.", f.seconds);
  line("blocks", "gauge", "Blocks that hold keys and values, each of 32 tokens.", f.blocks);
  line("blocks_used", "gauge", "Blocks in use.", f.blocks_used);
  return out;
}

Reply::Reply(Service& service, Endpoint endpoint, Request request)
    : service_(service), endpoint_(endpoint), request_(std::move(request)), created_(std::time(nullptr)) {
  const bool chat = endpoint == Endpoint::chat;
  const char* const field = chat ? "messages" : "prompt";
  id_ = str(chat ? "chatcmpl-" : "cmpl-", ++service.numbers_);
  std::vector<std::vector<int64_t>> prompts = request_.ids;
  for (const std::string& text : request_.texts) prompts.push_back(service.encode(text, request_.parse_special));
  if (chat) prompts = {encode_chat(*service.options_.chat, request_.messages, service.tokenizer_)};
  nn::Generation& g = request_.generation;
  if (!g.seed) g.seed = uint64_t(std::random_device()()) << 32 | std::random_device()();
  g.eos_token_id = service.options_.eos;
  if (chat)
    for (const int64_t end : ends_of(*service.options_.chat, service.tokenizer_)) g.eos_token_id.push_back(end);
  // Drop end tokens that the model does not know, because a tokenizer may have more ids than the model.
  std::erase_if(g.eos_token_id, [&](int64_t id) { return id >= service.vocab_; });
  g.suppress_tokens = service.padding_;
  g.text = [&tokenizer = service.tokenizer_](int64_t id) { return std::string(tokenizer.token_bytes(int32_t(id))); };
  const int64_t context = service.batcher_.context();
  int64_t tokens = 0;
  for (const std::vector<int64_t>& prompt : prompts) {
    const auto length = int64_t(prompt.size());
    tokens += request_.n * length;
    if (context - length < request_.max_tokens.value_or(1))
      throw BadRequest(field,
                       str("the prompt has ", length, " tokens and max_tokens is ", request_.max_tokens.value_or(1),
                           ", the model's context is ", context, "; shorten the prompt, or ask for fewer tokens"));
    for (const int64_t id : prompt) {
      const bool known = service.tokenizer_.knows(id);
      if (!known || id >= service.vocab_)
        throw BadRequest(field, str(field, ": token ", id, " is not one of the ", known ? "model's " : "tokenizer's ",
                                    known ? service.vocab_ : service.tokenizer_.vocab_size()));
    }
  }
  if (tokens > max_prompt_tokens)
    throw BadRequest(
        "n", str("n: expected at most ", max_prompt_tokens, " tokens of prompts, each counted n times, got ", tokens));
  for (size_t p = 0; p < prompts.size(); ++p) {
    const int64_t room = context - int64_t(prompts[p].size());
    g.max_new_tokens = request_.max_tokens.value_or(chat ? room : std::min<int64_t>(16, room));
    for (int64_t i = 0; i < request_.n; ++i) {
      auto one = std::make_unique<One>(service.tokenizer_, g.stop);
      one->index = int64_t(all_.size());
      one->prompt = prompts[p];
      read_prompt(*one, p < request_.texts.size() ? &request_.texts[p] : nullptr);
      try {
        one->answer = service.batcher_.submit({.prompt = prompts[p],
                                               .generation = g,
                                               .sequence = uint64_t(i),
                                               .logprobs = request_.logprobs,
                                               .prompt_logprobs = !one->prompt_offsets.empty()});
      } catch (const Error& error) {
        for (const auto& before : all_) before->answer->cancel();
        throw BadRequest("", error.what());
      }
      all_.push_back(std::move(one));
    }
  }
}

/// Decodes the prompt, so that the decoder is ready for the answer, which continues the prompt's text. If the request
/// has echo, puts the prompt's text at the beginning of the answer.
void Reply::read_prompt(One& one, const std::string* text) const {
  const bool wanted = request_.echo && request_.logprobs >= 0;
  std::string sent;
  int64_t characters = 0;
  for (const int64_t id : one.prompt) {
    const std::string_view bytes = service_.tokenizer_.token_bytes(int32_t(id));
    if (wanted) one.prompt_offsets.push_back(characters + before_own(one.decoder, bytes));
    std::string more = one.decoder.push(int32_t(id));
    // The decoder leaves special tokens out. Add the token's text if the prompt's text has it at this place.
    if (text && service_.tokenizer_.is_special(int32_t(id)) &&
        text->substr(std::min(sent.size(), text->size())).starts_with(bytes))
      more = bytes;
    characters += characters_of(more);
    sent += more;
  }
  sent += one.decoder.flush();
  if (!request_.echo) return;
  one.text = text ? *text : sent;
  one.decoded = characters_of(one.text);
  if (wanted) one.tokens.push_back({{.id = one.prompt[0]}, 0});  // the first token has no log probability
}

Reply::~Reply() {
  for (const auto& one : all_)
    if (one->answer) one->answer->cancel();
}

bool Reply::ended() const {
  return std::all_of(all_.begin(), all_.end(), [](const auto& one) { return one->ended; });
}

void Reply::take(One& one, const Token& token) {
  const size_t place = one.tokens.size();
  const bool of_prompt = one.made == 0 && place < one.prompt_offsets.size();
  if (request_.logprobs >= 0) {
    const std::string_view bytes = service_.tokenizer_.token_bytes(int32_t(token.id));
    const int64_t offset = of_prompt ? one.prompt_offsets[place] : one.decoded + before_own(one.decoder, bytes);
    one.tokens.push_back({token, offset});
  }
  if (of_prompt) return;
  ++one.made;
  const auto& eos = request_.generation.eos_token_id;
  if (std::count(eos.begin(), eos.end(), token.id)) return;
  const std::string text = one.decoder.push(int32_t(token.id));
  one.decoded += characters_of(text);
  one.text += one.stream.push(text);
}

void Reply::close(One& one) {
  one.ended = true;
  const Answer::Reason reason = one.answer->reason();
  one.reason = reason == Answer::Reason::length || reason == Answer::Reason::context ? "length" : "stop";
  one.text += one.stream.push(one.decoder.flush());
  one.text += one.stream.flush();
}

std::vector<Json> Reply::pieces(int milliseconds) {
  if (ended()) return {};
  std::vector<Json> out;
  const char* const object = endpoint_ == Endpoint::chat ? "chat.completion.chunk" : "text_completion";
  int wait = milliseconds;
  for (const auto& one : all_) {
    if (one->ended) continue;
    while (const auto token = one->answer->next(std::exchange(wait, 0))) take(*one, *token);
    if (one->answer->ended()) close(*one);
    if (!request_.stream) continue;
    const bool first = !one->begun && endpoint_ == Endpoint::chat;
    if (one->text.empty() && !one->ended && !first) continue;
    out.push_back(envelope(object, {choice(*one, true)}));
    one->begun = true;
    one->tokens.erase(one->tokens.begin(), one->tokens.begin() + std::ptrdiff_t(one->ready()));
    one->sent_chars += characters_of(one->text);
    one->text.clear();
  }
  if (request_.include_usage) {
    for (Json& piece : out) piece["usage"] = Json();
    if (ended()) (out.emplace_back(envelope(object, {})))["usage"] = usage();
  }
  return out;
}

Json Reply::full() const {
  Json::Array choices;
  for (const auto& one : all_) choices.push_back(choice(*one, false));
  Json out = envelope(endpoint_ == Endpoint::chat ? "chat.completion" : "text_completion", std::move(choices));
  out["usage"] = usage();
  return out;
}

Json Reply::usage() const {
  int64_t prompt = 0, made = 0;
  for (const auto& one : all_) {
    if (one->index % request_.n == 0) prompt += int64_t(one->prompt.size());
    made += one->made;
  }
  return Json::Object{{"prompt_tokens", prompt}, {"completion_tokens", made}, {"total_tokens", prompt + made}};
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
  const auto ready = std::span(one.tokens).first(one.ready());
  Json logprobs;
  if (endpoint_ == Endpoint::chat) {
    Json message = Json::Object{};
    if (!delta || !one.begun) message["role"] = "assistant";
    message["content"] = one.text;
    out[delta ? "delta" : "message"] = std::move(message);
    if (request_.logprobs >= 0) {
      const auto entry = [&](int64_t id, double logprob) {
        Json::Array bytes;
        for (const char c : service_.tokenizer_.token_bytes(int32_t(id))) bytes.push_back(int64_t(uint8_t(c)));
        return Json(Json::Object{{"token", name_of(id)}, {"logprob", readable(logprob)}, {"bytes", std::move(bytes)}});
      };
      Json::Array content;
      for (const One::Placed& t : ready) {
        Json& said = content.emplace_back(entry(t.id, t.logprob));
        Json::Array top;
        for (const auto& [id, logprob] : t.likeliest) top.push_back(entry(id, logprob));
        said["top_logprobs"] = std::move(top);
      }
      logprobs = Json::Object{{"content", std::move(content)}};
    }
  } else {
    out["text"] = one.text;
    if (request_.logprobs >= 0) {
      const int64_t end = one.sent_chars + characters_of(one.text);
      Json::Array tokens, values, tops, offsets;
      for (const One::Placed& t : ready) {
        const bool nothing = &t == one.tokens.data() && !one.prompt_offsets.empty();
        Json top = Json::Object{};
        for (const auto& [id, logprob] : t.likeliest)
          if (!top.find(name_of(id))) top[name_of(id)] = readable(logprob);
        tokens.push_back(name_of(t.id));
        values.push_back(nothing ? Json() : Json(readable(t.logprob)));
        tops.push_back(nothing ? Json() : std::move(top));
        offsets.push_back(std::min(t.offset, end));
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
