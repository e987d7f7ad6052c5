// Serving: guarantees of the scheduler, sharing and freeing of blocks, and each request has the bits that it would have
// alone.
#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>

#include "extensions/serving/batcher.h"
#include "extensions/serving/chat.h"
#include "extensions/serving/simulate.h"
#include "tensor/ops.h"
#include "tensor/paged_attention.h"
#include "tensor/random.h"
#include "tests/block_pattern.h"
#include "tests/messages.h"
#include "tests/models.h"
#include "tests/threads.h"

using namespace lockstep;
using namespace lockstep::serve;

namespace {

/// Checks that each block's count of users equals the number of running sequences that list it, and that blocks without
/// users are free.
void check_blocks(const SchedulerState& s) {
  std::map<int32_t, int64_t> users;
  for (const Sequence& q : s.running) {
    for (const int32_t b : q.blocks)
      if (b >= 0) ++users[b];
    CHECK(q.computed <= int64_t(q.blocks.size()) * s.blocks.tokens());
    CHECK(s.blocks.of(std::max<int64_t>(q.computed, 1)) >= int64_t(q.blocks.size()) - 16);
  }
  for (const Sequence& q : s.waiting) CHECK(q.blocks.empty());
  for (int32_t b = 0; b < int32_t(s.blocks.count()); ++b) CHECK(s.blocks.users(b) == (users.count(b) ? users[b] : 0));
  CHECK(s.blocks.free() + int64_t(users.size()) == s.blocks.count());
}

std::vector<int64_t> ids(int64_t count, uint64_t seed, int64_t vocab = 61) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(int64_t(random() % uint64_t(vocab)));
  return all;
}

}  // namespace

TEST_CASE("schedule: text first, then prompts in their order, cut anywhere") {
  SchedulerState s(64, {.rows = 100, .sequences = 8});
  add(s, ids(130, 1), 200);
  add(s, ids(30, 2), 50);
  add(s, ids(90, 3), 100);
  const auto next = [&](const char* wanted) {
    const BatchStep step = next_step(s);
    CHECK(to_string(step) == wanted);
    done(s, step);
    for (const ScheduledTokens& w : step.work)
      if (w.last) append(s, w.number, 7);
    check_blocks(s);
  };
  next("100 rows: 0 [0, 100); started 0");
  next("100 rows: 0 [100, 130), 1 [0, 30), 2 [0, 40); started 1 2");
  next("52 rows: 0 at 130, 1 at 30, 2 [40, 90)");
  finish(s, 1);
  next("2 rows: 0 at 131, 2 at 90");
  finish(s, 0), finish(s, 2);
  CHECK(s.blocks.free() == 64);
  CHECK(next_step(s).work.empty());
}

TEST_CASE("schedule: the youngest request is preempted, computed again, and shares the blocks that remain") {
  SchedulerState s(5, {.rows = 64, .sequences = 4}, 16);
  add(s, ids(32, 1), 60);
  add(s, ids(20, 2), 40);
  for (int i = 0;; ++i) {
    const BatchStep step = next_step(s);
    check_blocks(s);
    done(s, step);
    if (!step.put_back.empty()) {
      CHECK(step.put_back == std::vector<int64_t>{1});
      CHECK(s.waiting.size() == 1);
      CHECK(s.waiting[0].tokens.size() > 20);  // generated tokens are kept
      break;
    }
    for (const ScheduledTokens& w : step.work) append(s, w.number, 7);
    REQUIRE(i < 100);
  }
  finish(s, 0);
  const BatchStep step = next_step(s);
  CHECK(step.started == std::vector<int64_t>{1});
  CHECK(step.work[0].first == 32);  // the request's first two blocks (32 tokens) have not been reused
  CHECK(s.put_back == 1);
}

TEST_CASE("blocks: full blocks are shared if they and all blocks before have the same tokens") {
  Blocks b(6, 4);
  const auto tokens = ids(12, 5);
  const std::span<const int64_t> all(tokens);
  std::vector<int32_t> mine{b.take(), b.take(), b.take()};
  b.keep(mine[0], -1, all.first(4)), b.keep(mine[1], mine[0], all.subspan(4, 4));
  b.keep(mine[2], mine[1], all.subspan(8, 4));
  CHECK(b.share(all, 2) == std::vector<int32_t>{mine[0], mine[1]});
  CHECK(b.users(mine[1]) == 2);
  CHECK(b.share(all.subspan(4), 9).empty());  // no block is shared if the same tokens lie at another position
  std::vector<int64_t> other = tokens;
  other[5] ^= 1;
  CHECK(b.share(other, 9) == std::vector<int32_t>{mine[0]});
  const int32_t twin = b.take();  // another sequence has computed the same content: only one block keeps it
  CHECK(b.keep(twin, mine[0], all.subspan(4, 4)) == mine[1]);
  CHECK(b.users(twin) == 0);
  CHECK(b.users(mine[1]) == 3);
  for (const int32_t block : {mine[2], mine[1], mine[1], mine[1], mine[0], mine[0], mine[0]}) b.release(block);
  CHECK(b.free() == 6);
  CHECK(b.known() == 3);
  CHECK(b.share(all, 9) == mine);  // the free blocks still have their content
  for (const int32_t block : mine) b.release(block);
  for (int i = 0; i < 4; ++i) b.take();  // three blocks without content, then the one that has been free for longest
  CHECK(b.share(all, 9).empty());
  CHECK_ERROR((b.release(5), b.release(5), b.release(5)), "is not in use");
}

TEST_CASE("schedule: nobody starves, blocks are conserved, whatever arrives") {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
    const int64_t blocks = 8 + below(40), size = seed % 2 ? 4 : 8;
    SchedulerState s(blocks, {.rows = 8 + below(40), .sequences = 1 + below(8)}, size);
    std::map<int64_t, int64_t> left, waited;
    int64_t made = 0, oldest_moved = 0, asked = 0;
    for (int64_t steps = 0; steps < 4000 && (steps < 200 || !left.empty()); ++steps) {
      if (steps < 200 && below(3) == 0) {
        const int64_t prompt = 1 + below(blocks * size / 2), answer = 1 + below(20);
        auto tokens = ids(prompt, below(4), 3);  // only a few different prefixes, so that some are shared
        if (s.blocks.of(prompt + answer) > blocks) continue;
        left[add(s, tokens, prompt + answer, below(5) == 0)] = answer;
        asked += answer;
      }
      if (below(40) == 0 && !left.empty()) {  // a client cancels its request
        const int64_t number = left.rbegin()->first;
        asked -= left[number];
        left.erase(number), finish(s, number);
      }
      const BatchStep step = next_step(s);
      CHECK(step.rows() <= s.limits.rows);
      CHECK(int64_t(s.running.size()) <= s.limits.sequences);
      check_blocks(s);
      for (size_t i = 0; i + 1 < s.running.size(); ++i) CHECK(s.running[i].number < s.running[i + 1].number);
      if (!s.running.empty() && !s.waiting.empty()) CHECK(s.running.back().number < s.waiting.front().number);
      // The oldest request advances in every step.
      if (!left.empty()) {
        const int64_t oldest = left.begin()->first;
        bool moves = false;
        for (const ScheduledTokens& w : step.work) moves |= w.number == oldest && w.count > 0;
        CHECK(moves);
        ++oldest_moved;
      }
      done(s, step);
      std::set<int64_t> visited;
      for (const ScheduledTokens& w : step.work) {
        CHECK(visited.insert(w.number).second);
        if (!w.last) continue;
        ++made;
        if (--left[w.number] == 0) left.erase(w.number), finish(s, w.number);
        else append(s, w.number, below(3));
      }
    }
    CHECK(left.empty());
    CHECK(made == asked);
    CHECK(s.blocks.free() == blocks);
    CHECK(oldest_moved > 0);
  }
}

TEST_CASE("simulate: printed tables and pictures") {
  const auto run = simulate(parse_arrivals("0:40+3,0:20+2,30:40+2/32,30:40+2/32"),
                            SchedulerState(16, {.rows = 32, .sequences = 4}), {.step = 10, .row = 1});
  CHECK(draw_grid(run) ==
        "request 0    32  8  #  #\n"
        "request 1     . 20  #\n"
        "request 2        4 30  6  #\n"
        "request 3        .  .  8  #\n");
  CHECK(run.tokens == 9);
  const std::string svg = draw_svg(run);
  CHECK(contains(svg, "request 3"));
  CHECK(contains(svg, "4 requests, "));
  for (const char* wrong : {"", "1", "0:4", "0:4+", "0:4+2x", "0:0+2", "-1:4+2", "0:4+2/9", "nan:4+2"})
    CHECK_ERROR(parse_arrivals(wrong), "expected");
}

TEST_CASE("schedule: blocks before the window are given back") {
  SchedulerState state(12, {.rows = 64, .sequences = 4});
  state.window = 40;
  const int64_t a = add(state, ids(200, 1), 330);
  std::vector<int64_t> used;
  for (int step = 0; step < 120; ++step) {
    const BatchStep s = next_step(state);
    done(state, s);
    if (s.work.at(0).last) append(state, a, 7);
    const Sequence& of = state.at(a);
    const int64_t in_use = std::count_if(of.blocks.begin(), of.blocks.end(), [](int32_t b) { return b >= 0; });
    check_blocks(state);
    // the blocks of these tokens are still held, because the next token attends to them
    for (int64_t t = std::max<int64_t>(0, of.computed + 1 - 40); t < of.computed; ++t)
      CHECK(of.blocks[size_t(t / 32)] >= 0);
    used.push_back(in_use);
  }
  CHECK(used.front() == 2);
  CHECK(*std::max_element(used.begin() + 4, used.end()) <= 5);  // 330 tokens would take 11 blocks
  // sequence b shares the first two blocks of sequence a, which were released but not reused
  const int64_t b = add(state, ids(96, 1), 100);
  next_step(state);
  CHECK(state.shared_tokens == 64);
  finish(state, a), finish(state, b);
  CHECK(state.blocks.free() == 12);
}

TEST_CASE("paged_attention: bit-identical to attention over contiguous keys") {
  struct Row {
    DType dtype;
    int64_t heads, groups, width, size, window = 0;
  };
  for (const auto& [dtype, heads, groups, width, size, window] :
       {Row{f32, 4, 4, 16, 32}, Row{f32, 6, 2, 20, 16}, Row{f64, 2, 1, 8, 64}, Row{bf16, 4, 2, 16, 32},
        Row{f16, 3, 3, 12, 16}, Row{f32, 4, 2, 16, 32, 20}, Row{bf16, 2, 2, 8, 16, 65}, Row{f32, 2, 1, 8, 64, 1}}) {
    CAPTURE(width);
    manual_seed(7);
    const std::vector<std::pair<int64_t, int64_t>> shapes{{1, 1}, {1, 70}, {300, 300}, {5, 133}, {64, 64}, {1, 33}};
    Tensor keys = full({50, groups, size, width}, NAN).to(dtype), values = keys.clone();
    std::vector<std::vector<int32_t>> tables;
    std::vector<PagedRows> rows;
    std::vector<Tensor> q, single;
    int32_t next = 0;
    for (const auto& [queries, length] : shapes) {
      auto& table = tables.emplace_back();
      for (int64_t b = 0; b * size < length; ++b) table.push_back(int32_t(next++ * 7 % 50));
      const Tensor k = randn({1, groups, length, width}).to(dtype), v = randn({1, groups, length, width}).to(dtype);
      q.push_back(randn({1, heads, queries, width}).to(dtype));
      for (int64_t at = 0; at < length; at += 50) {
        const int64_t count = std::min<int64_t>(50, length - at);
        scatter_blocks(k.narrow(2, at, count), keys, table, at);
        scatter_blocks(v.narrow(2, at, count), values, table, at);
      }
      CHECK(gather_blocks(keys, table, length).to(f64).to_vector<double>() == k.to(f64).to_vector<double>());
      single.push_back(attention(q.back(), k, v, {}, {.scale = 0, .causal = true, .window = window}).out);
      // blocks before the window have been freed
      std::fill_n(table.begin(), before_window(length - queries, window) / size, -1);
    }
    for (size_t i = 0; i < shapes.size(); ++i) rows.push_back({shapes[i].first, shapes[i].second, tables[i]});
    const auto bits = [](const Tensor& x) { return x.to(f64).contiguous().to_vector<double>(); };
    CHECK(bits(paged_attention(cat(q, 2), keys, values, rows, window)) == bits(cat(single, 2)));
    CHECK_ERROR(paged_attention(q[0], keys, values, rows, window), "expected q of");
    CHECK_ERROR(gather_blocks(keys.narrow(2, 0, 0).contiguous(), tables[0], 1), "1 token or more in a block");
  }
}

TEST_CASE("batcher: 32 requests at once give the same answers as alone, with too few blocks") {
  struct Row {
    const char* name;
    nn::GPT::Options o;
    bool sparse;
  };
  const nn::GPT::Options gpt{.vocab = 61, .context = 96, .layers = 2, .width = 48, .heads = 4};
  nn::GPT::Options llama = gpt;
  llama.kv_heads = 2, llama.norm = nn::Norm::rms, llama.feed_forward = nn::FeedForward::swiglu;
  llama.rope = nn::Rope{.base = 1000}, llama.tied = false;
  nn::GPT::Options window = llama;
  window.window = 11;
  for (const Row& row :
       {Row{"gpt", gpt, false}, Row{"llama", llama, false}, Row{"window", window, false}, Row{"sparse", gpt, true}}) {
    CAPTURE(row.name);
    nn::GPT model = testing::random_gpt(row.o);
    if (row.sparse)
      for (auto& block : model.blocks.items) block->attention.set_sparsity(std::make_shared<testing::Strided>(8));
    std::vector<Asked> asked;
    for (int64_t i = 0; i < 32; ++i) {
      Asked a{.prompt = ids(1 + (i * 13) % 70, i % 5)};  // some have common prefixes
      a.generation = {.max_new_tokens = 1 + (i * 7) % 24,
                      .do_sample = i % 3 != 0,
                      .seed = uint64_t(i / 4),
                      .eos_token_id = {i},
                      .logprobs = true,
                      .repetition_penalty = i % 4 ? 1 : 1.3,
                      .temperature = 1.5,
                      .top_p = 0.95};
      a.logprobs = int(i % 3);
      asked.push_back(a);
    }
    for (const int count : {1, 2}) {
      const Threads threads(count);
      int64_t put_back = 0, shared = 0;
      std::vector<nn::Generated> got;
      {
        Batcher batcher(model, {.blocks = 9, .limits = {.rows = 24, .sequences = 6}});
        std::vector<std::shared_ptr<Answer>> answers;
        for (const Asked& a : asked) answers.push_back(batcher.submit(a));
        for (const auto& answer : answers) {
          nn::Generated& made = got.emplace_back();
          while (!answer->ended())
            while (const auto token = answer->next(1000))
              made.tokens.push_back(token->id), made.logprobs.push_back(token->logprob);
          made.reason = answer->reason();
        }
        for (int i = 0; i < 1000 && batcher.figures().blocks_used > 0; ++i)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const Figures f = batcher.figures();
        put_back = f.put_back, shared = f.shared_tokens;
        CHECK(f.blocks_used == 0);
        CHECK(f.running + f.waiting == 0);
      }
      for (size_t i = 0; i < asked.size(); ++i) {
        CAPTURE(i);
        const nn::Generated single = nn::generate(model, asked[i].prompt, asked[i].generation);
        CHECK(got[i].tokens == single.tokens);
        CHECK(got[i].logprobs == single.logprobs);
        CHECK(got[i].reason == single.reason);
      }
      CHECK(put_back > 0);
      CHECK(shared > 0);
    }
  }
}

TEST_CASE("batcher: a cancelled request frees its blocks; log probabilities of the prompt; rejected requests") {
  nn::GPT model = testing::random_gpt({.vocab = 61, .context = 128, .layers = 1, .width = 32, .heads = 2});
  std::atomic<int> steps = 0, after = -1;
  std::shared_ptr<Answer> goes, stays;
  std::mutex mutex;
  Batcher batcher(model, {.blocks = 8, .on_step = [&](const SchedulerState& s, const BatchStep&) {
                            const std::lock_guard lock(mutex);
                            if (++steps == 5 && goes) goes->cancel();
                            if (goes && after < 0 && steps >= 6) after = int(s.running.size() + s.waiting.size());
                          }});
  {
    const std::lock_guard lock(mutex);  // on_step() waits for it, so no second step runs before both are submitted
    goes = batcher.submit({.prompt = ids(40, 1), .generation = {.max_new_tokens = 80}});
    stays = batcher.submit({.prompt = ids(20, 2), .generation = {.max_new_tokens = 40}});
  }
  while (!stays->ended()) stays->next(100);
  CHECK(goes->reason() == Answer::Reason::caller);
  CHECK(after == 1);  // the next step no longer has the cancelled request
  CHECK(batcher.figures().cancelled == 1);

  const auto prompt = ids(70, 4);
  // in the second round the prompt's blocks are cached, but must not be shared, because every logprob is needed
  for (int round = 0; round < 2; ++round) {
    const auto echo =
        batcher.submit({.prompt = prompt, .generation = {.max_new_tokens = 0}, .logprobs = 2, .prompt_logprobs = true});
    const Tensor scores = model(Tensor::from(prompt, {1, 70})).tensor()[0];
    for (int64_t t = 1; t < 70; ++t) {
      const auto token = echo->next(1000);
      REQUIRE(token);
      CHECK(token->id == prompt[size_t(t)]);
      const auto row = scores[t - 1].contiguous().to_vector<float>();
      const auto logprobs = nn::log_probabilities(row);
      CHECK(token->logprob == logprobs[size_t(token->id)]);
      CHECK(token->likeliest.size() == 2);
      CHECK(token->likeliest[0].second == *std::max_element(logprobs.begin(), logprobs.end()));
    }
    CHECK(!echo->next(50));
    CHECK(echo->reason() == Answer::Reason::length);
  }
  const auto refused = [&](Asked a) { return message([&] { batcher.submit(a); }); };
  CHECK(contains(refused({}), "at least one token"));
  CHECK(contains(refused({.prompt = {1, 61}, .generation = {.max_new_tokens = 1}}), "has token 61"));
  CHECK(contains(refused({.prompt = ids(100, 1), .generation = {.max_new_tokens = 29}}), "context is 128"));
  CHECK(contains(refused({.prompt = {1}, .generation = {.top_p = 2}}), "top_p"));
  const Variable head = model.parameters()[0];
  head.tensor().copy_(full(head.shape(), NAN));
  const auto broken = batcher.submit({.prompt = {1, 2}, .generation = {.max_new_tokens = 3}});
  while (!broken->ended()) broken->next(100);
  CHECK_ERROR(broken->reason(), "not numbers");
}

TEST_CASE("requests: accepted fields, and fields that are rejected by name") {
  const Request r =
      parse_request(Endpoint::completions,
                    R"({"model": "m", "prompt": [[1, 2], [3]], "max_tokens": 5, "temperature": 0, "top_p": 0.5,
      "n": 2, "stop": ["a", "b"], "seed": -1, "logprobs": 3, "presence_penalty": 1, "frequency_penalty": -1.5, "stream": false,
      "echo": true, "user": "me", "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.2, "best_of": null, "parse_special": false})",
                    "m");
  CHECK(r.ids == std::vector<std::vector<int64_t>>{{1, 2}, {3}});
  const nn::Generation& g = r.generation;
  CHECK((g.greedy() && g.top_p == 0.5 && g.top_k == 7 && g.min_p == 0.1 && g.repetition_penalty == 1.2));
  CHECK((g.seed == UINT64_MAX && g.presence_penalty == 1 && g.frequency_penalty == -1.5 && g.stop.size() == 2));
  CHECK((r.n == 2 && r.max_tokens == 5 && r.logprobs == 3 && r.echo && !r.stream && !r.parse_special));
  const Request plain = parse_request(Endpoint::completions, R"({"prompt": "x"})", "m");
  CHECK((!plain.generation.greedy() && plain.generation.top_k == 0 && plain.generation.temperature == 1));
  CHECK((!plain.max_tokens && plain.n == 1 && plain.logprobs == -1 && plain.parse_special));
  // Clients send these values, which have no effect and are accepted.
  const Request nothing = parse_request(Endpoint::completions, R"({"prompt": "x", "best_of": 1, "logit_bias": {},
      "suffix": "", "top_k": -1, "max_tokens": 5.0, "n": 1.0, "seed": 7.0, "stream": true,
      "stream_options": {"include_usage": true, "include_obfuscation": false}})",
                                        "m");
  CHECK((nothing.max_tokens == 5 && nothing.generation.top_k == 0 && nothing.generation.seed == 7));
  CHECK((nothing.stream && nothing.include_usage));
  const Request asked = parse_request(Endpoint::chat, R"({"messages": [{"role": "developer", "content": "be kind"},
      {"role": "user", "name": "me", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": "c", "refusal": null, "tool_calls": [], "annotations": []}],
      "max_completion_tokens": 9, "max_tokens": 5, "tools": [], "tool_choice": "auto", "parallel_tool_calls": true,
      "functions": [], "function_call": "none", "response_format": {"type": "text"}, "modalities": ["text"],
      "store": false, "metadata": {}, "service_tier": "auto"})",
                                      "m");
  CHECK((asked.max_tokens == 9 && asked.messages.size() == 3 && asked.messages[0].role == "system"));
  CHECK(asked.messages[1].content == "a\nb");
  const Request chat = parse_request(Endpoint::chat, R"({"messages": [{"role": "user", "content": "hi", "name": null}],
      "logprobs": true, "top_logprobs": 2})",
                                     "m");
  CHECK((chat.messages.size() == 1 && chat.logprobs == 2));

  struct Row {
    Endpoint endpoint;
    const char *body, *param, *part;
    int status = 400;
  };
  const std::string deep = R"({"prompt": "x", "user": )" + std::string(40, '[') + std::string(40, ']') + "}";
  const std::string large = R"({"prompt": ")" + std::string(1 << 20, 'x') + "\"}";
  const auto completions = Endpoint::completions, chats = Endpoint::chat;
  const Row rows[] = {
      {completions, "", "", "body"},
      {completions, "[]", "", "JSON object"},
      {completions, deep.c_str(), "", "deep"},
      {completions, large.c_str(), "", "1048576 bytes"},
      {completions, R"({"prompt": "x", "model": "other"})", "model", "unknown model", 404},
      {completions, R"({"max_tokens": 1})", "prompt", "expected"},
      {completions, R"({"prompt": []})", "prompt", "empty list"},
      {completions, R"({"prompt": [1, "x"]})", "prompt", "integer"},
      {completions, R"({"prompt": [[1], "x"]})", "prompt", "only texts in the list"},
      {completions, R"({"prompt": [[]]})", "prompt", "at least one"},
      {completions, R"({"prompt": 5})", "prompt", "an integer"},
      {completions, R"({"prompt": "x", "temperatur": 1})", "temperatur", "did you mean temperature?"},
      {completions, R"({"prompt": "x", "best_of": 2})", "best_of", "not supported, except as one of [1]"},
      {completions, R"({"prompt": "x", "tools": [{}]})", "tools", "not supported, except as one of [[]]"},
      {completions, R"({"prompt": "x", "stream_options": {}})", "stream_options", "stream true"},
      {completions, R"({"prompt": "x", "stream": true, "stream_options": {"usage": 1}})", "usage", "not supported"},
      {completions, R"({"prompt": "x", "top_k": -2})", "top_k", "from -1"},
      {completions, R"({"prompt": "x", "parse_special": 1})", "parse_special", "bool"},
      {completions, R"({"prompt": "x", "messages": []})", "messages", "not supported"},
      {completions, R"({"prompt": "x", "max_tokens": -1})", "max_tokens", "from 0"},
      {completions, R"({"prompt": "x", "max_tokens": 1.5})", "max_tokens", "integer"},
      {completions, R"({"prompt": "x", "temperature": "1"})", "temperature", "number"},
      {completions, R"({"prompt": "x", "temperature": -1})", "temperature", "in [0, 1000000]"},
      {completions, R"({"prompt": "x", "top_p": 0})", "top_p", "in (0, 1], got 0"},
      {completions, R"({"prompt": "x", "n": 0})", "n", "from 1"},
      {completions, R"({"prompt": ["x", "y"], "n": 65})", "n", "at most 128 answers"},
      {completions, R"({"prompt": "x", "stop": ["a", "b", "c", "d", "e"]})", "stop", "at most 4"},
      {completions, R"({"prompt": "x", "stop": ""})", "stop", "not empty"},
      {completions, R"({"prompt": "x", "logprobs": 6})", "logprobs", "to 5"},
      {completions, R"({"prompt": "x", "stream": 1})", "stream", "bool"},
      {completions, R"({"prompt": "x", "stream": true, "echo": true})", "echo", "not with stream"},
      {completions, R"({"prompt": "x", "user": 1})", "user", "string"},
      {chats, R"({"messages": []})", "messages", "at least one"},
      {chats, R"({"messages": [{"role": "tool", "content": "x"}]})", "messages", "'tool'"},
      {chats, R"({"messages": [{"role": "user"}]})", "messages", "a field content in every message"},
      {chats, R"({"messages": [{"role": "user", "content": "x", "name": 1}]})", "name", "string"},
      {chats, R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "content",
       "of type text, got 'image_url'"},
      {chats, R"({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json"}})",
       "response_format", R"(except as one of [{"type": "text"}])"},
      {chats, R"({"messages": [{"role": "user", "content": "x"}], "echo": true})", "echo", "not supported"},
      {chats, R"({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2})", "top_logprobs",
       "logprobs true"}};
  for (const Row& row : rows) {
    CAPTURE(std::string(row.body).substr(0, 80));
    try {
      parse_request(row.endpoint, row.body, "m");
      FAIL_CHECK("accepted");
    } catch (const BadRequest& error) {
      CHECK(error.param == row.param);
      CHECK(error.status == row.status);
      CHECK(contains(error.what(), row.part));
    }
  }
}

TEST_CASE("chats: the texts that Jinja makes of the templates") {
  using Kind = ChatTemplate::Kind;
  const std::vector<std::vector<ChatMessage>> chats{
      {{"user", " hi there \n"}}, {{"system", " S "}, {"user", "a"}, {"assistant", " b "}, {"user", "c"}}};
  struct Row {
    ChatTemplate of;
    std::string first, second;
  };
  const std::string hi = "<|im_start|>user\n hi there \n<|im_end|>\n<|im_start|>assistant\n",
                    four =
                        "<|im_start|>system\n S <|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n b "
                        "<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n";
  for (const Row& row : std::vector<Row>{
           {{Kind::chatml}, hi, four},
           {{Kind::chatml, "You are a helpful assistant."},
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + hi,
            four},
           {{Kind::llama3},
            "<s><|start_header_id|>user<|end_header_id|>\n\nhi "
            "there<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na"
            "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|><|start_header_id|>user<|end_header_"
            "id|>\n\nc<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
           {{Kind::llama2},
            "<s>[INST] hi there [/INST]",
            "<s>[INST] <<SYS>>\n S \n<</SYS>>\n\na [/INST] b </s><s>[INST] c [/INST]"},
           {{Kind::plain},
            "User:  hi there \n\nAssistant:",
            "System:  S \nUser: a\nAssistant:  b \nUser: c\nAssistant:"}}) {
    CHECK(render(row.of, chats[0], "<s>", "</s>") == row.first);
    CHECK(render(row.of, chats[1], "<s>", "</s>") == row.second);
  }
  const std::string chatml =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
      "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  CHECK(template_by_text(chatml) == ChatTemplate{Kind::chatml});
  std::string written = chatml;
  for (size_t at = 0; (at = written.find('\n', at)) != std::string::npos; ++at) written.replace(at, 1, "\\n");
  CHECK(template_by_text(written + "\n") == ChatTemplate{Kind::chatml});
  CHECK(!template_by_text(chatml + "x"));
  CHECK_ERROR(render({Kind::llama2}, {{"assistant", "x"}}, "", ""), "in turn");
  CHECK_ERROR(render({Kind::llama2}, {{"system", "x"}}, "", ""), "expected a user's");
  CHECK_ERROR(template_by_name("alpaca"), "chatml");
  const data::ByteTokenizer bytes;
  CHECK_ERROR(check_template({Kind::llama3}, bytes), "<|start_header_id|>");
  CHECK(encode_chat({Kind::plain}, {{"user", "x"}}, bytes).size() == 18);
}
