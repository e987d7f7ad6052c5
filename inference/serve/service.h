#pragma once
// A model that answers requests: from what was asked to ids, through the batcher, and back to text and JSON. Knows
// nothing of HTTP.
#include "inference/serve/batcher.h"
#include "inference/serve/chat.h"

namespace lockstep::serve {

struct ServiceOptions {
  std::string name;                       ///< of the model
  std::optional<ChatTemplate> chat = {};  ///< none: no chats
  std::vector<int64_t> eos = {};          ///< ends of texts
  BatcherOptions batcher = {};
};

class Reply;

class Service {
 public:
  /// Both must outlive it.
  Service(nn::GPT& model, const data::Tokenizer& tokenizer, const ServiceOptions& options);
  /// Error: BadRequest.
  std::unique_ptr<Reply> answer(Endpoint endpoint, std::string_view body);
  data::Json models() const;
  /// One of them. Error (BadRequest, 404) when it is another.
  data::Json model(const std::string& id) const;
  data::Json tokenize(std::string_view body) const;
  /// In the text format of Prometheus.
  std::string metrics();

 private:
  friend class Reply;
  std::vector<int64_t> encode(const std::string& text, bool parse_special) const;
  const data::Tokenizer& tokenizer_;
  ServiceOptions options_;
  int64_t created_, vocab_;
  std::vector<int64_t> padding_;  // ids of the model that the tokenizer does not know
  std::atomic<int64_t> numbers_ = 0;
  Batcher batcher_;
};

/// What one request gets. When it is destroyed before its end, its sequences end, too.
class Reply {
 public:
  ~Reply();
  bool streams() const { return request_.stream; }
  /// What has come within so many milliseconds, as objects to be sent one by one; ended(): there is no more. Throws
  /// when the model failed.
  std::vector<data::Json> pieces(int milliseconds);
  bool ended() const;
  /// All of it, after the end.
  data::Json whole() const;

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
