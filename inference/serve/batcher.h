#pragma once
// The thread that makes text for everyone at once: a step of the schedule, the model, a token for each sequence whose
// rows reached its end, and again.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "inference/serve/scheduler.h"
#include "nn/generate.h"

namespace lockstep::serve {

/// A token, with log probabilities (natural logarithms) when they were asked for.
struct Token {
  int64_t id = 0;
  double logprob = 0;
  std::vector<std::pair<int64_t, double>> likeliest;  ///< ids and log probabilities, likeliest first
};

struct Asked {
  std::vector<int64_t> prompt;
  nn::Generation generation;     ///< greedy or by draws; seed, stop, text, penalties and so on count
  uint64_t sequence = 0;         ///< of its draws, among those with the same seed
  int logprobs = -1;             ///< so many of the likeliest tokens beside each; -1: no log probabilities at all
  bool prompt_logprobs = false;  ///< of the prompt's tokens, too: they come first, but for the very first one
};

/// A request as the one who asked sees it. Any thread may call.
class Answer {
 public:
  using Reason = nn::Generated::Reason;
  /// The next token; none: it has ended, or `milliseconds` have passed without one.
  std::optional<Token> next(int milliseconds);
  bool ended();
  /// When it has ended: why. Throws when the model failed.
  Reason reason();
  /// Nobody wants it any more: it ends before the next step.
  void cancel() { cancelled_ = true; }

 private:
  friend class Batcher;
  void push(Token token);
  void end(Reason reason, const std::string& error = "");
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Token> tokens_;
  std::optional<Reason> reason_;
  std::string error_;
  std::atomic<bool> cancelled_ = false;
};

struct BatcherOptions {
  int64_t blocks = 0;  ///< for keys and values, of 32 tokens; 0: for 8 texts as long as the context, but 4 GiB at most
  Limits limits;
  std::function<void(const State&, const Step&)> on_step;  ///< before the model computes it
};

/// What a batcher has done so far.
struct Figures {
  int64_t steps = 0, rows = 0, prompt_tokens = 0, tokens = 0, requests = 0, cancelled = 0;
  int64_t running = 0, waiting = 0, blocks = 0, blocks_used = 0, shared_tokens = 0, put_back = 0;
  double seconds = 0;  ///< within steps
};

/// A sequence has the same tokens as nn::generate() makes of it alone with the same options, whatever else runs.
class Batcher {
 public:
  /// The model must outlive it, and nobody else may use it meanwhile.
  explicit Batcher(nn::GPT& model, const BatcherOptions& options = {});
  /// Ends all that runs.
  ~Batcher();
  /// Error when the options or the prompt cannot be.
  std::shared_ptr<Answer> submit(Asked asked);
  Figures figures();
  int64_t context() const { return model_.o.context; }

 private:
  struct Running;
  void run();
  bool step();
  void compute(const Step& step);
  struct Chosen {
    Token token;
    std::string error;
  };
  static Chosen choose(const Running& r, int64_t place, std::span<const float> logits);
  void take(Running& r, int64_t place, Token token);
  void drop(int64_t number, Answer::Reason reason, const std::string& error = "");

  nn::GPT& model_;
  BatcherOptions options_;
  std::vector<nn::KvCache> memory_;  // a block of the model each: keys and values of all blocks of tokens
  std::mutex mutex_;                 // of what is below, but for state_ and running_, which are the thread's
  std::condition_variable arrived_;
  std::deque<std::unique_ptr<Running>> arrivals_;
  Figures figures_;
  bool stop_ = false;
  State state_;
  std::vector<std::unique_ptr<Running>> running_;  // all that have not ended
  std::thread thread_;
};

}  // namespace lockstep::serve
