// Graphs on the device: what was recorded is repeated with new values, memory included, and what cannot be is refused.
#include <doctest/doctest.h>

#include <optional>

#include "tensor/graph.h"
#include "tensor/ops.h"
#include "tensor/random.h"
#include "tensor/stream.h"
#include "tests/messages.h"

using namespace lockstep;

namespace {

const Device cuda0{Device::Type::cuda, 0};
const TensorOptions there{.dtype = f32, .device = cuda0};

Tensor numbers(const Shape& shape, double start) {
  return arange(start, start + double(numel_of(shape)), 1, {.dtype = f32, .device = cpu}).view(shape);
}

}  // namespace

TEST_CASE("graph: replays follow the values of the inputs") {
  const Tensor x = empty({5, 7}, there), w = numbers({7, 3}, -4).to(cuda0);
  Tensor y;
  int calls = 0;
  Graph graph(cuda0);
  CHECK(!graph.is_captured());
  graph.capture([&] {
    ++calls;
    const Tensor a = matmul(x, w);  // made and dropped inside: its memory serves b
    const Tensor b = matmul(x, w);
    y = matmul(a, b.t().contiguous());
  });
  CHECK(graph.is_captured());
  CHECK(calls == 2);
  for (const double start : {0.0, 3.0, -8.0}) {
    const Tensor input = numbers({5, 7}, start), product = matmul(input, w.to(cpu));
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
    Tensor old = full({500}, 2, there);  // freed by the recorded function, and read by every replay
    graph->capture([&] {
      y = empty({1000}, there);
      y.copy_(x);
      if (old.defined()) y.slice(0, 0, 500).copy_(old);
      if (Graph::is_capturing()) old = Tensor();
    });
    for (int i = 0; i < 3; ++i) {
      x.fill_(i);
      graph->replay();
      const Tensor other = full({500}, 9, there);  // must not get the memory of `old`
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

TEST_CASE("graph: what a replay would get wrong is an error, and a capture can be tried again") {
  const Tensor x = full({4}, 1, there);
  Graph graph(cuda0);
  CHECK(contains(message([&] { graph.replay(); }), "call capture() first"));
  CHECK(contains(message([&] { graph.capture({}); }), "expected a function"));
  CHECK(contains(message([&] { graph.capture([&] { x.to(cpu); }); }), "while a graph is captured"));
  CHECK(contains(message([&] { graph.capture([&] { synchronize(cuda0); }); }), "while a graph is captured"));
  CHECK(contains(message([&] { graph.capture([&] { next_random_key(); }); }), "random numbers cannot be captured"));
  CHECK(contains(message([&] {
                   graph.capture([&] {
                     if (Graph::is_capturing()) fail("mine");
                   });
                 }),
                 "mine"));
  CHECK(contains(message([&] {
                   graph.capture([&] {
                     if (Graph::is_capturing()) Graph(cuda0).capture([] {});
                   });
                 }),
                 "one inside another"));
  CHECK(!graph.is_captured());
  CHECK(!Graph::is_capturing());
  x.fill_(2);  // the stream works as before
  CHECK(x.to_vector<float>()[0] == 2);
  graph.capture([&] { x.fill_(7); });
  graph.replay();
  CHECK(x.to_vector<float>()[0] == 7);
  CHECK(contains(message([&] { graph.capture([] {}); }), "make another one"));
}

TEST_CASE("graph: on the CPU the function itself runs again") {
  Tensor x = full({3}, 1, {.device = cpu}), y;
  Graph graph(cpu);
  graph.capture([&] { y = x + 1; });
  x.fill_(5);
  graph.replay();
  CHECK(y.to_vector<float>()[2] == 6);
  CHECK(contains(message([&] { Graph(cpu).capture([&] { rand({2}, {.device = cpu}); }); }),
                 "random numbers cannot be captured"));
}
