// Beam search. See beams.h.
#include "extensions/generation/beams.h"

#include <algorithm>
#include <cmath>

namespace lockstep::nn {

namespace {

struct Beam {
  std::vector<int64_t> tokens;
  std::vector<double> logprobs;
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
    tokens.push_back(b.tokens.empty() ? std::span<const int64_t>(prompt) : std::span(b.tokens).last(1));
    caches.push_back(&b.caches);
  }
  const Tensor scores = scores_on_host(model.next_scores(tokens, caches).tensor());
  const auto vocab = size_t(scores.size(1));
  const auto better = [](const Extension& a, const Extension& b) {
    return a.sum != b.sum ? a.sum > b.sum : a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
  };
  std::vector<Extension> best;
  for (size_t i = 0; i < beams.size(); ++i) {
    const std::vector<double> own = log_probabilities(row_of(scores, i));
    const std::vector<float> rounded(own.begin(), own.end());
    const std::vector<double> processed = process_logits(rounded, prompt, beams[i].tokens, g);
    for (size_t id = 0; id < vocab; ++id) {
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

}  // namespace

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
      Beam child{running[e.beam].tokens, running[e.beam].logprobs, e.sum, {}};
      child.tokens.push_back(e.token), child.logprobs.push_back(e.logprob);
      if ((eos || length == room) && rank < width && !full) {
        using Reason = Generated::Reason;
        finished.push_back({.tokens = child.tokens,
                            .logprobs = g.logprobs ? child.logprobs : std::vector<double>(),
                            .reason = eos                       ? Reason::eos
                                      : room < g.max_new_tokens ? Reason::context
                                                                : Reason::length,
                            .score = scored(e.sum, length)});
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

}  // namespace lockstep::nn
