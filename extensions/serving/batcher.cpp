// The thread that runs the model for all requests together. See batcher.h.
#include "extensions/serving/batcher.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <random>

#include "base/clock.h"
#include "extensions/generation/text_stream.h"
#include "tensor/cpu/parallel.h"

namespace lockstep::serve {

namespace {

constexpr int64_t block_tokens = 32;
constexpr int64_t usual_memory = int64_t(4) << 30;  // default limit of bytes for keys and values

int64_t blocks_for(const nn::GPT& model, const BatcherOptions& o) {
  if (o.blocks > 0) return o.blocks;
  const nn::MultiHeadAttention::Options& a = model.blocks.items[0]->attention.o;
  const int64_t bytes = 2 * model.o.layers * block_tokens * a.kv_heads * a.head_size *
                        int64_t(size_of(model.tokens_table.weight.dtype()));
  const int64_t texts = 8 * ((model.o.context + block_tokens - 1) / block_tokens);
  return std::clamp<int64_t>(usual_memory / bytes, 1, texts);
}

/// The ids of the `count` highest scores, in descending order; equal scores by ascending id. Skips -infinity.
std::vector<std::pair<int64_t, double>> highest(const std::vector<double>& of, int count) {
  std::vector<std::pair<int64_t, double>> best;
  for (int64_t id = 0; id < int64_t(of.size()); ++id) {
    if (of[size_t(id)] == -INFINITY) continue;
    if (int(best.size()) == count && (count == 0 || of[size_t(id)] <= best.back().second)) continue;
    const auto place = std::find_if(best.begin(), best.end(), [&](const auto& b) { return b.second < of[size_t(id)]; });
    best.insert(place, {id, of[size_t(id)]});
    if (int(best.size()) > count) best.pop_back();
  }
  return best;
}

}  // namespace

/// A request that the batcher's thread works on.
struct Batcher::Running {
  Asked asked;
  std::shared_ptr<Answer> answer;
  uint64_t seed = 0;
  int64_t number = -1;
  int64_t prompt_scored = 1;  // prompt tokens whose log probabilities were returned; the first has none
  std::vector<int64_t> made;
  nn::TextStream text;
  std::optional<Answer::Reason> end;  // set once the sequence has ended
  std::string error;                  // the error that ended it

  void fail(const std::string& what) {
    end = Answer::Reason::caller;
    if (error.empty()) error = what;
  }
};

std::optional<Token> Answer::next(int milliseconds) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return !tokens_.empty() || reason_; });
  if (tokens_.empty()) return std::nullopt;
  Token token = std::move(tokens_.front());
  tokens_.pop_front();
  return token;
}

bool Answer::ended() {
  const std::lock_guard lock(mutex_);
  return tokens_.empty() && reason_;
}

Answer::Reason Answer::reason() {
  const std::lock_guard lock(mutex_);
  LOCKSTEP_CHECK(reason_, "[serve] the answer has not ended; call reason() once ended() is true");
  LOCKSTEP_CHECK(error_.empty(), error_);
  return *reason_;
}

void Answer::push(Token token) {
  const std::lock_guard lock(mutex_);
  tokens_.push_back(std::move(token));
  changed_.notify_all();
}

void Answer::end(Reason reason, const std::string& error) {
  const std::lock_guard lock(mutex_);
  reason_ = reason, error_ = error;
  changed_.notify_all();
}

Batcher::Batcher(nn::GPT& model, const BatcherOptions& options)
    : model_(model), options_(options), state_(blocks_for(model, options), options.limits, block_tokens) {
  const nn::GPT::Options& o = model.o;
  LOCKSTEP_CHECK(
      !o.rope || o.rope->scaling != nn::Rope::Scaling::dynamic || o.rope->original_context == 0 ||
          o.rope->original_context >= o.context,
      "[serve] dynamic rotary scaling is not supported here: a text's keys would depend on how its prompt is "
      "cut into steps; serve a folder whose max_position_embeddings is ",
      o.rope ? o.rope->original_context : 0);
  model.eval();
  if (o.window_from == 0) state_.window = o.window;
  const nn::MultiHeadAttention::Options& a = model.blocks[0].attention.o;
  const Variable& weight = model.tokens_table.weight;
  for (int64_t b = 0; b < o.layers; ++b) {
    nn::KvCache& of_block = memory_.emplace_back();
    for (Tensor* of : {&of_block.keys, &of_block.values})
      *of = empty({state_.blocks.count(), a.kv_heads, block_tokens, a.head_size}, {weight.dtype(), weight.device()});
  }
  figures_.blocks = state_.blocks.count();
  thread_ = std::thread([this] { run(); });
}

Batcher::~Batcher() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  arrived_.notify_all();
  thread_.join();
}

std::shared_ptr<Answer> Batcher::submit(Asked asked) {
  const nn::Generation& g = asked.generation;
  g.check(model_.o.vocab);
  LOCKSTEP_CHECK(g.num_beams == 1 && g.num_return_sequences == 1,
                 "[serve] beams and several answers are not supported; set num_beams and num_return_sequences to 1");
  LOCKSTEP_CHECK(!asked.prompt.empty(), "[serve] expected a prompt of at least one token, got an empty one");
  const auto length = int64_t(asked.prompt.size());
  LOCKSTEP_CHECK(length + g.max_new_tokens <= model_.o.context, "[serve] prompt has ", length, " tokens and ",
                 g.max_new_tokens, " more are asked for, the model's context is ", model_.o.context,
                 "; shorten the prompt, or ask for fewer tokens");
  LOCKSTEP_CHECK(state_.blocks.of(length + g.max_new_tokens) <= state_.blocks.count(), "[serve] ",
                 length + g.max_new_tokens, " tokens need ", state_.blocks.of(length + g.max_new_tokens),
                 " blocks of keys and values, there are ", state_.blocks.count(),
                 "; ask for fewer tokens, or start the server with more --blocks");
  for (const int64_t id : asked.prompt)
    LOCKSTEP_CHECK(id >= 0 && id < model_.o.vocab, "[serve] prompt has token ", id, ", the vocabulary has ",
                   model_.o.vocab, "; use the model's tokenizer");
  const bool nothing = g.max_new_tokens == 0 && !(asked.prompt_logprobs && length > 1);
  const auto answer = std::make_shared<Answer>();
  const uint64_t seed = g.seed ? *g.seed : g.greedy() ? 0 : std::random_device{}();
  nn::TextStream text(g.stop);
  auto r = std::make_unique<Running>(
      Running{.asked = std::move(asked), .answer = answer, .seed = seed, .text = std::move(text)});
  const std::lock_guard lock(mutex_);
  LOCKSTEP_CHECK(!stop_, "[serve] the server is shutting down; send the request again once it has restarted");
  ++figures_.requests;
  if (nothing) {
    answer->end(Answer::Reason::length);
    return answer;
  }
  arrivals_.push_back(std::move(r));
  arrived_.notify_all();
  return answer;
}

Figures Batcher::figures() {
  const std::lock_guard lock(mutex_);
  Figures f = figures_;
  f.waiting += int64_t(arrivals_.size());
  return f;
}

void Batcher::run() {
  const NoGrad no_grad;
  const auto drop_all = [&](const std::string& error) {
    for (const auto& r : running_) r->fail(error);
    drop_ended();
  };
  for (bool more = true; more;) {
    try {
      more = step();
    } catch (const std::exception& error) { drop_all(error.what()); }
  }
  drop_all("[serve] the server is shutting down; send the request again once it has restarted");
}

/// Adds new requests, ends cancelled ones, and computes a step. Returns false when the batcher ends.
bool Batcher::step() {
  std::deque<std::unique_ptr<Running>> arrivals;
  bool stop = false;
  {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return stop_ || !arrivals_.empty() || !running_.empty(); });
    arrivals.swap(arrivals_);
    stop = stop_;
  }
  for (auto& r : arrivals) {
    const auto length = int64_t(r->asked.prompt.size());
    try {
      r->number = add(state_, r->asked.prompt, length + r->asked.generation.max_new_tokens, r->asked.prompt_logprobs);
      running_.push_back(std::move(r));
    } catch (const std::exception& error) { r->answer->end(Answer::Reason::caller, error.what()); }
  }
  if (stop) return false;
  for (const auto& r : running_)
    if (r->answer->cancelled_) r->end = Answer::Reason::caller;
  const int64_t cancelled = drop_ended();
  const double begin = steady_seconds();
  const BatchStep step = next_step(state_);
  if (options_.on_step) options_.on_step(state_, step);
  if (!step.work.empty()) compute(step);
  drop_ended();
  const std::lock_guard lock(mutex_);
  figures_.cancelled += cancelled;
  figures_.steps += !step.work.empty();
  figures_.rows += step.rows();
  figures_.running = int64_t(state_.running.size()), figures_.waiting = int64_t(state_.waiting.size());
  figures_.blocks_used = state_.blocks.count() - state_.blocks.free();
  figures_.shared_tokens = state_.shared_tokens, figures_.put_back = state_.put_back;
  figures_.seconds += steady_seconds() - begin;
  return true;
}

void Batcher::compute(const BatchStep& step) {
  const auto running_of = [&](int64_t number) -> Running& {
    return **std::ranges::find(running_, number, &Running::number);
  };
  std::vector<std::vector<nn::KvCache>> caches(step.work.size());
  std::vector<std::vector<nn::KvCache>*> given;
  std::vector<std::span<const int64_t>> tokens;
  std::vector<int64_t> wanted;  // rows whose logits are used
  // For each row whose logits are used: its sequence, and the position in it of the token that these logits predict.
  std::vector<std::pair<Running*, int64_t>> whose;
  int64_t row = 0;
  for (size_t i = 0; i < step.work.size(); ++i) {
    const ScheduledTokens& w = step.work[i];
    const Sequence& s = state_.at(w.number);
    for (const nn::KvCache& m : memory_)
      caches[i].push_back({.keys = m.keys, .values = m.values, .length = w.first, .table = &s.blocks});
    given.push_back(&caches[i]);
    tokens.push_back(std::span(s.tokens).subspan(size_t(w.first), size_t(w.count)));
    Running& r = running_of(w.number);
    for (int64_t t = 0; t < w.count; ++t, ++row) {
      const int64_t behind = w.first + t + 1, length = int64_t(r.asked.prompt.size());
      const bool of_prompt = r.asked.prompt_logprobs && behind < length && behind >= r.prompt_scored;
      if (!of_prompt && !(w.last && t == w.count - 1)) continue;
      wanted.push_back(row);
      whose.emplace_back(&r, behind);
    }
  }
  if (wanted.empty()) wanted.push_back(0);  // the model returns at least one row
  Tensor scores;
  try {
    scores = nn::scores_on_host(model_.scores_behind(wanted, tokens, given).tensor());
  } catch (const std::exception& error) {
    if (step.work.size() == 1) return running_of(step.work[0].number).fail(error.what());
    for (const ScheduledTokens& w : step.work) compute({.work = {w}});  // one by one: only the sequence at fault ends
    return;
  }
  done(state_, step);
  std::vector<Token> chosen(whose.size());
  std::vector<std::string> errors(whose.size());
  on_cpu::parallel_for(int64_t(whose.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto i = size_t(begin); i < size_t(end); ++i) try {
        chosen[i] = choose(*whose[i].first, whose[i].second, nn::row_of(scores, i));
      } catch (const std::exception& error) { errors[i] = error.what(); }
  });
  for (size_t i = 0; i < whose.size(); ++i) {
    try {
      LOCKSTEP_CHECK(errors[i].empty(), errors[i]);
      take(*whose[i].first, whose[i].second, std::move(chosen[i]));
    } catch (const std::exception& error) { whose[i].first->fail(error.what()); }
  }
}

/// Returns the token at position `place` of a sequence, with its log probability: a token of the prompt if `place` is
/// within the prompt, else a newly sampled token. logits: the model's output for the token at position `place` - 1.
Token Batcher::choose(const Running& r, int64_t place, std::span<const float> logits) {
  Token token;
  const nn::Generation& g = r.asked.generation;
  if (place < int64_t(r.asked.prompt.size())) {
    token.id = r.asked.prompt[size_t(place)];
  } else {
    if (g.max_new_tokens == 0) return token;
    const std::vector<double> scores = nn::process_logits(logits, r.asked.prompt, r.made, g);
    token.id = nn::next_token(scores, g, nn::draw(r.seed, r.asked.sequence, uint64_t(place)));
  }
  if (r.asked.logprobs >= 0) {
    std::vector<double> logprobs = nn::log_probabilities(logits);
    token.logprob = logprobs[size_t(token.id)];
    for (const int64_t id : g.suppress_tokens) logprobs[size_t(id)] = -INFINITY;  // ids of padding have no text
    token.likeliest = highest(logprobs, r.asked.logprobs);
  }
  return token;
}

void Batcher::take(Running& r, int64_t place, Token token) {
  const nn::Generation& g = r.asked.generation;
  const int64_t id = token.id;
  if (place < int64_t(r.asked.prompt.size())) {
    r.prompt_scored = place + 1;
  } else {
    if (g.max_new_tokens == 0) return void(r.end = Answer::Reason::length);
    r.made.push_back(id);
    append(state_, r.number, id);
    if (std::count(g.eos_token_id.begin(), g.eos_token_id.end(), id)) r.end = Answer::Reason::eos;
    else if (!g.stop.empty() && (r.text.push(g.text(id)), r.text.stopped())) r.end = Answer::Reason::stop;
    else if (int64_t(r.made.size()) == g.max_new_tokens) r.end = Answer::Reason::length;
  }
  r.answer->push(std::move(token));
}

/// Removes the sequences that have ended or failed, and releases their blocks. Returns their number.
int64_t Batcher::drop_ended() {
  for (const auto& r : running_) {
    if (!r->end) continue;
    finish(state_, r->number);
    {
      const std::lock_guard lock(mutex_);
      figures_.tokens += int64_t(r->made.size());
      figures_.prompt_tokens += int64_t(r->asked.prompt.size());
    }
    r->answer->end(*r->end, r->error);
  }
  return int64_t(std::erase_if(running_, [](const auto& r) { return r->end.has_value(); }));
}

}  // namespace lockstep::serve
