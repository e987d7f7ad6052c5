#pragma once
// Answers requests with a model: converts a request to token ids, runs them in the batcher, and converts the result to
// text and JSON. Independent of HTTP.
#include "extensions/serving/batcher.h"
#include "extensions/serving/chat.h"

namespace lockstep::serve {

/// Options of a Service.
struct ServiceOptions {
  std::string name;                       ///< name of the model
  std::optional<ChatTemplate> chat = {};  ///< template of chats; nullopt: no chats
  std::vector<int64_t> eos = {};          ///< token ids that end a text
  BatcherOptions batcher = {};
};

class Reply;

/// A model with its tokenizer that answers requests.
class Service {
 public:
  /// `model` and `tokenizer` must outlive the service.
  Service(nn::GPT& model, const data::Tokenizer& tokenizer, const ServiceOptions& options);
  /// Starts to answer a request. BadRequest if the request is invalid.
  std::unique_ptr<Reply> answer(Endpoint endpoint, std::string_view body);
  /// The list of models, which has one entry.
  data::Json models() const;
  /// The entry of a model. BadRequest (404) for an unknown id.
  data::Json model(const std::string& id) const;
  /// The token ids of the text in a body of /tokenize: {"prompt": TEXT, "parse_special": true}.
  data::Json tokenize(std::string_view body) const;
  /// Statistics in the text format of Prometheus.
  std::string metrics();

 private:
  friend class Reply;
  std::vector<int64_t> encode(const std::string& text, bool parse_special) const;
  const data::Tokenizer& tokenizer_;
  ServiceOptions options_;
  int64_t created_, vocab_;
  std::vector<int64_t> padding_;  // ids of the model's vocabulary that the tokenizer lacks
  std::atomic<int64_t> numbers_ = 0;
  Batcher batcher_;
};

/// The answer to one request. Destroying it early cancels its sequences.
class Reply {
 public:
  ~Reply();
  /// True if the client wants the answer in pieces.
  bool streams() const { return request_.stream; }
  /// Waits at most `milliseconds`, and returns new results as objects to be sent one by one. Error if the model failed.
  std::vector<data::Json> pieces(int milliseconds);
  /// True if no more pieces will follow.
  bool ended() const;
  /// The whole answer, once ended() is true.
  data::Json full() const;

 private:
  friend class Service;
  struct One;
  Reply(Service& service, Endpoint endpoint, Request request);
  data::Json envelope(const char* object, data::Json::Array choices) const;
  data::Json choice(const One& one, bool delta) const;
  data::Json usage() const;
  void read_prompt(One& one, const std::string* text) const;
  void take(One& one, const Token& token);
  void close(One& one);

  Service& service_;
  Endpoint endpoint_;
  Request request_;
  std::string id_;
  int64_t created_;
  std::vector<std::unique_ptr<One>> all_;
};

}  // namespace lockstep::serve
