// The service: for any model, every request is answered as if it were alone, or rejected without effect on others.
#include "extensions/serving/service.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <random>

#include "tensor/ops.h"
#include "tests/messages.h"
#include "tests/models.h"

using namespace lockstep;
using namespace lockstep::serve;
using data::Json;

namespace {

/// A tokenizer of bytes and special chat tokens; id 258 is unused, 260 is padding.
class Toy : public data::Tokenizer {
 public:
  int64_t vocab_size() const override { return 261; }
  bool knows(int64_t id) const override { return id >= 0 && id < 261 && id != 258; }
  std::vector<int32_t> encode(std::string_view text, data::EncodeOptions options = {}) const override {
    std::vector<int32_t> ids;
    for (size_t at = 0; at < text.size();) {
      int32_t id = uint8_t(text[at]);
      for (int32_t special = 256; options.parse_special && special < 261; ++special)
        if (knows(special) && text.substr(at).starts_with(names[special - 256])) id = special;
      ids.push_back(id);
      at += id < 256 ? 1 : names[id - 256].size();
    }
    return ids;
  }
  std::string_view token_bytes(int32_t id) const override {
    LOCKSTEP_CHECK(knows(id), "[tokenizer] expected ids from 0 to 260, got ", id);
    return id < 256 ? bytes.token_bytes(id) : names[id - 256];
  }
  bool is_special(int32_t id) const override { return id >= 256; }
  std::optional<int32_t> eos() const override { return 257; }

 private:
  static constexpr std::string_view names[] = {"<|im_start|>", "<|im_end|>", "", "<mask>", "[PAD]"};
  data::ByteTokenizer bytes;
};

nn::GPT toy_gpt(int64_t vocab) {
  return testing::random_gpt({.vocab = vocab, .context = 64, .layers = 1, .width = 16, .heads = 2, .tied = false});
}

/// Makes all scores 0, except for rows of the head that the caller writes. Returns the head's weight.
const Tensor& plain_scores(nn::GPT& model) {
  model.norm.weight.tensor().fill_(0), model.norm.bias.tensor().fill_(1);
  model.head.weight.tensor().fill_(0);
  return model.head.weight.tensor();
}

/// Joins the pieces of a stream, as a client does, into an object with one entry per choice. How a stream is divided
/// into pieces depends on timing.
Json joined(const std::vector<Json>& pieces) {
  std::map<std::string, std::map<std::string, Json>> all;
  for (const Json& piece : pieces)
    for (const Json& choice : piece.at("choices").as_array()) {
      auto& to = all[std::to_string(choice.at("index").as_int())];
      const Json& from = choice.find("delta") ? choice.at("delta") : choice;
      for (const char* text : {"text", "content"})
        if (const Json* more = from.find(text))
          to["text"] = (to.contains("text") ? to.at("text").as_string() : "") + more->as_string();
      if (!choice.at("logprobs").is_null())
        for (const auto& [name, list] : choice.at("logprobs").as_object())
          for (const Json& one : list.as_array()) to[name].push_back(one);
      to["finish_reason"] = choice.at("finish_reason");
    }
  Json::Object out;
  for (const auto& [index, parts] : all) out.emplace_back(index, Json::Object(parts.begin(), parts.end()));
  return out;
}

struct Body {
  Endpoint endpoint;
  std::string text;
};

/// The answers of requests that are submitted together, or errors: "400: ..." if the request is at fault, else "500:
/// ...".
std::vector<std::string> ask(Service& service, std::span<const Body> bodies) {
  std::vector<std::unique_ptr<Reply>> replies(bodies.size());
  std::vector<std::vector<Json>> pieces(bodies.size());
  std::vector<std::string> out(bodies.size());
  for (size_t i = 0; i < bodies.size(); ++i) try {
      replies[i] = service.answer(bodies[i].endpoint, bodies[i].text);
    } catch (const BadRequest& error) { out[i] = std::string("400: ") + error.what(); }
  for (bool running = true; running;) {
    running = false;
    for (size_t i = 0; i < bodies.size(); ++i) {
      if (!replies[i]) continue;
      running = true;
      try {
        for (Json& piece : replies[i]->pieces(1)) pieces[i].push_back(std::move(piece));
        if (!replies[i]->ended()) continue;
        out[i] = replies[i]->streams() ? joined(pieces[i]).dump() : replies[i]->full().at("choices").dump();
      } catch (const Error& error) { out[i] = std::string("500: ") + error.what(); }
      replies[i].reset();
    }
  }
  return out;
}
std::string ask(Service& service, const std::string& body, Endpoint endpoint = Endpoint::completions) {
  return ask(service, std::vector<Body>{{endpoint, body}})[0];
}
/// The first choice of the answer.
Json choice_of(Service& service, const std::string& body, Endpoint endpoint = Endpoint::completions) {
  const std::string text = ask(service, body, endpoint);
  CAPTURE(text);
  REQUIRE(text.starts_with("["));
  return data::parse_json(text, "answer").as_array()[0];
}

std::vector<int64_t> integers(const Json& list) {
  std::vector<int64_t> all;
  for (const Json& one : list.as_array()) all.push_back(one.as_int());
  return all;
}

/// A request with random options, most of them valid; `rest` ends the JSON object.
Body random_body(std::mt19937_64& random, const std::string& rest = "}") {
  const auto below = [&](size_t n) { return size_t(random() % n); };
  const auto one_of = [&](std::initializer_list<const char*> values) {
    return std::string(values.begin()[below(values.size())]);
  };
  const bool chat = below(4) == 0;
  std::string body = str("{\"seed\": ", below(50)), text;
  for (size_t i = 0, n = 1 + below(12); i < n; ++i) text += char('a' + below(3));
  if (below(8) == 0) text += one_of({"<|im_start|>", "<mask>", "[PAD]", "\xc3\xa9", "\xf0\x9f\x98\x80"});
  if (chat) body += R"(, "messages": [{"role": "user", "content": ")" + text + "\"}]";
  else if (below(4) == 0)
    body += ", \"prompt\": [97, " + one_of({"98", "257", "258", "260", "400", "-1", "98", "98"}) + "]";
  else body += ", \"prompt\": \"" + text + "\"";
  const auto maybe = [&](const char* name, std::initializer_list<const char*> values) {
    if (below(5) == 0) body += str(", \"", name, "\": ", one_of(values));
  };
  body += ", \"max_tokens\": " + one_of({"1", "4", "8", "8", "12", "0", "5.0", "100", "-1"});
  maybe("temperature", {"0", "1e-6", "0.00002", "0.7", "1", "5", "1e6", "1e7", "-1", "1e308"});
  maybe("top_p", {"1", "0.9", "0.5", "1e-300", "0", "1.5"});
  maybe("top_k", {"-1", "0", "1", "5", "1000", "2147483648", "1099511627776", "-2"});
  maybe("min_p", {"0", "0.1", "1", "2"});
  maybe("presence_penalty", {"-100", "0.5", "100", "1e300"});
  maybe("frequency_penalty", {"-100", "0.5", "100", "-1e300"});
  maybe("repetition_penalty", {"0.001", "1.3", "1000", "0", "1e-300"});
  maybe("n", {"1", "2", "3", "0"});
  maybe("stop", {"\"a\"", "[\"bc\", \"\\u00e9\"]", "[]", "\"\""});
  if (chat) maybe("logprobs", {"true", "true, \"top_logprobs\": 3", "false"});
  else maybe("logprobs", {"0", "3", "5", "6"}), maybe("echo", {"true", "false"});
  return {chat ? Endpoint::chat : Endpoint::completions, body + rest};
}

}  // namespace

TEST_CASE("service: random options, random infinities, padding: a request is answered as alone, or fails alone") {
  nn::GPT model = toy_gpt(280);
  std::mt19937_64 random(7);
  model.norm.weight.tensor().fill_(1.5), model.norm.bias.tensor().fill_(0);
  const Tensor& head = model.head.weight.tensor();
  // Some products exceed f32: scores are +-infinity in many steps, and NaN in a few.
  for (const int64_t id : {65, 98, 200, 259, 270}) head.select(0, id).select(0, int64_t(random() % 16)).fill_(2.5e38);
  head.select(0, 99).narrow(0, 3, 2).copy_(Tensor::from(std::vector<float>{INFINITY, -INFINITY}, {2}));
  const Toy tokenizer;
  Service service(
      model, tokenizer,
      {.name = "m", .chat = ChatTemplate{ChatTemplate::Kind::chatml}, .eos = {257}, .batcher = {.blocks = 24}});
  const int64_t wanted = std::getenv("LONG") ? 100'000 : 600;
  std::map<std::string, int64_t> ends;
  for (int64_t asked = 0; asked < wanted;) {
    std::vector<Body> bodies(1 + random() % 24);
    for (Body& body : bodies) body = random_body(random, random() % 3 ? "}" : ", \"stream\": true}");
    const std::vector<std::string> together = ask(service, bodies);
    for (size_t i = 0; i < bodies.size(); ++i) {
      CAPTURE(bodies[i].text);
      CHECK(together[i] == ask(service, bodies[i].text, bodies[i].endpoint));
      const std::string& said = together[i];
      const bool no_number = said.starts_with("500: [generate] logits of token 99 are not numbers");
      CHECK((!said.starts_with("500") || no_number));
      ++ends[said.starts_with("400") ? "refused" : no_number ? "no number" : "answered"];
    }
    asked += int64_t(bodies.size());
  }
  CHECK(ends["answered"] > wanted / 20);
  CHECK(ends["refused"] > wanted / 5);
  CHECK(ends["no number"] > wanted / 50);
  // the service is still running
  CHECK(ask(service, R"({"prompt": "a", "max_tokens": 0, "echo": true})").starts_with("["));
}

TEST_CASE("service: padding is never drawn nor named, an infinite score is") {
  nn::GPT model = toy_gpt(280);
  const Tensor& head = plain_scores(model);
  // the final norm returns only ones, so each score is the sum of its row, which is infinite here
  for (const int64_t id : {65, 258, 261, 279}) head.select(0, id).fill_(id == 65 ? 2e38 : 3e38);
  const Toy tokenizer;
  Service service(model, tokenizer, {.name = "m"});
  for (const char* options : {"\"temperature\": 0", "\"temperature\": 5", "\"top_k\": 3", "\"top_p\": 0.5",
                              "\"min_p\": 0.1", "\"repetition_penalty\": 1.1", "\"stop\": \"x\""}) {
    CAPTURE(options);
    const Json choice =
        choice_of(service, str(R"({"prompt": "a", "max_tokens": 5, "seed": 1, "logprobs": 5, )", options, "}"));
    CHECK(choice.at("text").as_string() == "AAAAA");
    for (const Json& top : choice.at("logprobs").at("top_logprobs").as_array())
      for (const auto& [name, logprob] : top.as_object()) CHECK((name.size() < 12 && logprob.as_number() >= -9999));
  }
  head.fill_(-3e38);
  CHECK(contains(ask(service, R"({"prompt": "a"})"), "500: [generate] no token is left"));
  head.select(0, 66).fill_(NAN);
  CHECK(contains(ask(service, R"({"prompt": "a"})"), "500: [generate] logits of token 66 are not numbers"));
  CHECK(contains(ask(service, R"({"prompt": "ab", "max_tokens": 0, "echo": true, "logprobs": 1})"), "token 66"));
}

TEST_CASE("service: a tokenizer with one token more than the model has rows") {
  nn::GPT model = toy_gpt(260);
  const Toy tokenizer;
  Service service(model, tokenizer, {.name = "m", .chat = ChatTemplate{ChatTemplate::Kind::chatml}, .eos = {257, 260}});
  CHECK(ask(service, R"({"prompt": "a<mask>", "max_tokens": 3, "seed": 1})").starts_with("["));
  CHECK(ask(service, R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3})", Endpoint::chat)
            .starts_with("["));
  for (const char* prompt : {"\"a[PAD]\"", "[97, 260]", "[[97], [260]]"})
    CHECK(contains(ask(service, str("{\"prompt\": ", prompt, "}")),
                   "400: prompt: token 260 is not one of the model's 260"));
  CHECK(contains(ask(service, R"({"prompt": [258]})"), "400: prompt: token 258 is not one of the tokenizer's"));
  CHECK(ask(service, R"({"prompt": "a[PAD]", "max_tokens": 3, "parse_special": false})").starts_with("["));
}

TEST_CASE("batcher: one sequence for which the model or the text of a token throws ends alone") {
  nn::GPT model = toy_gpt(61);
  model.tokens_table.weight.tensor().select(0, 4).fill_(1e9);
  Batcher batcher(model, {.blocks = 16});
  const auto run = [&](bool beside, const std::function<std::string(int64_t)>& text) {
    std::vector<std::shared_ptr<Answer>> all;
    for (int64_t i = 0; i < 6; ++i) {
      Asked a{.prompt = {1 + i, 2, 3}};
      a.generation = {.max_new_tokens = 20, .stop = {"never"}, .suppress_tokens = {4}};
      a.generation.text = [](int64_t) { return std::string("x"); };
      if (beside && i == 3) a.generation.text = text;
      all.push_back(batcher.submit(a));
    }
    std::vector<std::string> out;
    for (const auto& one : all) {
      std::string& said = out.emplace_back();
      while (!one->ended())
        while (const auto token = one->next(100)) said += str(token->id, " ");
      const std::string error = message([&] { one->reason(); });
      if (error != "(no error)") said = error;
    }
    return out;
  };
  const std::vector<std::string> good = run(false, {});
  std::vector<std::string> wanted = good;
  wanted[3] = "no such token";
  CHECK(run(true, [](int64_t) -> std::string { fail("no such token"); }) == wanted);

  // A model that throws for one prompt.
  const int wrong = model.blocks[0].before_forward([](nn::Module&, const std::vector<Variable>& inputs) {
    LOCKSTEP_CHECK(max(inputs[0].tensor()).item() < 1e8, "[model] token 4");
  });
  wanted[3] = "[model] token 4";
  CHECK(run(false, {}) == wanted);
  model.blocks[0].remove_hook(wrong);
  CHECK(run(false, {}) == good);
}

TEST_CASE("service: offsets count characters of the answer, also in a stream") {
  nn::GPT model = toy_gpt(261);
  const Tensor& head = plain_scores(model);
  head.fill_(-3e38);
  for (const int64_t id : {0x61, 0xc3, 0xa9, 0xf0}) head.select(0, id).fill_(0);
  const Toy tokenizer;
  Service service(model, tokenizer, {.name = "m", .chat = ChatTemplate{ChatTemplate::Kind::chatml}});
  int64_t two_byte_characters = 0;
  for (int seed = 0; seed < 30; ++seed) {
    const std::string body = str(R"({"prompt": "x", "max_tokens": 30, "logprobs": 1, "seed": )", seed);
    const Json choice = choice_of(service, body + "}");
    const std::string text = choice.at("text").as_string();
    const std::vector<int64_t> offsets = integers(choice.at("logprobs").at("text_offset"));
    const Json::Array& tokens = choice.at("logprobs").at("tokens").as_array();
    REQUIRE(offsets.size() == 30);
    std::vector<std::string> characters;
    for (const char c : text)
      if ((uint8_t(c) & 0xc0) == 0x80) characters.back() += c;
      else characters.emplace_back(1, c);
    for (size_t i = 0; i < 30; ++i) {
      REQUIRE(offsets[i] < int64_t(characters.size()));
      if (tokens[i].as_string() == "a") CHECK(characters[size_t(offsets[i])] == "a");
      if (i > 0 && tokens[i - 1].as_string() == "bytes:\\xc3" && tokens[i].as_string() == "bytes:\\xa9") {
        CHECK(characters[size_t(offsets[i])] == "\xc3\xa9");
        CHECK(offsets[i] == offsets[i - 1]);
        ++two_byte_characters;
      }
    }
    CHECK(offsets[0] == 0);
  }
  CHECK(two_byte_characters > 10);
  // With echo, offsets refer to the prompt as it was sent, in which special tokens are text.
  const Json echo =
      choice_of(service, R"({"prompt": "\u00e9<|im_start|>xy", "max_tokens": 0, "echo": true, "logprobs": 0})");
  CHECK(echo.at("text").as_string() == "\xc3\xa9<|im_start|>xy");
  CHECK(integers(echo.at("logprobs").at("text_offset")) == std::vector<int64_t>{0, 0, 1, 13, 14});
  CHECK(echo.at("logprobs").at("tokens").as_array()[2].as_string() == "<|im_start|>");
  const Json as_text = choice_of(
      service, R"({"prompt": "<|im_start|>", "parse_special": false, "max_tokens": 0, "echo": true, "logprobs": 0})");
  CHECK(as_text.at("logprobs").at("tokens").as_array().size() == 12);

  std::mt19937_64 random(5);
  nn::GPT other_model = toy_gpt(280);
  Service other(other_model, tokenizer, {.name = "m", .chat = ChatTemplate{ChatTemplate::Kind::chatml}});
  int64_t compared = 0;
  for (int i = 0; i < 600; ++i) {
    std::mt19937_64 again = random;
    const Body plain = random_body(random), stream = random_body(again, ", \"stream\": true}");
    CAPTURE(plain.text);
    const std::string text = ask(other, plain.text, plain.endpoint), pieces = ask(other, stream.text, stream.endpoint);
    if (!text.starts_with("[") || pieces.starts_with("400")) continue;  // rejected, or echo, which cannot be streamed
    const Json joined_ones = data::parse_json(pieces, "stream"), choices = data::parse_json(text, "answer");
    for (const Json& choice : choices.as_array()) {
      const Json& got = joined_ones.at(std::to_string(choice.at("index").as_int()));
      CHECK(got.at("text") == (choice.find("message") ? choice.at("message").at("content") : choice.at("text")));
      CHECK(got.at("finish_reason") == choice.at("finish_reason"));
      if (choice.at("logprobs").is_null()) continue;
      ++compared;
      for (const auto& [name, list] : choice.at("logprobs").as_object())
        CHECK((got.find(name) ? *got.find(name) : Json(Json::Array{})) == list);
    }
  }
  CHECK(compared > 20);
}

TEST_CASE("service: rendered chats, bytes of tokens, counts at the end of a stream, models by name") {
  nn::GPT model = toy_gpt(261);
  const Toy tokenizer;
  Service service(model, tokenizer, {.name = "a/m", .chat = ChatTemplate{ChatTemplate::Kind::chatml}});
  const std::string chat = R"("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")";
  CHECK(service.tokenize("{\"prompt\": " + chat + "}").at("count").as_int() == 3 + 4 + 1 + 2 + 1 + 9 + 1);
  CHECK(service.tokenize("{\"parse_special\": false, \"prompt\": " + chat + "}").at("count").as_int() ==
        17 + 12 + 10 + 12 + 1);
  const auto reply =
      service.answer(Endpoint::completions, "{\"prompt\": " + chat + R"(, "max_tokens": 1, "stream": true,
    "stream_options": {"include_usage": true}})");
  std::vector<Json> pieces;
  while (!reply->ended())
    for (Json& piece : reply->pieces(10)) pieces.push_back(std::move(piece));
  REQUIRE(pieces.size() >= 2);
  for (size_t i = 0; i + 1 < pieces.size(); ++i) CHECK(pieces[i].at("usage").is_null());
  CHECK(pieces.back().at("choices").as_array().empty());
  CHECK(pieces.back().at("usage").at("prompt_tokens").as_int() == 21);
  CHECK(pieces.back().at("usage").at("total_tokens").as_int() == 22);
  CHECK(reply->pieces(0).empty());

  const Json said = choice_of(service, R"({"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"},
    {"type": "text", "text": "b"}]}, {"role": "user", "content": "c", "name": "me"}], "max_completion_tokens": 6.0,
    "logprobs": true, "top_logprobs": 2, "seed": 3, "tools": [], "response_format": {"type": "text"}, "top_k": -1})",
                              Endpoint::chat);
  const Json::Array& content = said.at("logprobs").at("content").as_array();
  REQUIRE(content.size() == 6);
  for (const Json& token : content) {
    CHECK(token.at("top_logprobs").as_array().size() == 2);
    for (const Json* one : {&token, &token.at("top_logprobs").as_array()[0], &token.at("top_logprobs").as_array()[1]}) {
      std::string bytes;
      for (const int64_t byte : integers(one->at("bytes"))) bytes += char(byte);
      const std::string& name = one->at("token").as_string();
      CHECK((name == bytes || name.starts_with("bytes:\\x")));
      CHECK(!bytes.empty());
    }
  }
  CHECK(service.model("a/m") == service.models().at("data").as_array()[0]);
  try {
    service.model("gpt-4");
    FAIL_CHECK("found");
  } catch (const BadRequest& error) {
    CHECK(error.status == 404);
    CHECK(contains(error.what(), "this server has 'a/m'"));
  }
}
