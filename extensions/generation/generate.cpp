// Text generation. See generate.h.
#include "extensions/generation/generate.h"

#include <algorithm>

#include "base/at_end.h"
#include "extensions/generation/beams.h"
#include "extensions/generation/text_stream.h"
#include "tensor/random.h"

namespace lockstep::nn {

namespace {

/// A sequence in progress.
struct Running {
  size_t number;
  std::span<const int64_t> prompt;
  std::vector<KvCache> caches;
  std::vector<int64_t> next;  // tokens that are not in the caches yet
  TextStream text;
  Generated made;

  Running(size_t number_, std::span<const int64_t> prompt_, std::vector<KvCache> empty, const Generation& g)
      : number(number_), prompt(prompt_), caches(std::move(empty)), next(prompt.begin(), prompt.end()), text(g.stop) {}

  /// Appends a token; false if the sequence has ended.
  bool take(int64_t token, const Generation& g) {
    made.tokens.push_back(token);
    next = {token};
    using Reason = Generated::Reason;
    if (std::count(g.eos_token_id.begin(), g.eos_token_id.end(), token)) return made.reason = Reason::eos, false;
    if (!g.stop.empty()) text.push(g.text(token));
    if (text.stopped()) return made.reason = Reason::stop, false;
    return int64_t(made.tokens.size()) < g.max_new_tokens;
  }

  /// Called before each step. If the context is full, restarts with its last half (slide) or ends the sequence. True if
  /// the sequence goes on.
  bool fits(int64_t context, const Generation& g) {
    if (caches[0].length + int64_t(next.size()) <= context) return true;
    if (g.overflow == Generation::Overflow::error) return made.reason = Generated::Reason::context, false;
    std::vector<int64_t> all(prompt.begin(), prompt.end());  // recompute the caches for the last half
    all.insert(all.end(), made.tokens.begin(), made.tokens.end());
    const auto keep = std::min<int64_t>(int64_t(all.size()), std::max<int64_t>(context / 2, 1));
    next.assign(all.end() - keep, all.end());
    for (KvCache& cache : caches) cache = {.dtype = cache.dtype};
    return true;
  }
};

void check_prompts(const GPT& model, std::span<const std::vector<int64_t>> prompts, const Generation& g) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto& p = prompts[i];
    LOCKSTEP_CHECK(!p.empty(), "[generate] expected prompts of at least one token, prompt ", i, " is empty; fill it");
    LOCKSTEP_CHECK(g.overflow == Generation::Overflow::slide || int64_t(p.size()) < model.o.context,
                   "[generate] prompt has ", p.size(), " tokens, the model's context is ", model.o.context,
                   "; shorten it, or set overflow to slide");
    for (size_t at = 0; at < p.size(); ++at)
      LOCKSTEP_CHECK(p[at] >= 0 && p[at] < model.o.vocab, "[generate] prompt ", i, " has token ", p[at], " at ", at,
                     ", the vocabulary has ", model.o.vocab, "; use this model's tokenizer");
  }
}

/// Runs the model once and draws the next token of each running sequence.
void step(GPT& model, std::vector<Running*>& running, const Generation& g, uint64_t seed,
          const std::function<bool(size_t, int64_t)>& emit) {
  std::vector<std::span<const int64_t>> tokens;
  std::vector<std::vector<KvCache>*> caches;
  for (Running* r : running) tokens.push_back(r->next), caches.push_back(&r->caches);
  const Tensor scores = scores_on_host(model.next_scores(tokens, caches).tensor());
  std::vector<Running*> left;
  for (size_t i = 0; i < running.size(); ++i) {
    Running& r = *running[i];
    const std::span<const float> logits = row_of(scores, i);
    const std::vector<double> processed = process_logits(logits, r.prompt, r.made.tokens, g);
    const uint64_t place = r.prompt.size() + r.made.tokens.size();
    const int64_t token = next_token(processed, g, draw(seed, r.number, place));
    if (g.logprobs) r.made.logprobs.push_back(log_probabilities(logits)[size_t(token)]);
    bool goes_on = r.take(token, g);
    if (emit && !emit(r.number, token)) {
      if (goes_on) r.made.reason = Generated::Reason::caller;
      goes_on = false;
    }
    if (goes_on) left.push_back(&r);
  }
  running = left;
}

}  // namespace

std::vector<Generated> generate(GPT& model, std::span<const std::vector<int64_t>> prompts, const Generation& g,
                                const std::function<bool(size_t, int64_t)>& emit) {
  g.check(model.o.vocab);
  check_prompts(model, prompts, g);
  const NoGrad no_grad;
  const AtEnd trains([&model, before = model.is_training()] { model.train(before); });
  model.eval();
  const std::vector<KvCache> empty(model.blocks.size(), KvCache{.dtype = g.cache_dtype});
  std::vector<Generated> out;
  if (g.num_beams > 1) {
    for (const auto& prompt : prompts)
      for (Generated& made : beam_search(model, prompt, g, empty)) {
        for (const int64_t token : made.tokens)
          if (emit && !emit(out.size(), token)) break;
        out.push_back(std::move(made));
      }
    return out;
  }
  const uint64_t seed = g.seed ? *g.seed : g.greedy() ? 0 : philox(next_random_key(), 0)[0];
  std::vector<Running> all;
  for (const auto& prompt : prompts)
    for (int64_t i = 0; i < g.num_return_sequences; ++i) all.emplace_back(all.size(), prompt, empty, g);
  std::vector<Running*> running;
  for (Running& r : all)
    if (g.max_new_tokens > 0) running.push_back(&r);
  while (!running.empty()) {
    std::erase_if(running, [&](Running* r) { return !r->fits(model.o.context, g); });
    if (!running.empty()) step(model, running, g, seed, emit);
  }
  for (Running& r : all) out.push_back(std::move(r.made));
  return out;
}

Generated generate(GPT& model, const std::vector<int64_t>& prompt, const Generation& generation) {
  return generate(model, std::span(&prompt, 1), generation)[0];
}

}  // namespace lockstep::nn
