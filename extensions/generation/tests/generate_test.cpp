// Generation: distributions against Transformers', the same bits however the text is computed, stop strings, beam
// search, rejected options.
#include "extensions/generation/generate.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <random>

#include "data/json.h"
#include "extensions/generation/text_stream.h"
#include "tensor/random.h"
#include "tests/golden_folder.h"
#include "tests/messages.h"
#include "tests/models.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace lockstep::nn;

namespace {

GPT small_gpt(uint64_t seed = 3) {
  return testing::random_gpt({.vocab = 61, .context = 80, .layers = 2, .width = 48, .heads = 4}, seed);
}

std::vector<int64_t> some_ids(int64_t count, uint64_t seed) {
  manual_seed(seed);
  return randint(0, 61, {count}).to_vector<int64_t>();
}

/// Logits after each piece when the prompt is fed to the cache in pieces.
Tensor in_pieces(GPT& model, const std::vector<int64_t>& ids, size_t piece, std::optional<DType> dtype = {}) {
  std::vector<KvCache> cache(model.blocks.size(), KvCache{.dtype = dtype});
  std::vector<Tensor> rows;
  for (size_t at = 0; at < ids.size(); at += piece)
    rows.push_back(
        model.next_scores({std::span(ids).subspan(at, std::min(piece, ids.size() - at))}, {&cache}).tensor());
  return cat(rows);
}

}  // namespace

TEST_CASE("distribution: probabilities match Transformers") {
  const data::Json golden = data::read_json(std::string(golden_folder()) + "/sampling.json");
  const auto numbers = [](const data::Json& list) {
    std::vector<double> all;
    for (const data::Json& one : list.as_array()) all.push_back(one.as_number());
    return all;
  };
  const std::vector<double> scores = numbers(golden.at("logits")), earlier = numbers(golden.at("seen"));
  const std::vector<float> logits(scores.begin(), scores.end());
  const std::vector<int64_t> previous(earlier.begin(), earlier.end());
  for (const data::Json& c : golden.at("cases").as_array()) {
    const data::Json& a = c.at("args");
    CAPTURE(a.dump());
    Generation g{.do_sample = true, .top_k = 0};
    for (const auto& [key, value] : a.as_object()) {
      if (key == "temperature") g.temperature = value.as_number();
      else if (key == "top_k") g.top_k = value.as_int();
      else if (key == "top_p") g.top_p = value.as_number();
      else if (key == "min_p") g.min_p = value.as_number();
      else if (key == "repetition_penalty") g.repetition_penalty = value.as_number();
      else FAIL("unknown ", key);
    }
    std::vector<double> wanted = numbers(c.at("probabilities"));
    // a tie: we keep the lower id
    if (a == data::Json(data::Json::Object{{"top_p", 0.6}})) std::swap(wanted[1], wanted[2]);
    std::vector<double> got(logits.size());
    double last = 2;
    for (const Candidate& k : distribution(process_logits(logits, previous, {}, g), g)) {
      CHECK(k.probability <= last);
      got[size_t(k.id)] = last = k.probability;
    }
    for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - wanted[i]) < 1e-6);
  }
}

TEST_CASE("process_logits: each rule") {
  const std::vector<float> logits{1, -2, 3, 0.5f, 2};
  const std::vector<int64_t> prompt{1, 2, 3}, answer{2, 4, 2};
  using Row = std::pair<Generation, std::vector<double>>;
  const double never = -INFINITY;
  for (const auto& [g, wanted] :
       {Row{{.logit_bias = {{0, 2.5}, {4, -1}}}, {3.5, -2, 3, 0.5, 1}},
        {{.repetition_penalty = 2}, {1, -4, 1.5, 0.25, 1}},
        {{.presence_penalty = 0.5, .frequency_penalty = 1}, {1, -2, 0.5, 0.5, 0.5}},
        {{.no_repeat_ngram_size = 2}, {1, -2, 3, never, never}},  // 2 was followed by 3 and by 4 before
        {{.no_repeat_ngram_size = 1}, {1, never, never, never, never}},
        {{.min_new_tokens = 4, .eos_token_id = {0, 3}}, {never, -2, 3, never, 2}},
        {{.min_new_tokens = 3, .eos_token_id = {0, 3}}, {1, -2, 3, 0.5, 2}},
        {{.suppress_tokens = {2}}, {1, -2, never, 0.5, 2}},
        {{.logit_bias = {{1, 4}}, .repetition_penalty = 2, .presence_penalty = 1}, {1, 1, 0.5, 0.25, 0}}})
    CHECK(process_logits(logits, prompt, answer, g) == wanted);
  CHECK_ERROR(process_logits(std::vector<float>{1, NAN}, prompt, answer, {}),
              "[generate] logits of token 1 are not numbers");
}

TEST_CASE("distribution: a draw from a large vocabulary is the place of u in the sorted distribution") {
  manual_seed(8);
  const std::vector<double> scores = mul_scalar(randn({128'256}, {.dtype = f64}), 2.5).to_vector<double>();
  struct Row {
    int64_t top_k;
    double top_p, min_p, temperature;
  };
  for (const Row r : {Row{50, 1, 0, 0.8},
                      {0, 0.9, 0, 1},
                      {0, 0.99, 0.001, 1},
                      {0, 1, 0.05, 1},
                      {0, 0.999, 1e-6, 2},
                      {0, 1, 0, 1},
                      {0, 1, 0, 30},
                      {0, 0.5, 0, 30},
                      {400, 0.7, 0.01, 2}}) {
    const Generation g{
        .do_sample = true, .temperature = r.temperature, .top_k = r.top_k, .top_p = r.top_p, .min_p = r.min_p};
    const std::vector<Candidate> all = distribution(scores, g);
    double sum = 0;
    for (const double u : {0.0, 0.3, 0.77, 0.999}) {
      const int64_t id = next_token(scores, g, u);
      double below = 0;
      size_t i = 0;
      for (; i < all.size() && all[i].id != id; ++i) below += all[i].probability;
      REQUIRE(i < all.size());
      CHECK(below <= u + 1e-12);
      CHECK(below + all[i].probability > u - 1e-12);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      sum += all[i].probability;
      if (i > 0) REQUIRE(scores[size_t(all[i - 1].id)] >= scores[size_t(all[i].id)]);
    }
    CHECK(std::abs(sum - 1) < 1e-9);
  }
}

TEST_CASE("sampling is total: any logits and any options give a token that may be drawn, or an Error") {
  std::mt19937_64 random(11);
  const auto one_of = [&](const auto& values) { return values[random() % std::size(values)]; };
  const int64_t rounds = std::getenv("LONG") ? 100'000 : 3'000;
  int64_t sampled = 0, infinite_ones = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    std::vector<float> logits(1 + random() % 40);
    const double scale = one_of(std::array{0.0, 1.0, 1e3, 1e9, 1e30});
    const bool strange = random() % 2;
    for (float& x : logits) {
      x = float((double(random() % 2001) / 1000 - 1) * scale);
      if (strange && random() % 8 == 0)
        x = one_of(std::array{INFINITY, -INFINITY, 3.4e38F, -3.4e38F, random() % 30 ? 0.F : NAN});
    }
    const auto count = int64_t(logits.size());
    Generation g{.do_sample = true};
    if (random() % 2)
      g.logit_bias[int64_t(random() % (random() % 20 ? logits.size() : 1000))] =
          one_of(std::array{1e9, -1e9, 1., -double(INFINITY)});
    if (random() % 2) g.repetition_penalty = one_of(std::array{1e-3, 1e3, 1.3, 0.5});
    if (random() % 2) g.presence_penalty = one_of(std::array{-100., 100., 1e-7});
    if (random() % 2) g.frequency_penalty = one_of(std::array{-100., 100., 1e-7});
    if (random() % 2) g.suppress_tokens = {int64_t(random() % logits.size()), 0};
    g.no_repeat_ngram_size = int64_t(random() % 4);
    g.temperature = one_of(std::array{0., 1e-5, 1e-4, 0.7, 1., 30., 1e6, random() % 20 ? 1. : double(NAN)});
    g.top_k = one_of(std::array<int64_t, 5>{0, 1, 3, 50, random() % 20 ? 7 : INT64_MAX});
    g.top_p = one_of(std::array{1., 0.9, 0.3, 1e-300, random() % 20 ? 0.5 : 2.});
    g.min_p = one_of(std::array{0., 0.1, 1.});
    std::vector<int64_t> prompt, answer;
    for (size_t i = random() % 20; i > 0; --i) (i % 2 ? prompt : answer).push_back(int64_t(random() % logits.size()));
    const double u = one_of(std::array{0., 0.3, 0.999999, double(random() % 1000) / 1000});
    try {
      const std::vector<double> scores = process_logits(logits, prompt, answer, g);
      for (const double score : scores) REQUIRE((score == score && score < INFINITY));
      const int64_t id = next_token(scores, g, u);
      REQUIRE((id >= 0 && id < count));
      CHECK(scores[size_t(id)] > -INFINITY);
      double sum = 0;
      bool kept = g.greedy();
      for (const Candidate& c : distribution(scores, g)) sum += c.probability, kept |= c.id == id;
      CHECK(kept);
      CHECK(std::abs(sum - 1) < 1e-9);
      for (const double x : log_probabilities(logits)) CHECK(x <= 0);
      const auto infinite = std::count(logits.begin(), logits.end(), INFINITY);
      const bool plain =
          g.logit_bias.empty() && g.repetition_penalty == 1 && g.suppress_tokens.empty() && g.no_repeat_ngram_size == 0;
      if (plain && infinite > 0 && g.temperature < 100) {
        CHECK(logits[size_t(id)] == INFINITY);
        ++infinite_ones;
      }
      ++sampled;
    } catch (const Error& error) { CHECK(std::string(error.what()).starts_with("[generate]")); }
  }
  CHECK(sampled > rounds / 2);
  CHECK(infinite_ones > rounds / 1500);
  // Scores near a number `top`, each the next smaller double of the one before.
  for (const double top : {1e9, -1e9, 1e300, -1e300, 0.0})
    for (const double temperature : {1e-5, 1.0, 30.0}) {
      std::vector<double> scores(200, top);
      for (size_t i = 1; i < scores.size(); ++i) scores[i] = std::nextafter(scores[i - 1], -INFINITY);
      const Generation g{.do_sample = true, .temperature = temperature, .top_k = 0};
      const std::vector<Candidate> all = distribution(scores, g);
      REQUIRE(!all.empty());
      double below = 0;
      for (const Candidate& c : all) {
        if (c.probability > 1e-6) CHECK(next_token(scores, g, below + c.probability / 2) == c.id);
        below += c.probability;
      }
      CHECK(std::abs(below - 1) < 1e-9);
    }
  CHECK_ERROR(next_token(std::vector<double>{}, {}, 0), "no token is left");
  CHECK(log_probabilities(std::vector<float>{-INFINITY}) == std::vector<double>{-INFINITY});
  CHECK(std::abs(log_probabilities(std::vector<float>{INFINITY, 1, INFINITY})[2] - std::log(0.5)) < 1e-12);
}

TEST_CASE("logits: the same bits in one piece and in many, alone and in a batch, with any number of threads") {
  GPT model = small_gpt();
  const NoGrad no_grad;
  const std::vector<int64_t> ids = some_ids(70, 1);
  const Tensor full = model(Tensor::from(ids, {1, 70})).tensor()[0].clone();
  for (const int count : {1, 2, 3}) {
    const Threads threads(count);
    CHECK(equal(in_pieces(model, ids, 1), full));
    for (const size_t piece : {7, 64, 70}) {
      CAPTURE(piece);
      const Tensor rows = in_pieces(model, ids, piece);
      for (int64_t i = 0; i < rows.size(0); ++i)
        CHECK(equal(rows[i].clone(), full[std::min<int64_t>(69, (i + 1) * int64_t(piece) - 1)].clone()));
    }
    for (const int64_t batch : {2, 9}) {
      const Tensor many = model(Tensor::from(ids, {1, 70}).expand({batch, 70}).contiguous()).tensor();
      CHECK(equal(many[batch - 1].clone(), full));
    }
  }
  for (const DType dtype : {f16, bf16}) {  // a cache in 16 bits: close, but not equal
    const Tensor rows = in_pieces(model, ids, 1, dtype);
    CHECK(!equal(rows, full));
    CHECK(max(abs(rows - full)).item() < 0.1 * max(abs(full)).item());
  }
}

TEST_CASE("a cache grows by doubling, up to the context") {
  KvCache cache{.dtype = bf16};
  const Tensor some = rand({1, 2, 100, 4});
  for (const int64_t room : {256, 256, 512, 512, 512, 700, 700}) {
    cache.append(some, some, 700);
    CHECK(cache.keys.size(2) == room);
  }
  CHECK(cache.length == 700);
  CHECK(cache.keys.dtype() == bf16);
  CHECK(equal(cache.filled(cache.keys, f32).narrow(2, 600, 100).clone(), some.to(bf16).to(f32)));
}

TEST_CASE("generate: a sequence's tokens do not depend on the others, on threads or on the cache") {
  GPT model = small_gpt();
  std::vector<std::vector<int64_t>> prompts;
  for (const int64_t length : {1, 5, 30, 2, 17, 8, 9, 3, 40}) prompts.push_back(some_ids(length, uint64_t(length)));
  for (const Generation& g :
       {Generation{.max_new_tokens = 20},
        {.max_new_tokens = 20, .do_sample = true, .seed = 7},
        {.max_new_tokens = 20, .do_sample = true, .seed = 7, .temperature = 1.5, .top_k = 0, .top_p = 0.8}}) {
    const Threads one(1);
    const std::vector<Generated> all = generate(model, prompts, g);
    const Threads two(2);
    CHECK(all[3].tokens.size() == 20);
    CHECK(generate(model, std::span(prompts).first(4), g)[3].tokens == all[3].tokens);
    std::vector<int64_t> text = prompts[0], said;  // prompt 0, with a full forward pass for each token
    for (int64_t i = 0; i < 20; ++i) {
      const NoGrad no_grad;
      const Tensor logits = model(Tensor::from(text, {1, int64_t(text.size())})).tensor()[0].clone();
      const std::vector<float> last = logits[logits.size(0) - 1].to_vector<float>();
      const auto scores = process_logits(last, prompts[0], said, g);
      said.push_back(next_token(scores, g, draw(7, 0, text.size())));
      text.push_back(said.back());
    }
    CHECK(said == all[0].tokens);
  }
  CHECK(draw(7, 0, 1) != draw(7, 1, 1));
  CHECK(draw(7, 0, 1) != draw(7, 0, 2));
}

TEST_CASE("generate: reasons to end, results, and rejected options") {
  GPT model = small_gpt();
  using Reason = Generated::Reason;
  const std::vector<int64_t> prompt = some_ids(4, 2), plain = generate(model, prompt, {.max_new_tokens = 12}).tokens;
  REQUIRE(plain.size() == 12);
  const auto text = [](int64_t id) { return "<" + std::to_string(id) + ">"; };
  Generated made = generate(model, prompt, {.max_new_tokens = 12, .eos_token_id = {plain[3]}});
  CHECK(made.reason == Reason::eos);
  CHECK(made.tokens.back() == plain[3]);
  CHECK(made.tokens.size() <= 4);
  const std::string stop = text(plain[1]).substr(1) + text(plain[2]).substr(0, 2);
  made = generate(model, prompt, {.max_new_tokens = 12, .stop = {"no", stop}, .text = text});
  CHECK(made.reason == Reason::stop);
  std::string said;
  size_t until = 0;  // a match may end inside a token
  while (said.find(stop) == std::string::npos) said += text(plain[until++]);
  CHECK(made.tokens == std::vector(plain.begin(), plain.begin() + std::ptrdiff_t(until)));
  made = generate(model, prompt, {.max_new_tokens = 200});
  CHECK(made.reason == Reason::context);
  CHECK(made.tokens.size() == 77);  // the last token is generated but not fed to the model
  made = generate(model, prompt, {.max_new_tokens = 200, .overflow = Generation::Overflow::slide});
  CHECK(made.reason == Reason::length);
  CHECK(made.tokens.size() == 200);
  made =
      generate(model, prompt, {.max_new_tokens = 5, .min_new_tokens = 3, .eos_token_id = {plain[0]}, .logprobs = true});
  CHECK(made.tokens[0] != plain[0]);
  REQUIRE(made.logprobs.size() == made.tokens.size());
  for (const double p : made.logprobs) CHECK(p < 0);
  std::vector<std::vector<int64_t>> emitted(2);
  const std::vector<std::vector<int64_t>> two{prompt, some_ids(3, 5)};
  const auto both = generate(model, two, {.max_new_tokens = 6}, [&](size_t i, int64_t token) {
    emitted[i].push_back(token);
    return i == 0 || emitted[i].size() < 2;
  });
  CHECK(emitted[0] == both[0].tokens);
  CHECK(both[1].reason == Reason::caller);
  CHECK(both[1].tokens.size() == 2);
  const auto several = generate(model, std::span(two).first(1),
                                {.max_new_tokens = 8, .do_sample = true, .seed = 1, .num_return_sequences = 3});
  REQUIRE(several.size() == 3);
  CHECK(several[0].tokens != several[1].tokens);
  using Row = std::pair<Generation, const char*>;
  for (const auto& [g, said_of] :
       {Row{{.top_p = 0}, "expected top_p in (0, 1], got 0"},
        {{.top_p = NAN}, "expected top_p in (0, 1], got nan"},
        {{.top_k = -1}, "expected top_k in [0, 2147483648], got -1"},
        {{.min_p = 1.5}, "expected min_p in [0, 1], got 1.5"},
        {{.repetition_penalty = 0}, "expected repetition_penalty in [0.001, 1000], got 0"},
        {{.presence_penalty = NAN}, "expected presence_penalty in [-100, 100], got nan"},
        {{.frequency_penalty = INFINITY}, "expected frequency_penalty in [-100, 100], got inf"},
        {{.logit_bias = {{3, NAN}}}, "expected logit_bias up to 1e9, got nan for token 3"},
        {{.temperature = -1}, "expected temperature in [0, 1000000], got -1"},
        {{.temperature = INFINITY}, "expected temperature in [0, 1000000], got inf"},
        {{.max_new_tokens = INT64_MAX}, "expected max_new_tokens in [0, 2147483648], got 9.22337e+18"},
        {{.num_beams = 0}, "expected num_beams in [1, 1024], got 0"},
        {{.do_sample = true, .num_beams = 2}, "with do_sample is not supported"},
        {{.num_return_sequences = 2}, "expected num_return_sequences from 1 to num_beams"},
        {{.stop = {"x"}}, "stop strings need `text`"},
        {{.suppress_tokens = {61}}, "suppress_tokens names token 61, the vocabulary has 61"}})
    CHECK_ERROR(generate(model, prompt, g), said_of);
  CHECK_ERROR(generate(model, std::vector<int64_t>()), "expected prompts of at least one token, prompt 0 is empty");
  CHECK_ERROR(generate(model, std::vector<int64_t>(80)), "[generate] prompt has 80 tokens, the model's context is 80");
  CHECK_ERROR(generate(model, std::vector<int64_t>{1, 2, 61}), "prompt 0 has token 61 at 2");
}

TEST_CASE("beams: with enough beams for all texts, the best one is found") {
  GPT model = small_gpt(9);
  for (const Variable& p : model.parameters()) p.tensor().copy_(mul_scalar(p.tensor(), 0.5));
  const std::vector<int64_t> prompt = some_ids(3, 4);
  std::vector<int64_t> suppressed;
  for (int64_t i = 4; i < 61; ++i) suppressed.push_back(i);  // 4 tokens remain allowed: 64 texts of 3 tokens
  const Generation g{.max_new_tokens = 3, .num_return_sequences = 3, .num_beams = 64, .suppress_tokens = suppressed};
  const auto found = generate(model, std::span(&prompt, 1), g);
  std::vector<std::pair<double, std::vector<int64_t>>> all;
  for (int64_t i = 0; i < 64; ++i) {
    std::vector<int64_t> text = prompt, tail{i / 16, i / 4 % 4, i % 4};
    double sum = 0;
    for (const int64_t token : tail) {
      const NoGrad no_grad;
      const Tensor logits = model(Tensor::from(text, {1, int64_t(text.size())})).tensor()[0].clone();
      sum += log_probabilities(logits[logits.size(0) - 1].to_vector<float>())[size_t(token)];
      text.push_back(token);
    }
    all.emplace_back(sum / 3, tail);
  }
  std::sort(all.rbegin(), all.rend());
  REQUIRE(found.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(found[i].tokens == all[i].second);
    CHECK(std::abs(found[i].score - all[i].first) < 1e-5);
  }
  const Generation one{.max_new_tokens = 10, .num_beams = 4, .eos_token_id = {5, 6}};
  const Generated best = generate(model, prompt, one),
                  greedy = generate(model, prompt, {.max_new_tokens = 10, .eos_token_id = {5, 6}, .logprobs = true});
  double sum = 0;
  for (const double p : greedy.logprobs) sum += p;
  CHECK(best.score >= sum / double(greedy.tokens.size()) - 1e-6);
}

TEST_CASE("TextStream: gives whole characters, and no part of a stop string") {
  struct Row {
    std::vector<std::string> stop, pieces;
    std::string text;
  };
  for (const Row& r : {Row{{}, {"a", "\xc3", "\xa9", "\xe2\x82", "\xac"}, "a\xc3\xa9\xe2\x82\xac"},
                       {{}, {"\xc3", "x", "\xff", "\xf0\x9f\x98"}, "\xef\xbf\xbdx\xef\xbf\xbd\xef\xbf\xbd"},
                       {{"END"}, {"it E", "N", "ds ", "EN", "D and more"}, "it ENds "},
                       {{"\n\n", "aab"}, {"xa", "a", "a", "b", "y"}, "xa"},
                       {{"\xc3\xa9!"}, {"\xc3", "\xa9", "?\xc3", "\xa9", "!"}, "\xc3\xa9?"},
                       {{"never"}, {"ne", "v"}, "nev"}}) {
    TextStream s(r.stop);
    std::string text;
    for (const std::string& piece : r.pieces) {
      text += s.push(piece);
      CHECK(r.text.substr(0, text.size()) == text);
    }
    CHECK(text + s.flush() == r.text);
  }
}
