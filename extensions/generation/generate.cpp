// Text generation and beam search, with the semantics of Hugging Face Transformers. See generate.h.
#include "extensions/generation/generate.h"

#include <algorithm>
#include <cmath>

#include "base/at_end.h"
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

struct Beam {
  Generated made;
  double sum = 0;
  std::vector<KvCache> caches;
};

/// A beam extended by a token.
struct Extension {
  size_t beam;
  int64_t token;
  double sum, logprob;  // logprob: from the model, before process_logits()
};

/// Gives each child its parent's caches. The first child of a parent takes the caches; the others get copies.
void inherit(std::vector<Beam>& children, const std::vector<size_t>& parents, std::vector<Beam>& old) {
  for (size_t i = 0; i < children.size(); ++i) {
    children[i].caches = old[parents[i]].caches;
    if (std::count(parents.begin(), parents.begin() + std::ptrdiff_t(i), parents[i]) == 0) continue;
    for (KvCache& c : children[i].caches) c.keys = c.keys.clone(), c.values = c.values.clone();
  }
}

/// The best `count` extensions of all beams, best first; ties go to the earlier beam, then to the lower id.
std::vector<Extension> best_extensions(GPT& model, std::vector<Beam>& beams, const std::vector<int64_t>& prompt,
                                       const Generation& g, size_t count) {
  std::vector<std::span<const int64_t>> tokens;
  std::vector<std::vector<KvCache>*> caches;
  for (Beam& b : beams) {
    const std::span<const int64_t> answer = b.made.tokens;
    tokens.push_back(answer.empty() ? std::span(prompt) : answer.last(1));
    caches.push_back(&b.caches);
  }
  const Tensor scores = scores_on_host(model.next_scores(tokens, caches).tensor());
  const auto better = [](const Extension& a, const Extension& b) {
    return a.sum != b.sum ? a.sum > b.sum : a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
  };
  std::vector<Extension> best;
  for (size_t i = 0; i < beams.size(); ++i) {
    const std::vector<double> own = log_probabilities(row_of(scores, i));
    const std::vector<float> rounded(own.begin(), own.end());
    const std::vector<double> processed = process_logits(rounded, prompt, beams[i].made.tokens, g);
    for (size_t id = 0; id < processed.size(); ++id) {
      const Extension e{i, int64_t(id), beams[i].sum + processed[id], own[id]};
      if (processed[id] == -INFINITY || (best.size() == count && !better(e, best.back()))) continue;
      best.insert(std::upper_bound(best.begin(), best.end(), e, better), e);
      if (best.size() > count) best.pop_back();
    }
  }
  LOCKSTEP_CHECK(!best.empty(),
                 "[generate] no token is left: all are suppressed (suppress_tokens, logit_bias, no_repeat_ngram_size); "
                 "suppress fewer");
  return best;
}

/// The num_return_sequences best continuations of a prompt, best first. Each step considers the 2 * num_beams
/// most likely extensions of the beams (more with several end tokens). Ended beams are kept and ranked by score (see
/// length_penalty). The best num_beams of the other extensions continue. `empty`: one empty cache per model block.
std::vector<Generated> beam_search(GPT& model, const std::vector<int64_t>& prompt, const Generation& g,
                                   const std::vector<KvCache>& empty) {
  const auto width = size_t(g.num_beams);
  const int64_t room = std::min(g.max_new_tokens, model.o.context - int64_t(prompt.size()));
  const size_t looks = std::max<size_t>(2, 1 + g.eos_token_id.size()) * width;
  std::vector<Beam> running(1);
  running[0].caches = empty;
  std::vector<Generated> finished;
  const auto scored = [&](double sum, int64_t length) { return sum / std::pow(double(length), g.length_penalty); };
  for (int64_t length = 1; length <= room; ++length) {
    const std::vector<Extension> best = best_extensions(model, running, prompt, g, looks);
    std::vector<Beam> next;
    std::vector<size_t> parents;
    const bool full = g.early_stopping && finished.size() == width;
    for (size_t rank = 0; rank < best.size(); ++rank) {
      const Extension& e = best[rank];
      const bool eos = std::count(g.eos_token_id.begin(), g.eos_token_id.end(), e.token) > 0;
      Beam child{running[e.beam].made, e.sum, {}};
      child.made.tokens.push_back(e.token);
      if (g.logprobs) child.made.logprobs.push_back(e.logprob);
      if ((eos || length == room) && rank < width && !full) {
        using Reason = Generated::Reason;
        Generated& ended = finished.emplace_back(child.made);
        ended.reason = eos ? Reason::eos : room < g.max_new_tokens ? Reason::context : Reason::length;
        ended.score = scored(e.sum, length);
      }
      if (!eos && next.size() < width) next.push_back(std::move(child)), parents.push_back(e.beam);
    }
    std::stable_sort(finished.begin(), finished.end(),
                     [](const Generated& a, const Generated& b) { return a.score > b.score; });
    if (finished.size() > width) finished.resize(width);
    if (next.empty()) break;
    const bool done =
        finished.size() == width && (g.early_stopping || scored(next[0].sum, length) <= finished.back().score);
    if (done) break;
    inherit(next, parents, running);
    running = std::move(next);
  }
  finished.resize(std::min(finished.size(), size_t(g.num_return_sequences)));
  return finished;
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
