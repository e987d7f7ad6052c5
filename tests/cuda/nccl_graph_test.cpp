// Graphs with collectives: steps of several ranks are recorded once and replayed with the bits of eager steps; ranks
// agree whether a step records, replays or runs eagerly; failures in a replay are reported as usual.
#include <doctest/doctest.h>
#include <nccl.h>
#include <signal.h>

#include "tensor/graph.h"
#include "tests/cuda/graph_training.h"
#include "tests/cuda/nccl_util.h"
#include "tests/models.h"
#include "tests/ranks.h"

using namespace lockstep;
using namespace testing;
using dist::world;

namespace {

using Results = std::vector<Result>;
using PlanOf = std::function<Plan(int rank)>;

Results train_all(int ranks, const PlanOf& plan, bool graphs) {
  return on_ranks<Result>(ranks, [&](int rank) { return train(plan(rank), graphs, device_of(rank)); });
}

/// Trains with and without graphs; checks that both end with the same bits and that all ranks say the same about
/// their graphs (Result::graphs). Returns the results with graphs.
Results both_ways(int ranks, const PlanOf& plan) {
  const Results replayed = train_all(ranks, plan, true), eager = train_all(ranks, plan, false);
  for (size_t r = 0; r < replayed.size(); ++r) {
    CAPTURE(r);
    CHECK(differing(replayed[r], eager[r]) == "");
    CHECK(eager[r].graphs == "none: they are turned off");
    CHECK(replayed[r].graphs == replayed[0].graphs);
  }
  return replayed;
}

/// A small model, with buckets so small that there are several.
Plan small(Plan plan) {
  const bool in_parts = contains(plan.parallel, "pp") || contains(plan.parallel, "tp");
  plan.model.layers = in_parts ? 2 : 1, plan.model.width = 8, plan.bucket = 300;
  if (contains(plan.parallel, "tp4")) plan.model.heads = 4;
  return plan;
}

/// ThreadSanitizer is slow: at most two ranks, and no plan that needs more.
constexpr int max_ranks = thread_sanitized ? 2 : 8;

struct Row {
  const char* name;
  Plan plan;
  int ranks = 2, shapes = 1;
};
/// Checks that every step is replayed but the first one of each shape, with the bits of eager steps.
void check_replayed_rows(const std::vector<Row>& rows, Plan (*adapted)(Plan)) {
  for (const Row& row : rows) {
    if (*row.plan.parallel && row.ranks > max_ranks) continue;
    CAPTURE(row.name);
    Plan plan = adapted(row.plan);
    plan.steps = 4;
    const Results r = both_ways(std::min(row.ranks, max_ranks), [&](int) { return plan; });
    CHECK(r[0].graphs ==
          (row.shapes == 1 ? "1 shape recorded, 3 of 4 steps replayed" : "2 shapes recorded, 2 of 4 steps replayed"));
    CHECK(r[0].said.empty());
    CHECK(r[0].losses.front() != r[0].losses.back());
  }
}

}  // namespace

TEST_CASE("nccl graphs: recorded steps of several ranks are bit-identical to steps that are not recorded") {
  const std::vector<Row> rows{
      {"plain", {}, 4},
      {"clipped", {.clipping = 0.3}},
      {"accumulation", {.accumulation = 3}},
      {"no overlap", {.overlap = false}},
      {"tokens", {.accumulation = 2, .lengths = {8, 5}, .tokens = true}},
      {"bf16", {.autocast = bf16}},
      {"f16, GradScaler", {.autocast = f16, .grad_scaler = true}},
      {"ZeRO 1, clipped", {.stage = 1, .clipping = 0.3}},
      {"ZeRO 1, accumulation", {.accumulation = 2, .stage = 1}, 4},
      {"ZeRO 2, clipped", {.stage = 2, .clipping = 0.3}, 4},
      {"ZeRO 2, accumulation, no overlap", {.accumulation = 2, .stage = 2, .overlap = false}},
      {"ZeRO 2, bf16", {.stage = 2, .autocast = bf16}},
      {"ZeRO 2, fp8", {.stage = 2, .fp8 = true}},
      {"ZeRO 3, clipped", {.stage = 3, .clipping = 0.3}, 3},
      {"ZeRO 3, accumulation, no overlap", {.accumulation = 2, .stage = 3, .overlap = false}},
      {"ZeRO 3, bf16, parameters kept for backward", {.stage = 3, .autocast = bf16, .reuse = 1'000'000}},
      {"ZeRO 3, fp8, tokens", {.accumulation = 2, .stage = 3, .lengths = {8, 5}, .tokens = true, .fp8 = true}},
      {"ZeRO 3, activation checkpoints", {.stage = 3, .checkpoints = true}},
      {"slices, clipped", {.clipping = 0.3, .parallel = "tp2"}},
      {"4 slices", {.clipping = 0.3, .parallel = "tp4"}, 4},
      {"slices, accumulation, copies", {.accumulation = 2, .clipping = 0.3, .parallel = "dp2+tp2"}, 4},
      {"slices, ZeRO 1", {.stage = 1, .clipping = 0.3, .parallel = "dp2+tp2"}, 4},
      {"slices of sequences, in chunks", {.clipping = 0.3, .parallel = "tp2", .cuts_sequences = true, .chunks = 2}},
      {"slices of sequences, recomputed", {.parallel = "tp2", .cuts_sequences = true, .recompute = 1}},
      {"slices, bf16", {.autocast = bf16, .parallel = "tp2"}},
      {"slices, fp8", {.fp8 = true, .parallel = "tp2"}},
      {"stages", {.accumulation = 3, .clipping = 0.3, .parallel = "pp2"}},
      {"stages, one micro-batch", {.parallel = "pp2"}},
      {"3 stages", {.accumulation = 4, .clipping = 0.3, .parallel = "pp3"}, 3},
      {"stages, ZeRO 1", {.accumulation = 2, .stage = 1, .clipping = 0.3, .parallel = "dp2+pp2"}, 4},
      {"stages, bf16", {.accumulation = 2, .autocast = bf16, .parallel = "pp2"}},
      {"stages of slices", {.accumulation = 2, .clipping = 0.3, .parallel = "pp2+tp2"}, 4},
      {"stages, recomputed", {.accumulation = 2, .parallel = "pp2", .schedule = "gpipe", .recompute = 1}},
      {"two chunks a stage", {.accumulation = 4, .parallel = "pp2", .schedule = "interleaved"}},
      {"stages in two parts", {.accumulation = 3, .clipping = 0.3, .parallel = "pp2", .schedule = "zb-h1"}},
      {"slices of shared sequences", {.clipping = 0.3, .parallel = "cp2+tp2"}, 4},
      {"stages of shared sequences", {.accumulation = 2, .clipping = 0.3, .parallel = "pp2+cp2"}, 4},
      {"stages in a V", {.accumulation = 4, .parallel = "pp2", .schedule = "dualpipe-v"}},
  };
  check_replayed_rows(rows, small);
}

TEST_CASE("nccl graphs: steps of ranks that share sequences") {
  using sequence::ContextKind, sequence::TokenOrder;
  const sequence::ContextOptions ulysses{ContextKind::ulysses}, contiguous{ContextKind::ring, TokenOrder::contiguous};
  const nn::GPT::Options llama =
      as_llama({.vocab = 17, .context = 12, .layers = 1, .width = 16, .heads = 4, .dropout = 0.1});
  nn::GPT::Options three = Plan().model;
  three.context = 12, three.heads = 3, three.width = 12;
  nn::GPT::Options longer = Plan().model;
  longer.context = 16;
  const std::vector<Row> rows{
      {"ring, dp, clipped", {.clipping = 0.3, .parallel = "dp2+cp2"}, 4},
      {"ring, accumulation, ZeRO 3", {.accumulation = 2, .stage = 3, .parallel = "cp2"}},
      {"ring of three, ZeRO 1", {.stage = 1, .model = three, .lengths = {12}, .parallel = "cp3"}, 3},
      {"ring, contiguous, of three", {.model = three, .lengths = {12}, .parallel = "cp3", .context = contiguous}, 3},
      {"ring, Llama, bf16, ZeRO 2", {.stage = 2, .model = llama, .autocast = bf16, .parallel = "cp2"}},
      {"ring, f16, GradScaler, two shapes",
       {.lengths = {8, 8, 4, 4}, .autocast = f16, .grad_scaler = true, .parallel = "cp2"},
       2,
       2},
      {"ring, activation checkpoints, tokens", {.tokens = true, .checkpoints = true, .parallel = "cp2"}},
      {"ring, fp8, ZeRO 3", {.stage = 3, .model = longer, .lengths = {16}, .fp8 = true, .parallel = "cp2"}},
      {"Ulysses, fp8, accumulation",
       {.accumulation = 2, .model = longer, .lengths = {16}, .fp8 = true, .parallel = "cp2", .context = ulysses}},
      {"Ulysses, dp, accumulation", {.accumulation = 2, .parallel = "dp2+cp2", .context = ulysses}, 4},
      {"Ulysses of three, ZeRO 3",
       {.stage = 3, .model = three, .lengths = {12}, .parallel = "cp3", .context = ulysses},
       3},
      {"Ulysses, Llama, bf16, ZeRO 1",
       {.stage = 1, .model = llama, .autocast = bf16, .parallel = "cp2", .context = ulysses}},
  };
  check_replayed_rows(rows, [](Plan plan) {
    plan.model.layers = 1, plan.bucket = 300;
    return plan;
  });
}

TEST_CASE("nccl graphs: under every policy of streams, with sums in the order of the CPU's") {
  for (uint64_t seed = 0; seed < (sanitized ? 2 : 3); ++seed) {
    CAPTURE(seed);
    const StreamPolicy policy(seed == 0 ? fake::Policy::eager : fake::Policy::random, seed);
    const EnvironmentVariable exact("LOCKSTEP_NCCL_EXACT", seed % 2 ? "1" : "0");
    const Plan plans[] = {{.clipping = 0.3},
                          {.stage = 2, .clipping = 0.3},
                          {.stage = 3, .clipping = 0.3},
                          {.clipping = 0.3, .parallel = "tp2", .cuts_sequences = true, .chunks = 2},
                          {.accumulation = 3, .clipping = 0.3, .parallel = "pp2"},
                          {.accumulation = 3, .clipping = 0.3, .parallel = "pp2", .schedule = "zb-h1"}};
    for (Plan plan : plans) {
      plan.steps = 3;
      const Results r = both_ways(2, [&](int) { return small(plan); });
      CHECK(r[0].graphs == "1 shape recorded, 2 of 3 steps replayed");
    }
  }
}

TEST_CASE("nccl graphs: f16 with skipped steps, and the rank and parameter of the overflow") {
  const Row rows[] = {{"plain", {}},
                      {"ZeRO 1", {.accumulation = 2, .stage = 1}},
                      {"ZeRO 2", {.stage = 2}},
                      {"ZeRO 3", {.accumulation = 2, .stage = 3}, 3},
                      {"slices", {.parallel = "tp2"}},
                      {"slices, ZeRO 1", {.accumulation = 2, .stage = 1, .parallel = "dp2+tp2"}, 4},
                      {"stages", {.accumulation = 2, .parallel = "pp2"}},
                      {"ring", {.parallel = "cp2"}},
                      {"ring, ZeRO 3", {.accumulation = 2, .stage = 3, .parallel = "cp2"}}};
  for (const Row& row : rows) {
    if (thread_sanitized && (&row - rows) % 2 == 1) continue;  // each takes two minutes
    CAPTURE(row.name);
    Plan plan = small(row.plan);
    plan.steps = 10, plan.half = true;
    const Results r = both_ways(row.ranks, [&](int) { return plan; });
    CHECK(contains(r[0].graphs, "1 shape recorded, 9 of 10"));
    REQUIRE(!r[0].skipped_steps.empty());
    CHECK(r[0].skipped_steps.back() > 1);
    CHECK(r[0].skipped_steps.size() < 9);
    CHECK(r[0].skips.size() >= r[0].skipped_steps.size());
  }
}

TEST_CASE("nccl graphs: ranks whose data have other shapes, and one that has another for a step") {
  // The shape of a step is the combination of all ranks' shapes.
  Results r = both_ways(2, [](int rank) { return small({.lengths = {rank == 0 ? 8 : 5}}); });
  CHECK(r[0].graphs == "1 shape recorded, 5 of 6 steps replayed");
  r = both_ways(2, [](int rank) {
    Plan plan = small({.steps = 7});
    plan.length = [rank](int64_t micro) { return rank == 1 && micro == 4 ? 5 : 8; };
    return plan;
  });
  CHECK(r[0].graphs == "1 shape recorded, 5 of 7 steps replayed");
  // Two shapes on either rank make four combinations.
  r = both_ways(2, [](int rank) {
    Plan plan = small({.steps = 12});
    plan.length = [rank](int64_t micro) { return (rank == 0 ? micro : micro / 2) % 2 ? 5 : 8; };
    return plan;
  });
  CHECK(r[0].graphs == "4 shapes recorded, 8 of 12 steps replayed");
}

TEST_CASE("nccl graphs: a step that one rank cannot replay runs without graphs on all ranks, and all give the reason") {
  const auto looks_at_loss = [](bool looks) {
    return on_loss([looks](const Variable& loss) {
      if (looks) loss.item();
    });
  };
  const auto hooks = [](nn::GPT& m) { m.blocks[0].after_forward([](auto&&...) {}); };
  const std::pair<const char*, PlanOf> rows[] = {
      {"none: rank 1: calls of blocks.0 have hooks",
       [=](int rank) { return rank == 1 ? Plan{.prepare = hooks} : Plan(); }},
      {"none: calls of blocks.0 have hooks", [=](int) { return Plan{.prepare = hooks}; }},
      {"none: a step cannot be recorded: rank 1: [copy] cuda",
       [=](int rank) { return Plan{.loss = looks_at_loss(rank == 1)}; }},
      {"none: a step cannot be recorded: collective 1 of it is all_reduce f32 x 3, tag more on rank 0, all_reduce f32",
       [&](int rank) {
         return Plan{.loss = on_loss([rank](const Variable&) {
                       if (Graph::is_recording() && rank == 0)
                         world().all_reduce(ones({3}, {.dtype = f32, .device = device_of(0)}), {.tag = "more"});
                     })};
       }},
      {"none: a step cannot be recorded: rank 1: [copy] cuda",
       [=](int rank) { return Plan{.stage = 3, .loss = looks_at_loss(rank == 1)}; }},
      {"none: rank 1: calls of norm have hooks",
       [](int rank) {
         Plan plan{.parallel = "pp2"};
         if (rank == 1) plan.prepare = [](nn::GPT& m) { m.norm.after_forward([](auto&&...) {}); };
         return plan;
       }},
      {"none: a step cannot be recorded: rank 1: [copy] cuda",
       [=](int) { return Plan{.loss = looks_at_loss(true), .parallel = "pp2"}; }},
  };
  for (const auto& [reason, plan] : rows) {
    CAPTURE(reason);
    const Results r = both_ways(2, [&, plan = plan](int rank) { return small(plan(rank)); });
    CHECK_MESSAGE(r[0].graphs.starts_with(reason), r[0].graphs);
    CHECK(r[0].said.size() == 1);
  }
}

TEST_CASE("nccl graphs: a model that changes on one rank is recorded anew on all, and hooks of one rank come and go") {
  const Results r = both_ways(2, [](int rank) {
    Plan plan = small({.steps = 10});
    auto hook = std::make_shared<std::pair<nn::GPT*, int>>();
    plan.prepare = [hook](nn::GPT& m) { hook->first = &m; };
    plan.before = [hook, rank](engine::EngineBase&, int64_t step) {
      if (rank == 1 && step == 3) hook->second = hook->first->after_forward([](auto&&...) {});
      if (rank == 1 && step == 5) hook->first->remove_hook(hook->second);
      if (rank == 0 && step == 7) hook->first->blocks[0].train(false);
    };
    return plan;
  });
  CHECK_MESSAGE(
      contains(r[0].graphs, "1 shape recorded, 6 of 10 steps replayed; the others: rank 1: calls of the model"),
      r[0].graphs);
}

TEST_CASE("nccl graphs: ZeRO 3 beside forwards without a backward, and parameters that somebody changes") {
  for (const bool changes : {false, true}) {
    CAPTURE(changes);
    const Results r = both_ways(2, [changes](int rank) {
      Plan plan = small({.stage = 3, .reuse = 1'000'000});
      auto model = std::make_shared<nn::GPT*>();
      plan.prepare = [model](nn::GPT& m) { *model = &m; };
      plan.before = [=](engine::EngineBase& e, int64_t step) {
        if (step < 2) return;
        if (!changes) return (void)(**model)(zeros({2, 8}, {.dtype = i64, .device = device_of(rank)}));
        const auto entire = e.zero().gathered(0);
        for (const Variable& p : (*model)->parameters()) mul_scalar_(Tensor(p.tensor()), rank == 0 ? 0.5 : 1);
      };
      return plan;
    });
    CHECK(r[0].graphs == "1 shape recorded, 5 of 6 steps replayed");
  }
}

TEST_CASE("nccl graphs: evaluations between steps of slices and stages") {
  for (const char* parallel : {"tp2", "pp2"}) {
    CAPTURE(parallel);
    const Results r = both_ways(2, [&](int rank) {
      Plan plan = small({.accumulation = 2, .parallel = parallel});
      plan.before = [rank](engine::EngineBase& e, int64_t step) {
        const Tensor tokens = zeros({2, 8 - step % 2}, {.dtype = i64, .device = device_of(rank)});
        e.eval_batch([&](int64_t) { return pipeline::Sample{{tokens}, {tokens}}; }, 3);
      };
      return plan;
    });
    CHECK(r[0].graphs == "1 shape recorded, 5 of 6 steps replayed");
  }
}

TEST_CASE("nccl graphs: ranks that share a device do not record steps") {
  for (const char* parallel : {"", "pp2"}) {
    const Results r =
        on_ranks<Result>(2, [=](int) { return train(small({.steps = 3, .parallel = parallel}), true, device_of(0)); });
    CHECK(r[0].graphs == "none: tensors of 2 ranks go through the host's memory");
  }
}

TEST_CASE("nccl graphs: each collective, replayed with other values, counted, and refused where it cannot be") {
  for (const bool exact : {false, true}) {
    const EnvironmentVariable setting("LOCKSTEP_NCCL_EXACT", exact ? "1" : "0");
    for (const int n : {1, 2, 3}) {
      CAPTURE(n);
      check_ranks(n, [n](int rank) {
        const TensorOptions there{.dtype = f32, .device = device_of(rank)};
        const int64_t entire = 6 * n;
        const Tensor x = full({entire}, 1, there), sums = empty({entire}, there), own = empty({6}, there),
                     all = empty({entire}, there), root = empty({5}, there), to_root = empty({7}, there);
        const auto refused = [&](const char* part, const std::function<void()>& call) {
          const std::string got = message([&] { Graph(there.device).record(call); });
          require(contains(got, part), str("expected \"", part, "\", got \"", got, "\""));
        };
        if (n > 1) refused("the first collective of group world cannot be captured", [&] { world().all_reduce(x); });
        world().all_reduce(x.clone());
        const Tensor passed = empty({6}, there), on_cpu = ones({1}, {.device = cpu});
        const auto pass = [&](const Tensor& mine) {
          const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
          return n == 1 ? dist::Work()
                        : world().exchange({{.is_send = true, .tensor = mine, .peer = next},
                                            {.is_send = false, .tensor = passed, .peer = previous}},
                                           {.async = true});
        };
        if (n > 1) refused("the first message of group world to or from rank ", [&] { pass(own); });
        pass(own).wait();
        if (n > 1)
          refused("from the CPU's memory", [&] {
            world().exchange({{.is_send = true, .tensor = own, .peer = (rank + 1) % n},
                              {.is_send = true, .tensor = on_cpu, .peer = (rank + 1) % n}});
          });
        refused("a collective through host memory cannot be recorded", [&] { world().barrier(); });
        if (n > 1)
          refused("was recorded into a graph, so the host cannot wait",
                  [&] { world().all_reduce(x, {.async = true}).synchronize(); });
        world().take_recorded();
        Graph graph(there.device);
        graph.record([&] {
          dist::Work first = world().all_reduce(sums, x, {.async = true}),
                     second = world().reduce_scatter(own, x, {.async = true});
          root.fill_(double(rank + 1));
          to_root.fill_(double(rank + 1));
          dist::Work third = world().broadcast(root, n - 1, {.async = true});
          second.wait();
          dist::Work fourth = pass(own);
          world().all_gather(all, own);
          fourth.wait();
          third.wait();
          first.wait();
          world().reduce(to_root, 0, {.async = true});  // never waited for
        });
        const std::vector<std::string> calls = world().take_recorded();
        require(calls.size() == (n > 1 ? 6 : 0) && world().take_recorded().empty(), "calls of a recording");
        for (int i = 0; i < 3; ++i) {
          x.copy_(arange(0, double(entire), 1, {.dtype = f32, .device = cpu}) * double((rank + 1) * (i + 1)));
          const int64_t before = world().traffic().collectives;
          world().replay(calls, [&] { graph.replay(); });
          require(n == 1 || world().traffic().collectives == before + 6, "traffic");
          const double factor = n * (n + 1) / 2. * (i + 1);
          const Tensor wanted = arange(0, double(entire), 1, {.dtype = f32, .device = cpu}) * factor;
          require(equal(sums.to(cpu), wanted), "all_reduce");
          require(equal(all.to(cpu), wanted), "reduce_scatter and all_gather");
          require(n == 1 || equal(passed.to(cpu), wanted.narrow(0, 6 * ((rank + n - 1) % n), 6)), "exchange");
          require(root.to_vector<float>()[4] == float(n), "broadcast");
          require(rank > 0 || to_root.to_vector<float>()[6] == float(n * (n + 1) / 2), "reduce");
        }
      });
    }
  }
}

namespace {

/// A graph of two all-reduces.
struct Recorded {
  explicit Recorded(int rank) : x(full({8}, 1, {.dtype = f32, .device = device_of(rank)})), graph(device_of(rank)) {
    pass_compared_calls(device_of(rank));
    graph.record([&] {
      world().all_reduce(x);
      world().all_reduce(x);
    });
    calls = world().take_recorded();
  }
  void replay() {
    world().replay(calls, [&] { graph.replay(); });
  }
  Tensor x;
  Graph graph;
  std::vector<std::string> calls;
};

}  // namespace

TEST_CASE("nccl graphs: a replay that others do not make ends at its deadline, one that fails with NCCL's error") {
  const auto start = now_seconds();
  auto texts = outcomes(
      2,
      [](int rank) {
        Recorded recorded(rank);
        recorded.replay();
        if (rank == 1) {
          until([] { return world().control().failed(); });
          world().barrier();
        }
        recorded.replay();
        (void)recorded.x.to_vector<float>();
        FAIL("results of a replay that was given up");
      },
      1.5);
  CAPTURE(texts[0]);
  CHECK(contains(texts[0], "[replay] waited 1.5 s in group world for call 103 (replay of 2 collectives); "));
  CHECK(texts[1] == texts[0]);
  CHECK(now_seconds() - start < 1.5 + 2 + 10 * slack());
  texts = outcomes(2, [](int rank) {
    Recorded recorded(rank);
    recorded.replay();
    (void)recorded.x.to_vector<float>();  // no earlier call is left that could fail
    world().barrier();
    if (rank == 0) fake::inject_nccl_error(ncclInternalError);
    if (rank == 1) until([] { return world().control().failed(); });
    recorded.replay();
    (void)recorded.x.to_vector<float>();
  });
  fake::inject_nccl_error(ncclSuccess);
  CAPTURE(texts[0]);
  CHECK(contains(texts[0], "(replay of 2 collectives) failed in group world: internal error"));
  CHECK(texts[1] == texts[0]);
}

namespace {

struct Ending {
  const char* parallel;
  int ranks;
};
const Ending endings[] = {{"", 2}, {"cp3", 3}, {"tp2", 2}, {"pp2", 2}};

/// Trains with graphs; rank 1 calls `end` in step 4, in the middle of replays.
void train_until(const char* parallel, int rank, const std::function<void()>& end) {
  Plan plan = small({.steps = 40, .parallel = parallel});
  plan.model.context = plan.lengths[0] = 12;
  plan.before = [rank, end](engine::EngineBase&, int64_t step) {
    if (rank == 1 && step == 4) end();
  };
  train(plan, true, device_of(rank));
}

}  // namespace

TEST_CASE("nccl graphs: a rank that throws or fails among replays of steps ends all of them") {
  for (const auto& [parallel, ranks] : endings) {
    CAPTURE(parallel);
    const auto ended = [&, parallel = parallel](const std::function<void()>& end) {
      return outcomes(ranks, [&](int rank) { train_until(parallel, rank, end); });
    };
    // A failure in the middle of a replay: NCCL must not destroy a communicator before the engine has dropped its
    // graphs.
    const auto failed = ended([] { fake::inject_nccl_error(ncclInternalError); });
    fake::inject_nccl_error(ncclSuccess);
    for (const std::string& text : failed)
      CHECK_MESSAGE((contains(text, "(replay of ") && contains(text, ") failed in group ") &&
                     contains(text, *parallel ? ": internal error" : "world: internal error")),
                    text);
    const auto start = now_seconds();
    const auto texts = ended([] { throw Error("the batch is empty"); });
    CHECK_MESSAGE(contains(texts[0], "the batch is empty"), texts[0]);
    CHECK(now_seconds() - start < 20 + 10 * slack());
  }
}

TEST_CASE("nccl graphs: a rank that is killed among replays of steps ends all of them, over processes") {
  for (const auto& [parallel, ranks] : endings) {
    CAPTURE(parallel);
    const auto start = now_seconds();
    const std::string killed = outcome(
        ranks, [&, parallel = parallel](int rank) { train_until(parallel, rank, [] { raise(SIGKILL); }); },
        {.kind = dist::SpawnOptions::Kind::processes, .timeout = dist::Seconds(20), .heartbeat = dist::Seconds(0.2)});
    CHECK_MESSAGE(contains(killed, "rank 1"), killed);
    CHECK(now_seconds() - start < 20 + 10 * slack());
  }
}
