#pragma once
// The thread that generates for all requests at once. It repeatedly plans a step of the schedule, runs the model, and
// samples the next token of each sequence whose tokens have all been processed.
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "extensions/generation/generate.h"
#include "extensions/serving/scheduler.h"

namespace lockstep::serve {

/// A token, with natural log probabilities if requested.
struct Token {
  int64_t id = 0;
  double logprob = 0;
  std::vector<std::pair<int64_t, double>> likeliest;  ///< ids and log probabilities, in descending order
};

/// A request for one sequence.
struct Asked {
  std::vector<int64_t> prompt;
  nn::Generation generation;     ///< sampling or greedy search, not beams; seed, stop, text, penalties etc. are used
  uint64_t sequence = 0;         ///< number of the random stream among sequences with the same seed
  int logprobs = -1;             ///< number of likeliest tokens listed for each token; -1: no log probabilities
  bool prompt_logprobs = false;  ///< true: also return the prompt's tokens, with log probabilities except for the first
};

/// The result of a request while it is generated. Thread-safe.
class Answer {
 public:
  /// The reason why a sequence has ended.
  using Reason = nn::Generated::Reason;
  /// The next token; nullopt if the sequence has ended, or if no token arrives within `milliseconds`.
  std::optional<Token> next(int milliseconds);
  /// True if the sequence has ended and all tokens were taken.
  bool ended();
  /// The reason of the end. Error if the sequence has not ended, or if the model failed.
  Reason reason();
  /// Ends the sequence before the next step.
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

/// Options of a Batcher.
struct BatcherOptions {
  /// Number of cache blocks (keys and values of 32 tokens each); 0: enough for 8 full contexts, but at most 4 GiB.
  int64_t blocks = 0;
  Limits limits;
  std::function<void(const SchedulerState&, const BatchStep&)> on_step;  ///< called before the model computes the step
};

/// Statistics of the batcher since its start; Service::metrics() describes each.
struct Figures {
  int64_t steps = 0, rows = 0;              ///< steps of the model; tokens that they computed
  int64_t prompt_tokens = 0, tokens = 0;    ///< of sequences that have ended: prompt tokens, generated tokens
  int64_t requests = 0, cancelled = 0;      ///< sequences asked for; sequences that their caller cancelled
  int64_t running = 0, waiting = 0;         ///< sequences now running, and waiting to start
  int64_t blocks = 0, blocks_used = 0;      ///< blocks of the cache; blocks in use now
  int64_t shared_tokens = 0, put_back = 0;  ///< prompt tokens found in shared blocks; preemptions of sequences
  double seconds = 0;                       ///< total duration of the steps
};

/// Generates many sequences at once. Each sequence gets the tokens that nn::generate() would return for this prompt
/// alone; other requests have no influence.
class Batcher {
 public:
  /// `model` must outlive the batcher. While the batcher exists, no other code may use the model.
  explicit Batcher(nn::GPT& model, const BatcherOptions& options = {});
  /// Ends all sequences.
  ~Batcher();
  /// Queues a request. Error for invalid options or an invalid prompt.
  std::shared_ptr<Answer> submit(Asked asked);
  Figures figures();                                    ///< statistics since the start
  int64_t context() const { return model_.o.context; }  ///< the model's maximal number of tokens

 private:
  struct Running;
  void run();
  bool step();
  void compute(const BatchStep& step);
  static Token choose(const Running& r, int64_t place, std::span<const float> logits);
  void take(Running& r, int64_t place, Token token);
  int64_t drop_ended();

  nn::GPT& model_;
  BatcherOptions options_;
  std::vector<nn::KvCache> memory_;  // one per transformer block: the keys and values of all cache blocks
  std::mutex mutex_;  // guards the members below, except for state_ and running_, which belong to the thread
  std::condition_variable arrived_;
  std::deque<std::unique_ptr<Running>> arrivals_;
  Figures figures_;
  bool stop_ = false;
  SchedulerState state_;
  std::vector<std::unique_ptr<Running>> running_;  // all sequences that have not ended
  std::thread thread_;
};

}  // namespace lockstep::serve
