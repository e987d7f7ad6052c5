// Training steps recorded as a graph end with the same bits as eager steps. Runs on the default device of the tests.
#include <doctest/doctest.h>

#include "nn/container.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "optim/optim.h"
#include "tensor/graph.h"
#include "tensor/ops.h"
#include "tensor/random.h"

using namespace lockstep;

namespace {

struct SmallNet {
  nn::Linear first{{.in = 5, .out = 16}}, second{{.in = 16, .out = 3}};
  nn::LayerNorm norm{{.shape = {16}}};
  optim::AdamW optimizer;

  SmallNet() : optimizer((manual_seed(3), make()), {.lr = 0.05}) {}
  std::vector<Variable> make() {
    std::vector<Variable> all;
    for (nn::Module* m : std::initializer_list<nn::Module*>{&first, &norm, &second})
      for (const Variable& p : m->parameters()) {
        normal_(p.tensor(), 0, 0.5);
        all.push_back(p);
      }
    return all;
  }
  Variable loss(const Tensor& x, const Tensor& y) {
    return cross_entropy(second(norm(first.forward(x, Activation::gelu_tanh))), y);
  }
};

Tensor batch(int step) { return arange(0, 20, 1, {.dtype = f32}).view({4, 5}) * 0.1 - double(step) * 0.3; }

}  // namespace

TEST_CASE("graph: a replayed training step is bit-identical to the step itself") {
  const Tensor target = full({4}, 1, {.dtype = i64});
  std::vector<double> eager, replayed;
  std::vector<Tensor> ends;
  {
    SmallNet net;
    for (int step = 0; step < 5; ++step) {
      net.optimizer.zero_grad(true);
      const Variable loss = net.loss(batch(step), target);
      loss.backward();
      net.optimizer.step();
      eager.push_back(loss.item());
    }
    ends.push_back(net.first.weight.tensor());
  }
  {
    SmallNet net;
    const Tensor x = empty({4, 5}, {.dtype = f32});
    x.copy_(batch(0));
    Tensor loss;
    Graph graph(default_device());
    graph.capture([&] {
      net.optimizer.zero_grad(true);
      const Variable made = net.loss(x, target);
      made.backward();
      loss = made.tensor();
    });
    for (int step = 0; step < 5; ++step) {
      x.copy_(batch(step));
      graph.replay();
      net.optimizer.step();
      replayed.push_back(loss.item());
    }
    ends.push_back(net.first.weight.tensor());
  }
  CHECK(eager == replayed);
  CHECK(eager[4] < eager[0]);
  CHECK(equal(ends[0].to(cpu), ends[1].to(cpu)));
}
