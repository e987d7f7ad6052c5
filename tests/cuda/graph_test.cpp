// Graphs on the device: a recorded function is replayed with new values, its memory included; whatever cannot be
// recorded is rejected.
#include <doctest/doctest.h>

#include <functional>
#include <optional>

#include "optim/step_batch.h"
#include "tensor/graph.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tensor/stream.h"
#include "tests/cuda/device.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

Tensor counted(const Shape& shape, double start) {
  return arange(start, start + double(numel_of(shape)), 1, {.dtype = f32, .device = cpu}).view(shape);
}

void check_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK_MESSAGE(equal(a[i].to(cpu), b[i].to(cpu)), i);
}

}  // namespace

TEST_CASE("graph: replays follow the values of the inputs") {
  const Tensor x = empty({5, 7}, there), w = counted({7, 3}, -4).to(cuda0);
  Tensor y;
  int calls = 0;
  Graph graph(cuda0);
  CHECK(!graph.is_captured());
  graph.capture([&] {
    ++calls;
    const Tensor a = matmul(x, w);  // allocated and freed inside: b reuses its memory
    const Tensor b = matmul(x, w);
    y = matmul(a, b.t().contiguous());
  });
  CHECK(graph.is_captured());
  CHECK(calls == 2);
  for (const double start : {0.0, 3.0, -8.0}) {
    const Tensor input = counted({5, 7}, start), product = matmul(input, w.to(cpu));
    x.copy_(input);
    graph.replay();
    CHECK(equal(y.to(cpu), matmul(product, product.t())));
  }
  CHECK(calls == 2);
}

TEST_CASE("graph: the memory that it made stays as long as the graph or a tensor in it") {
  const Tensor x = full({1000}, 1, there);
  const int64_t before = memory_report(cuda0).total.current;
  Tensor y;
  {
    std::optional<Graph> graph(std::in_place, cuda0);
    Tensor old = full({500}, 2, there);  // freed by the recorded function, but read by every replay
    graph->capture([&] {
      y = empty({1000}, there);
      y.copy_(x);
      if (old.defined()) y.slice(0, 0, 500).copy_(old);
      if (Graph::is_capturing()) old = Tensor();
    });
    for (int i = 0; i < 3; ++i) {
      x.fill_(i);
      graph->replay();
      const Tensor other = full({500}, 9, there);  // must not reuse the memory of `old`
      CHECK(y.to_vector<float>()[0] == 2);
      CHECK(y.to_vector<float>()[999] == i);
    }
    const Graph moved = std::move(*graph);
    graph.reset();
    CHECK(moved.is_captured());
  }
  CHECK(y.to_vector<float>()[999] == 2);
  y = Tensor();
  CHECK(memory_report(cuda0).total.current == before);
}

TEST_CASE("graph: work on another device than the recorded one is refused, and the thread finds its devices again") {
  const TensorOptions elsewhere{.dtype = f32, .device = cuda1};
  const Tensor x = full({4}, 1, there), y = full({4}, 2, elsewhere), landed = empty({4}, elsewhere);
  synchronize(cuda1);
  const std::pair<std::string, std::function<void()>> rows[] = {
      {"a kernel", [&] { y.fill_(3); }},
      {"a new tensor", [&] { full({2}, 1, elsewhere); }},
      {"a product",
       [&] {
         matmul(y.view({1, 4}), y.view({4, 1}));
       }},
      {"a copy to it", [&] { landed.copy_(x); }},
      {"a copy from it", [&] { x.copy_(landed); }},
      {"an asynchronous copy", [&] { copy_async(x, landed); }},
      {"memory", [&] { empty({2}, elsewhere); }},
      {"an optimizer's numbers", [&] { StepBatch(cuda1).set({}); }},
  };
  for (const auto& [name, body] : rows) {
    CAPTURE(name);
    Graph graph(cuda0);
    const std::string text = message([&] { graph.record(body); });
    CHECK_MESSAGE(
        contains(text, "[Graph] expected work on cuda:0, whose graph this thread records, got some on cuda:1"), text);
    CHECK(!graph.is_captured());
  }
  // A failed recording leaves the thread on the device that it selected last.
  Graph graph(cuda0);
  CHECK(message([&] { graph.record([&] { synchronize(cuda1); }); }) != "(no error)");
  y.fill_(5);
  CHECK(y.to_vector<float>()[3] == 5);
  CHECK(x.to_vector<float>()[3] == 1);
}

TEST_CASE("graph: other streams may take part") {
  const Tensor x = full({100}, 1, there), y = empty({100}, there);
  const Stream side(cuda0);
  Event forked(cuda0), joined(cuda0);
  Graph graph(cuda0);
  graph.capture([&] {
    forked.record();
    {
      const StreamScope scope(side);
      forked.wait();
      y.copy_(x);
      joined.record();
    }
    joined.wait();
    y.slice(0, 0, 1).fill_(5);
  });
  x.fill_(3);
  graph.replay();
  CHECK(y.to_vector<float>()[0] == 5);
  CHECK(y.to_vector<float>()[99] == 3);
}

TEST_CASE("graph: capturing an operation that a replay would get wrong is an Error, and a capture can be retried") {
  const Tensor x = full({4}, 1, there);
  Graph graph(cuda0);
  CHECK_ERROR(graph.replay(), "call capture() first");
  CHECK_ERROR(graph.capture({}), "expected a function");
  CHECK_ERROR(graph.capture([&] { x.to(cpu); }), "during graph capture the host cannot");
  CHECK_ERROR(graph.capture([&] { synchronize(cuda0); }), "during graph capture the host cannot");
  CHECK_ERROR(graph.capture([&] { next_random_key(); }), "drawn on cpu:0 would be the same");
  CHECK_ERROR(graph.capture([&] { rand({2}, {.device = cpu}); }),
              "random numbers that are drawn on cpu:0 would be the same in every replay");
  CHECK_ERROR(graph.capture([&] { ones({2}, {.device = cpu}); }), "CPU operations are not replayed");
  CHECK_ERROR(graph.capture([&] {
    x.copy_(Tensor::from({1., 2., 3., 4.}, {4}).to(f32));
  }),
              "CPU operations are not replayed");
  const Tensor host = ones({4}, {.dtype = f32, .device = cpu});
  CHECK_ERROR(graph.capture([&] { x.copy_(host); }), "during graph capture the host cannot");
  const RandomState before = random_state();
  CHECK_ERROR(graph.record([&] { set_random_step(before.step + 1); }), "moves it to another step");
  set_random_state(before);
  CHECK_ERROR(graph.record([&] {
    set_random_step(before.step + 1);
    rand({2}, there);
  }),
              "moves it to another step");
  const auto in_capture = [&](const std::function<void()>& body) {
    graph.capture([&] {
      if (Graph::is_capturing()) body();
    });
  };
  CHECK_ERROR(in_capture([] { fail("mine"); }), "mine");
  CHECK_ERROR(in_capture([] { Graph(cuda0).capture([] {}); }), "one inside another");
  CHECK(!graph.is_captured());
  CHECK(!Graph::is_capturing());
  x.fill_(2);  // the stream is usable again
  CHECK(x.to_vector<float>()[0] == 2);
  graph.capture([&] { x.fill_(7); });
  graph.replay();
  CHECK(x.to_vector<float>()[0] == 7);
  CHECK_ERROR(graph.capture([] {}), "create a new Graph");
}

TEST_CASE("graph: on the CPU the function itself runs again") {
  Tensor x = full({3}, 1, {.device = cpu}), y;
  Graph graph(cpu);
  graph.capture([&] { y = x + 1; });
  x.fill_(5);
  graph.replay();
  CHECK(y.to_vector<float>()[2] == 6);
  manual_seed(1);
  Graph draws(cpu);
  draws.capture([&] { y = rand({2}, {.device = cpu}); });
  draws.replay();
  manual_seed(1);
  rand({2}, {.device = cpu});
  CHECK(equal(y, rand({2}, {.device = cpu})));
}

namespace {

/// Every operation that draws random numbers on the device, forward and (with the same key) backward.
std::vector<Tensor> draw_all(const Tensor& x, const Tensor& heads) {
  std::vector<Tensor> all{rand({5, 3}, there), randn({7}, {.dtype = f64, .device = cuda0}),
                          randint(-3, 40, {9}, {.dtype = i64, .device = cuda0}),
                          bernoulli({11}, 0.3, {.dtype = f32, .device = cuda0}), normal_(empty({3, 2}, there), 1, 2)};
  const PhiloxKey key = next_random_key(cuda0);
  for (int pass = 0; pass < 2; ++pass) all.push_back(dropout(x, 0.4, key));
  for (const DType dtype : {f32, bf16}) {
    const AttentionArgs args{.scale = 0.5, .causal = true, .dropout = 0.3, .key = next_random_key(cuda0)};
    const Tensor q = heads.to(dtype);
    const AttentionResult out = attention(q, q, q, {}, args);
    const AttentionGrad grad = attention_grad(q, q, q, q, {}, out, args);
    for (const Tensor& y : {out.out, grad.q, grad.k, grad.v}) all.push_back(y);
  }
  return all;
}

}  // namespace

TEST_CASE("graph: each replay draws the generator's next numbers and advances it") {
  const Tensor x = counted({40}, 1).to(cuda0), heads = (counted({1, 2, 140, 8}, 0) * 0.001).to(cuda0);
  const RandomState starts[] = {
      {.seed = 3, .step = 1}, {.seed = 3, .step = 2, .micro_batch = 4, .call = 9}, {.seed = 8}};
  std::vector<Tensor> made;
  Graph graph(cuda0);
  set_random_state({.seed = 77});
  const Tensor as_keys = counted({512}, 1).to(cuda0);
  graph.capture([&] {
    (void)(as_keys * 2);  // frees a block as large as the table of random keys: the keys must not be placed there
    made = draw_all(x, heads);
  });
  const RandomState behind = random_state();
  for (const RandomState& start : starts)
    for (int twice = 0; twice < 2; ++twice) {  // the second replay continues the random sequence of the first
      if (twice == 0) set_random_state(start);
      const RandomState before = random_state();
      const std::vector<Tensor> wanted = draw_all(x, heads);
      const RandomState after = random_state();
      set_random_state(before);
      graph.replay();
      CHECK(random_state() == after);
      check_same(wanted, made);
      CHECK(!equal(made[5].to(cpu), x.to(cpu)));
    }
  // Recording itself does not advance the generator.
  set_random_state({.seed = 77});
  draw_all(x, heads);
  CHECK(random_state() == behind);
}

TEST_CASE("graph: a draw that is made again, draws that are left out, and more of them than one table has") {
  std::vector<Tensor> made;
  const auto body = [&] {
    made.clear();
    const RandomState start = random_state();
    made.push_back(rand({3}, there));
    set_random_state(start);  // like the recomputation of a checkpoint
    made.push_back(rand({3}, there));
    RandomState far = random_state();
    far.call += uint64_t(1) << 32;  // like the offset of an expert's generator
    set_random_state(far);
    made.push_back(rand({3}, there));
    set_random_state({start.seed, start.step, start.micro_batch, start.call + 5});
    for (int i = 0; i < 300; ++i) made.push_back(rand({3}, there));
  };
  set_random_state({.seed = 5});
  Graph graph(cuda0);
  graph.record(body);
  CHECK(random_state() == RandomState{.seed = 5});
  const std::vector<Tensor> replayed = made;
  set_random_state({.seed = 6, .step = 2});
  graph.replay();
  CHECK(random_state() == RandomState{.seed = 6, .step = 2, .call = 305});
  set_random_state({.seed = 6, .step = 2});
  body();
  check_same(made, replayed);
  CHECK(equal(replayed[0].to(cpu), replayed[1].to(cpu)));
  CHECK(!equal(replayed[0].to(cpu), replayed[2].to(cpu)));
}

TEST_CASE("graph: draws of other micro-batches of the step, counted from the one at the start") {
  std::vector<Tensor> made;
  const auto body = [&] {
    made = {rand({3}, there)};
    const RandomState start = random_state();
    set_random_state({start.seed, start.step, start.micro_batch + 3, 2});
    for (int i = 0; i < 2; ++i) made.push_back(rand({3}, there));
    set_random_state({start.seed, start.step, start.micro_batch + 1, 0});
    made.push_back(rand({3}, there));
  };
  set_random_state({.seed = 5, .step = 1});
  Graph graph(cuda0);
  graph.record(body);
  const std::vector<Tensor> replayed = made;
  const RandomState other{.seed = 6, .step = 2, .micro_batch = 3, .call = 9};
  set_random_state(other);
  graph.replay();
  CHECK(random_state() == RandomState{.seed = 6, .step = 2, .micro_batch = 4, .call = 1});
  set_random_state(other);
  body();
  check_same(made, replayed);
}

TEST_CASE("graph: memory that a graph reads is kept, also after its owner frees it") {
  const int64_t before = memory_report(cuda0).total.current;
  {
    Tensor table = full({500}, 2, there);  // a cache that a later call replaces
    Tensor y, z;
    Graph first(cuda0), second(cuda0);
    first.record([&] { y = table * 3; });
    second.record([&] { z = y + table; });
    table = full({500}, 9, there);
    const Tensor other = full({500}, 9, there);  // must not reuse the table's memory
    first.replay();
    second.replay();
    CHECK(y.to_vector<float>()[499] == 6);
    CHECK(z.to_vector<float>()[499] == 8);
    y = Tensor();  // `second` still reads it
    first = Graph(cuda0);
    const Tensor third = full({500}, 7, there);
    second.replay();
    CHECK(z.to_vector<float>()[499] == 8);
  }
  CHECK(memory_report(cuda0).total.current == before);
}
